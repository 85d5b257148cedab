"""Plans that follow what was measured, and policies that weigh contributions, among real round machines."""

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from dlx.ground.constants import UNIT
from dlx.ledger.typed import Plan
from dlx.ledger.view.run_view import RunView
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.rules.plans import ended, plan_fault, plan_of, steps_before
from dlx.training.outer.policy import Against, Measured
from dlx.training.recipe.recipe import Adaptive
from tests.node.round.simulation import DOMAIN, FACTS, RUN, Member, Party, Simulation, make_rules

ADAPTIVE = Adaptive(
    inner_steps=120, window=3, energy=0.5, min_rank=4, max_rank=64, min_inner_steps=3, max_inner_steps=40
)


def adaptive_rules(**changes: Any):  # type: ignore[no-untyped-def]
    sizes = ({rank: 1000 for rank in (4, 5, 8, 11, 16, 22, 32, 45, 64)},) * 2
    values = dict(rounds=200, plan=Plan(4, 16, 5), codec="lowrank", adaptive=ADAPTIVE, max_payload_sizes=sizes)
    return make_rules(**{**values, **changes})


class Measuring(Simulation):
    """Updates have twenty directions of one size."""

    def part_kept(self, member: Member, plan: Plan) -> int:
        return UNIT * min(20, plan.rank) // 20


class Lying(Measuring):
    """The first replicas state another part than their payloads keep."""

    liars, lie = 0, 0

    def part_kept(self, member: Member, plan: Plan) -> int:
        slot = self.view.slot_of(member.account)
        return self.lie if slot is not None and slot[0] < self.liars else super().part_kept(member, plan)


def plans(sim: Simulation, stage: int = 0) -> list[Plan]:
    """Of each sealed round."""
    found = [plan_of(sim.rules, sim.view, stage, round) for round in range(sim.view.next_round(stage))]
    return [plan for plan in found if plan is not None]


@pytest.mark.parametrize("delay", [0, 1])
def test_rank_falls_to_what_the_update_needs_and_the_run_ends_with_its_inner_steps(delay: int) -> None:
    sim = Measuring(adaptive_rules(delay=delay), replicas=2, seed=1, train_seconds=3)
    assert sim.run(lambda: sim.finished, 600)
    assert plans(sim, 1)[-1].rank == 11, "what 8 would keep is not known to be enough"
    total = sum(plan.inner_steps for plan in plans(sim))
    last = plans(sim)[-1].inner_steps
    assert total - last < ADAPTIVE.inner_steps <= total == steps_before(sim.rules, sim.view, len(plans(sim)))
    assert not sim.view.finished, "the ledger would take further rounds"
    sim.run(lambda: False, 40)
    assert all(member.machine.waiting_for(sim.now) == "nothing: the run is finished" for member in sim.alive())
    assert not sim.view.accusations and len(sim.view.members()) == 4, "nobody is asked to go on"
    assert all(not member.rejected for member in sim.members.values())


def test_each_window_moves_one_rung_and_every_stage_takes_stage_0s_steps() -> None:
    sim = Measuring(adaptive_rules(), replicas=2, seed=2, train_seconds=0.2)
    assert sim.run(lambda: sim.finished, 600)
    rungs = {stage: [(plan.rank, plan.inner_steps) for plan in plans(sim, stage)] for stage in (0, 1)}
    changes = [round for round in range(1, len(rungs[0])) if rungs[0][round] != rungs[0][round - 1]]
    assert changes and all((round - sim.rules.delay) % ADAPTIVE.window == 0 for round in changes)
    assert [steps for _, steps in rungs[0]] == [steps for _, steps in rungs[1]]
    assert rungs[0][-1][1] > 5, "rounds of 0.2 s hide no exchange: they grow"
    ladder = sim.rules.ladders.inner_steps
    places = [ladder.index(steps) for _, steps in rungs[0]]
    assert all(abs(after - before) <= 1 for before, after in pairwise(places))


def test_long_rounds_shrink_to_where_the_exchange_still_hides() -> None:
    sim = Measuring(adaptive_rules(round_timeout=60), replicas=2, seed=3, train_seconds=8)
    assert sim.run(lambda: bool(plans(sim)) and plans(sim)[-1].inner_steps == 3, 120)


def test_a_member_that_has_just_come_proposes_the_same_plan() -> None:
    sim = Measuring(adaptive_rules(), replicas=3, seed=4, train_seconds=2)
    assert sim.run(lambda: (sim.view.open_round or 0) >= 2, 60)
    account = sim.view.member_at(1, 0)
    assert account is not None
    sim.kill(account)
    sim.restart(account)
    assert sim.run(lambda: sim.finished, 900)
    assert plans(sim)[-1].rank == 11
    assert all("wrong_seal" not in member.rejected for member in sim.members.values())


@pytest.mark.parametrize("lie", [0, UNIT])
def test_a_minority_that_states_another_part_moves_no_rank(lie: int) -> None:
    sim = Lying(adaptive_rules(stages=1, max_payload_sizes=adaptive_rules().max_payload_sizes[:1]), 3, seed=5)
    sim.liars, sim.lie = 1, lie
    assert sim.run(lambda: sim.view.next_round(0) >= 10, 300)
    assert [plan.rank for plan in plans(sim)[::2]] == [16, 16, 11, 11, 11], "as if nobody had lied"


@pytest.mark.parametrize(("lie", "end"), [(0, 64), (UNIT, 4)])
def test_a_majority_that_states_another_part_gains_no_more_than_the_ladders_ends(lie: int, end: int) -> None:
    """The manifest bounds what it can do: larger payloads for all, or a slower run. Each lie is there to be drawn."""
    sim = Lying(adaptive_rules(stages=1, max_payload_sizes=adaptive_rules().max_payload_sizes[:1]), 3, seed=5)
    sim.liars, sim.lie = 2, lie
    assert sim.run(lambda: sim.finished, 900)
    assert plans(sim)[-1].rank == end and len(sim.view.members()) == 3


def test_a_part_beyond_all_of_it_or_where_no_rank_adapts_is_refused() -> None:
    for rules, lie in ((adaptive_rules(), UNIT + 1), (make_rules(), 1)):
        sim = Simulation(rules, replicas=2, seed=6)
        sim.run(lambda: False, 0.3)
        victim, liar = (sim.members[sim.view.member_at(replica, 0)] for replica in (0, 1))
        sim.feed(victim, e.ContributionSeen(sim.contribution(liar, 0, kept=lie), liar.account, "peer"))
        assert victim.rejected == ["wrong_kept"]


def test_a_plan_that_a_seal_must_not_carry_is_named() -> None:
    sim = Measuring(adaptive_rules(delay=0), replicas=2, seed=6, train_seconds=3)
    assert sim.run(lambda: sim.view.next_round(0) == 2 == sim.view.next_round(1), 100)
    before, lower, right = Plan(4, 16, 5), [UNIT * 8 // 10] * 2, [UNIT // 2] * 2

    def fault(plan: Plan, parts: list[int] | None, round: int = 2, stage: int = 0) -> str:
        return plan_fault(sim.rules, sim.view, stage, round, plan, parts)

    assert fault(before, lower) == fault(before, right) == fault(Plan(4, 11, 3), lower) == "", (
        "the exchanges are hidden"
    )
    assert fault(Plan(4, 22, 3), None) == fault(Plan(4, 11, 3), None) == "", "who lacks a statement cannot tell"
    for plan in (Plan(4, 8, 3), Plan(4, 12, 3), Plan(4, 22, 3), Plan(4, 11, 7), Plan(4, 11, 5), Plan(8, 11, 3)):
        assert "gives Plan(level=4, rank=11, inner_steps=3)" in fault(plan, lower)
    assert "gives Plan(level=4, rank=16, inner_steps=3)" in fault(Plan(4, 11, 3), right)
    for plan in (Plan(4, 8, 3), Plan(4, 16, 9), Plan(8, 16, 3)):
        assert "what was measured gives" in fault(plan, None)
    assert "inside a window" in fault(Plan(4, 11, 3), lower, round=1)
    assert "gives Plan(level=4, rank=11, inner_steps=5)" in fault(Plan(4, 11, 3), lower, stage=1), (
        "stage 0 changes them"
    )
    fixed = make_rules(plan=before)
    assert "manifest fixes" in plan_fault(fixed, sim.view, 0, 2, Plan(4, 11, 5), lower)


class Stopping(Simulation):
    """The held-out losses say that the run is over from round `last` on, but to who is in `blind`."""

    last, blind = 3, frozenset[str]()

    def is_over(self, member: Party, round: int) -> bool:
        return round >= self.last and member.account not in self.blind


@pytest.mark.parametrize(("delay", "stages"), [(0, 1), (0, 2), (1, 2)])
def test_a_run_stops_with_the_seal_that_says_so(delay: int, stages: int) -> None:
    sim = Stopping(make_rules(delay=delay, stages=stages, rounds=50, may_stop=True), replicas=2, seed=1)
    assert sim.run(lambda: sim.finished, 300)
    assert [sim.view.next_round(stage) for stage in range(stages)] == [sim.last + delay + 1] * stages
    assert sim.view.sealed[0, sim.last].outcome.plan.inner_steps == 0 and not sim.view.finished
    sim.run(lambda: False, 40)
    told = "nothing: the run is finished, its held-out loss no longer falls"
    assert {member.machine.waiting_for(sim.now) for member in sim.alive()} == {told}
    assert all(not member.rejected for member in sim.members.values()) and not sim.view.accusations


def test_an_adaptive_run_stops_too() -> None:
    sim = Stopping(adaptive_rules(may_stop=True), replicas=2, seed=1, train_seconds=3)
    assert sim.run(lambda: sim.finished, 300) and sim.view.next_round(0) == sim.last + sim.rules.delay + 1


def test_who_sees_no_end_signs_none_and_the_run_goes_on() -> None:
    """A plan may always stay as it was: so a few ends more or less cost a round, and nobody's slot."""
    sim = Stopping(make_rules(rounds=8, stages=1, may_stop=True), replicas=3, seed=2)
    sim.blind = frozenset(list(sim.members)[:2])
    assert sim.run(lambda: sim.finished, 400)
    assert sim.view.finished and sim.view.next_round(0) == 8
    assert all(sim.view.sealed[0, round].outcome.plan.inner_steps for round in range(8))


def test_a_plan_without_steps_ends_only_a_run_that_may_stop_and_only_by_stage_0() -> None:
    sim = Stopping(make_rules(rounds=50, may_stop=True), replicas=2, seed=3)
    assert sim.run(lambda: sim.view.next_round(0) == 2 == sim.view.next_round(1), 100)
    before = sim.rules.plan
    end = ended(before)

    def fault(stage: int = 0, plan: Plan = end, **rules: Any) -> str:
        over = rules.pop("is_over", True)
        return plan_fault(replace(sim.rules, **rules), sim.view, stage, 2, plan, (), over)

    assert fault() == "" == fault(plan=before)
    assert "held-out losses do not say" in fault(is_over=False)
    assert "manifest fixes" in fault(stage=1) and "manifest fixes" in fault(may_stop=False)
    assert sim.run(lambda: sim.finished, 300)
    over = plan_fault(sim.rules, sim.view, 0, sim.last + 1, before, ())
    assert "after the run's end" in over


class Weighing(Simulation):
    """The last account's payloads are ten times too large and point the other way; each machine rounds differently."""

    def measured(self, member: Member, listed: tuple) -> Measured:
        wobble = random.Random(member.account).uniform(0, 1e-12)
        accounts = [signed.contribution.account for signed in listed]
        loud = max(self.members)
        factors = tuple(1 / (10.5 + wobble) if account == loud else 1.0 - wobble for account in accounts)
        if self.rules.policy != "clip+cosine":
            return Measured(factors)
        others = (len(accounts) - 1 if account == loud else int(loud in accounts) for account in accounts)
        return Measured(factors, tuple(Against(count, count, count) for count in others))


@pytest.mark.parametrize(("policy", "expected"), [("clip", int(UNIT / 10.5)), ("clip+cosine", 0)])
def test_a_policy_weighs_a_loud_contribution_down(policy: str, expected: int) -> None:
    sim = Weighing(make_rules(stages=1, policy=policy, max_payload_sizes=({0: 1000},)), replicas=3, seed=7)
    assert sim.run(lambda: sim.finished, 60)
    for sealed in sim.view.sealed.values():
        multipliers = [record.multiplier for record in sealed.records]
        assert dict(zip(sealed.accounts, multipliers, strict=True))[max(sim.members)] == expected
        assert sorted(multipliers)[1:] == [UNIT, UNIT]
    assert all(not member.rejected for member in sim.members.values())


def test_multipliers_that_the_payloads_do_not_give_are_never_signed() -> None:
    sim = Weighing(make_rules(stages=1, policy="clip", max_payload_sizes=({0: 1000},)), replicas=3, seed=8)
    liar = sim.members[max(sim.members)]
    act = sim.act

    def lie(member: Member, action: a.Action) -> None:
        if isinstance(action, a.MeasurePolicy) and member is liar:
            names, flat = sim.names(action.listed), Measured((1.0,) * len(action.listed))
            sim.done(member, action, e.PolicyMeasured(action.round, names, flat))
        else:
            act(member, action)

    sim.act = lie  # type: ignore[method-assign]
    assert sim.run(lambda: sim.finished, 120)
    assert any("wrong_seal" in member.rejected for member in sim.members.values()), "the liar's proposals"
    assert all(min(record.multiplier for record in sealed.records) < UNIT for sealed in sim.view.sealed.values())


def test_a_failed_measurement_is_tried_again() -> None:
    sim = Weighing(make_rules(rounds=2, stages=1, policy="clip", max_payload_sizes=({0: 1000},)), replicas=2, seed=9)
    act, failed = sim.act, set()

    def once(member: Member, action: a.Action) -> None:
        if isinstance(action, a.MeasurePolicy) and (member.account, action.round) not in failed:
            failed.add((member.account, action.round))
            sim.later(member, e.Failed(action, "out of memory"))
        else:
            act(member, action)

    sim.act = once  # type: ignore[method-assign]
    assert sim.run(lambda: sim.finished, 60)
    assert len(failed) >= 2


def test_a_view_without_the_seals_that_a_plan_rests_on_is_waited_out() -> None:
    class Held(Measuring):
        held = True

        def apply(self, event: Any) -> None:
            self.__dict__.setdefault("events", []).append(event)
            super().apply(event)

        def transact(self, member: Member, action: a.Action) -> bool:
            late = isinstance(action, a.SendSeal) and (action.seal.stage, action.seal.round) == (1, 1)
            return not (late and self.held) and super().transact(member, action)

    sim = Held(adaptive_rules(delay=0), replicas=2, seed=11, train_seconds=3)
    assert sim.run(lambda: sim.view.next_round(0) == 2, 100)
    whole, sim.kept = sim.kept, RunView(RUN, DOMAIN, 1)  # of stage 0 it has the seal of round 1 alone
    for event in sim.events:
        sim.kept.apply(event)
    sim.run(lambda: False, 20)
    sim.kept, sim.held = whole, False
    assert sim.run(lambda: sim.view.next_round(1) == 2, 20)


def test_contributions_wait_until_their_plan_is_known() -> None:
    class Held(Measuring):
        held = True

        def transact(self, member: Member, action: a.Action) -> bool:
            late = isinstance(action, a.SendSeal) and action.seal.stage == 0
            return not (late and self.held) and super().transact(member, action)

    sim = Held(adaptive_rules(delay=0), replicas=2, seed=1, train_seconds=3)
    assert sim.run(lambda: sim.view.next_round(0) == 0 and sim.view.next_round(1) == 1, 100)
    sim.held = False
    victim, other = (sim.members[sim.view.member_at(replica, 1)] for replica in (0, 1))
    sim.feed(victim, e.LedgerSeen(sim.view.copy(), sim.block))
    early = sim.contribution(other, 1, base_weights=sim.view.weights(1, 1))
    assert plan_of(sim.rules, sim.view, 1, 1) is None
    sim.feed(victim, e.ContributionSeen(early, other.account, "peer"))
    assert not victim.rejected and victim.machine.known_round(1)[0] == 0
    assert sim.run(lambda: sim.view.next_round(0) >= 1, 60)
    sim.feed(victim, e.LedgerSeen(sim.view.copy(), sim.block))
    sim.feed(victim, e.PayloadReady(1, early.contribution.payload, FACTS))
    sim.feed(victim, e.StatementSound(1, early.contribution.hash()))
    assert victim.machine.known_round(1)[0] == 0, "stage 0 of its replica has not contributed yet"
    mate = sim.members[sim.view.member_at(1, 0)]
    sim.feed(victim, e.ContributionSeen(sim.contribution(mate, 1), mate.account, "peer"))
    assert victim.machine.known_round(1)[0] == 1
