"""Rounds that a founder's node seals empty and alone: against who holds all slots and signs nothing, and not against
honest members that are late."""

from itertools import pairwise
from typing import Any

import pytest

from dlx.ledger.typed import account_of
from dlx.node.round import actions as a
from dlx.node.round.sealing import ALONE_PATIENCE
from tests.node.round.simulation import Member, Simulation, make_rules, signed_by

ROUNDS = 32  # empty ones in a row, after which a stage stands still


def captured(
    worked: int = 0, stages: int = 1, horizon: int = 8, seals_empty: bool = True, founder: int | None = None
) -> Simulation:
    """Two captors hold all slots of the last stage. They say nothing any more after so many rounds of work."""
    rules = make_rules(400, stages, round_timeout=6, straggler_grace=4)
    sim = Simulation(rules, replicas=2, seed=11, spare=0, horizon=horizon, founder=founder)
    sim.seals_empty = seals_empty
    assert sim.run(lambda: (sim.view.open_round or 0) >= worked, 60)
    for captor in captors(sim):
        captor.mute = True
    return sim


def captors(sim: Simulation) -> list[Member]:
    return [sim.members[account] for account in sim.view.members_in(sim.rules.stages - 1)]


def timeouts(sim: Simulation, count: float) -> float:
    return count * sim.rules.round_timeout


def is_alone(sim: Simulation, stage: int, round: int) -> bool:
    """Whether nobody but the founder stands behind the seal."""
    return signed_by(sim.view.sealed[stage, round]) == {account_of(sim.founder)}


def succeed(sim: Simulation) -> None:
    """The founder frees all slots of the captors' stage, and others take them."""
    stage = sim.rules.stages - 1
    for captor in captors(sim):
        sim.kill(captor.account)
        sim.dismiss(captor.account)
    sim.run(lambda: False, 2)
    for name in ("first successor", "second successor"):
        sim.restart(sim.join(name, stage))


@pytest.mark.parametrize(("worked", "stages"), [(0, 2), (2, 1)])
def test_captors_that_sign_nothing_are_dismissed_and_the_run_goes_on(worked: int, stages: int) -> None:
    sim = captured(worked, stages)
    first = sim.view.next_round(stages - 1)
    may_dismiss = sim.view.may_dismiss(account_of(sim.founder), captors(sim)[0].account, int(sim.now))
    assert may_dismiss == (worked == 0), "else the founder has to show first that the stage stands still"
    assert sim.run(lambda: sim.view.stands_still(stages - 1), timeouts(sim, ALONE_PATIENCE + 6 * ROUNDS))
    sim.run(lambda: False, timeouts(sim, 12))
    rounds = range(first, sim.view.next_round(stages - 1))
    assert len(rounds) == ROUNDS, "it uses up no more rounds than that takes"
    assert all(is_alone(sim, stages - 1, round) for round in rounds)
    assert not any(sim.view.sealed[stages - 1, round].records for round in rounds)
    succeed(sim)
    before = sim.view.stages[stages - 1].non_empty
    assert sim.run(lambda: sim.view.stages[stages - 1].non_empty > before + 2, 200)
    reasons = {reason for member in sim.members.values() for reason in member.rejected}
    assert "not_the_proposer" not in reasons, "members are told of no proposal"


def test_unless_its_operator_wants_it_a_founder_seals_nothing_alone() -> None:
    sim = captured(2, seals_empty=False)
    sim.run(lambda: False, timeouts(sim, 30))
    assert sim.view.open_round == 2


def test_a_founder_that_holds_a_slot_of_another_stage_does_it_too() -> None:
    sim = captured(1, stages=2, founder=0)
    assert sim.view.slot_of(account_of(sim.founder)) == (0, 0)
    assert sim.run(lambda: sim.view.next_round(1) == 4, timeouts(sim, 20))
    assert all(is_alone(sim, 1, round) and not sim.view.sealed[1, round].records for round in range(1, 4))


def test_the_wait_begins_when_it_is_wanted() -> None:
    sim = captured(2, seals_empty=False)
    sim.run(lambda: False, timeouts(sim, 30))
    sim.seals_empty = True
    sim.run(lambda: False, timeouts(sim, ALONE_PATIENCE - 1))
    assert sim.view.open_round == 2
    assert sim.run(lambda: sim.view.open_round == 3, timeouts(sim, 2))


@pytest.mark.parametrize("train_seconds", [1.0, 20.0])
def test_members_that_are_late_are_not_overtaken(train_seconds: float) -> None:
    """Also where a part of them is away for a while, or all. A round takes 1.7 timeouts, or a part of one."""
    sim = Simulation(make_rules(400, 1, delay=0), replicas=3, seed=12, train_seconds=train_seconds, horizon=128)
    sim.seals_empty = True
    accounts = list(sim.members)
    assert sim.run(lambda: sim.view.open_round == 1, 200)
    for away in (accounts[:2], accounts):
        for account in away:
            sim.kill(account)
        sim.run(lambda: False, timeouts(sim, 4))
        for account in away:
            sim.restart(account)
        before = sim.view.next_round(0)
        assert sim.run(lambda: sim.view.next_round(0) > before, 400)  # noqa: B023
    sim.run(lambda: False, timeouts(sim, 5))
    rounds = range(sim.view.next_round(0))
    assert all(sim.view.sealed[0, round].records for round in rounds)
    assert not any(is_alone(sim, 0, round) for round in rounds)


def test_it_stops_as_soon_as_members_seal_again() -> None:
    sim = captured(2)
    assert sim.run(lambda: sim.view.open_round == 6, timeouts(sim, 40))
    for member in captors(sim):
        member.mute = False
    assert sim.run(lambda: (sim.view.open_round or 0) >= 14, timeouts(sim, 20))
    assert not any(is_alone(sim, 0, round) for round in range(7, 14))
    assert all(sim.view.sealed[0, round].records for round in range(7, 14))


def test_a_stage_that_everybody_left_is_not_sealed() -> None:
    sim = Simulation(make_rules(20, 1), replicas=2, seed=13)
    sim.seals_empty = True
    assert sim.run(lambda: sim.view.open_round == 1, 60)
    for account in list(sim.members):
        sim.leave(account)
    sim.run(lambda: False, timeouts(sim, 30))
    assert sim.view.open_round == 1


def test_who_contributes_and_signs_nothing_only_has_the_longer_time() -> None:
    sim = captured(2)
    act: Any = sim.act
    for captor in captors(sim):
        captor.mute = False

    def signs_nothing(member: Member, action: a.Action) -> None:
        if not isinstance(action, a.SignSeal):
            act(member, action)

    sim.act = signs_nothing  # type: ignore[method-assign]
    assert sim.run(lambda: sim.view.open_round == 5, timeouts(sim, 45))
    machine: Any = sim.vouching[0].machine
    sim.run(lambda: False, timeouts(sim, 1))
    assert machine._known.state(5).contributions, "they work in each round"
    opened = [sim.view.sealed[0, round].at.time for round in range(2, 5)]
    assert all(is_alone(sim, 0, round) and not sim.view.sealed[0, round].records for round in range(2, 5))
    assert all(later - one > timeouts(sim, ALONE_PATIENCE) for one, later in pairwise(opened))


def test_captors_that_let_one_round_in_30_timeouts_through_are_dismissed() -> None:
    sim = captured(horizon=32)
    while not sim.view.stands_still(0):
        assert sim.view.next_round(0) < 100
        worked = sim.view.stages[0].non_empty
        for captor in captors(sim):
            captor.mute = False
        assert sim.run(lambda: sim.view.stages[0].non_empty > worked, timeouts(sim, 6))  # noqa: B023
        for captor in captors(sim):
            captor.mute = True
        sim.run(lambda: sim.view.stands_still(0), timeouts(sim, 30))
    assert sim.view.next_round(0) == 64 and sim.view.stages[0].empties < ROUNDS
    succeed(sim)
    before = sim.view.stages[0].non_empty
    assert sim.run(lambda: sim.view.stages[0].non_empty > before + 2, 200)
