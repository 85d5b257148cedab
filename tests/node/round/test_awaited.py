"""Whom a round waits for: not for who never contributes, and again for who does."""

import pytest

from dlx.node.round.rules.inclusion import EVERYBODY, awaited
from tests.node.round.players import Alternating, Breaker, Contest, Exiler, Ghost, NotANumber, Player
from tests.node.round.simulation import Simulation, make_rules
from tests.node.round.test_grace import SlowLinks, play, slow_rules

ROUNDS = 2 * EVERYBODY  # that are measured: two of them wait for everybody
FIRST = EVERYBODY + 1
TIMES = {"straggler_grace": 5, "proposal_timeout": 1, "round_timeout": 12}
TRAIN = 4.0  # s, of a round


def contest(seed: int = 1, replicas: int = 4, stages: int = 1, **changes: object) -> Contest:
    """A run that is three rounds old."""
    rules = make_rules(rounds=100, stages=stages, delay=1, **{**TIMES, **changes})
    sim = Contest(rules, replicas, seed, train_seconds=TRAIN)
    assert sim.run(lambda: sim.view.open_round == 3, 60)
    return sim


def counted(sim: Simulation, round: int) -> set[int]:
    return {record.replica for record in sim.view.sealed[0, round].records}


def seconds(sim: Contest) -> float:
    """Of the rounds that are measured."""
    assert sim.run(lambda: sim.view.open_round == FIRST + ROUNDS, 40 * ROUNDS)
    return sim.opened[FIRST + ROUNDS] - sim.opened[FIRST]


@pytest.mark.parametrize("player", [Breaker, Ghost, NotANumber])
def test_one_of_four_that_never_contributes_slows_nobody_down_and_has_nobody_left_out(player: type[Player]) -> None:
    """While each round waited out the grace for it, a run took 1.5 to 1.9 times as long."""
    honest, sim = seconds(contest()), contest()
    sim.play(str(sim.view.member_at(3, 0)), player)
    assert seconds(sim) <= 1.2 * honest
    assert not sim.lost and not sim.blamed()
    assert all(counted(sim, round) == {0, 1, 2} for round in range(FIRST, FIRST + ROUNDS))


def test_who_is_counted_in_every_third_round_is_waited_for_in_the_others_and_has_nobody_left_out() -> None:
    sim = contest()
    sim.play(str(sim.view.member_at(3, 0)), Alternating)
    seconds(sim)
    assert not sim.lost and not sim.blamed()
    every = [counted(sim, round) for round in range(FIRST, FIRST + ROUNDS)]
    assert all(one >= {0, 1, 2} for one in every)
    assert sum(3 in one for one in every) >= ROUNDS // 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_breaker_of_three_replicas_of_two_stages_loses_its_slot_early_and_few_rounds_their_work(seed: int) -> None:
    """Deals move it about: 142 to 232 s with twelve seeds, 183 on average. When rounds were short, and deals met
    replicas that had not contributed to theirs yet, it took 346, 331 and 274 s, with 10 rounds of one's work."""
    sim = contest(seed, replicas=3, stages=2)
    breaker = str(sim.view.member_at(2, 0))
    sim.play(breaker, Breaker)
    assert sim.run(lambda: breaker in sim.evicted, 240)
    rounds = range(3, sim.view.next_round(0) - 1)
    assert sum(len(counted(sim, round)) < 2 for round in rounds) <= 2
    assert not sim.lost and not sim.blamed()


@pytest.mark.parametrize("player", [None, Exiler])
def test_who_comes_back_counts_again_in_its_first_round_in_time(player: type[Player] | None) -> None:
    """Nobody waits for it meanwhile; a proposer that leaves out what a quorum has finds no votes."""
    sim = contest(replicas=7)
    back = str(sim.view.member_at(0, 0))
    if player is not None:
        sim.play(str(sim.view.member_at(6, 0)), player)
    sim.kill(back)
    assert sim.run(lambda: sim.view.open_round == 6, 90)
    assert awaited(sim.view, 6) == {1, 2, 3, 4, 5, 6}
    sim.restart(back)
    assert sim.run(lambda: sim.view.open_round == 12, 120)
    first = min(round for round in range(6, 12) if 0 in counted(sim, round))
    assert first < EVERYBODY and all(0 in counted(sim, round) for round in range(first, 12))
    assert not sim.lost and set(sim.blamed()) <= {("evicted", back)}, "while it was away"


def test_after_rounds_that_only_one_worked_in_it_does_not_go_on_alone() -> None:
    """Only once a quorum's contributions are here is anybody not waited for."""
    sim = contest()
    others = [sim.members[str(sim.view.member_at(replica, 0))] for replica in (1, 2, 3)]
    for member in others:
        member.breaks = True
    assert sim.run(lambda: awaited(sim.view, 1) == {0}, 120)
    for member in others:
        member.breaks = False
        sim.give_up(member)
    began = sim.view.open_round or 0
    assert sim.run(lambda: len(counted(sim, sim.view.next_round(0) - 1)) > 1, 60)
    back = sim.view.next_round(0)
    assert sim.run(lambda: sim.view.open_round == began + EVERYBODY, 200)
    every = [counted(sim, round) for round in range(back, began + EVERYBODY)]
    assert all(len(one) >= 3 for one in every), every
    assert every[-1] == {0, 1, 2, 3} and not sim.blamed()


class OneSlowLink(SlowLinks):
    """The first replica's payload comes later than all others."""

    def seconds(self, maker: str) -> float:
        return 4 * self.payload if maker == self.slow else self.payload

    @property
    def slow(self) -> str:
        return next(iter(self.members))


@pytest.mark.slow
def test_who_is_slower_than_all_who_are_waited_for_counts_again_by_the_eighth_round() -> None:
    """Without a delay nothing hides that its payload takes longer than theirs."""
    sim = OneSlowLink(slow_rules(delay=0, rounds=40), 4, {}, train_seconds=TRAIN, payload=2.0)
    play(sim, 2)
    sim.kill(sim.slow)
    play(sim, 4)
    sim.restart(sim.slow)
    back = sim.view.open_round or 0
    play(sim, back + EVERYBODY + 4)
    every = [0 in sim.counted(round) for round in range(back, back + EVERYBODY + 4)]
    assert not all(every[:EVERYBODY]) and all(every[EVERYBODY:]), every
