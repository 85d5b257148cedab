"""An auditor's recount of one seal: what the contract checked, what it left to others, from the events alone."""

from collections.abc import Iterator
from dataclasses import dataclass

from dlx.ledger.events import Sealed
from dlx.ledger.keys import SignatureError
from dlx.ledger.typed import Contribution, Domain, SignedContribution, TypedError, summarise
from dlx.ledger.view import RunView


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a seal: which check failed, on which contribution or other hash (if any), and how."""

    check: str
    round: int
    stage: int
    hash: bytes | None
    detail: str


def verify_seal(before: RunView, sealed: Sealed, domain: Domain) -> list[Problem]:
    """Everything wrong with a seal, given the run as it was right before it (`before` is not changed).

    Recounts order, previous hashes, membership of contributors and signers at that moment, every signature, the
    quorum, and all that the seal states about its contributions. The payloads are level 2's business.
    """
    found = [
        *_order(before, sealed),
        *_digest(sealed, domain),
        *_quorum(before, sealed),
        *_contributions(before, sealed, domain),
    ]
    return [Problem(check, sealed.round, sealed.stage, name, detail) for check, name, detail in found]


_Found = Iterator[tuple[str, bytes | None, str]]


def _order(before: RunView, sealed: Sealed) -> _Found:
    seal, stage = sealed.seal, sealed.stage
    if (seal.run, seal.round, seal.stage) != (before.run, sealed.round, stage):
        yield "order", None, f"the seal is of round {seal.round}, stage {seal.stage}, the event of another"
    if stage >= before.config.stages or sealed.round >= before.config.rounds:
        yield "order", None, "the run has no such round or stage"
        return
    if sealed.round != before.open_round or sealed.round != before.next_round(stage):
        yield "order", None, f"round {before.open_round} was open and {before.next_round(stage)} due"
        return
    if seal.previous_weights != before.weights(stage, sealed.round):
        yield "previous weights", seal.previous_weights, "not the weights that the round before sealed"
    if seal.previous_momentum != before.momentum(stage, sealed.round):
        yield "previous momentum", seal.previous_momentum, "not the momentum that the round before sealed"


def _digest(sealed: Sealed, domain: Domain) -> _Found:
    if sealed.seal.digest(domain) != sealed.digest:
        yield "digest", sealed.digest, "not the digest of the seal in the event"


def _quorum(before: RunView, sealed: Sealed) -> _Found:
    try:
        signers = sealed.signers
    except (SignatureError, TypedError) as error:
        yield "seal signatures", None, str(error)
        return
    if list(signers) != sorted(set(signers), key=lambda account: int(account, 16)):
        yield "seal signatures", None, "signers are not strictly ascending"
    holders = set(before.holders(sealed.stage))
    for signer in signers:
        if signer not in holders:
            yield "seal signatures", None, f"{signer} signed without holding a slot of the stage"
    votes, needed = len(set(signers) & set(before.voters(sealed.stage))), before.quorum(sealed.stage)
    if votes < needed:
        yield "quorum", None, f"{votes} of the {needed} signatures needed"


def _contributions(before: RunView, sealed: Sealed, domain: Domain) -> _Found:
    seal = sealed.seal
    try:
        records = sealed.contributions
    except TypedError as error:
        yield "contributions", seal.contributions_hash, str(error)
        return
    for record in records:
        for detail in _faults(before, sealed, record.contribution):
            yield "contribution", record.contribution.hash(), detail
        if (fault := _signature_fault(record, domain)) is not None:
            yield "contribution signature", record.contribution.hash(), fault
    summary = summarise(records)
    for name, stated, counted in (
        ("contributions root", seal.contributions_root, summary.root),
        ("contributions hash", seal.contributions_hash, summary.hash),
        ("count", seal.count, summary.count),
        ("total tokens", seal.total_tokens, summary.total_tokens),
        ("mean loss", seal.mean_loss, summary.mean_loss),
        ("multipliers", len(seal.multipliers), summary.count),
    ):
        if stated != counted:
            yield name, None, f"stated {_show(stated)}, recounted {_show(counted)}"
    if not records:
        yield from _empty(before, sealed)


def _faults(before: RunView, sealed: Sealed, c: Contribution) -> Iterator[str]:
    if (c.run, c.round, c.stage) != (before.run, sealed.round, sealed.stage):
        yield f"{c.account} contributed to another run, round or stage"
    if before.slot_of(c.account) != (c.replica, c.stage):
        yield f"{c.account} did not hold slot ({c.replica}, {c.stage}) when it was counted"
    if c.inner_steps == 0 or c.tokens != c.inner_steps * before.config.tokens_per_step:
        yield f"{c.account} states {c.tokens} tokens for {c.inner_steps} inner steps"


def _signature_fault(record: SignedContribution, domain: Domain) -> str | None:
    try:
        record.verify(domain)
    except SignatureError as error:
        return f"{record.contribution.account}: {error}"
    return None


def _empty(before: RunView, sealed: Sealed) -> _Found:
    seal = sealed.seal
    if (seal.next_weights, seal.next_momentum) != (seal.previous_weights, seal.previous_momentum):
        yield "empty seal", seal.next_weights, "an empty seal must leave weights and momentum as they are"
    if before.opened_at is None or sealed.at.time < before.opened_at + before.config.round_timeout:
        yield "empty seal", None, "sealed before the round timeout"


def _show(value: bytes | int) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
