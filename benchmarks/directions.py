"""Directions of deviations: how often chance is taken for a common one, and how small a steady part stays unseen.

`python -m benchmarks.directions [--accounts 4000]` adds up deviations by chance, of few dimensions and of lengths that
differ, and says which part of the accounts a look after each of 60 draws has for steering. Then it says how much of its
limit a member can move each segment by in one direction. The rest of the limit is noise of the member's own, along a
single line, which hides most. See training/slot/directions.py.
"""

import math
import sys
from typing import Annotated

import numpy as np
import typer

from dlx.training.slot.directions import DIMENSIONS, MOST, SHARED, Common

DRAWS = 60
SPREAD = 0.5  # of the logarithm of the lengths


def main(
    accounts: Annotated[int, typer.Option(min=1, help="Simulated for each number of dimensions.")] = 10000,
) -> None:
    """Print false alarms by dimensions, and unseen parts of the limit by draws."""
    random = np.random.default_rng(0)
    for dimensions in (1, 2, 4, 16):
        alarms = sum(_is_alarmed(random, dimensions) for _ in range(accounts))
        sys.stdout.write(f"chance in {dimensions:>2} dimensions: {alarms} of {accounts} above {MOST:g}\n")
    sys.stdout.write("draws  unseen in weights of matrices and embeddings  elsewhere\n")
    for draws in (4, 12, 20, 50, 100, 400):
        unseen = (_unseen(draws, dimensions) for dimensions in (DIMENSIONS, 1))
        sys.stdout.write(f"{draws:>5}  {next(unseen):>44.0%}  {next(unseen):>9.0%}\n")


def _is_alarmed(random: np.random.Generator, dimensions: int) -> bool:
    found = Common("chance", dimensions)
    sketches = random.standard_normal((DRAWS, dimensions)) * np.exp(SPREAD * random.standard_normal((DRAWS, 1)))
    for sketch in sketches.astype(np.float32):
        found.add(sketch)
        if found.score > MOST:
            return True
    return False


def _unseen(draws: int, dimensions: int) -> float:
    """The steady part of deviations as long as the limit, relative to it, whose score is MOST on average."""
    pairs = draws * (draws - 1) / 2
    return math.sqrt(min(1.0, SHARED + MOST / math.sqrt(pairs * dimensions)))


if __name__ == "__main__":
    typer.run(main)
