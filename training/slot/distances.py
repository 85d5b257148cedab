"""How far a replay ends from what was claimed, and how far is honest.

A distance is norm(replayed change - claimed change) / norm(claimed change) over the segment, in float64; of tensors
that were sent, norm(replayed - sent) / norm(sent). The rate is the part of it that lies along the claimed change:
rounding goes in all directions and hardly along that one, a false learning rate in no other. So bfloat16, which is
rounded a lot, hides none. docs/auditor.md has what was measured for the thresholds.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dlx.training.inner.states import COVARIANCES, STATE_KINDS
from dlx.training.models import weights
from dlx.training.recipe.recipe import InnerOptimiser, Precision, Recipe, packing

Arrays = weights.Lazy[np.ndarray]


class Thresholds(NamedTuple):
    """Above these the work was not honest."""

    change: float  # distance of the weights, and of the optimiser's state
    rate: float  # of the weights' change
    sent: float  # distance of the tensors that were sent
    numbers: float  # relative difference of norms and losses


_FLOAT32 = Thresholds(change=5e-4, rate=1e-3, sent=3e-4, numbers=1e-3)
THRESHOLDS: dict[tuple[Precision, InnerOptimiser], Thresholds] = {
    ("float32", "adamw"): _FLOAT32,
    ("float32", "muon"): _FLOAT32,
    ("float32", "shampoo"): _FLOAT32,
    ("bfloat16", "adamw"): Thresholds(change=0.03, rate=2.5e-3, sent=3e-2, numbers=1e-2),
    ("bfloat16", "muon"): Thresholds(change=0.08, rate=2.5e-3, sent=3e-2, numbers=1e-2),
    ("bfloat16", "shampoo"): Thresholds(change=0.08, rate=2.5e-3, sent=3e-2, numbers=1e-2),
}
_SENT_IN_INT8 = 3e-2  # a last bit more or less moves a value that lies between two codes into the other


def thresholds(recipe: Recipe) -> Thresholds:
    """Of the run's segments."""
    found = THRESHOLDS[recipe.precision, recipe.inner.optimiser]
    return found._replace(sent=_SENT_IN_INT8) if packing(recipe) == "int8" else found


def optimiser_distance(start: Arrays, claimed: Arrays, replayed: Mapping[str, Tensor]) -> float:
    """The largest over the kinds of state: false moments at a segment's end would steer the next one. Of covariances,
    which whiten a small gradient as much as a large one, the largest over their matrices."""

    def of(kind: str) -> Mapping[str, Tensor]:
        return {name: one for name, one in replayed.items() if name == kind or name.startswith(f"{kind}.")}

    return max(
        _matrix_distance(start, claimed, of(kind)) if kind in COVARIANCES else distance(start, claimed, of(kind))[0]
        for kind in STATE_KINDS
    )


def _matrix_distance(start: Arrays, claimed: Arrays, replayed: Mapping[str, Tensor]) -> float:
    """The largest over the matrices [n, size, size] of all tensors."""
    found = 0.0
    for name, end in replayed.items():
        claim = torch.from_numpy(claimed[name]).double()
        apart = (end.cpu().double() - claim).square().sum((1, 2))
        change = (claim - torch.from_numpy(start[name])).square().sum((1, 2))
        found = max(found, *map(ratio, apart.tolist(), change.tolist()))
    return found


def distance(start: Arrays, claimed: Arrays, replayed: Mapping[str, Tensor]) -> tuple[float, float]:
    """Distance and rate of the change from `start`, over the replayed tensors."""
    apart = along = change = 0.0
    for name, end in replayed.items():
        claim = torch.from_numpy(claimed[name]).double()
        step = end.cpu().double() - claim
        claim -= torch.from_numpy(start[name])
        apart += step.square().sum().item()
        along += (step * claim).sum().item()
        change += claim.square().sum().item()
    return ratio(apart, change), along / change if change > 0 and math.isfinite(along) else 0.0


def ratio(apart: float, whole: float) -> float:
    """The root of a quotient of squares; infinite where it is no number, or the claim is nothing."""
    if apart == 0:
        return 0.0
    return math.sqrt(apart / whole) if whole > 0 and math.isfinite(apart) else math.inf


def relative(found: float, claimed: float) -> float:
    if found == claimed:
        return 0.0
    if not claimed or not math.isfinite(found):  # a square may overflow
        return math.inf
    return abs(found - claimed) / abs(claimed)
