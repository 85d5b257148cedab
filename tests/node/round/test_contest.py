"""Up to a third of each stage's members play against the run, however they like: honest work counts all the same.

`make test-slow` tries a few games, always the same; `python -m tests.node.round.test_contest [games]` plays others, 100
by default.
"""

import sys

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.node.round.players import PLAYERS, Contest, Player
from tests.node.round.simulation import make_rules

SHAPES = ((3, 1), (4, 1), (7, 1), (3, 2), (4, 2), (6, 2), (4, 3))  # replicas, stages
HONEST_ROUNDS = 2  # before the game begins: until then nobody has earned a vote
GAME_SECONDS = 60.0
TIMES = {"straggler_grace": 5, "proposal_timeout": 1, "round_timeout": 8}
COUNTED = 0.9  # of the seals that could count honest work, those that count all of it

few = settings(
    max_examples=5, stateful_step_count=6, derandomize=True, database=None, deadline=None,
    suppress_health_check=list(HealthCheck), phases=(Phase.generate,),
)  # fmt: skip


class Game(RuleBasedStateMachine):
    """Who plays what changes as the run goes on."""

    @initialize(
        shape=st.sampled_from(SHAPES),
        delay=st.integers(0, 1),
        seed=st.integers(0, 999),
        few=st.booleans(),
        loss=st.sampled_from((0, 0.05)),
    )
    def begin(self, shape: tuple[int, int], delay: int, seed: int, few: bool, loss: float) -> None:
        (self.replicas, self.stages), rules = shape, make_rules(rounds=1000, stages=shape[1], delay=delay, **TIMES)
        self.sim = Contest(rules, self.replicas, seed, loss=loss, min_replicas=1 if few else self.replicas)
        note(f"{shape} delay {delay} seed {seed} loss {loss}")
        assert self.sim.run(lambda: (self.sim.view.open_round or 0) >= HONEST_ROUNDS, 60)

    @rule(replica=st.integers(0, 6), stage=st.integers(0, 2), player=st.sampled_from(PLAYERS))
    def corrupt(self, replica: int, stage: int, player: type[Player]) -> None:
        """Somebody turns hostile, as long as that makes no more than a third of its stage."""
        stage, replica = stage % self.stages, replica % self.replicas
        account = self.sim.view.member_at(replica, stage)
        hostile = [one for one in self.sim.players if self.sim.members[one].machine.stage == stage]
        if account is not None and account not in hostile and len(hostile) < self.replicas // 3:
            self.sim.play(account, player)
            note(f"{player.__name__} at replica {replica} of stage {stage}")

    @rule(which=st.integers(0, 20), player=st.sampled_from(PLAYERS))
    def switch(self, which: int, player: type[Player]) -> None:
        """A hostile one goes on in another way."""
        if self.sim.players:
            account = sorted(self.sim.players)[which % len(self.sim.players)]
            self.sim.play(account, player)
            note(f"{account} goes on as {player.__name__}")

    @rule(seconds=st.integers(5, 15))
    def go_on(self, seconds: int) -> None:
        self.sim.run(lambda: False, seconds)

    def teardown(self) -> None:
        if not hasattr(self, "sim"):
            return
        sim = self.sim
        sim.run(lambda: False, GAME_SECONDS)
        sim.finish_round()
        lost = f"{len(sim.lost)} of {len(sim.owed)}: {sim.lost}"
        assert len(sim.lost) <= (1 - COUNTED) * len(sim.owed), f"seals that leave out honest work: {lost}"
        assert not sim.blamed()
        assert sim.longest <= sim.patience(), f"a round took {sim.longest:.0f} s"


@pytest.mark.slow
def test_honest_work_counts_whatever_a_third_of_each_stage_does() -> None:
    run_state_machine_as_test(Game, settings=few)


if __name__ == "__main__":
    games = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    many = settings(few, max_examples=games, derandomize=False, verbosity=Verbosity.normal, phases=(Phase.generate,))
    run_state_machine_as_test(Game, settings=many)
