"""How far a replay ends from what was claimed, and how far is honest.

A distance is norm(replayed change - claimed change) / norm(claimed change) over the segment, in float64; of tensors
that were sent, norm(replayed - sent) / norm(sent). The rate is the part of it that lies along the claimed change:
rounding goes in all directions and hardly along that one, a false learning rate in no other. So bfloat16, which is
rounded a lot, hides none. Each class of tensors is compared by itself, because large tensors would hide small ones.
docs/threats.md has what was measured for the limits.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dlx.training.inner.states import COVARIANCES, STATE_KINDS, parameter_of
from dlx.training.models import weights
from dlx.training.recipe.parameters import rule
from dlx.training.recipe.recipe import InnerOptimiser, Precision, Recipe, packing
from dlx.training.slot.directions import Projection

Arrays = weights.Lazy[np.ndarray]
Class = Literal["matrices", "embeddings", "vectors"]
CLASSES: dict[Class, str] = {
    "matrices": "the layers' matrices",
    "embeddings": "embedding and head",
    "vectors": "norms and other vectors",
}
WEIGHTS = "weights"  # the kind of a part that is none of the optimiser's state


class Limits(NamedTuple):
    """Of one class of tensors: above these the work was not honest."""

    weights: float  # distance of the weights
    rate: float  # of the weights' change
    optimiser: float  # distance of each kind of the optimiser's state


class Thresholds(NamedTuple):
    """Above these the work was not honest."""

    limits: Mapping[Class, Limits]
    sent: float  # distance of the tensors that were sent
    numbers: float  # relative difference of norms and losses


def _of(matrices: Limits, embeddings: Limits, vectors: Limits) -> dict[Class, Limits]:
    return {"matrices": matrices, "embeddings": embeddings, "vectors": vectors}


def _float32(most: float) -> Thresholds:
    return Thresholds(_of(*3 * [Limits(most, 5e-4, most)]), sent=1e-4, numbers=1e-3)


def _bfloat16(matrices: Limits) -> Thresholds:
    return Thresholds(_of(matrices, Limits(0.04, 2e-3, 0.05), Limits(0.03, 3e-3, 0.07)), sent=0.02, numbers=1e-2)


THRESHOLDS: dict[tuple[Precision, InnerOptimiser], Thresholds] = {
    ("float32", "adamw"): _float32(2e-4),
    ("float32", "muon"): _float32(2e-4),
    ("float32", "shampoo"): _float32(4e-4),
    ("bfloat16", "adamw"): _bfloat16(Limits(0.03, 2e-3, 0.04)),
    ("bfloat16", "muon"): _bfloat16(Limits(0.04, 1.2e-3, 0.04)),
    ("bfloat16", "shampoo"): _bfloat16(Limits(0.05, 1.5e-3, 0.05)),
}
_SENT_IN_INT8 = 3e-2  # a last bit more or less moves a value that lies between two codes into the other


def thresholds(recipe: Recipe) -> Thresholds:
    """Of the run's segments."""
    found = THRESHOLDS[recipe.precision, recipe.inner.optimiser]
    return found._replace(sent=_SENT_IN_INT8) if packing(recipe) == "int8" else found


class Part(NamedTuple):
    """What is compared by itself: the weights, or a kind of the optimiser's state, of a class of tensors."""

    kind: str
    tensors: Class

    def __str__(self) -> str:
        return f"{self.kind} of {CLASSES[self.tensors]}"


class Deviation(NamedTuple):
    """Of the replayed change from the one claimed, relative to the latter's norm."""

    distance: float
    rate: float
    sketch: bytes = b""  # its projection, float32 [Projection.SIZE]; empty where nothing was projected


def part_of(name: str, shape: tuple[int, ...]) -> Part:
    """Of a tensor of a stage: a parameter, or one of the optimiser's state."""
    kind = next((kind for kind in STATE_KINDS if name == kind or name.startswith(f"{kind}.")), WEIGHTS)
    parameter = parameter_of(name)
    if parameter is None or rule(parameter).matrix:
        return Part(kind, "matrices")
    return Part(kind, "vectors" if len(shape) == 1 else "embeddings")


def deviations(
    start: Arrays, claimed: Arrays, replayed: Mapping[str, Tensor], projection: Projection | None = None
) -> dict[Part, Deviation]:
    """Of each part of the replayed tensors. Covariances whiten a small gradient as much as a large one: of these the
    distance is the largest over their matrices."""
    sums: dict[Part, _Sums] = defaultdict(_Sums)
    for name, end in replayed.items():
        sums[part_of(name, tuple(end.shape))].add(name, start, claimed, end, projection)
    return {part: one.deviation() for part, one in sums.items()}


class _Sums:
    """Over the tensors of a part."""

    def __init__(self) -> None:
        self.apart = self.along = self.change = self.most = 0.0
        self.sketch: np.ndarray | None = None

    def add(self, name: str, start: Arrays, claimed: Arrays, end: Tensor, projection: Projection | None) -> None:
        change = torch.from_numpy(claimed[name]).double()
        step = end.cpu().double() - change
        change -= torch.from_numpy(start[name])
        apart, whole = step.square().sum().item(), change.square().sum().item()
        self.apart, self.change = self.apart + apart, self.change + whole
        self.along += (step * change).sum().item()
        if name.startswith(COVARIANCES):
            self.most = max([self.most, *_by_matrix(step, change)])
        if projection is not None and apart:
            projected = projection.of(name, step.numpy())
            self.sketch = projected if self.sketch is None else self.sketch + projected

    def deviation(self) -> Deviation:
        distance = max(self.most, ratio(self.apart, self.change))
        if self.change <= 0 or not math.isfinite(self.apart):
            return Deviation(distance, 0.0)
        sketch = b"" if self.sketch is None else (self.sketch / math.sqrt(self.change)).astype("<f4").tobytes()
        return Deviation(distance, self.along / self.change, sketch)


def _by_matrix(step: Tensor, change: Tensor) -> Iterator[float]:
    """Distances of matrices [n, size, size]."""
    return map(ratio, step.square().sum((1, 2)).tolist(), change.square().sum((1, 2)).tolist())


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
