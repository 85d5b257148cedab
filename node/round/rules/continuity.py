"""Does a statement follow from what its account stated before, and from the stage's seals?

Nearly everything that a statement says of its start can be recomputed. Which payload of its own is in the start and
which ones are folded back follows from round numbers and seals. The states before are those after the account's
previous contribution, and the weights before are the base version less that payload. Where a run's starts have a part
of the slots' residuals too, only the files of a drawn contribution give the weights before, and level 3 compares them.
Attesters and auditors ask the same.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dlx.ground.constants import NO_HASH
from dlx.ledger.typed import PRIVATE_DATA, STATE_RESET, Contribution
from dlx.ledger.view.run_view import RunView
from dlx.node.round.rules.plans import RESET_WINDOW, RESETS, Terms
from dlx.node.round.rules.round_rules import base_version, is_folded, is_left_out

FLAGS = PRIVATE_DATA | STATE_RESET
LOOKED_BACK = 4  # contributions of the account before one, whose plans a check of it may need
PREVIOUS, START = "wrong_previous", "wrong_start"  # reasons of refusal


class Fault(NamedTuple):
    """What a statement says against its past: a short metric label, and the rest of a sentence about the statement."""

    reason: str
    detail: str


TOO_OFTEN = Fault("too_many_resets", f"states a reset, after {RESETS} in {RESET_WINDOW} rounds")


class Counted(NamedTuple):
    """An account's newest contribution to a stage before some round that a seal counts: its round and name."""

    round: int
    name: bytes


def named_wrongly(statement: Contribution, counted: Counted | None) -> Fault | None:
    """What is wrong with the name of its previous contribution, before anybody has looked at that."""
    if statement.previous == NO_HASH:
        if counted is not None and not statement.flags & STATE_RESET:  # who lost everything says so
            return Fault(PREVIOUS, f"names no previous contribution, but one to round {counted.round} was counted")
    elif statement.round == 0:
        return Fault(PREVIOUS, "names a previous contribution, to the first round")
    elif counted is not None and counted.round == statement.round - 1 and counted.name != statement.previous:
        return Fault(
            PREVIOUS, f"names {statement.previous.hex()} as its previous contribution, not {counted.name.hex()}"
        )
    return None


def next_needed(terms: Terms, statement: Contribution, earlier: Sequence[Contribution]) -> bytes | None:
    """The name of the next earlier statement by which `statement` is judged, where `earlier` (newest first) are those
    that were asked for before; None where it needs no more."""
    if not earlier:
        return statement.previous if statement.previous != NO_HASH else None
    previous = earlier[0]
    further = len(earlier) == 1 and terms.delay == 1 and not (statement.flags | previous.flags) & STATE_RESET
    if not further or previous.previous == NO_HASH or not is_folded(terms, previous.round - 1, statement.round):
        return None
    return previous.previous


def start_of(terms: Terms, statement: Contribution, earlier: Sequence[Contribution]) -> bytes:
    """The payload that its start has to contain; NO_HASH for none."""
    if terms.delay == 0 or terms.alpha == 0 or statement.flags & STATE_RESET or not earlier:
        return NO_HASH
    return earlier[0].payload if earlier[0].round == statement.round - 1 else NO_HASH


def is_start_public(terms: Terms, statement: Contribution) -> bool:
    """Whether its weights before follow from public blobs: there is no residual in them."""
    return not terms.ahead or statement.change_before == NO_HASH


def last_counted(view: RunView, account: str, stage: int, before: int) -> Counted | None:
    """As far as the view has the seals."""
    for round in range(min(before, view.next_round(stage)) - 1, view.sealed.oldest(stage) - 1, -1):
        sealed = view.sealed[stage, round]
        for record, maker in zip(sealed.records, sealed.accounts, strict=True):
            if maker == account:
                return Counted(round, record.statement)
    return None


def counted_before(terms: Terms, view: RunView, statement: Contribution) -> list[bytes]:
    """The names of its account's contributions that seals of its stage count, within RESET_WINDOW rounds of it, newest
    first. Only seals before its base version are looked at: whoever can judge the statement has these."""
    first = max(view.sealed.oldest(statement.stage), statement.round - RESET_WINDOW + 1)  # older ones: it came too late
    rounds = range(base_version(terms, statement.round) - 1, first - 1, -1)
    seals = (view.sealed[statement.stage, round] for round in rounds)
    made = (pair for sealed in seals for pair in zip(sealed.records, sealed.accounts, strict=True))
    return [record.statement for record, account in made if account == statement.account]


def left_out_by(view: RunView) -> Callable[[Contribution], bool]:
    """Whether the seal of a contribution's round leaves it out."""
    return lambda one: is_left_out(view, one.stage, one.round, one.hash())


def faults(
    terms: Terms,
    unused: bytes,
    statement: Contribution,
    earlier: Sequence[Contribution],
    counted: Counted | None,
    left_out: Callable[[Contribution], bool],
    start: bytes | None,
) -> list[Fault]:
    """Everything that is wrong with a statement whose base version and plan are right, and that is not `named_wrongly`.

    `unused`: the hash of the stage's optimiser state of zeros. `earlier`: the statements that `next_needed` names.
    `counted`: of its account, before its round. `start`: the hash of the base version less alpha times the payload that
    `start_of` names; None where it names none, the start is not public, or nobody could compute it.
    """
    previous = earlier[0] if earlier else None
    if wrong := _previous(statement, previous, counted):
        return [Fault(PREVIOUS, wrong)]
    found = []
    if statement.flags & ~FLAGS:
        found.append(Fault("wrong_flags", f"has the flags {statement.flags}, of which some mean nothing"))
    own = start_of(terms, statement, earlier)
    if statement.start_payload != own:
        found.append(Fault(START, f"has {_name(statement.start_payload)} in its start, not {_name(own)}"))
    before = statement.base_weights if own == NO_HASH and is_start_public(terms, statement) else start
    if before is not None and statement.weights_before != before:
        stated = statement.weights_before.hex()
        found.append(Fault(START, f"starts from the weights {stated}, not from {before.hex()}"))
    folds, due = _folds(statement), _due(terms, statement, earlier, left_out)
    if folds != due:
        found.append(Fault("wrong_folded", f"folds back {_names(folds)}, its seals left out {_names(due)}"))
    if previous is not None and not statement.flags & STATE_RESET:
        ended = previous.optimiser_after, previous.change, previous.payload
        whence = "its previous contribution ended with"
    else:
        ended, whence = (unused, NO_HASH, NO_HASH), "a state that was never used is"
    begun = statement.optimiser_before, statement.change_before, statement.payload_before
    for what, begins, ends in zip(("optimiser state", "change", "payload"), begun, ended, strict=True):
        if begins != ends:
            found.append(Fault("wrong_state", f"begins with the {what} {begins.hex()}, {whence} {ends.hex()}"))
    return found


def _previous(statement: Contribution, previous: Contribution | None, counted: Counted | None) -> str:
    if previous is None:
        return ""
    if (previous.run, previous.stage, previous.account) != (statement.run, statement.stage, statement.account):
        return "names as its previous contribution one of another account, stage or run"
    if previous.round >= statement.round:
        return f"names as its previous contribution one to round {previous.round}"
    if counted is not None and (
        previous.round < counted.round or (previous.round == counted.round and previous.hash() != counted.name)
    ):
        return f"names {previous.hash().hex()} as its previous contribution, but later {counted.name.hex()} was counted"
    return ""


def _due(
    terms: Terms, statement: Contribution, earlier: Sequence[Contribution], left_out: Callable[[Contribution], bool]
) -> list[bytes]:
    """The own payloads that have to be folded back, oldest first: those decided since the previous contribution was
    trained, which looked at all that were decided before."""
    if statement.flags & STATE_RESET or not earlier:
        return []
    undecided = [one for one in earlier[1:] if one.round > earlier[0].round - 1 - terms.delay]
    due = [one for one in (*reversed(undecided), earlier[0]) if is_folded(terms, one.round, statement.round)]
    return [one.payload for one in due if left_out(one)]


def _folds(statement: Contribution) -> list[bytes]:
    both = [statement.folded_payload, statement.folded_payload2]
    while both and both[-1] == NO_HASH:
        both.pop()
    return both


def _names(payloads: Sequence[bytes]) -> str:
    return " and ".join(map(_name, payloads)) or "nothing"


def _name(payload: bytes) -> str:
    return "no payload" if payload == NO_HASH else payload.hex()
