"""Steps of a stage that is a whole model, and how far two such stages are apart."""

import torch

from dlx.training.inner.loop import InnerLoop

TOTAL = 20  # inner steps that the schedule has


def steps(loop: InnerLoop, low: int, high: int) -> list[float]:
    return [loop.step(index, TOTAL, loop.positions(index), None, None) for index in range(low, high)]


def distance(one: InnerLoop, other: InnerLoop, start: dict[str, torch.Tensor]) -> float:
    """Of the changes since `start`, as level 3 of the audit takes it."""
    mine, its = one.weights(), other.weights()
    apart = sum((mine[name] - its[name]).double().square().sum() for name in start)
    change = sum((mine[name] - start[name]).double().square().sum() for name in start)
    return float(apart / change) ** 0.5
