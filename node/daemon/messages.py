"""Between the round machine's words and the gossip schemas: signatures are recovered here, and made here."""

import os

from dlx.ledger.typed import Domain, Report, Seal, SignedContribution, TypedError, recover, sign
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.p2p import wire


def event_of(message: wire.GossipMessage, origin: str, run: bytes, domain: Domain) -> e.Event | None:
    """What a peer's statement says, with its signer; None where it is about another run.

    Raises TypedError for bytes that are no statement, SignatureError for a signature that is nobody's.
    """
    if isinstance(message, wire.ContributionMessage):
        signed = SignedContribution.decode(message.statement)
        return e.ContributionSeen(signed, signed.signer(domain), origin)
    if message.run != run:
        return None
    match message:
        case wire.ProposalMessage():
            seal = Seal.decode(message.seal)
            if (seal.run, seal.stage, seal.round) != (message.run, message.stage, message.round):
                raise TypedError("a proposal's seal is about another round")
            signer = recover(seal.digest(domain), message.signature)
            return e.ProposalSeen(seal, message.attempt, message.signature, signer)
        case wire.AttestationMessage():
            signer = recover(message.digest, message.signature)
            return e.AttestationSeen(message.round, message.stage, message.digest, message.signature, signer)
        case wire.ReportMessage():
            holding, missing = tuple(message.holding), tuple(message.missing)
            digest = Report(message.run, message.round, message.stage, holding, missing).digest(domain)
            return e.ReportSeen(message.round, message.stage, holding, missing, recover(digest, message.signature))


def message_of(action: a.Statement, run: bytes, stage: int, domain: Domain, key: bytes) -> wire.GossipMessage:
    """The action as a message; a fresh nonce lets it be repeated. Reports are signed here with the account's key."""
    nonce = os.urandom(8)
    match action:
        case a.GossipContribution(signed=signed):
            return wire.ContributionMessage(nonce, signed.encode())
        case a.GossipProposal(seal=seal):
            return wire.ProposalMessage(nonce, run, stage, seal.round, action.attempt, seal.encode(), action.signature)
        case a.GossipAttestation(round=round, digest=digest, signature=signature):
            return wire.AttestationMessage(nonce, run, stage, round, digest, signature)
        case a.GossipReport(round=round, holding=holding, missing=missing):
            signature = sign(Report(run, round, stage, holding, missing).digest(domain), key)
            return wire.ReportMessage(nonce, run, stage, round, list(holding), list(missing), signature)
    raise AssertionError(action)
