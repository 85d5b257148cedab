"""Founders: nothing is sealed without them before work has weight, and nothing waits for them afterwards."""

from typing import Any

import pytest

from dlx.ledger.typed import Signs, account_of, split_entries
from dlx.node.round.sealing import EMPTY_PATIENCE
from dlx.node.round.vouching import vouched_stages
from tests.node.round.simulation import Simulation, make_rules

ENOUGH_SEALS = 6  # after which work has earned ENOUGH, at the shortest horizon


def signed_by_founder(sim: Simulation, stage: int, round: int) -> bool:
    return any(entry.signs is Signs.FOUNDER for entry in split_entries(sim.view.sealed[stage, round].signatures))


@pytest.mark.parametrize("delay", [0, 1])
def test_before_there_is_weight_every_seal_waits_for_a_founder_and_later_none(delay: int) -> None:
    sim = Simulation(make_rules(rounds=14, delay=delay), replicas=3, seed=1)
    sim.founder_alive = False
    sim.run(lambda: False, 30)
    assert not sim.seals
    said = {one.machine.lacks_founder(sim.now) for one in sim.members.values()} - {None}
    assert said and all(account_of(sim.founder) in str(one) and "has to run" in str(one) for one in said)
    sim.founder_alive = True
    assert sim.run(lambda: sim.view.open_round == ENOUGH_SEALS, 100)
    assert all(signed_by_founder(sim, stage, 0) for stage in range(2))
    assert not any(one.machine.lacks_founder(sim.now) for one in sim.members.values())
    assert sim.run(lambda: not sim.vouching, 20), "it does what members do no longer than it has to"
    sim.founder_alive = False
    assert sim.run(lambda: sim.finished, 100)
    assert not any(signed_by_founder(sim, stage, round) for stage in range(2) for round in (12, 13))


def test_a_founder_with_a_slot_signs_for_both_and_vouches_for_the_other_stages() -> None:
    sim = Simulation(make_rules(rounds=3, stages=3), replicas=2, seed=2, founder=1)
    assert sim.run(lambda: sim.view.open_round == 1, 60)
    assert sorted(sim.vouching) == [0, 2]
    entries = split_entries(sim.view.sealed[1, 0].signatures)
    own = next(entry.signature for entry in entries if entry.signs is Signs.FOUNDER)
    assert [entry.signs for entry in entries if entry.signature == own] == [Signs.SEAL, Signs.FOUNDER]
    assert sim.run(lambda: sim.finished, 60)
    assert not any(member.rejected for member in sim.members.values())


def test_a_stage_is_vouched_for_while_it_is_open_and_lacks_weight_by_who_holds_no_slot_of_it() -> None:
    sim = Simulation(make_rules(rounds=20), replicas=2, seed=3, founder=0, min_replicas=2)
    founder, other = account_of(sim.founder), str(sim.view.member_at(1, 1))
    assert vouched_stages(sim.rules, sim.view, founder, sim.now) == (1,)
    assert vouched_stages(sim.rules, sim.view, other, sim.now) == (), "it is no founder"
    before = Simulation(make_rules(), replicas=1, seed=3, min_replicas=2)
    assert vouched_stages(before.rules, before.view, account_of(before.founder), before.now) == (), "nothing is open"
    assert sim.run(lambda: sim.view.open_round == ENOUGH_SEALS, 100)
    assert vouched_stages(sim.rules, sim.view, founder, sim.now) == ()


@pytest.mark.parametrize("policy", ["clip", "clip+cosine"])
def test_a_founder_measures_what_a_policy_asks_for(policy: str) -> None:
    sim = Simulation(make_rules(rounds=3, policy=policy), replicas=3, seed=4)
    assert sim.run(lambda: sim.finished, 60)


def test_a_founder_signs_an_empty_seal_no_earlier_than_members_would() -> None:
    sim = Simulation(make_rules(rounds=2, stages=1), replicas=2, seed=5)
    sim.serves = lambda member, asker: False  # type: ignore[method-assign]  # so nobody can list another's work
    opened = sim.view.opened_at
    assert opened is not None and sim.run(lambda: (0, 0) in sim.seals, 200)
    sealed = sim.view.sealed[0, 0]
    assert not sealed.records and sealed.at.time >= opened + EMPTY_PATIENCE * sim.rules.round_timeout


def test_a_founder_is_back_after_a_restart_and_takes_a_version_by_hash_where_it_was_long_away() -> None:
    sim = Simulation(make_rules(rounds=12, stages=1), replicas=3, seed=6)
    assert sim.run(lambda: sim.view.open_round == 2, 60)
    before = sim.vouching[0].machine
    sim.founder_alive = False
    sim.run(lambda: False, 5)
    sim.founder_alive = True
    assert sim.run(lambda: sim.view.open_round == 4, 60)
    machine: Any = sim.vouching[0].machine
    assert machine is not before and machine.version >= 3 and machine.waiting_for() is None


def test_a_founder_waits_at_a_stage_that_everybody_left_and_goes_on_with_who_comes() -> None:
    sim = Simulation(make_rules(rounds=6, stages=1), replicas=2, seed=8)
    assert sim.run(lambda: sim.view.open_round == 1, 60)
    for account in list(sim.members):
        sim.leave(account)
    sim.run(lambda: False, 60)
    assert sim.view.open_round == 1 and sim.vouching[0].machine.version == 1
    sim.restart(sim.join("newcomer", 0))
    assert sim.run(lambda: (sim.view.open_round or 0) >= 3, 120)
