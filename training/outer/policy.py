"""The run's aggregation policy: how much each contribution of a seal weighs, beyond its inner steps.

`clip` scales every contribution down to the (lower) median norm. `clip+cosine` also drops those that pull against the
others: one at a time, the one whose cosine with the token-weighted, clipped mean of the others is lowest, as long as
that is below the threshold and fewer than half are dropped. One at a time, because one bad contribution turns the mean
that good ones are held against. So somebody who counts in full always remains, and of two nobody is dropped.

Norms and cosines are sums whose order a machine chooses, so no two machines need agree on their last bits: the proposer
seals integers, and whoever checks them takes any that lie within one unit, or one hair, of its own (`disagreement`).

Needs numpy only where `measure` is called, so that the network process can judge what its training process measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlx.ground.constants import UNIT

if TYPE_CHECKING:
    import numpy as np

THRESHOLD = 0.0  # a contribution whose cosine with the others' mean is below this is dropped
BAND = 1e-4  # whose cosine lies closer to the threshold than this may be dropped or kept: float64 sums differ by 1e-12
_CHUNK = 1 << 20  # elements

Gradient = Callable[[int], Mapping[str, "np.ndarray"]]


@dataclass(frozen=True)
class Measured:
    """What decides about the multipliers of one seal: the float64 norm of each decoded payload, and those that pull
    against the others (index, cosine when its turn came), in the order in which they are dropped. The last ones may lie
    within the band above the threshold."""

    norms: tuple[float, ...]
    outliers: tuple[tuple[int, float], ...] = ()


def measure(policy: str, steps: Sequence[int], gradient: Gradient) -> Measured:
    """What `clip` or `clip+cosine` needs to know of the contributions of one seal, in their listed order.

    `gradient(index)` decodes a payload: each is asked for three times, and once more for each that is dropped. One of
    them and, for the cosines, one float64 sum are in memory at a time.
    """
    norms = tuple(math.sqrt(_dots(one, one)) for one in map(gradient, range(len(steps))))
    return Measured(norms, _outliers(steps, norms, gradient) if policy == "clip+cosine" else ())


def multipliers(measured: Measured) -> tuple[int, ...]:
    """What a proposer seals: Q1.15 integers, UNIT for a contribution that counts in full."""
    dropped = _dropped(measured, THRESHOLD)
    return tuple(0 if index in dropped else one for index, one in enumerate(_clipped(measured.norms)))


def disagreement(measured: Measured, sealed: Sequence[int]) -> str | None:
    """Why no honest proposer can have sealed these multipliers, given one's own measurement; None: it can."""
    clipped = _clipped(measured.norms)
    if len(sealed) != len(clipped):
        return f"{len(sealed)} multipliers for {len(clipped)} contributions"
    must, may = _dropped(measured, THRESHOLD - BAND), _dropped(measured, THRESHOLD + BAND)
    for index, (one, own) in enumerate(zip(sealed, clipped, strict=True)):
        if index in must and one != 0:
            return f"contribution {index} has the multiplier {one}, but it pulls against the others"
        if abs(one - own) > 1 and not (one == 0 and index in may):
            return f"contribution {index} has the multiplier {one}, its norm gives {own}"
    return None


def _outliers(steps: Sequence[int], norms: Sequence[float], gradient: Gradient) -> tuple[tuple[int, float], ...]:
    # The unrounded factors: two machines' rounded ones may differ by a unit, which the cosines would show.
    parts = [count * factor for count, factor in zip(steps, _factors(norms), strict=True)]
    left, found = list(range(len(steps))), list[tuple[int, float]]()
    total: dict[str, np.ndarray] = {}
    for index in left:
        _add(total, gradient(index), parts[index])
    while len(found) < (len(steps) - 1) // 2:
        whole = _dots(total, total)
        cosines = {index: _cosine(_dots(gradient(index), total), whole, norms[index], parts[index]) for index in left}
        # Equals are taken in their order, also where a machine sees them differ in the last bits.
        lowest = next(index for index in left if cosines[index] < min(cosines.values()) + BAND)
        if cosines[lowest] >= THRESHOLD + BAND:
            break
        found.append((lowest, cosines[lowest]))
        left.remove(lowest)
        _add(total, gradient(lowest), -parts[lowest])
    return tuple(found)


def _cosine(along: float, whole: float, norm: float, part: float) -> float:
    """Of g (its norm given) with S - part * g, from g . S and S . S; 0 where either is zero."""
    others = math.sqrt(max(0.0, whole - 2 * part * along + (part * norm) ** 2))
    return (along - part * norm**2) / (norm * others) if norm > 0 and others > 0 else 0.0


def _dropped(measured: Measured, threshold: float) -> set[int]:
    """Those whose turn comes before the first one that is not below the threshold."""
    found = set()
    for index, cosine in measured.outliers:
        if cosine >= threshold:
            break
        found.add(index)
    return found


def _factors(norms: Sequence[float]) -> list[float]:
    median = sorted(norms)[(len(norms) - 1) // 2] if norms else 0.0
    return [median / norm if norm > median else 1.0 for norm in norms]


def _clipped(norms: Sequence[float]) -> tuple[int, ...]:
    return tuple(round(UNIT * factor) for factor in _factors(norms))


def _add(total: dict[str, np.ndarray], one: Mapping[str, np.ndarray], part: float) -> None:
    for name, values in one.items():
        scaled = values.astype("float64")
        scaled *= part
        if name in total:
            total[name] += scaled
        else:
            total[name] = scaled


def _dots(left: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]) -> float:
    """In float64, a chunk at a time: a whole embedding's copies would take more than the payloads."""
    found = 0.0
    for name in left:
        one, other = left[name].reshape(-1), right[name].reshape(-1)
        for start in range(0, len(one), _CHUNK):
            here = slice(start, start + _CHUNK)
            found += float(one[here].astype("float64") @ other[here].astype("float64"))
    return found
