"""The run's aggregation policy: how much each contribution of a seal weighs, beyond its inner steps.

`clip` scales every contribution down to the norm of an inner step that is the (lower) median of all steps taken. A
replica that took a quarter of the steps has moved a quarter as far, or somewhat more, and is no measure for one that
took them all. `clip+cosine` also drops those that pull against the others. One at a time it drops the one whose cosine
with the weighted, clipped sum of the others is lowest, as long as that is below the threshold and fewer than half are
dropped. One at a time, because one bad contribution turns the sum that good ones are held against. So most always
remain, and of two nobody is dropped.

Norms and cosines are sums whose order a machine chooses, so no two machines need agree on their last bits. The proposer
seals integers, and whoever checks them takes any that lie within one unit, or one hair, of its own (`disagreement`).

All of it follows from the payloads' inner products, so they are decoded once (see `inner_products`); and the network
process can judge, without numpy, what its training process measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from dlx.ground.constants import UNIT

THRESHOLD = 0.0  # a contribution whose cosine with the others' mean is below this is dropped
BAND = 1e-4  # whose cosine lies closer to the threshold than this may be dropped or kept: float64 sums differ by 1e-12

Gram = Sequence[Sequence[float]]  # inner products, float64, of each payload with each


@dataclass(frozen=True)
class Measured:
    """What decides about the multipliers of one seal. It is the factor, at most 1, that scales each contribution down
    to the median. It is also those that pull against the others (index, cosine when its turn came), in the order in
    which they are dropped. The last ones may lie within the band above the threshold."""

    factors: tuple[float, ...]
    outliers: tuple[tuple[int, float], ...] = ()


def measure(policy: str, steps: Sequence[int], gram: Gram) -> Measured:
    """What `clip` or `clip+cosine` needs to know of the contributions of one seal, in their listed order: their inner
    steps and the inner products of their decoded payloads. Of these `clip` looks at the diagonal only."""
    norms = [math.sqrt(gram[index][index]) for index in range(len(steps))]
    factors = _factors(steps, norms)
    return Measured(factors, _outliers(steps, norms, factors, gram) if policy == "clip+cosine" else ())


def multipliers(measured: Measured) -> tuple[int, ...]:
    """What a proposer seals: Q1.15 integers, UNIT for a contribution that counts in full."""
    dropped = _dropped(measured, THRESHOLD)
    return tuple(0 if index in dropped else one for index, one in enumerate(_clipped(measured.factors)))


def disagreement(measured: Measured, sealed: Sequence[int]) -> str | None:
    """Why no honest proposer can have sealed these multipliers, given one's own measurement; None: it can."""
    clipped = _clipped(measured.factors)
    if len(sealed) != len(clipped):
        return f"{len(sealed)} multipliers for {len(clipped)} contributions"
    must, may = _dropped(measured, THRESHOLD - BAND), _dropped(measured, THRESHOLD + BAND)
    for index, (one, own) in enumerate(zip(sealed, clipped, strict=True)):
        if index in must and one != 0:
            return f"contribution {index} has the multiplier {one}, but it pulls against the others"
        if abs(one - own) > 1 and not (one == 0 and index in may):
            return f"contribution {index} has the multiplier {one}, its norm a step gives {own}"
    return None


def _outliers(
    steps: Sequence[int], norms: Sequence[float], factors: Sequence[float], gram: Gram
) -> tuple[tuple[int, float], ...]:
    # The unrounded factors: two machines' rounded ones may differ by a unit, which the cosines would show.
    parts = [count * count * factor for count, factor in zip(steps, factors, strict=True)]
    left, found = list(range(len(steps))), list[tuple[int, float]]()
    while len(found) < (len(steps) - 1) // 2:
        cosines = _cosines(left, parts, norms, gram)
        # Equals are taken in their order, also where a machine sees them differ in the last bits.
        lowest = next(index for index in left if cosines[index] < min(cosines.values()) + BAND)
        if cosines[lowest] >= THRESHOLD + BAND:
            break
        found.append((lowest, cosines[lowest]))
        left.remove(lowest)
    return tuple(found)


def _cosines(left: Sequence[int], parts: Sequence[float], norms: Sequence[float], gram: Gram) -> dict[int, float]:
    """Of each one left with the sum of the others' parts of theirs; 0 where either is zero."""
    along = {one: math.fsum(parts[other] * gram[one][other] for other in left) for one in left}
    found = {}
    for index in left:
        # With the sum of the others, without taking a large sum from a large sum.
        rest = {one: along[one] - parts[index] * gram[one][index] for one in left}
        whole = math.fsum(parts[one] * rest[one] for one in left if one != index)
        size = norms[index] * math.sqrt(max(0.0, whole))
        found[index] = rest[index] / size if size > 0 else 0.0
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
    """Down to the lower median of the norms of a step, each as often as its replica took steps."""
    ordered = sorted((norm / count, count) for norm, count in zip(norms, steps, strict=True))
    taken = accumulate(count for _, count in ordered)
    median = next((norm for (norm, _), so_far in zip(ordered, taken, strict=True) if 2 * so_far >= sum(steps)), 0.0)
    return tuple(min(1.0, median * count / norm) if norm > 0 else 1.0 for norm, count in zip(norms, steps, strict=True))


def _clipped(factors: Sequence[float]) -> tuple[int, ...]:
    return tuple(round(UNIT * factor) for factor in factors)
