"""Who checks what was drawn, and when; who alarms for nothing; and when a conviction is due: decisions over plain data.

Each drawn segment of a contribution is a case of its own. Who comes before in the order that was drawn settles it with
a verdict of honest; nobody else does, or a liar's own other slot would. It settles no other segment. A founder takes
nobody's word as long as founders hold a part of the stage's weight: who makes work up may have most of the slots then.
A verdict that it is false, or withheld, makes the whole jury of its stage check that segment as well, whatever that
costs. That ends where as much weight of a jury as convicts contradicted its author before.

The ledger convicts for a contribution, so the verdicts on all its segments count together, one of each checker. Who
found one segment false has said what he has to say of the contribution, and checks no other one of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from eth_utils import keccak, to_canonical_address

from dlx.ledger.view.run_view import RunView
from dlx.node.round.challenges.draw import Drawn, checkers, turn_of
from dlx.node.round.challenges.verdicts import Finding, ReportedVerdict

TURN_TIMEOUTS = 2  # round timeouts that each checker is given before the next one takes over
SERVE_TIMEOUTS = 4  # round timeouts for which each checker asks again for a blob of which nothing comes
SLOW_TIMEOUTS = 16  # and in which it may come slowly: who sends less than all of it in both together withholds it
MAX_TURNS = 8  # of a conviction; then everybody sends it


@dataclass(frozen=True)
class Case:
    """A drawn segment of a contribution, and what was heard of it."""

    drawn: Drawn
    since: float  # when its draw became known here
    verdicts: Mapping[str, ReportedVerdict] = field(default_factory=dict)  # by checker


@dataclass
class Wanted:
    """A blob that a checker has asked for in vain. Time in which it came is no silence, nor is what the checker then
    took for other work: but only so much of it, else dripping would put a verdict off for ever. Times in seconds."""

    since: float  # Unix time of the first asking
    _excused: float = 0.0
    _slow_since: float | None = None

    def in_vain(self, now: float, came: float) -> None:
        """Once more; in the try that ends `now` it came for `came` seconds, and was still coming, or not at all."""
        if came:
            self._slow_since = now - came if self._slow_since is None else self._slow_since
        else:
            self._excused, self._slow_since = self._slow(now), None

    def is_withheld(self, now: float, round_timeout: float) -> bool:
        slow = min(self._slow(now), SLOW_TIMEOUTS * round_timeout)
        return now - self.since - slow >= SERVE_TIMEOUTS * round_timeout

    def _slow(self, now: float) -> float:
        return self._excused + (0.0 if self._slow_since is None else now - self._slow_since)


def next_check(
    cases: Iterable[Case], view: RunView, account: str, now: float, round_timeout: float, has_budget: bool
) -> Case | None:
    """What `account` checks next, if anything: where there is an alarm first, then the oldest whose turn has come."""
    cases = list(cases)
    ignored, mine = discredited(cases, view), _left_to(cases, view, account)
    for case in mine:
        if is_alarmed(case, ignored) and account in view.jury(case.drawn.stage, case.drawn.account):
            return case
    for case in mine if has_budget and view.slot_of(account) is not None else ():
        honest = (by for by, one in case.verdicts.items() if one.finding is Finding.HONEST)
        if any(_turn_of(case.drawn, by) < _turn_of(case.drawn, account) for by in honest):
            continue
        if now >= case.since + turn(view, case.drawn, account) * TURN_TIMEOUTS * round_timeout:
            return case
    if has_budget and view.is_founder(account):
        return next((case for case in mine if view.vacuum(case.drawn.stage, int(now))), None)
    return None


def awaits(
    cases: Iterable[Case], view: RunView, account: str, now: float, round_timeout: float, has_budget: bool
) -> str | None:
    """Why segments that were drawn have not been replayed by anybody, as far as `account` knows: what they wait for.
    None where there are none, or where the account checks one now."""
    cases = list(cases)
    unchecked = [case for case in cases if not case.verdicts and not view.is_convicted(case.drawn.account)]
    if not unchecked or next_check(cases, view, account, now, round_timeout, has_budget) is not None:
        return None
    mine = _left_to(unchecked, view, account) if view.slot_of(account) is not None else []
    if not mine:
        return "for others: who has a part in a replica's work does not check it, nor does who has no slot"
    if not has_budget:
        return "for more of the seconds that audit_share allows"
    waits = min(turn(view, case.drawn, account) * TURN_TIMEOUTS * round_timeout + case.since - now for case in mine)
    return f"for checkers that the draw puts before this node; its turn is in {max(0.0, waits):.0f} s"


def may_check(view: RunView, drawn: Drawn, account: str) -> bool:
    """Whether a verdict of the account counts: it holds a slot in another replica, or is a founder without a slot, and
    has no part in the work."""
    slot = view.slot_of(account)
    is_apart = view.is_founder(account) if slot is None else slot[0] != drawn.replica
    return is_apart and account not in drawn.team


def turn(view: RunView, drawn: Drawn, account: str) -> int:
    """How many check before the account. Raises ValueError where it may not check."""
    able = [member for member in view.members() if may_check(view, drawn, member)]
    return checkers(drawn.seed, drawn.replica, drawn.segment, able).index(account)


def _turn_of(drawn: Drawn, account: str) -> bytes:
    return turn_of(drawn.seed, drawn.replica, drawn.segment, account)


def _left_to(cases: Iterable[Case], view: RunView, account: str) -> list[Case]:
    """Those that a verdict of the account could still add something to."""
    cases = list(cases)
    accused = {case.drawn.statement for case in cases if _accuses(case, account)}
    return [
        case
        for case in cases
        if account not in case.verdicts
        and case.drawn.statement not in accused
        and not view.is_convicted(case.drawn.account)
        and may_check(view, case.drawn, account)
    ]


def _accuses(case: Case, account: str) -> bool:
    said = case.verdicts.get(account)
    return said is not None and said.finding is not Finding.HONEST


def is_alarmed(case: Case, ignored: frozenset[str] = frozenset()) -> bool:
    """Whether somebody who is to be heard says that it is false or withheld."""
    return any(one.finding is not Finding.HONEST for by, one in case.verdicts.items() if by not in ignored)


def discredited(cases: Iterable[Case], view: RunView) -> frozenset[str]:
    """Whose alarms move nobody any more: as much weight as would convict found honest what they did not."""
    found = set()
    for case in filter(is_alarmed, cases):
        stage, accused = case.drawn.stage, case.drawn.account
        honest = {by for by, one in case.verdicts.items() if one.finding is Finding.HONEST}
        if view.verdict_votes(stage, accused, honest) >= view.verdicts_needed(stage, accused):
            found |= case.verdicts.keys() - honest
    return frozenset(found)


def by_contribution(cases: Iterable[Case]) -> dict[bytes, list[Case]]:
    """The cases of each statement."""
    found: dict[bytes, list[Case]] = {}
    for case in cases:
        found.setdefault(case.drawn.statement, []).append(case)
    return found


def conviction(view: RunView, cases: Sequence[Case]) -> list[ReportedVerdict]:
    """The verdicts that convict the maker of a contribution now, of which `cases` are the drawn segments; none where
    they do not. Of each checker the first that does not say honest."""
    against: dict[str, ReportedVerdict] = {}
    for case in filter(is_alarmed, cases):
        jury = view.jury(case.drawn.stage, case.drawn.account)
        for by, one in case.verdicts.items():
            if by in jury and one.finding is not Finding.HONEST:
                against.setdefault(by, one)
    if not against:
        return []
    stage, accused = cases[0].drawn.stage, cases[0].drawn.account
    return list(against.values()) if view.may_convict(stage, accused, against.keys()) else []


def conviction_delay(view: RunView, statement: bytes, account: str, proposal_timeout: float) -> float:
    """Seconds that the account leaves to those who send the conviction for the statement before it."""
    question = b"convict" + statement
    order = sorted(view.members(), key=lambda member: keccak(question + to_canonical_address(member)))
    place = order.index(account) if account in order else len(order)
    return min(place, MAX_TURNS) * proposal_timeout


def has_worked_since(view: RunView, drawn: Drawn, asked: float, round_timeout: float) -> bool:
    """Whether the maker was there long after it was `asked` in vain, as a seal of any stage shows. Who
    is down serves nothing, and may lose its slot for that alone, but not for good."""
    seals = (
        view.sealed[stage, round]
        for stage in range(view.config.stages)
        for round in range(max(drawn.round + 1, view.sealed.oldest(stage)), view.next_round(stage))
    )
    return any(seal.at.time >= asked + round_timeout and drawn.account in seal.accounts for seal in seals)


def unpaid(share: float, audit_share: float) -> str | None:
    """What is said where a run draws `share` of its work, and members give less of their time to checks: `audit_share`.

    None where that pays for them: a replay takes about as long as the training of the same steps.
    """
    if share <= audit_share:
        return None
    return (
        f"audit.share {share:g}: about as much of the seconds trained goes to replaying others' work, and audit_share "
        f"{audit_share:g} of the nodes' settings allows less: some of what is drawn stays unchecked"
    )


def summary(cases: Iterable[Case]) -> dict[str, int]:
    """How many segments were drawn and checked, each stage's by itself, and how many are honest, false or withheld.

    Where verdicts differ the worst that as many as any other say counts.
    """
    found = {"drawn": 0, "checked": 0, **{finding.word: 0 for finding in Finding}}
    for case in cases:
        found["drawn"] += 1
        if case.verdicts:
            found["checked"] += 1
            found[prevailing(list(case.verdicts.values())).word] += 1
    return found


def prevailing(verdicts: Sequence[ReportedVerdict]) -> Finding:
    """What most checkers found; of what equally many did, the worst."""
    counts = {finding: sum(one.finding is finding for one in verdicts) for finding in Finding}
    worst_first = (Finding.FALSE, Finding.WITHHELD, Finding.HONEST)
    return max(worst_first, key=lambda finding: counts[finding])
