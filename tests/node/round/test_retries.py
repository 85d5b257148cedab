"""What fails is tried again less and less often, says why, and begins anew after a success."""

from random import Random
from typing import Any

import pytest

from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.pending import Pending
from tests.node.round.simulation import Member, Simulation, make_rules
from tests.node.round.test_adaptive import Measuring, adaptive_rules

NOW = 1_000.0


def test_one_attempt_at_a_time_and_a_longer_wait_after_each_failure() -> None:
    pending, action = Pending(Random(1)), a.Send("evict", "somebody")
    now, waits = NOW, []
    for failures in range(1, 9):
        assert pending.start(action, now) and not pending.start(action, now + 10**6), "it is under way"
        pending.failed(action, "refused", now)
        (failing,) = pending.failing(now)
        assert failing[:3] == ("SendEvict", "refused", failures)
        waits.append(failing.next_try)
        assert not pending.start(action, now + 0.99 * failing.next_try)
        now += failing.next_try
    whole = [min(action.retry.first * 2**n, action.retry.cap) for n in range(8)]
    assert all(0.75 * most <= wait <= most for wait, most in zip(waits, whole, strict=True))
    assert pending.start(action, now)
    pending.done(action)
    assert not pending.failing(now) and pending.start(action, now)
    pending.failed(action, "refused", now)
    assert pending.failing(now)[0].next_try <= action.retry.first, "after a success it is the first failure again"


def test_other_accounts_are_other_subjects_and_what_nobody_wants_any_more_is_forgotten() -> None:
    pending = Pending(Random(1))
    assert pending.start(a.Send("accuse", "one"), NOW) and pending.start(a.Send("accuse", "two"), NOW)
    pending.failed(a.Send("accuse", "one"), "refused", NOW)
    pending.see(1, NOW + 1)
    assert len(pending.failing(NOW)) == 1
    pending.see(2, NOW + 10 * a.Send("accuse").retry.cap)
    assert not pending.failing(NOW) and not pending.start(a.Send("accuse", "two"), NOW), "that one is still under way"


def test_a_mined_transaction_is_not_sent_again_before_the_view_has_its_block() -> None:
    pending, action = Pending(Random(1)), a.Send("answer")
    pending.see(10, NOW)
    assert pending.start(action, NOW)
    pending.done(action, not_before_block=14)
    for block in (11, 13):
        pending.see(block, NOW + 1000)
        assert not pending.start(action, NOW + 1000)
    pending.see(14, NOW + 1000)
    assert pending.start(action, NOW + 1000)


@pytest.mark.parametrize("confirmations", [0, 4])
def test_a_seal_is_sent_once_however_long_the_view_takes_to_show_it(confirmations: int) -> None:
    sim = Simulation(make_rules(rounds=4, stages=1, confirmations=confirmations), replicas=1, seed=1)
    sent = []
    act, views = sim.act, {sim.block: sim.view.copy()}

    def count(member: Member, action: a.Action) -> None:
        if isinstance(action, a.SendSeal):
            sent.append(action.seal.round)
        act(member, action)

    def feed(member: Member, event: e.Event, real: Any = sim.feed) -> None:
        if isinstance(event, e.LedgerSeen):  # the newest view with enough blocks on top
            views[sim.block] = sim.view.copy()
            shown = max(block for block in views if block <= max(10, sim.block - confirmations))
            event = e.LedgerSeen(views[shown], sim.block)
        real(member, event)

    sim.act, sim.feed = count, feed  # type: ignore[method-assign]
    assert sim.run(lambda: sim.finished, 120)
    assert sent == [0, 1, 2, 3]


def failing_replica(sim: Simulation, reason: str = "the loss is nan", local: bool = False) -> list[float]:
    """Every round that a member of replica 0 starts fails at once; when the starts were."""
    bad, starts, act = {sim.view.member_at(0, stage) for stage in range(sim.rules.stages)}, [], sim.act

    def failing(member: Member, action: a.Action) -> None:
        if member.account not in bad or not isinstance(action, a.StartRound):
            act(member, action)
            return
        starts.append(sim.now)
        sim.disconnect(member.account)
        sim.later(member, e.RoundAbandoned(action.round, reason, local))
        sim.connect(member.account)

    sim.act = failing  # type: ignore[method-assign]
    return starts


def test_a_round_that_always_fails_is_started_less_and_less_often() -> None:
    rules = make_rules(rounds=40, delay=0, round_timeout=10, straggler_grace=4, proposal_timeout=2)
    sim = Simulation(rules, replicas=2, seed=1)
    starts = failing_replica(sim)
    sim.run(lambda: False, 17)
    assert 4 <= len(starts) <= 14, "by two members; it was 46"
    member = sim.members[str(sim.view.member_at(0, 0))]
    assert [one.action for one in member.machine.failing(sim.now)] == ["StartRound"]
    assert "rounds failed in a row" in str(member.machine.waiting_for(sim.now))
    del sim.act  # from now on rounds succeed
    assert sim.run(lambda: member.machine.last_trained >= 0, 60)
    begun = member.machine.last_trained
    assert sim.run(lambda: member.machine.last_trained >= begun + 3, 40), "after a success nothing waits"


def test_trouble_of_this_machine_stops_its_work_and_is_said_until_it_is_over() -> None:
    sim = Simulation(make_rules(rounds=12), replicas=2, seed=2)
    victim = sim.members[str(sim.view.member_at(0, 0))]
    full, started, act = [True], [], sim.act

    def disk_full(member: Member, action: a.Action) -> None:
        if member is victim and isinstance(action, a.StartRound):
            started.append(sim.now)
        if member is victim and full and isinstance(action, a.FetchPayload | a.ComputeOuter | a.AdoptVersion):
            sim.later(member, e.Failed(action, "No space left on device", local=True))
        else:
            act(member, action)

    sim.act = disk_full  # type: ignore[method-assign]
    sim.run(lambda: bool(victim.machine.failing(sim.now)), 30)
    sim.run(lambda: False, 5)
    begun = len(started)
    sim.run(lambda: False, 20)
    assert len(started) == begun, "it takes no round"
    assert victim.machine.waiting_for(sim.now) == "this machine: No space left on device"
    assert victim.machine.diverged is None and sim.view.slot_of(victim.account) is not None
    full.clear()
    assert sim.run(lambda: sim.finished, 200)
    assert sim.view.last_round_counted(victim.account) == 11, "it goes on when there is room"


def test_a_training_process_that_dies_ends_its_round_and_no_other_is_started_before_it_is_back() -> None:
    sim = Simulation(make_rules(rounds=8), replicas=2, seed=3, train_seconds=2)
    victim = sim.members[str(sim.view.member_at(0, 1))]
    assert sim.run(lambda: victim.training is not None, 30)
    victim.training = None
    sim.disconnect(victim.account)
    sim.feed(victim, e.TrainerGone("SIGKILL"))
    sim.connect(victim.account)
    sim.run(lambda: False, 10)
    assert victim.training is None and "SIGKILL" in str(victim.machine.waiting_for(sim.now))
    sim.feed(victim, e.TrainerBack())
    assert sim.run(lambda: sim.finished, 200)
    assert sim.view.last_round_counted(victim.account) == 7


def test_evidence_is_kept_when_the_disk_takes_it_again() -> None:
    sim = Simulation(make_rules(rounds=3), replicas=2, seed=8)
    sim.run(lambda: False, 0.5)
    liar, victim = (sim.members[str(sim.view.member_at(replica, 1))] for replica in (1, 0))
    act, full = sim.act, [True]

    def disk_full(member: Member, action: a.Action) -> None:
        if full and isinstance(action, a.KeepEvidence):
            sim.later(member, e.Failed(action, "No space left on device", local=True))
        else:
            act(member, action)

    sim.act = disk_full  # type: ignore[method-assign]
    for loss in (1, 2):
        sim.feed(victim, e.ContributionSeen(sim.contribution(liar, 0, loss=loss), liar.account, "peer"))
    sim.run(lambda: False, 3)
    assert not victim.evidence
    full.clear()
    assert sim.run(lambda: len(victim.evidence) == 1, 40)


def test_a_reorg_that_takes_back_a_plan_puts_off_what_rests_on_it() -> None:
    """In an adaptive run, with a payload of the next round on its way."""
    sizes = ({rank: 1000 for rank in (4, 5, 8, 11, 16, 22, 32, 45, 64)},)
    sim = Measuring(adaptive_rules(stages=1, delay=0, max_payload_sizes=sizes), replicas=3, seed=1)
    victim, wanted, views, act = next(iter(sim.members.values())), [], {}, sim.act

    def slow(member: Member, action: a.Action) -> None:
        views.setdefault(sim.view.next_round(0), sim.view.copy())
        if member is victim and isinstance(action, a.FetchPayload):
            wanted.append(action)
            sim.later(member, e.Failed(action, "nobody has it"))
        else:
            act(member, action)

    sim.act = slow  # type: ignore[method-assign]
    assert sim.run(
        lambda: (
            sim.view.next_round(0) >= 3
            and any(one.signed.contribution.round == sim.view.next_round(0) for one in wanted)
        ),
        100,
    )
    round = sim.view.next_round(0)
    asked = list(victim.machine.handle(e.LedgerSeen(views[round - 1], sim.block), sim.now))
    for _ in range(100):
        sim.now += 0.1
        asked += victim.machine.handle(e.Tick(), sim.now)
    rounds = [action.signed.contribution.round for action in asked if isinstance(action, a.FetchPayload)]
    assert round not in rounds, "no plan says how it would have to decode"
