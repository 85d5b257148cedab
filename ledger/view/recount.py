"""An auditor's recount of one seal or conviction: everything that the contract checked, from the events alone."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from dlx.ledger.events import Convicted, Sealed
from dlx.ledger.keys import SignatureError
from dlx.ledger.typed import SignedVerdict, Signs, TypedError, Verdict, recover, split_conviction, split_entries
from dlx.ledger.view.run_view import RunView
from dlx.ledger.view.seals import fraction, least


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
    signature and the weights. Statements, payloads and outcome are for those who have the blobs.
    """
    if (place := _place(before, sealed)) is not None:
        return [Problem("order", sealed.round, sealed.stage, None, place)]
    found = [*_digest(before, sealed), *_outcome(before, sealed), *_records(sealed), *_signatures(before, sealed)]
    return [Problem(check, sealed.round, sealed.stage, name, detail) for check, name, detail in found]


def verify_conviction(before: RunView, convicted: Convicted) -> list[Problem]:
    """Everything wrong with a conviction, given the run as it was right before it, with all seals of the stage.

    Recounts every signature, the findings and the weights; and looks for the contribution in the seal of its round,
    which the contract cannot. Whether it was false is for those who replay it.
    """
    if convicted.stage >= before.config.stages:
        found = [("verdicts", "the run has no such stage")]
    else:
        found = [*_verdicts(before, convicted), *_accused(before, convicted)]
    round, stage, statement = convicted.round, convicted.stage, convicted.statement
    return [Problem(check, round, stage, statement, detail) for check, detail in found]


def _verdicts(before: RunView, convicted: Convicted) -> Iterator[tuple[str, str]]:
    stage, account = convicted.stage, convicted.account
    signers, newest = set[str](), 0
    try:
        found = split_conviction(convicted.entries)
    except TypedError as error:
        yield "verdicts", str(error)
        return
    for entry in found:
        verdict = Verdict(before.run, stage, convicted.round, account, convicted.statement, entry.finding, entry.report)
        with suppress(SignatureError):  # the contract passes over it, and over those that do not ascend
            signer = SignedVerdict(verdict, entry.signature).signer(before.domain)
            if verdict.convicts and signer != account and int(signer, 16) > newest:
                signers.add(signer)
                newest = int(signer, 16)
    if not before.may_convict(stage, account, signers):
        votes = before.verdict_votes(stage, account, signers)
        needed = before.verdicts_needed(stage, account)
        yield "verdicts", f"{votes} of the weight of {needed} needed to convict {account}"


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
    for name, fewest, steps in (("this round", 1, outcome.inner_steps), ("the next plan", 0, outcome.plan.inner_steps)):
        if not fewest <= steps <= max_steps:
            yield "plan", None, f"{name} has {steps} inner steps, where the run allows {fewest} to {max_steps}"
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
    stage, makers, signers, founder, newest = sealed.stage, dict[int, str](), set[str](), False, 0
    records = {record.replica: record for record in sealed.records}
    try:
        found = split_entries(sealed.signatures)
    except TypedError as error:
        yield "signatures", None, str(error)
        return
    for entry in found:
        record, digest = records.get(entry.replica), sealed.digest
        if entry.signs is Signs.RECORD:
            if record is None:
                continue
            digest = record.digest(before.domain, before.run, sealed.round, stage)
        try:
            account = recover(digest, entry.signature)
        except SignatureError:
            continue  # the contract passes over it
        if entry.signs is Signs.FOUNDER:
            founder = founder or before.is_founder(account)
            continue
        if entry.signs is Signs.SEAL and before.member(account).holds:
            signers.add(account)
        elif entry.signs is Signs.SEAL and before.member(account).stage == stage and int(account, 16) > newest:
            signers.add(account)  # those without a slot ascend
            newest = int(account, 16)
        if record is not None and before.admissible(account, stage, entry.replica):
            makers[entry.replica] = account
    for replica, record in records.items():
        if replica not in makers:
            yield "record signature", record.statement, f"the maker of replica {replica}'s record did not sign it"
    yield from _weights(before, sealed, [*makers.values()], signers, founder)


def _weights(before: RunView, sealed: Sealed, makers: list[str], signers: set[str], founder: bool) -> _Found:
    now = sealed.at.time
    open_for, config = now - before.round_opened_at, before.config
    found = before.weigh(sealed.stage, makers, signers, now, founder)
    needed = least(config, found.total, open_for)
    if found.votes < needed:
        yield "quorum", None, f"the signatures have a weight of {found.votes} of the {needed} needed"
    enough = found.makers >= fraction(config, found.total)
    opens = config.min_round_time if enough else config.round_timeout
    if open_for < opens:
        yield "time", None, f"sealed {opens - open_for} s before a seal of {sealed.count} contributions may be"
