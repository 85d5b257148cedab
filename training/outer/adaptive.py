"""The adaptive plan: which rank and how many inner steps the next rounds get, from what the last ones showed.

Pure functions of integers that contributions state, so that everybody finds the same plan. Both values move on short
ladders, by at most one rung per window.
"""

from collections.abc import Collection, Iterable, Sequence
from statistics import median_low

from dlx.ground.constants import UNIT
from dlx.training.recipe.recipe import Adaptive

GROW_PERCENT = 90  # of the training time: an exchange that takes longer is about to be seen
SHRINK_PERCENT = 50  # one that takes less stays hidden on the next lower rung too, which is sqrt(2) below


def ends_window(adaptive: Adaptive, round: int) -> bool:
    """Whether a seal of `round` may change the plan."""
    return (round + 1) % adaptive.window == 0


def next_rank(rungs: Sequence[int], rank: int, kept: Collection[int], wanted: float) -> int:
    """One rung up where payloads of `rank` keep less than the wanted part of their updates' energy. One down where the
    lower rung keeps the wanted part too, whatever the update. Of the directions that a payload has the best are the
    last to go, so the energy falls by no larger part than the rank does. So between two ranks it never goes to and fro
    for the same update and the same tensors.

    `kept` (UNIT = 1.0): what counted contributions of that rank state. It is their lower median that counts, which a
    minority cannot move beyond what others state. Where nothing was measured the rank stays.
    """
    if not kept:
        return rank
    lower, upper = _neighbours(rungs, rank)
    median, least = median_low(kept), round(UNIT * wanted)
    if median < least:
        return rank if upper is None else upper
    return lower if lower is not None and median * lower >= least * rank else rank


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


def _neighbours(rungs: Sequence[int], value: int) -> tuple[int | None, int | None]:
    """The next lower and the next higher rung."""
    return max((rung for rung in rungs if rung < value), default=None), min(
        (rung for rung in rungs if rung > value), default=None
    )
