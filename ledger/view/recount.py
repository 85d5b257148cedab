"""An auditor's recount of one seal or conviction: everything that the contract checked, from the events alone."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from dlx.ledger.events import Convicted, Sealed
from dlx.ledger.keys import SignatureError
from dlx.ledger.typed import SignedVerdict, TypedError, Verdict, recover, split_conviction, split_entries
from dlx.ledger.view.run_view import RunView


@dataclass(frozen=True)
class Problem:
    """One thing wrong: which check failed, on which contribution or other hash (if any), and how."""

    check: str
    round: int
    stage: int
    hash: bytes | None
    detail: str


def verify_seal(before: RunView, sealed: Sealed) -> list[Problem]:
    """Everything wrong with a seal, given the run as it was right before it (`before` is not changed).

    Recounts its place and time, the chain of digests, the bounds of plan and steps, who made each record, every
    signature and the votes. Statements, payloads and outcome are for those who have the blobs.
    """
    if (place := _place(before, sealed)) is not None:
        return [Problem("order", sealed.round, sealed.stage, None, place)]
    found = [*_digest(before, sealed), *_outcome(before, sealed), *_records(sealed), *_signatures(before, sealed)]
    return [Problem(check, sealed.round, sealed.stage, name, detail) for check, name, detail in found]


def verify_conviction(before: RunView, convicted: Convicted) -> list[Problem]:
    """Everything wrong with a conviction, given the run as it was right before it, with all seals of the stage.

    Recounts every signature, the findings and the votes; and looks for the contribution in the seal of its round, which
    the contract cannot. Whether it was false is for those who replay it.
    """
    if convicted.stage >= before.config.stages:
        found = [("verdicts", "the run has no such stage")]
    else:
        found = [*_verdicts(before, convicted), *_accused(before, convicted)]
    round, stage, statement = convicted.round, convicted.stage, convicted.statement
    return [Problem(check, round, stage, statement, detail) for check, detail in found]


def _verdicts(before: RunView, convicted: Convicted) -> Iterator[tuple[str, str]]:
    stage, account, signers = convicted.stage, convicted.account, set[str]()
    try:
        found = split_conviction(convicted.entries)
    except TypedError as error:
        yield "verdicts", str(error)
        return
    for entry in found:
        verdict = Verdict(before.run, stage, convicted.round, account, convicted.statement, entry.finding, entry.report)
        if verdict.convicts:
            with suppress(SignatureError):  # the contract passes over it
                signers.add(SignedVerdict(verdict, entry.signature).signer(before.domain))
    if not before.may_convict(stage, account, signers):
        votes, needed = len(signers & {*before.jury(stage, account)}), before.convictions_needed(stage, account)
        yield "verdicts", f"{votes} of the {needed} needed to convict {account}"


def _accused(before: RunView, convicted: Convicted) -> Iterator[tuple[str, str]]:
    place = convicted.stage, convicted.round
    sealed = before.sealed[place] if convicted.round < before.next_round(convicted.stage) else None
    counted = () if sealed is None else zip(sealed.records, sealed.accounts, strict=True)
    if not any((record.statement, maker) == (convicted.statement, convicted.account) for record, maker in counted):
        yield "accused", f"no seal of round {convicted.round} counts this contribution by {convicted.account}"


_Found = Iterator[tuple[str, bytes | None, str]]


def _place(before: RunView, sealed: Sealed) -> str | None:
    if sealed.stage >= before.config.stages or sealed.round >= before.config.rounds:
        return "the run has no such round or stage"
    if not sealed.round == before.open_round == before.next_round(sealed.stage):
        return f"round {before.open_round} was open and {before.next_round(sealed.stage)} due"
    return None


def _digest(before: RunView, sealed: Sealed) -> _Found:
    try:
        digest = sealed.seal(before.head(sealed.stage)).digest(before.domain)
    except TypedError as error:
        yield "digest", sealed.digest, str(error)
        return
    if digest != sealed.digest:
        yield "digest", sealed.digest, "not the digest of what the event says after the stage's seal before"


def _outcome(before: RunView, sealed: Sealed) -> _Found:
    outcome, max_steps = sealed.outcome, before.config.max_inner_steps
    for name, steps in (("this round", outcome.inner_steps), ("the next plan", outcome.plan.inner_steps)):
        if not 1 <= steps <= max_steps:
            yield "plan", None, f"{name} has {steps} inner steps, where the run allows 1 to {max_steps}"
    changes = any(map(any, outcome.hashes))
    if changes and not sealed.records:
        yield "empty seal", outcome.weights, "a seal that counts nothing must change nothing"
    if sealed.records and not (any(outcome.weights) and any(outcome.weights_root)):
        yield "outcome", outcome.weights, "a seal that counts contributions must say what weights they gave"


def _records(sealed: Sealed) -> _Found:
    for record in sealed.records:
        if not 1 <= record.inner_steps <= sealed.outcome.inner_steps:
            planned = sealed.outcome.inner_steps
            yield "inner steps", record.statement, f"replica {record.replica}: {record.inner_steps}, not 1 to {planned}"


def _signatures(before: RunView, sealed: Sealed) -> _Found:
    stage, made, signers = sealed.stage, set[int](), set[str]()
    records = {record.replica: record for record in sealed.records}
    try:
        found = split_entries(sealed.signatures)
    except TypedError as error:
        yield "signatures", None, str(error)
        return
    for entry in found:
        record, digest = records.get(entry.replica), sealed.digest
        if entry.of_record:
            if record is None:
                continue
            digest = record.digest(before.domain, before.run, sealed.round, stage)
        try:
            account = recover(digest, entry.signature)
        except SignatureError:
            continue  # the contract passes over it
        if not entry.of_record:
            signers.add(account)
        if before.admissible(account, stage, entry.replica):
            made.add(entry.replica)
    for replica, record in records.items():
        if replica not in made:
            yield "record signature", record.statement, f"the maker of replica {replica}'s record did not sign it"
    yield from _votes(before, sealed, signers)


def _votes(before: RunView, sealed: Sealed, signers: set[str]) -> _Found:
    stage, now = sealed.stage, sealed.at.time
    votes, needed = before.votes(stage, signers), before.needed(stage, signers, now)
    if votes < needed:
        yield "quorum", None, f"{votes} of the {needed} votes needed"
    opens_at = before.opens_at(stage, sealed.count, signers)
    if now < opens_at:
        yield "time", None, f"sealed {opens_at - now} s before a seal of {sealed.count} contributions may be"
