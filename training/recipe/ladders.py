"""The short ladders on which a run's plan may move: the same integers on every machine."""

from math import isqrt
from typing import NamedTuple

from dlx.training.recipe.recipe import Adaptive, Plan


class Ladders(NamedTuple):
    """The values that a run's plans can have, ascending."""

    ranks: tuple[int, ...]
    inner_steps: tuple[int, ...]

    @property
    def rank_adapts(self) -> bool:
        return len(self.ranks) > 1


def ladders(codec: str, plan: Plan, adaptive: Adaptive | None) -> Ladders:
    """The ladders around the manifest's plan; of one rung where nothing adapts. Only `lowrank` has a rank to adapt."""
    if adaptive is None:
        return Ladders((plan.rank,), (plan.inner_steps,))
    ranks = _ladder(adaptive.min_rank, adaptive.max_rank, plan.rank) if codec == "lowrank" else (plan.rank,)
    return Ladders(ranks, _ladder(adaptive.min_inner_steps, adaptive.max_inner_steps, plan.inner_steps))


def _ladder(low: int, high: int, start: int) -> tuple[int, ...]:
    """`low`, `high` and what lies between them of start x sqrt(2)^k: the same integers on every machine."""
    scaled = (isqrt(start * start << k) if k >= 0 else isqrt(start * start >> -k) for k in range(-34, 35))
    return tuple(sorted({low, high, *(value for value in scaled if low < value < high)}))
