"""How many steps a round has time for, and a run in which one replica is four times slower."""

import statistics
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from dlx.ledger import events as chain
from dlx.ledger.typed import Plan
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.rules.pace import (
    TRIAL_STEPS,
    End,
    Lap,
    Pace,
    Speed,
    fewest_steps,
    reference,
    steps_within,
    trial_steps,
    whole,
)
from dlx.training.slot.segments import segments_in
from tests.node.round.simulation import RUN, Member, Party, Simulation, make_rules

STEPS = 40
SPEED = Speed(fixed=2.0, step=0.5)


def test_a_round_ends_when_the_lower_median_of_the_replicas_does() -> None:
    ends = {"a": End(130, 1), "b": End(110, 1), "c": End(120, 1), "d": End(140, 1)}
    assert reference(ends) == "c" and reference({"a": ends["a"], "c": ends["c"]}) == "c"
    assert reference({"b": End(120, 1), "a": End(120, 1)}) == "a"
    assert whole(STEPS, SPEED, [Lap(30, (STEPS,)), Lap(180, (STEPS, STEPS)), Lap(31, (STEPS,))]) == (
        31,
        0.5,
    )  # a hiccup is none


def test_a_short_lap_counts_for_the_whole_round_that_it_would_have_been() -> None:
    """So that nobody who does fewer steps pulls the others down with it."""
    seconds, blur = whole(STEPS, SPEED, [Lap(SPEED.seconds(5), (5,))])
    assert seconds == pytest.approx(SPEED.seconds(STEPS))
    assert blur == pytest.approx(SPEED.seconds(STEPS) / SPEED.seconds(5)), "and so does what it may be wrong by"


def _seen(delay: int, laps: float, late: float = 0.0, grace: float = 0.0) -> Pace:
    """Of "me", whose rounds take 20 s, after five rounds that open every 30 s: the other's take so many."""
    pace = Pace("me", delay, grace, None)
    for round in range(5):
        pace.opened(round, 30.0 * round)
        pace.contributed(round, "other", STEPS, 30.0 * round + laps + (late if round == 4 else 0.0))
        pace.contributed(round, "me", STEPS, 30.0 * round + 20)
        pace.trained(round, STEPS, 20.0, 0.5)
    pace.sealed({round: frozenset(("me", "other")) for round in range(5)})
    return pace


def test_who_begins_late_ends_with_the_others_all_the_same() -> None:
    """A replica that began late and one that is slow are different things: the first is no slower."""
    pace = _seen(0, 20.0)
    pace.opened(5, 150.0)
    assert pace.steps(5, STEPS, ("me", "other"), 150.0) == STEPS
    assert pace.steps(5, STEPS, ("me", "other"), 160.0) == 20, "it ends at 170, and so do we"
    faster = _seen(0, 21.0)
    faster.opened(5, 150.0)
    assert faster.steps(5, STEPS, ("me", "other"), 161.0) == 20, "also who is the faster of two"


def test_who_is_still_at_the_round_before_ends_that_first() -> None:
    """With a delay the next round is open while this one trains: the faster of two that is late is waited for."""
    pace = _seen(1, 15.0, late=9.0)
    pace.opened(5, 130.0)
    pace.opened(6, 150.0)  # we are done with round 5 at 150; the other began it at 144, and will be at 159
    assert pace.steps(6, STEPS, ("me", "other"), 150.0) == STEPS, "it ends at 174"
    pace.contributed(5, "other", STEPS, 150.5)
    assert pace.steps(6, STEPS, ("me", "other"), 151.0) == 29, "sooner than expected: it ends at 165.5"


def test_who_is_a_little_late_does_all_steps_where_the_next_round_trains_meanwhile() -> None:
    """With a delay nobody waits for it; but longer than half the grace it may be left out."""
    for grace, steps in ((100.0, STEPS), (2.0, 33)):
        pace = _seen(1, 20.0, grace=grace)
        pace.opened(5, 130.0)
        pace.contributed(5, "other", STEPS, 150.0)
        pace.opened(6, 150.0)
        assert pace.steps(6, STEPS, ("me", "other"), 153.5) == steps


def test_what_a_slots_former_member_did_moves_nobody() -> None:
    pace = _seen(0, 0.1)
    pace.opened(5, 150.0)
    assert pace.steps(5, STEPS, ("me", "other"), 150.0) == fewest_steps(STEPS)
    assert pace.steps(5, STEPS, ("me", "newcomer"), 150.0) == STEPS


def test_steps_fill_the_time_and_are_never_fewer_than_count() -> None:
    assert steps_within(STEPS, SPEED, 22.0) == STEPS
    assert steps_within(STEPS, SPEED, 20.5) == STEPS, "as good as no slower"
    assert steps_within(STEPS, SPEED, 12.2) == 20
    assert steps_within(STEPS, SPEED, -5.0) == fewest_steps(STEPS) == 3
    assert [fewest_steps(one) for one in (1, 16, 17, 500)] == [1, 1, 2, 32]


def _walked(delay: int, slowness: float, rounds: int, fixed: float = 1.0) -> list[int]:
    """The steps that the slower of two replicas takes, where the other one's round takes 21 s."""
    pace, step, start, steps, found = Pace("slow", delay, 20.0, None), 0.5, 0.0, TRIAL_STEPS, []
    pace.opened(delay, 0.0)
    ended = 0.0
    for round in range(rounds):
        steps = pace.steps(round, STEPS, ("fast", "slow"), start)
        found.append(steps)
        seconds = slowness * (fixed + steps * step)
        other = TRIAL_STEPS if round == 0 else STEPS
        ended = max(ended, pace._opened[round]) + fixed + other * step
        pace.contributed(round, "fast", other, ended)
        pace.contributed(round, "slow", steps, start + seconds)
        pace.trained(round, steps, seconds, slowness * step)
        sealed = max(ended, start + seconds)
        pace.opened(round + delay + 1, sealed)
        start = max(start + seconds, pace._opened[round + 1])
    return found


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("slowness", [1.0, 1.02, 2.0, 4.0, 9.0, 40.0])
def test_the_steps_settle_at_what_there_is_time_for(delay: int, slowness: float) -> None:
    found = _walked(delay, slowness, 20)
    fits = STEPS if slowness < 1.05 else max(fewest_steps(STEPS), (21 / slowness - 1) / 0.5)
    assert found[0] == TRIAL_STEPS or found[0] == fewest_steps(STEPS)
    assert fits - 1 <= statistics.fmean(found[6:]) <= fits, found  # a step more now and then where it began early


def test_a_minority_that_comes_too_early_or_too_late_moves_nobody() -> None:
    honest = {one: End(20 + one, 1) for one in (1, 2, 3)}
    for lie in (0.0, 0.001, 9000.0):
        ends = {str(one): end for one, end in honest.items()} | {"0": End(lie, 1)}
        assert steps_within(STEPS, SPEED, ends[reference(ends)].at) == STEPS


@pytest.mark.parametrize(("liars", "quick"), [(0, 4), (1, 3)])
def test_half_of_eight_take_all_steps_however_slow_the_others_are_a_liar_that_is_done_at_once_among_them(
    liars: int, quick: int
) -> None:
    speeds = {str(one): Speed(fixed=0.0, step=3.0**one) for one in range(8 - liars)}
    ends = {one: End(speed.seconds(STEPS), 0.0) for one, speed in speeds.items()}
    ends |= {"liar": End(0.0, 0.0)} if liars else {}
    chosen = ends[reference(ends)].at
    taken = [steps_within(STEPS, speed, chosen) for speed in speeds.values()]
    assert taken == [STEPS] * quick + taken[quick:] and max(taken[quick:]) < STEPS


def test_who_has_nobody_to_end_with_takes_all_steps_and_who_comes_back_goes_on() -> None:
    assert Pace("me", 0, 20.0, None).steps(0, STEPS, ("me",), 0.0) == STEPS
    assert Pace("me", 0, 20.0, 17).steps(9, STEPS, ("me", "other"), 0.0) == 17
    assert Pace("me", 0, 20.0, 60).steps(9, STEPS, ("me", "other"), 0.0) == STEPS, "the plan has changed"
    first = Pace("me", 0, 20.0, None)
    first.opened(0, 0.0)
    first.trained(0, 3, 10.0, 3.0)
    assert first.steps(1, STEPS, ("me", "other"), 10.0) == STEPS, "nobody was there before it"


# ---- whole rounds


class Uneven(Simulation):
    """Every step takes the same time; `slow` replicas take that many times as long. Notes who waited for whom."""

    def __init__(self, rules: Any, replicas: int, slow: dict[int, float], **known: Any) -> None:
        super().__init__(rules, replicas, 5, **known)
        self.began: dict[str, list[float]] = defaultdict(list)  # training of a round, by account
        self.ended: dict[str, list[float]] = defaultdict(list)
        for account, member in self.members.items():
            slot = self.view.slot_of(account)
            assert slot is not None
            member.slowness = slow.get(slot[0], 1.0)

    def jitter(self) -> float:
        return 0.99 + 0.02 * self.random.random()

    def act(self, member: Member, action: a.Action) -> None:
        if isinstance(action, a.StartRound):
            self.began[member.account].append(self.now)
        super().act(member, action)

    def finish(self, member: Member) -> None:
        super().finish(member)
        for one in self.alive():
            self.ended[one.account] += [self.now] * (len(one.trained) - len(self.ended[one.account]))

    def waited(self, account: str, rounds: int, first: int = 0) -> float:
        """The part of the time of rounds from `first` to before `rounds` in which a member did not train."""
        began, ended = self.began[account][first:rounds], self.ended[account][first:rounds]
        trained = sum(end - start for start, end in zip(began, ended, strict=True))
        return 1 - trained / (self.began[account][rounds] - began[0])


ROUNDS = 30
UNEVEN: dict[str, Any] = {
    "rounds": ROUNDS + 2, "plan": Plan(4, 0, STEPS), "straggler_grace": 100,
    "proposal_timeout": 20, "round_timeout": 130,
}  # fmt: skip


def _sealed_steps(sim: Simulation, stage: int, replica: int) -> list[int]:
    sealed = [sim.view.sealed[stage, round] for round in range(sim.view.next_round(stage))]
    return [next((one.inner_steps for one in seal.records if one.replica == replica), 0) for seal in sealed]


@pytest.mark.slow
@pytest.mark.parametrize(("delay", "stages", "replicas"), [(0, 1, 2), (1, 2, 3)])
def test_a_replica_four_times_slower_is_counted_in_every_round_and_the_others_do_not_wait(
    delay: int, stages: int, replicas: int
) -> None:
    rules = make_rules(stages=stages, delay=delay, **UNEVEN)
    sim = Uneven(rules, replicas, {1: 4.0}, train_seconds=60.0)
    assert sim.run(lambda: sim.view.open_round == ROUNDS + 1, ROUNDS * 80)
    for stage in range(stages):
        slow, fast = _sealed_steps(sim, stage, 1), _sealed_steps(sim, stage, 0)
        assert all(slow) and all(fast), "counted in every round"
        assert all(STEPS // 4 - 1 <= one <= STEPS // 4 + 1 for one in slow[4:]), slow
        assert all(one == STEPS for one in fast[2:]), fast
    waited = {account: sim.waited(account, ROUNDS) for account, member in sim.members.items() if member.slowness == 1.0}
    assert max(waited.values()) < 0.05, waited


@pytest.mark.slow
def test_a_stage_that_starts_again_in_the_middle_of_a_round_takes_up_its_replicas_pace() -> None:
    sim = Uneven(make_rules(stages=3, delay=1, **UNEVEN), 2, {1: 4.0}, train_seconds=40.0)
    assert sim.run(lambda: sim.view.open_round == 4, 300)
    account = str(sim.view.member_at(1, 1))
    assert sim.run(lambda: sim.members[account].training is not None, 60)
    sim.run(lambda: False, 10)
    sim.kill(account)
    sim.run(lambda: False, 2)
    sim.restart(account)
    assert sim.run(lambda: sim.view.open_round == 9, 400)
    stages = [_sealed_steps(sim, stage, 1)[:9] for stage in range(3)]
    assert stages[0] == stages[1] == stages[2] and all(stages[0]), stages
    assert max(stages[0][4:]) <= STEPS // 4 and all(one == STEPS for one in _sealed_steps(sim, 0, 0)[2:9]), stages


@pytest.mark.slow
def test_equal_replicas_take_all_steps_but_in_the_first_round() -> None:
    sim = Uneven(make_rules(stages=2, delay=1, **UNEVEN), 4, {}, train_seconds=60.0)
    sim.jitter = lambda: 0.97 + 0.06 * sim.random.random()  # type: ignore[method-assign]  # mates wait for 4 s
    assert sim.run(lambda: sim.view.open_round == 12, 12 * 80)
    for replica in range(4):
        sealed = [sim.view.sealed[0, round].records[replica].inner_steps for round in range(12)]
        assert sealed[0] == fewest_steps(STEPS) and sum(sealed[2:]) >= 0.97 * 10 * STEPS, sealed


# ---- members who gain by it


def _short(**changes: Any) -> Any:
    short = {"delay": 0, "straggler_grace": 20, "proposal_timeout": 3, "round_timeout": 30}
    return make_rules(**UNEVEN | short | changes)


class Naming(Uneven):
    """The first replica's last stage names so many steps to its mates in every round, whatever it has time for."""

    named = 0

    def act(self, member: Member, action: a.Action) -> None:
        if isinstance(action, a.WantRound) and action.ready and self.view.slot_of(member.account) == (0, 2):
            action = replace(action, steps=self.named)
        super().act(member, action)


@pytest.mark.parametrize("named", [0, 1, fewest_steps(STEPS)])
def test_a_mate_that_names_few_steps_spoils_its_own_replicas_and_nothing_else(named: int) -> None:
    """As it could by being slow; it is counted for as few itself, and for no fewer than count."""
    sim = Naming(_short(stages=3), 3, {}, train_seconds=10.0)
    sim.named = named
    machine = sim.members[str(sim.view.member_at(0, 2))].machine
    machine._pace.steps = lambda *known: fewest_steps(STEPS)  # type: ignore[method-assign]
    assert sim.run(lambda: sim.view.open_round == 6, 100)
    for stage in range(3):
        assert _sealed_steps(sim, stage, 0) == [fewest_steps(STEPS)] * 6
        assert _sealed_steps(sim, stage, 1)[1:] == _sealed_steps(sim, stage, 2)[1:] == [STEPS] * 5


def test_a_mate_that_names_more_steps_than_there_are_changes_nothing() -> None:
    sim = Naming(_short(stages=3), 2, {}, train_seconds=10.0)
    sim.named = 2**32 - 1
    assert sim.run(lambda: sim.view.open_round == 4, 100)
    assert _sealed_steps(sim, 0, 0)[1:] == _sealed_steps(sim, 2, 1)[1:] == [STEPS] * 3


class Stating(Uneven):
    """The first replica's last stage, or all of its stages, state so many steps; 0: those that it took."""

    stated, all_stages = 0, False

    def contribution(self, member: Member, round: int, **changes: object):  # type: ignore[no-untyped-def]
        replica, stage = self.view.slot_of(member.account) or (1, 0)
        if self.stated and replica == 0 and (self.all_stages or stage == self.rules.stages - 1):
            segments = segments_in(self.stated, self.rules.segment_steps)
            changes = {"inner_steps": self.stated, "segments": segments} | changes
        return super().contribution(member, round, **changes)


@pytest.mark.parametrize("stated", [1, fewest_steps(STEPS) - 1, STEPS + 1])
def test_who_states_fewer_steps_than_count_or_more_than_there_are_is_refused(stated: int) -> None:
    """Else a vote would cost a step of a round of hundreds."""
    sim = Stating(_short(stages=1), 3, {}, train_seconds=5.0)
    sim.stated = stated
    assert sim.run(lambda: sim.view.open_round == 2, 100)
    assert _sealed_steps(sim, 0, 0) == [0, 0] and all(_sealed_steps(sim, 0, 1))
    honest = [member for account, member in sim.members.items() if account != sim.view.member_at(0, 0)]
    assert all("wrong_steps" in member.rejected for member in honest)


def test_stages_of_one_replica_that_state_different_steps_are_not_counted() -> None:
    sim = Stating(_short(stages=2), 3, {}, train_seconds=5.0)
    assert sim.run(lambda: sim.view.open_round == 1, 100)
    sim.stated = fewest_steps(STEPS) + 1
    assert sim.run(lambda: sim.view.open_round == 3, 100)
    assert all(_sealed_steps(sim, 0, 0)[:1]) and _sealed_steps(sim, 0, 0)[1:] == _sealed_steps(sim, 1, 0)[1:] == [0, 0]
    assert all(_sealed_steps(sim, 1, 1))


@pytest.mark.parametrize("delay", [0, 1])
def test_who_states_more_than_a_trial_before_it_was_counted_is_refused(delay: int) -> None:
    """Honest replicas do a trial in the first round: one that states all steps would have nearly the whole round."""
    sim = Stating(_short(stages=1, delay=delay), 3, {}, train_seconds=5.0)
    sim.stated = trial_steps(STEPS) + 1
    assert sim.run(lambda: sim.view.open_round == 2, 200)
    honest = [member for account, member in sim.members.items() if account != sim.view.member_at(0, 0)]
    assert all("wrong_steps" in member.rejected for member in honest)
    assert _sealed_steps(sim, 0, 1)[: 1 + delay] == [trial_steps(STEPS)] * (1 + delay)
    sim.stated = trial_steps(STEPS)
    assert sim.run(lambda: sim.view.open_round == 4 + delay, 300)
    sim.stated = STEPS
    assert sim.run(lambda: sim.view.open_round == 6 + delay, 300)
    steps = _sealed_steps(sim, 0, 0)
    assert steps[:2] == [0, 0] and trial_steps(STEPS) in steps and steps[-1] == STEPS, steps


class Hasty(Uneven):
    """One states made-up work as soon as a round is open, in whatever slot: nobody ever gets its payloads."""

    liar = ""

    def do(self, member: Party, action: a.Action) -> None:
        if isinstance(action, a.FetchPayload) and action.signed.contribution.account == self.liar:
            self.later(member, e.Failed(action, "nobody has it"))
        else:
            super().do(member, action)


def test_made_up_work_that_is_never_counted_makes_nobody_hurry() -> None:
    """It is never drawn either: who states it would pay nothing for holding the others to a sixteenth."""
    sim = Hasty(_short(stages=1), 2, {0: 0.01}, train_seconds=10.0)
    sim.liar, honest = str(sim.view.member_at(0, 0)), str(sim.view.member_at(1, 0))
    assert sim.run(lambda: sim.view.open_round == 6, 400)
    seals = [sim.view.sealed[0, round] for round in range(6)]
    made = [{who: it.inner_steps for who, it in zip(one.accounts, one.records, strict=True)} for one in seals]
    assert not any(sim.liar in one for one in made)
    steps = [one.get(honest, 0) for one in made[1:]]
    assert {*steps} <= {0, STEPS} and steps.count(0) <= 1, "a deal gives both another slot, and may cost a round once"


class Withholding(Uneven):
    """The first replica trains all its steps, and says so of every other round only so many seconds later."""

    HELD = 40.0
    made: dict[int, float]  # round -> when it was

    def act(self, member: Member, action: a.Action) -> None:
        if isinstance(action, a.GossipContribution) and self.view.slot_of(member.account) == (0, 0):
            said = action.signed.contribution
            due = self.made.setdefault(said.round, self.now) + self.HELD
            if said.account == member.account and said.round % 2 == 0 and self.now < due:
                self.mail.append((due, lambda: Uneven.act(self, member, action)))
                return
        super().act(member, action)


@pytest.mark.slow
def test_who_holds_back_every_other_contribution_does_not_seem_faster_than_it_is() -> None:
    """With a delay it has trained the next round by then, honestly: no replay would find anything."""
    sim = Withholding(make_rules(stages=1, delay=1, **UNEVEN), 2, {}, train_seconds=60.0)
    sim.made = {}
    assert sim.run(lambda: sim.view.open_round == 14, 14 * 150)
    assert sum(_sealed_steps(sim, 0, 1)[2:14]) >= 0.9 * 12 * STEPS, _sealed_steps(sim, 0, 1)


def test_who_makes_up_work_that_is_counted_gains_a_share_until_it_is_convicted_and_leaves_nothing_behind() -> None:
    """Of two replicas it holds the other to a sixteenth: what it says was drawn, and costs it the slot."""
    sim = Uneven(_short(stages=1), 2, {0: 0.01}, train_seconds=10.0)
    assert sim.run(lambda: sim.view.open_round == 7, 400)
    liar, began = str(sim.view.member_at(0, 0)), sim.view.open_round
    assert {*_sealed_steps(sim, 0, 1)[2:]} == {fewest_steps(STEPS)}, "no fewer count, whatever it does"
    statement = sim.view.sealed[0, 5].records[0].statement
    sim.kill(liar)
    sim.apply(chain.Convicted(RUN, liar, 0, 5, statement, b"", sim.at()))
    sim.restart(sim.join("newcomer", 0))
    assert sim.run(lambda: sim.view.open_round == began + 6, 400)
    assert {*_sealed_steps(sim, 0, 1)[began + 3 :]} == {STEPS}, "its slot's next member is not taken for it"
