"""The adaptive plan: which rank and how many inner steps the next rounds get, from what the last ones showed.

Pure functions on numbers. Both values move on short ladders, by at most one rung per window, so that the proposer and
whoever checks it agree to within a rung even where an energy was measured with other last bits.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median_low

from dlx.training.recipe.recipe import Adaptive

GROW_PERCENT = 90  # of the training time: an exchange that takes longer is about to be seen
SHRINK_PERCENT = 50  # one that takes less stays hidden on the next lower rung too, which is sqrt(2) below


def ends_window(adaptive: Adaptive, round: int) -> bool:
    """Whether a seal of `round` may change the plan."""
    return (round + 1) % adaptive.window == 0


def mean_energy(rounds: Iterable[Mapping[int, float]]) -> dict[int, float]:
    """The part of a round's energy that each rank keeps, over those of the rounds in which it was measured."""
    found: dict[int, list[float]] = {}
    for energy in rounds:
        for rank, part in energy.items():
            found.setdefault(rank, []).append(part)
    return {rank: sum(parts) / len(parts) for rank, parts in found.items()}


def next_rank(rungs: Sequence[int], rank: int, energy: Mapping[int, float], wanted: float) -> int:
    """The smallest rank within a rung of `rank` that keeps the wanted part of the shared update's energy.

    `energy` is the part that a rank keeps, by rank; where it was not measured the rank stays.
    """
    lower, upper = _neighbours(rungs, rank)
    if lower is not None and energy.get(lower, 0.0) >= wanted:
        return lower
    if upper is not None and energy.get(rank, 1.0) < wanted:
        return upper
    return rank


def next_inner_steps(rungs: Sequence[int], inner_steps: int, exchanges: Collection[int]) -> int:
    """The number of inner steps within a rung that hides every stage's exchange behind the training, and few more.
    `exchanges`: each stage's, in percent of its training time."""
    lower, upper = _neighbours(rungs, inner_steps)
    if upper is not None and any(one > GROW_PERCENT for one in exchanges):
        return upper
    hidden = exchanges and all(one < SHRINK_PERCENT for one in exchanges)
    return lower if lower is not None and hidden else inner_steps


def exchange(percents: Iterable[int]) -> int | None:
    """A stage's exchange: the lower median of what its members state; 0 was not measured. None: nothing was."""
    measured = [one for one in percents if one]
    return median_low(measured) if measured else None


def within_a_rung(rungs: Sequence[int], one: int, other: int) -> bool:
    """Whether two values are the same or neighbours on the ladder."""
    return one == other or one in _neighbours(rungs, other)


def watched_ranks(rungs: Sequence[int], rank: int) -> tuple[int, ...]:
    """The ranks whose energy decides about the next one; none where there is nothing to decide."""
    lower, upper = _neighbours(rungs, rank)
    if lower is None and upper is None:
        return ()
    return (rank,) if lower is None else (lower, rank)


def _neighbours(rungs: Sequence[int], value: int) -> tuple[int | None, int | None]:
    """The next lower and the next higher rung."""
    return max((rung for rung in rungs if rung < value), default=None), min(
        (rung for rung in rungs if rung > value), default=None
    )
