"""Who is asked whether it is still there, and when; and how a run comes back after everybody was gone."""

from random import Random

import pytest

from dlx.ledger import events as chain
from dlx.node.round import actions as a
from dlx.node.round.pending import UNWANTED, Pending
from tests.node.round.simulation import Simulation, make_rules


class Asking(Simulation):
    """Notes when each account was accused, and how many changed places in deals."""

    def apply(self, event: chain.Event) -> None:
        super().apply(event)
        if isinstance(event, chain.Accused):
            self.accused.setdefault(event.account, self.now)
        self.dealt += isinstance(event, chain.Dealt)

    def __init__(self, *args: object, **changes: object) -> None:
        self.accused: dict[str, float] = {}
        self.dealt = 0
        super().__init__(*args, **changes)  # type: ignore[arg-type]


def overdue() -> Asking:
    """A run whose stage 1 nobody holds any more: round 1 or so has been open for minutes."""
    sim = Asking(make_rules(rounds=30), replicas=2, seed=1)
    assert sim.run(lambda: (sim.view.open_round or 0) >= 1, 60)
    for replica in range(2):
        sim.kill(str(sim.view.member_at(replica, 1)))
    assert sim.run(lambda: not sim.view.members_in(1), 120)
    sim.run(lambda: False, 100)
    return sim


def test_a_newcomer_to_an_overdue_round_has_a_round_timeout_to_say_something() -> None:
    sim = overdue()
    joined, account = sim.now, sim.join("newcomer", 1)  # its training process loads, say
    assert sim.run(lambda: account in sim.accused, 40), "who stays silent is asked"
    assert sim.accused[account] >= joined + sim.rules.round_timeout - 1, "the block's time is in whole seconds"


def test_a_newcomer_that_speaks_in_its_first_round_timeout_is_not_asked() -> None:
    sim = overdue()
    account = sim.join("newcomer", 1)
    sim.run(lambda: False, 0.75 * sim.rules.round_timeout)
    sealed = sim.view.next_round(1)
    sim.restart(account)
    assert sim.run(lambda: sim.view.next_round(1) > sealed + 3, 120)
    assert account not in sim.accused and account in sim.view.sealed[1, sealed + 1].accounts


def test_who_has_left_and_joined_again_is_new() -> None:
    sim = overdue()
    account = next(account for account in sim.members if not sim.members[account].alive)
    assert account in sim.accused, "it was evicted"
    del sim.accused[account]
    joined = sim.now
    sim.apply(chain.Joined(sim.rules.run, account, 0, 1, sim.at()))
    assert sim.run(lambda: account in sim.accused, 40)
    assert sim.accused[account] >= joined + sim.rules.round_timeout - 1


def test_a_replica_is_not_dealt_for_a_member_that_came_back() -> None:
    """For the ledger its new lane was never counted, so anybody may deal the replica in the same second."""
    sim = Asking(make_rules(rounds=30), replicas=3, seed=6)
    assert sim.run(lambda: (sim.view.open_round or 0) >= 8, 400)
    account = str(sim.view.member_at(1, 1))
    sim.apply(chain.Left(sim.rules.run, account, 1, 1, sim.at()))
    sim.run(lambda: False, 1.5)
    sim.apply(chain.Joined(sim.rules.run, account, 1, 1, sim.at()))
    sim.reslot(account)
    joined = sim.view.next_round(1)
    assert sim.view.may_deal(1) and sim.view.came_back(account)
    assert sim.run(lambda: (sim.view.last_round_counted(account) or 0) >= joined, 400)
    assert not sim.dealt and sim.view.slot_of(account) == (1, 1) and not sim.view.may_deal(1)


def dead() -> Asking:
    """A run of 2x2 whose members all died after some rounds, hours ago."""
    sim = Asking(make_rules(rounds=16), replicas=2, seed=4, train_seconds=2)
    assert sim.run(lambda: (sim.view.open_round or 0) >= 3, 100)
    for account in sim.members:
        sim.kill(account)
    sim.mail.clear()
    sim.now += 7200
    return sim


@pytest.mark.parametrize("stages", [(0, 1), (1, 0)])
def test_one_old_member_of_each_stage_is_enough_to_go_on(stages: tuple[int, int]) -> None:
    """Of two replicas, too: whoever comes back evicts the rest, and moves down into one replica."""
    sim = dead()
    back = [str(sim.view.member_at(replica, stage)) for replica, stage in enumerate(stages)]
    for account in back:
        sim.restart(account)
    assert sim.run(lambda: sim.finished, 600)
    assert set(sim.view.members()) == set(back)
    assert all(sim.view.last_round_counted(account) == 15 for account in back)


def test_newcomers_go_on_from_the_published_versions_where_slots_are_free() -> None:
    sim = dead()
    came = [sim.join(f"newcomer {stage}", stage) for stage in range(2)]
    for account in came:
        assert sim.members[account].machine.version is None
        sim.restart(account)
    assert sim.run(lambda: sim.finished, 600)
    assert set(sim.view.members()) == set(came), "the dead were asked, and evicted"


def test_one_old_member_frees_the_slots_of_a_full_run_for_newcomers() -> None:
    """Who holds no slot may not ask: with every slot taken by the dead, somebody of them has to come back."""
    sim = dead()
    old = str(sim.view.member_at(1, 0))
    sim.restart(old)
    assert sim.run(lambda: set(sim.view.members()) == {old}, 120)
    assert sim.run(lambda: sim.view.slot_of(old) == (0, 0), 60)
    newcomer = sim.join("newcomer", 1)
    sim.restart(newcomer)
    assert sim.run(lambda: sim.finished, 600)


def test_whoever_cannot_be_heard_is_not_asked_for_its_silence() -> None:
    """Stage 2 is gone and holds the round up: its neighbours in the replicas notice, though its own members cannot;
    nobody asks those who are only waiting, each in its own stage's hearing."""
    sim = Asking(make_rules(rounds=12, stages=3, delay=0), replicas=2, seed=3)
    assert sim.run(lambda: (sim.view.open_round or 0) >= 2, 60)
    gone = [str(sim.view.member_at(replica, 2)) for replica in range(2)]
    waiting = set(sim.members) - {*gone}
    for account in gone:
        sim.kill(account)
    died = sim.now
    assert sim.run(lambda: not sim.view.members_in(2), 8 * sim.rules.round_timeout)
    assert all(sim.accused[account] < died + 3 * sim.rules.round_timeout for account in gone)
    assert not waiting & sim.accused.keys()


def test_a_stage_that_nobody_here_hears_is_asked_when_the_round_has_lasted_for_long() -> None:
    """Of three stages the last two are gone: the first one does not hear the silence of the last."""
    sim = Asking(make_rules(rounds=12, stages=3, delay=0), replicas=1, seed=3)
    assert sim.run(lambda: (sim.view.open_round or 0) >= 1, 60)
    last = str(sim.view.member_at(0, 2))
    sim.kill(str(sim.view.member_at(0, 1)))
    sim.kill(last)
    assert sim.run(lambda: last in sim.accused, 9 * sim.rules.round_timeout)
    assert sim.run(lambda: not sim.view.members_in(2), 60)


def test_who_waits_for_a_seal_names_the_silent_and_nobody_where_all_have_signed() -> None:
    sim = Simulation(make_rules(rounds=30, stages=1), replicas=3, seed=1)
    assert sim.run(lambda: (sim.view.open_round or 0) >= 2, 60)
    here, *silent = (str(sim.view.member_at(replica, 0)) for replica in range(3))
    for account in silent:
        sim.kill(account)
    machine = sim.members[here].machine
    assert sim.run(lambda: "too few members" in str(machine.waiting_for(sim.now)), 120)
    assert sim.run(lambda: all(one in str(machine.waiting_for(sim.now)) for one in silent), 120)
    said = str(machine.waiting_for(sim.now))
    assert said.endswith(f", too few members cooperate: nothing is heard of {silent[0]}, {silent[1]})"), said


def test_a_seal_that_enough_have_signed_waits_for_its_transaction_and_not_for_members() -> None:
    sim = Simulation(make_rules(rounds=30, stages=1), replicas=2, seed=1)
    assert sim.run(lambda: (sim.view.open_round or 0) >= 1, 60)
    sim.transact = lambda member, action: not isinstance(action, a.SendSeal)  # type: ignore[method-assign]
    machine = sim.members[str(sim.view.member_at(0, 0))].machine
    sim.run(lambda: False, 3 * sim.rules.round_timeout)
    said = str(machine.waiting_for(sim.now))
    assert "100% of " in said and said.endswith("signed: its transaction)"), said


def test_what_nobody_wants_any_more_does_not_fail_for_ever() -> None:
    pending, action = Pending(Random(1)), a.HaveSamples(3)
    assert pending.start(action, 0.0)
    pending.failed(action, "nobody has them", 0.0)
    (failing,) = pending.failing(0.0)
    assert failing.reason == "nobody has them"
    assert not pending.failing(failing.next_try + UNWANTED + 0.1)
