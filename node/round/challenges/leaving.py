"""When a member may give its slot back: not before what it did is drawn, and what is drawn is checked.

Who leaves earlier and serves nothing withholds its work, and is convicted of that. Not so where it was found honest by
somebody whose turn was earlier: a checker that looks late finds the files of an honest member gone.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dlx.ledger.view.run_view import RunView
from dlx.node.round.challenges.draw import Drawn, drawable, turn_of
from dlx.node.round.challenges.turns import Case, may_check
from dlx.node.round.challenges.verdicts import Finding


@dataclass(frozen=True)
class Owed:
    """What keeps a member: `rounds` of its work that are not drawn yet, and `unchecked` segments that were drawn."""

    rounds: tuple[int, ...] = ()
    unchecked: int = 0

    def __bool__(self) -> bool:
        return bool(self.rounds or self.unchecked)

    def __str__(self) -> str:
        parts = [f"the draw of round {round}" for round in self.rounds]
        if self.unchecked:
            parts.append(f"checks of {self.unchecked} drawn segment{'s'[: self.unchecked != 1]}")
        return ", ".join(parts)


def owed(
    view: RunView, account: str, trained: int | None, drawn: Collection[int], cases: Iterable[Case], window: int
) -> Owed:
    """`trained`: the newest round that it contributed to. `drawn`: the rounds whose draw is known. `cases`: what was
    drawn of the newest `window` rounds, the manifest's."""
    own = {
        (stage, round)
        for round in drawable(view, window)
        if round not in drawn
        for stage in range(view.config.stages)
        if (seal := view.sealed.get((stage, round))) is not None and account in seal.accounts
    }
    slot = view.slot_of(account)
    if slot is not None and trained is not None and trained >= view.next_round(slot[1]):
        own.add((slot[1], trained))
    rounds = {round for stage, round in own if view.jury(stage, account)}
    open = [case for case in cases if case.drawn.account == account and not is_settled(view, case)]
    return Owed(tuple(sorted(rounds)), len(open))


def is_settled(view: RunView, case: Case) -> bool:
    """Whether it was found honest, and too few may still ask for its files to have others doubt that."""
    first = _first_honest(case)
    jury = view.jury(case.drawn.stage, case.drawn.account)
    asking = {one for one in jury if one in case.verdicts or may_check(view, case.drawn, one)}
    if first is None:  # weights change: who is too weak today may convict within the window
        return not asking
    return not _has_a_third(view, case, {one for one in asking if _turn(case, one) < first})


def is_withheld_by_leaving(view: RunView, case: Case, account: str) -> bool:
    """Whether the maker gave its slot back though `account` was still to check the contribution. It was if nobody whose
    turn is earlier found it honest, or if a third of the weight, whose turn is earlier still, found it otherwise."""
    if not has_left_since(view, case.drawn):
        return False
    first = _first_honest(case)
    if first is None or _turn(case, account) < first:
        return True
    alarmed = {by for by, one in case.verdicts.items() if one.finding is not Finding.HONEST}
    return _has_a_third(view, case, {by for by in alarmed if _turn(case, by) < first})


def has_left_since(view: RunView, drawn: Drawn) -> bool:
    """Whether the contribution's maker gave its slot back by itself after the round before was sealed."""
    before = view.sealed.get((drawn.stage, drawn.round - 1))
    left = view.gave_back.get(drawn.account, -1)
    if view.slot_of(drawn.account) is not None and view.joined_at(drawn.account) >= left:
        return False  # it came back
    return left >= (0 if before is None else before.at.time)


def _first_honest(case: Case) -> bytes | None:
    """The turn of the first in the order that was drawn who found it honest."""
    return min((_turn(case, by) for by, one in case.verdicts.items() if one.finding is Finding.HONEST), default=None)


def _turn(case: Case, account: str) -> bytes:
    return turn_of(case.drawn.seed, case.drawn.replica, case.drawn.segment, account)


def _has_a_third(view: RunView, case: Case, accounts: Collection[str]) -> bool:
    """Whether they have half of the weight that convicts, so that one of them is honest where two thirds are."""
    stage, maker = case.drawn.stage, case.drawn.account
    return 2 * view.verdict_votes(stage, maker, accounts) >= view.verdicts_needed(stage, maker)
