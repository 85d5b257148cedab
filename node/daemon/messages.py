"""Between the round machine's words and the gossip schemas: signatures are recovered here."""

from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum
from functools import lru_cache

from dlx.ledger.typed import Domain, Report, Seal, SignedContribution, TypedError, recover
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.p2p import wire


class Heard(IntEnum):
    """What a message was that somebody kept for others."""

    JUNK = 0  # none of this run, or signed by nobody
    REFUSED = 1  # of who has no say in it or has said enough, or of no round of now
    NO_NEWS = 2  # of what nobody here follows or can judge yet, or another word than the one that counts
    NEWS = 3  # of a member, about a round that is open or will be soon


MAX_STAGES = 64  # of any run: the ledger takes no more


def contributions_topic(run: bytes) -> str:
    """All members of the run take it: a contribution counts once its replica's other stages have made theirs."""
    return f"/dlx/{run.hex()}/contributions"


def seals_topic(run: bytes, stage: int) -> str:
    """The stage's members take it."""
    return f"/dlx/{run.hex()}/{stage}/seals"


def verdicts_topic(run: bytes) -> str:
    """All members of the run take it."""
    return f"/dlx/{run.hex()}/verdicts"


def evaluations_topic(run: bytes) -> str:
    """All members of the run take it."""
    return f"/dlx/{run.hex()}/evaluations"


def event_of(data: bytes, origin: str, run: bytes, domain: Domain) -> e.AboutRound | None:
    """What an encoded gossip message says, with its signer; None where it is not about a round of this run.

    Raises WireError for bytes that are no gossip message, TypedError for such as are no statement, SignatureError for a
    signature that is nobody's.
    """
    event = _read(data, run, domain)
    return replace(event, peer=origin) if isinstance(event, e.ContributionSeen) else event


def message_of(
    action: a.Statement, run: bytes, stage: int, made: int, sign_report: Callable[[Report], bytes]
) -> wire.GossipMessage:
    """The action as a message; the same one has the same bytes. Reports are signed only now, and say when they were
    `made` (ms)."""
    match action:
        case a.GossipContribution(signed=signed):
            return wire.ContributionMessage(signed.encode())
        case a.GossipProposal(seal=seal):
            return wire.ProposalMessage(run, stage, seal.round, action.attempt, seal.encode(), action.signature)
        case a.GossipAttestation(round=round, digest=digest, signature=signature):
            return wire.AttestationMessage(run, stage, round, digest, signature)
        case a.GossipReport(round=round, holding=holding, missing=missing):
            signature = sign_report(Report(run, round, stage, made, holding, missing))
            return wire.ReportMessage(run, stage, round, made, list(holding), list(missing), signature)
    raise AssertionError(action)


@lru_cache(maxsize=4096)  # a message may come by gossip and by request, and again while it cannot be judged yet
def _read(data: bytes, run: bytes, domain: Domain) -> e.AboutRound | None:
    message = wire.decode(data)
    if isinstance(message, wire.ContributionMessage):
        signed = SignedContribution.decode(message.statement)
        if signed.contribution.run != run:
            return None
        return e.ContributionSeen(signed, signed.signer(domain), "")
    if not isinstance(message, wire.GossipMessage):
        raise wire.WireError("schema", "not a gossip message")
    if isinstance(message, wire.VerdictMessage | wire.EvaluationMessage) or message.run != run:  # others take those
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
            digest = Report(message.run, message.round, message.stage, message.made, holding, missing).digest(domain)
            signer = recover(digest, message.signature)
            return e.ReportSeen(message.round, message.stage, holding, missing, signer, message.made)
