"""The straggler grace where training, and a payload on its way, take longer than it."""

from collections import defaultdict
from typing import Any

import pytest

from dlx.ledger.typed import Plan
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.rules.inclusion import WINDOW, Arrivals, Grace
from dlx.node.round.rules.pace import fewest_steps
from tests.node.round.rules.test_pace import Uneven
from tests.node.round.simulation import FACTS, Member, make_rules

pytestmark = pytest.mark.slow

STEPS, TRAIN, PAYLOAD = 40, 60.0, 12.0  # of a round; seconds of its training, and of one payload on a link
GRACE, TURN, TIMEOUT = 8, 3, 130
REPLICAS = 4
PERIOD = TRAIN * 1.05  # of a round in the steady state, where the exchange hides behind the training
ROUNDS = 7
TRIALS = 2  # rounds of few steps, with a delay of 1: they are shorter than their exchange


@pytest.mark.parametrize(
    ("enough", "payload", "ends", "extended"),
    [
        (None, 5.0, 220, 220),  # nothing that the ledger would take before the timeout
        (90.0, 0.0, 108, 108),  # here before the round opened
        (160.0, 5.0, 168, 173),
        (160.0, 900.0, 168, 220),
        (215.0, 5.0, 220, 220),
    ],
)
def test_the_grace_begins_with_a_quorums_contributions_and_ends_with_the_timeout_at_the_latest(
    enough: float | None, payload: float, ends: float, extended: float
) -> None:
    grace = Grace.of(100.0, enough, 8.0, payload, 120.0, {0}, None)
    assert (grace.ends, grace.extended) == (ends, extended)


@pytest.mark.parametrize(("gathered", "over"), [(None, 173), (162.0, 162), (180.0, 173)])
def test_for_who_is_not_awaited_it_is_over_once_all_are_here_who_are(gathered: float | None, over: float) -> None:
    grace = Grace.of(100.0, 160.0, 8.0, 5.0, 120.0, {0}, gathered)
    assert (grace.over(0), grace.over(1)) == (173, over)


def test_a_third_makes_what_a_payload_takes_neither_short_nor_long() -> None:
    arrivals = Arrivals()
    assert arrivals.usual([], 8.0) == 0.0 and arrivals.usual([0, 1], 8.0) == 8.0
    for replica in range(1, 7):
        arrivals.add(replica, 10.0 + replica)
    for lie in (0.0, 1e6):
        for _ in range(WINDOW):
            arrivals.add(1, lie)
            arrivals.add(2, lie)
        assert 13 <= arrivals.usual(range(1, 7), 8.0) <= 16
    assert arrivals.usual([0], 8.0) == 8.0


# ---- whole rounds


class SlowLinks(Uneven):
    """Payloads come to a member one after the other. Notes when each round was sealed."""

    def __init__(self, *args: Any, payload: float = PAYLOAD, **known: Any) -> None:
        self.payload = payload
        self.free_at: dict[str, float] = defaultdict(float)  # member -> when its link is free again
        self.sealed_at: dict[int, float] = {}
        super().__init__(*args, **known)

    def step(self) -> None:
        super().step()
        for stage in range(self.rules.stages):
            self.sealed_at.setdefault(self.view.next_round(stage), self.now)

    def act(self, member: Member, action: a.Action) -> None:
        if not isinstance(action, a.FetchPayload):
            super().act(member, action)
            return
        statement = action.signed.contribution
        seconds = self.seconds(statement.account)
        came = max(self.now, self.free_at[member.account]) + min(seconds, self.payload)
        self.free_at[member.account] = came
        machine, ready = member.machine, e.PayloadReady(statement.round, statement.payload, FACTS)

        def deliver() -> None:
            member.payloads.add(statement.payload)
            if member.machine is machine:
                self.feed(member, e.Done(action, ready))

        self.mail.append((came + max(0.0, seconds - self.payload), deliver))

    def seconds(self, maker: str) -> float:
        """That a payload takes, without those that come before it."""
        return self.payload

    def counted(self, round: int) -> set[int]:
        return {record.replica for record in self.view.sealed[0, round].records}

    def lengths(self, rounds: range) -> list[float]:
        return [self.sealed_at[round + 1] - self.sealed_at[round] for round in rounds]


def slow_rules(**changes: Any) -> Any:
    times = {"straggler_grace": GRACE, "proposal_timeout": TURN, "round_timeout": TIMEOUT}
    return make_rules(**{"rounds": ROUNDS + 2, "stages": 1, "plan": Plan(4, 0, STEPS), **times, **changes})


def play(sim: SlowLinks, rounds: int = ROUNDS) -> None:
    assert sim.run(lambda: sim.view.open_round == rounds or sim.finished, rounds * 2 * TIMEOUT)


@pytest.mark.parametrize(("delay", "payload"), [(0, PAYLOAD), (1, 0.1), (1, PAYLOAD)])
def test_all_are_counted_in_every_round_where_training_and_payloads_take_longer_than_the_grace(
    delay: int, payload: float
) -> None:
    sim = SlowLinks(slow_rules(delay=delay), REPLICAS, {1: 1.04}, train_seconds=TRAIN, payload=payload)
    play(sim)
    assert [len(sim.counted(round)) for round in range(ROUNDS)] == [REPLICAS] * ROUNDS
    if delay == 1:
        waited = {account: sim.waited(account, ROUNDS, TRIALS) for account in sim.members}
        assert max(waited.values()) < 0.05, waited


def test_a_slower_replica_is_counted_in_every_round_too() -> None:
    """But for the first: with a delay nobody trains long beside its exchange, and nobody knows how long a payload
    takes."""
    sim = SlowLinks(slow_rules(delay=1), REPLICAS, {1: 4.0}, train_seconds=TRAIN)
    play(sim)
    assert [len(sim.counted(round)) for round in range(1, ROUNDS)] == [REPLICAS] * (ROUNDS - 1)


# ---- members who gain by it, or cost the others time


class Hostile(SlowLinks):
    """The first replica is, once it `plays`."""

    plays, honest_rounds = False, 2

    def begin(self) -> None:
        self.plays = True

    @property
    def first(self) -> Member:
        return self.members[str(self.view.member_at(0, 0))]


class AtOnce(Hostile):
    """Everything of it is there at the round's beginning, with the fewest steps that count."""

    honest_rounds = 0

    def begin(self) -> None:
        super().begin()
        hurry(self.first)

    def seconds(self, maker: str) -> float:
        return 0.0 if self.plays and maker == self.first.account else self.payload


class Late(Hostile):
    """It contributes as late as it is waited for: it knows when the others' grace ends."""

    def act(self, member: Member, action: a.Action) -> None:
        if self.plays and isinstance(action, a.GossipContribution) and member is self.first:
            other = self.members[str(self.view.member_at(1, 0))].machine
            state = other._known.states.get(action.signed.contribution.round)
            if state is None or state.enough_since is None or self.now < state.enough_since + GRACE - 2:
                return
        super().act(member, action)


class SlowServer(Hostile):
    """Its payload goes on coming for as long as the round may take."""

    def seconds(self, maker: str) -> float:
        return TIMEOUT if self.plays and maker == self.first.account else self.payload


class Silent(Hostile):
    """It answers when it is asked on the ledger, and trains nothing."""

    def begin(self) -> None:
        super().begin()
        self.first.breaks = True


def hurry(member: Member) -> None:
    member.slowness = 0.01
    member.machine._pace.steps = lambda *known: fewest_steps(STEPS)  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("attack", "replicas"), [(AtOnce, 3), (AtOnce, REPLICAS), (Late, REPLICAS), (SlowServer, 3), (Silent, REPLICAS)]
)
def test_one_that_is_early_late_slow_or_silent_has_nobody_left_out_and_costs_a_grace_and_what_payloads_take(
    attack: type[Hostile], replicas: int
) -> None:
    sim = attack(slow_rules(delay=1), replicas, {}, train_seconds=TRAIN)
    play(sim, sim.honest_rounds)
    sim.begin()
    play(sim, 5)  # and no further: a replica that was not counted three times is dealt among others
    for round in range(2, 5):
        assert sim.counted(round) >= set(range(1, replicas)), (round, sim.counted(round))
    lengths = sim.lengths(range(2, 5))
    assert max(lengths) <= PERIOD + GRACE + 2 * TURN + (replicas - 1) * PAYLOAD, lengths


def test_newcomers_without_a_vote_do_not_begin_the_grace() -> None:
    """Else who takes as many free slots as make a quorum could contribute at once, and have the others left out."""
    sim = SlowLinks(slow_rules(delay=1), REPLICAS, {}, train_seconds=TRAIN, spare=4)
    play(sim, 2)
    for number in range(3):
        account = sim.join(f"newcomer {number}", 0)
        sim.restart(account)
        hurry(sim.members[account])
    play(sim, 5)
    for round in range(2, 5):
        assert sim.counted(round) >= set(range(REPLICAS)), (round, sim.counted(round))


class OneSlower(SlowLinks):
    """Payloads come to the first replica later than to the others. Notes what was reported missing."""

    def __init__(self, *args: Any, **known: Any) -> None:
        self.missing: list[bytes] = []
        super().__init__(*args, **known)

    def act(self, member: Member, action: a.Action) -> None:
        if isinstance(action, a.GossipReport):
            self.missing += action.missing
        if isinstance(action, a.FetchPayload) and member.account == self.view.member_at(0, 0):
            self.free_at[member.account] = max(self.now, self.free_at[member.account]) + 5.0
        super().act(member, action)


def test_a_payload_that_a_proposal_lists_and_that_is_on_its_way_is_not_reported_missing() -> None:
    """Who has it could but repeat its statement."""
    sim = OneSlower(slow_rules(delay=1), 2, {}, train_seconds=TRAIN)
    play(sim, 4)
    assert [len(sim.counted(round)) for round in range(4)] == [2] * 4
    assert not sim.missing
