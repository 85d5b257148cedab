"""Who leaves with work that is to be checked withholds it, and who waits until it was checked is never to blame."""

from dataclasses import replace

import pytest

from dlx.ledger.events import EventPosition, Left
from dlx.ledger.view.run_view import RunView
from dlx.node.round.challenges import leaving, turns
from dlx.node.round.challenges.draw import drawn_of, seals_of
from dlx.node.round.challenges.leaving import Owed
from dlx.node.round.challenges.turns import Case
from dlx.node.round.challenges.verdicts import Finding
from tests.node.round.challenges.test_turns import KEYS, judged, order
from tests.node.round.simulation import RUN, Simulation, digest, make_rules

WINDOW = 8


@pytest.fixture(scope="module")
def view() -> RunView:
    """Four replicas of two stages whose work has all the weight."""
    sim = Simulation(make_rules(rounds=40), replicas=4, seed=1)
    assert sim.run(lambda: (sim.view.open_round or 0) >= 21, 300)
    assert all(not sim.view.vacuum(stage, 0) for stage in range(2))
    KEYS.update({account: member.key for account, member in sim.members.items()})
    return sim.view


@pytest.fixture
def case(view: RunView) -> Case:
    seals = seals_of(view, view.next_round(0) - 2)
    assert seals is not None
    return Case(drawn_of(seals, digest("block"), 1.0, 2)[0], since=100.0)


def left(view: RunView, account: str, **changes: int) -> RunView:
    after, slot = view.copy(), view.slot_of(account)
    assert slot is not None
    newest = view.sealed[0, view.next_round(0) - 1].at
    at = replace(newest, **({"time": newest.time + 1} | changes))
    assert isinstance(at, EventPosition)
    after.apply(Left(RUN, account, *slot, at))
    return after


def jury_of(view: RunView, case: Case) -> list[str]:
    jury = view.jury(case.drawn.stage, case.drawn.account)
    return [one for one in order(view, case) if one in jury]


def test_who_left_before_anybody_checked_withholds_and_who_is_evicted_does_not(view: RunView, case: Case) -> None:
    maker, (checker, *_) = case.drawn.account, order(view, case)
    assert not leaving.is_withheld_by_leaving(view, case, checker)
    assert leaving.is_withheld_by_leaving(left(view, maker), case, checker)
    gone = view.copy()
    gone._release(maker, case.drawn.replica, case.drawn.stage, view.round_opened_at)  # as silence does
    assert not leaving.is_withheld_by_leaving(gone, case, checker)
    assert all(leaving.is_withheld_by_leaving(left(view, maker), case, one) for one in jury_of(view, case))


def test_leaving_is_nothing_in_a_round_that_was_begun_later(view: RunView, case: Case) -> None:
    before = view.sealed[case.drawn.stage, case.drawn.round - 1].at.time
    assert leaving.has_left_since(left(view, case.drawn.account, time=before), case.drawn)
    assert not leaving.has_left_since(left(view, case.drawn.account, time=before - 1), case.drawn)


def test_whose_turn_is_later_takes_the_word_of_who_found_it_honest(view: RunView, case: Case) -> None:
    gone, (first, second, third, *_) = left(view, case.drawn.account), order(view, case)
    found = judged(case, **{second: Finding.HONEST})
    assert leaving.is_withheld_by_leaving(gone, found, first)
    assert not leaving.is_withheld_by_leaving(gone, found, third)
    a, b, c = jury_of(view, case)
    alarmed = judged(case, **{a: Finding.WITHHELD, b: Finding.WITHHELD, c: Finding.HONEST})
    last = order(view, case)[-1]
    assert last == c or leaving.is_withheld_by_leaving(gone, alarmed, last), "a third of the weight says otherwise"


def test_a_minority_of_liars_convicts_nobody_who_waited(view: RunView, case: Case) -> None:
    """The first of the jury found it honest; then it left, and another cries that it withholds."""
    a, b, c = jury_of(view, case)
    found = judged(case, **{a: Finding.HONEST})
    first = order(view, case)[0]
    found = judged(found, **{first: Finding.HONEST}) if first != a else found
    assert leaving.is_settled(view, found)
    gone, cried = left(view, case.drawn.account), judged(found, **{c: Finding.WITHHELD})
    assert not leaving.is_withheld_by_leaving(gone, cried, b)
    assert not turns.conviction(gone, [cried])


def test_it_is_settled_when_too_few_may_still_ask(view: RunView, case: Case) -> None:
    a, b, c = jury_of(view, case)
    assert not leaving.is_settled(view, case)
    assert not leaving.is_settled(view, judged(case, **{c: Finding.HONEST})), "two came before it"
    assert leaving.is_settled(view, judged(case, **{a: Finding.HONEST}))
    assert leaving.is_settled(view, judged(case, **{a: Finding.HONEST, b: Finding.WITHHELD, c: Finding.WITHHELD}))


def test_a_member_owes_what_is_not_drawn_and_what_is_not_checked(view: RunView, case: Case) -> None:
    maker, newest = case.drawn.account, view.next_round(case.drawn.stage) - 1
    known = range(newest - WINDOW + 1, newest + 1)
    assert not leaving.owed(view, maker, newest, known, [], WINDOW)
    assert leaving.owed(view, maker, newest, known, [case], WINDOW) == Owed((), 1)
    assert leaving.owed(view, maker, newest, known[:-1], [], WINDOW) == Owed((newest,), 0)
    assert leaving.owed(view, maker, newest + 1, known, [], WINDOW) == Owed((newest + 1,), 0), "its seal is to come"
    honest = judged(case, **{jury_of(view, case)[0]: Finding.HONEST})
    assert not leaving.owed(view, maker, newest, known, [honest], WINDOW)
    others = next(one for one in view.members() if one != maker)
    assert not leaving.owed(view, others, newest, known, [case], WINDOW)
    assert str(Owed((), 1)) == "checks of 1 drawn segment"
    assert str(Owed((7, 8), 2)) == "the draw of round 7, the draw of round 8, checks of 2 drawn segments"


def test_who_cannot_be_convicted_need_not_wait() -> None:
    """As where all others are gone, or there never was any."""
    sim = Simulation(make_rules(rounds=8), replicas=1, seed=1, founder=0)
    assert sim.run(lambda: (sim.view.open_round or 0) >= 3, 100)
    founder = sim.view.founders[0]
    assert not leaving.owed(sim.view, founder, 3, [], [], WINDOW)
