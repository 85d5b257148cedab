"""The run's aggregation policy: how much each contribution of a seal weighs, beyond its inner steps.

`clip` scales every contribution down to a measure of how far an inner step moves (`measure_of_a_step`). That is never
more than the run's inner optimiser can move (`reach`), so one or two contributions have a bound too. Of three or more
it is also at most the (lower) median of the replicas, and at least half of that. So no member sets it alone, whatever
steps it states. Short rounds move further a step than long ones, so where replicas differ the median of all steps taken
lies below that of the replicas. Between these bounds it is the measure.

`clip+cosine` also drops those that pull against more than half of the others: whose payloads have cosines below 0 with
theirs. Each pair is looked at by itself. So what a minority sends drops no honest member, as long as honest ones have
something in common; and nobody is most of "the others" by its length or its steps. Where half or more would go, nobody
does: then nobody knows who is right.

Norms and cosines are sums whose order a machine chooses, so no two machines need agree on their last bits. The proposer
seals integers, its factors rounded down, and whoever checks them takes either of two where its own factor lies within a
hair of where they part (`disagreement`). Rounded to the nearest one, a payload as large as its maker likes would be
worth twice the measure; and one unit more than 0 has no bound.

All of it follows from the payloads' inner products, so they are decoded once (see `inner_products`); and the network
process can judge, without numpy, what its training process measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from dlx.ground.constants import UNIT

LEAST = 2.0  # the measure is at least the replicas' median over this, where the reach allows it
FEW = 2  # contributions of which no median says anything
HAIR = 1 / 64  # of a unit: that of two machines' factors differ by 1e-12 of them
BAND = 1e-9  # a cosine this close to 0 may be seen on either side of it: float64 sums differ by 1e-12

Gram = Sequence[Sequence[float]]  # inner products, float64, of each payload with each


@dataclass(frozen=True)
class Against:
    """How many of the others a contribution pulls against: for sure (a cosine of -BAND or less), as seen here (below
    0), and perhaps, as another machine may see it (below BAND)."""

    surely: int
    seen: int
    perhaps: int


@dataclass(frozen=True)
class Measured:
    """What decides about the multipliers of one seal. It is the factor, at most 1, that scales each contribution down
    to the measure of a step. With `clip+cosine` it is also how many others each pulls against."""

    factors: tuple[float, ...]
    against: tuple[Against, ...] = ()


def measure(policy: str, steps: Sequence[int], gram: Gram, reach: float) -> Measured:
    """What `clip` or `clip+cosine` needs to know of the contributions of one seal, in their listed order: their inner
    steps, the inner products of their decoded payloads, and the reach of a step. Of the products `clip` looks at the
    diagonal only."""
    norms = [math.sqrt(gram[index][index]) for index in range(len(steps))]
    return Measured(_factors(steps, norms, reach), _against(norms, gram) if policy == "clip+cosine" else ())


def multipliers(measured: Measured) -> tuple[int, ...]:
    """What a proposer seals: Q1.15 integers, UNIT for a contribution that counts in full."""
    dropped = _dropped([one.seen for one in measured.against])
    return tuple(0 if index in dropped else int(_units(factor)) for index, factor in enumerate(measured.factors))


def disagreement(measured: Measured, sealed: Sequence[int]) -> str | None:
    """Why no honest proposer can have sealed these multipliers, given one's own measurement; None: it can."""
    factors = measured.factors
    if len(sealed) != len(factors):
        return f"{len(sealed)} multipliers for {len(factors)} contributions"
    surely, perhaps = ([getattr(one, seen) for one in measured.against] for seen in ("surely", "perhaps"))
    # Another machine may see more that pull against others than are sure to, and then too many.
    must = _dropped(surely) if _fewer_than_half(perhaps) else set[int]()
    may = _most_others(perhaps) if _fewer_than_half(surely) else set[int]()
    for index, (one, factor) in enumerate(zip(sealed, factors, strict=True)):
        if index in must and one != 0:
            return f"contribution {index} has the multiplier {one}, but it pulls against most of the others"
        if not _may_be(factor, one) and not (one == 0 and index in may):
            return f"contribution {index} has the multiplier {one}, its norm a step gives {UNIT * factor:.2f}"
    return None


def measure_of_a_step(steps: Sequence[int], norms: Sequence[float], reach: float) -> float:
    """How far an inner step may move at most, by the inner steps of each contribution (at least one), its norm, and
    the reach of a step.

    Examples:
        Three that took a quarter of the steps, and moved further a step than one that took them all:

        >>> measure_of_a_step([20, 5, 5, 5], [20.0, 7.5, 7.5, 7.5], 4.0)
        1.0

        One that states as many steps as all others together do not set the measure with it:

        >>> measure_of_a_step([20, 5, 5, 5], [1e9, 7.5, 7.5, 7.5], 4.0)
        1.5

        Nobody moves further than the inner optimiser can, however few there are:

        >>> measure_of_a_step([20], [1e9], 4.0)
        4.0
    """
    if len(steps) <= FEW:
        return reach
    ordered = sorted((norm / count, count) for norm, count in zip(norms, steps, strict=True))
    of_replicas, _ = ordered[(len(ordered) - 1) // 2]
    taken = accumulate(count for _, count in ordered)
    of_steps = next(norm for (norm, _), so_far in zip(ordered, taken, strict=True) if 2 * so_far >= sum(steps))
    return min(reach, of_replicas, max(of_steps, of_replicas / LEAST))


def _against(norms: Sequence[float], gram: Gram) -> tuple[Against, ...]:
    """Zeros pull against nobody, and nobody against them."""
    moving = [index for index, norm in enumerate(norms) if norm > 0]
    found = []
    for index, norm in enumerate(norms):
        cosines = [gram[index][one] / (norm * norms[one]) for one in moving if norm > 0 and one != index]
        found.append(Against(*(sum(cosine < bound for cosine in cosines) for bound in (-BAND, 0.0, BAND))))
    return tuple(found)


def _dropped(against: Sequence[int]) -> set[int]:
    """By how many of the others each pulls against."""
    return _most_others(against) if _fewer_than_half(against) else set()


def _most_others(against: Sequence[int]) -> set[int]:
    return {index for index, count in enumerate(against) if 2 * count > len(against) - 1}


def _fewer_than_half(against: Sequence[int]) -> bool:
    return 2 * len(_most_others(against)) < len(against)


def _factors(steps: Sequence[int], norms: Sequence[float], reach: float) -> tuple[float, ...]:
    if not steps:
        return ()
    length = measure_of_a_step(steps, norms, reach)
    return tuple(min(1.0, length * count / norm) if norm > 0 else 1.0 for norm, count in zip(norms, steps, strict=True))


def _units(factor: float) -> float:
    """What a multiplier is rounded down from: a factor of 1 is UNIT on every machine."""
    return UNIT * factor + HAIR


def _may_be(factor: float, multiplier: int) -> bool:
    """Whether this is the multiplier of a factor that an honest machine may have where one's own is this."""
    return -HAIR / 2 <= _units(factor) - multiplier <= 1 + HAIR / 2
