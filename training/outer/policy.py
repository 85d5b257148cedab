"""The run's aggregation policy: how much each contribution of a seal weighs, beyond its inner steps.

`clip` scales every contribution down to a measure of how far an inner step moves (`measure_of_a_step`). No member may
set that alone, whatever steps it states: it is at most the (lower) median of the replicas, and at least half of that.
Short rounds move further a step than long ones, so where replicas differ the median of all steps taken lies below that
of the replicas. Between these bounds it is the measure. Of two replicas either may be wrong: there the longer one is
scaled down to four times the shorter one, which honest ones never differ by.

`clip+cosine` also drops those that pull against the others. One at a time it drops the one whose cosine with the sum of
the others' directions is lowest, as long as that is below the threshold and fewer than half are dropped. One at a time,
because one bad contribution turns the sum that good ones are held against. Directions all have length 1, so that nobody
is most of "the others" by what it states or sends. So most always remain, and of two nobody is dropped.

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

THRESHOLD = 0.0  # a contribution whose cosine with the others' sum is below this is dropped
LEAST = 2.0  # the measure is at least the replicas' median over this
OF_TWO = 4.0  # how much further a step the one of two may move than the other
HAIR = 1 / 64  # of a unit: that of two machines' factors differ by 1e-12 of them
BAND = 1e-4  # whose cosine lies closer to the threshold than this may be dropped or kept: float64 sums differ by 1e-12

Gram = Sequence[Sequence[float]]  # inner products, float64, of each payload with each


@dataclass(frozen=True)
class Measured:
    """What decides about the multipliers of one seal. It is the factor, at most 1, that scales each contribution down
    to the measure of a step. It is also those that pull against the others (index, cosine when its turn came), in the
    order in which they are dropped. The last ones may lie within the band above the threshold."""

    factors: tuple[float, ...]
    outliers: tuple[tuple[int, float], ...] = ()


def measure(policy: str, steps: Sequence[int], gram: Gram) -> Measured:
    """What `clip` or `clip+cosine` needs to know of the contributions of one seal, in their listed order: their inner
    steps and the inner products of their decoded payloads. Of these `clip` looks at the diagonal only."""
    norms = [math.sqrt(gram[index][index]) for index in range(len(steps))]
    factors = _factors(steps, norms)
    return Measured(factors, _outliers(norms, gram) if policy == "clip+cosine" else ())


def multipliers(measured: Measured) -> tuple[int, ...]:
    """What a proposer seals: Q1.15 integers, UNIT for a contribution that counts in full."""
    dropped = _dropped(measured, THRESHOLD)
    return tuple(0 if index in dropped else int(_units(factor)) for index, factor in enumerate(measured.factors))


def disagreement(measured: Measured, sealed: Sequence[int]) -> str | None:
    """Why no honest proposer can have sealed these multipliers, given one's own measurement; None: it can."""
    factors = measured.factors
    if len(sealed) != len(factors):
        return f"{len(sealed)} multipliers for {len(factors)} contributions"
    must, may = _dropped(measured, THRESHOLD - BAND), _dropped(measured, THRESHOLD + BAND)
    for index, (one, factor) in enumerate(zip(sealed, factors, strict=True)):
        if index in must and one != 0:
            return f"contribution {index} has the multiplier {one}, but it pulls against the others"
        if not _may_be(factor, one) and not (one == 0 and index in may):
            return f"contribution {index} has the multiplier {one}, its norm a step gives {UNIT * factor:.2f}"
    return None


def measure_of_a_step(steps: Sequence[int], norms: Sequence[float]) -> float:
    """How far an inner step may move at most, by the inner steps of each contribution (at least one) and its norm.

    Examples:
        Three that took a quarter of the steps, and moved further a step than one that took them all:

        >>> measure_of_a_step([20, 5, 5, 5], [20.0, 7.5, 7.5, 7.5])
        1.0

        One that states as many steps as all others together do not set the measure with it:

        >>> measure_of_a_step([20, 5, 5, 5], [1e9, 7.5, 7.5, 7.5])
        1.5
    """
    ordered = sorted((norm / count, count) for norm, count in zip(norms, steps, strict=True))
    if len(ordered) == 2:
        (shorter, _), (longer, _) = ordered
        return min(longer, OF_TWO * shorter)
    of_replicas, _ = ordered[(len(ordered) - 1) // 2]
    taken = accumulate(count for _, count in ordered)
    of_steps = next(norm for (norm, _), so_far in zip(ordered, taken, strict=True) if 2 * so_far >= sum(steps))
    return min(of_replicas, max(of_steps, of_replicas / LEAST))


def _outliers(norms: Sequence[float], gram: Gram) -> tuple[tuple[int, float], ...]:
    left, found = list(range(len(norms))), list[tuple[int, float]]()
    while len(found) < (len(norms) - 1) // 2:
        cosines = _cosines(left, norms, gram)
        # Equals are taken in their order, also where a machine sees them differ in the last bits.
        lowest = next(index for index in left if cosines[index] < min(cosines.values()) + BAND)
        if cosines[lowest] >= THRESHOLD + BAND:
            break
        found.append((lowest, cosines[lowest]))
        left.remove(lowest)
    return tuple(found)


def _cosines(left: Sequence[int], norms: Sequence[float], gram: Gram) -> dict[int, float]:
    """Of each one left with the sum of the others' directions; 0 where either is zero."""
    moving = [index for index in left if norms[index] > 0]
    found = dict.fromkeys(left, 0.0)
    for index in moving:
        others = [one for one in moving if one != index]
        along = math.fsum(gram[index][one] / norms[one] for one in others)
        whole = math.fsum(gram[one][other] / norms[one] / norms[other] for one in others for other in others)
        size = norms[index] * math.sqrt(max(0.0, whole))
        found[index] = along / size if size > 0 else 0.0
    return found


def _dropped(measured: Measured, threshold: float) -> set[int]:
    """Those whose turn comes before the first one that is not below the threshold."""
    found = set()
    for index, cosine in measured.outliers:
        if cosine >= threshold:
            break
        found.add(index)
    return found


def _factors(steps: Sequence[int], norms: Sequence[float]) -> tuple[float, ...]:
    if not steps:
        return ()
    length = measure_of_a_step(steps, norms)
    return tuple(min(1.0, length * count / norm) if norm > 0 else 1.0 for norm, count in zip(norms, steps, strict=True))


def _units(factor: float) -> float:
    """What a multiplier is rounded down from: a factor of 1 is UNIT on every machine."""
    return UNIT * factor + HAIR


def _may_be(factor: float, multiplier: int) -> bool:
    """Whether this is the multiplier of a factor that an honest machine may have where one's own is this."""
    return -HAIR / 2 <= _units(factor) - multiplier <= 1 + HAIR / 2
