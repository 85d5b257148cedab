"""Members are killed again and again, one kill in ten kills all of them, and come back after a while.

`python -m tests.node.round.kills [seeds]` runs 2x2 and 3x2 (replicas x stages) with that many seeds, 100 by default.
"""

import random
import sys
from collections import Counter
from dataclasses import dataclass, field

from tests.node.round.simulation import Simulation, make_rules

SHAPES = ((2, 2), (3, 2))
ROUNDS = 40
SECONDS = 4000.0  # of simulated time, within which every run has to be over
TRAIN_SECONDS = 3.0
BETWEEN = 15.0  # seconds between two kills, on the average
AWAY = (1.0, 40.0)  # seconds until the killed one comes back
ALL = 0.1  # the share of kills that kill everybody


@dataclass
class Outcome:
    seconds: float = 0.0
    finished: bool = False
    kills: int = 0
    counts: Counter[int] = field(default_factory=Counter)  # contributions in a seal -> seals
    longest_round: float = 0.0  # seconds


def run(seed: int, replicas: int, stages: int, rounds: int = ROUNDS) -> Outcome:
    """One run under fire."""
    sim = Simulation(make_rules(rounds=rounds, stages=stages), replicas, seed, train_seconds=TRAIN_SECONDS)
    fate, outcome, began = random.Random(7 * seed + 1), Outcome(), sim.now
    strike, away = began + fate.expovariate(1 / BETWEEN), dict[str, float]()
    opened = began
    while not sim.finished and sim.now < began + SECONDS:
        before = sim.view.open_round
        sim.step()
        if sim.view.open_round != before:
            outcome.longest_round, opened = max(outcome.longest_round, sim.now - opened), sim.now
        if sim.now >= strike:
            strike = sim.now + fate.expovariate(1 / BETWEEN)
            living = [member.account for member in sim.alive()]
            for account in living if fate.random() < ALL else living and [fate.choice(living)]:
                sim.kill(account)
                outcome.kills += 1
                away[account] = sim.now + fate.uniform(*AWAY)
        for account in [one for one, until in away.items() if until <= sim.now]:
            sim.restart(account)
            del away[account]
    outcome.seconds, outcome.finished = sim.now - began, sim.finished
    outcome.counts.update(sealed.count for sealed in sim.view.sealed.values())
    return outcome


def main(seeds: int) -> None:
    for replicas, stages in SHAPES:
        outcomes = [run(seed, replicas, stages) for seed in range(seeds)]
        unfinished = [seed for seed, outcome in enumerate(outcomes) if not outcome.finished]
        counts = sum((outcome.counts for outcome in outcomes), Counter[int]())
        longest = max(one.longest_round for one in outcomes)
        seconds, kills = [one.seconds for one in outcomes], sum(one.kills for one in outcomes)
        print(
            f"{replicas}x{stages}: {seeds} seeds, {kills} kills, unfinished: {unfinished}; a run took "
            f"{sum(seconds) / seeds:.0f} s, at most {max(seconds):.0f} s; longest round "
            f"{longest:.0f} s; seals by contributions: {dict(sorted(counts.items()))}",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
