"""The canonical outer step: the next version of a stage's weights, bit for bit the same on every machine.

Only float32 element-wise operations of one IEEE operation each (multiply, then add or subtract), in the order in which
the contributions are listed; no fused form and no reduction. Scalars are rounded to float32 before they are used.

In numpy, because who audits has no torch; a tensor in main memory is such an array (`tensor.numpy()`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dlx.ground.blobs import read_blob
from dlx.ground.constants import NO_HASH, UNIT
from dlx.training.codecs import codec
from dlx.training.models import weights
from dlx.training.models.shapes import stage_shapes
from dlx.training.models.weights import Shapes
from dlx.training.outer.policy import Measured, measure
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Outer, Plan

if TYPE_CHECKING:
    from torch import Tensor

Arrays = Mapping[str, np.ndarray]
Observer = Callable[[Arrays], None]  # sees g, the mean that the seal counts, before it is used up


class OuterError(ValueError):
    """Contributions that no seal can hold."""


@dataclass(frozen=True)
class SealedPayload:
    """One contribution as its seal counts it."""

    payload: Path  # a blob: its name is the hex of its sha256
    steps: int  # inner steps
    multiplier: int  # Q1.15: 32768 is 1.0
    plan: Plan


@dataclass(frozen=True)
class Version:
    """The sha256 of a version's weights file and of its momentum file, and the Merkle roots of the same files (see
    ground.merkle); 32 zero bytes each where there is no momentum."""

    weights: bytes
    momentum: bytes
    weights_root: bytes
    momentum_root: bytes


def apply_round(
    manifest: Manifest,
    stage: int,
    weights_path: Path,
    momentum_path: Path | None,
    contributions: Sequence[SealedPayload],
    out: Path,
    observe: Observer = lambda mean: None,
) -> Version:
    """Make V[t+1] of `stage` from V[t] and the contributions sealed in round t, in their listed order.

    All files are blobs named by their sha256; the new ones are written to `out`. `momentum_path` is None as long as
    there is no momentum file. No contributions leave weights and momentum as they are, and write nothing.

    Every input's bytes are hashed while they are read. Raises Damaged for one that is missing or not what its name
    says; WeightsError, BlobError or CodecError for one that is, and still is not what the manifest says; OuterError for
    weights that no seal can have; OSError for a full disk.
    """
    shapes = stage_shapes(manifest, stage)
    version = _read_version(weights_path, shapes)
    momentum = None if momentum_path is None else _read_version(momentum_path, shapes)
    if not contributions:
        momentum_name = NO_HASH if momentum_path is None else _named(momentum_path)
        return Version(_named(weights_path), momentum_name, weights.tree_root(version), _momentum_root(momentum))
    gradients = (read_payload(manifest, shapes, one.payload, one.plan) for one in contributions)
    new_momentum = outer_step(version, momentum, gradients, parts(contributions), manifest.outer, observe)
    return Version(
        weights.write_blob(version, out),
        NO_HASH if new_momentum is None else weights.write_blob(new_momentum, out),
        weights.tree_root(version),
        _momentum_root(new_momentum),
    )


def measure_round(manifest: Manifest, stage: int, contributions: Sequence[SealedPayload]) -> Measured:
    """What the run's policy needs to know of these payloads, whatever their multipliers. Raises as `apply_round`."""
    shapes = stage_shapes(manifest, stage)

    def gradient(index: int) -> Arrays:
        return read_payload(manifest, shapes, contributions[index].payload, contributions[index].plan)

    return measure(manifest.outer.policy, [one.steps for one in contributions], gradient)


def read_payload(manifest: Manifest, shapes: Shapes, payload: Path, plan: Plan) -> dict[str, np.ndarray]:
    """The decoded float32 arrays of a payload blob of unknown origin; `shapes` are those of its stage.

    Raises Damaged for a file that is missing or not what its name says, BlobError for one that is too long, CodecError
    for one that is no payload.
    """
    chosen = codec(manifest.codec.name)
    return chosen.decode_arrays(read_blob(payload, chosen.size(shapes, plan)), shapes, plan)


def outer_step(
    version: Arrays,
    momentum: Arrays | None,
    gradients: Iterable[Arrays],
    parts: Sequence[float],
    outer: Outer,
    observe: Observer = lambda mean: None,
) -> Arrays | None:
    """One step of float32 arrays with g = the sum of each gradient times its part, in the order given.

    Changes `version`, `momentum` and the gradients in place; returns the new momentum, None where `outer` has none.
    """
    total = {name: np.zeros_like(values) for name, values in version.items()}
    for gradient, part in zip(gradients, parts, strict=True):
        for name, values in total.items():
            _scale(gradient[name], part)
            values += gradient[name]
    observe(total)
    if outer.momentum > 0 and momentum is None:
        momentum = {name: np.zeros_like(values) for name, values in version.items()}
    for name, values in version.items():
        step = total[name]
        if momentum is not None:
            moment = momentum[name]
            _scale(moment, outer.momentum)
            moment += step
            if outer.nesterov:
                step += moment * np.float32(outer.momentum)
            else:
                step = moment
        values -= step * np.float32(outer.lr)
    return momentum


def parts(contributions: Sequence[SealedPayload]) -> list[float]:
    """Each contribution's part of g, a float32: steps x multiplier / (all steps x 32768). Raises OuterError."""
    total = sum(one.steps for one in contributions)
    for one in contributions:
        if one.steps <= 0 or not 0 <= one.multiplier < 2 * UNIT:
            raise OuterError(f"payload {one.payload.name}: {one.steps} steps, multiplier {one.multiplier}")
    # Exact integers, one correctly rounded float64 division, one rounding to float32.
    return [_float32(one.steps * one.multiplier / (total * UNIT)) for one in contributions]


def start_weights(version: Mapping[str, Tensor], own: Mapping[str, Tensor] | None, alpha: float) -> dict[str, Tensor]:
    """start[t]: the version less alpha times the slot's own decoded payload, where one is not in the version yet."""
    if own is None:
        return {name: tensor.clone() for name, tensor in version.items()}
    factor = _float32(alpha)
    return {name: tensor.sub(own[name].mul(factor)) for name, tensor in version.items()}


def start_hash(manifest: Manifest, stage: int, version: Path, own: Path, plan: Plan) -> bytes:
    """The hash of `start_weights` from two blobs: the version's weights, and the slot's own payload of that plan.

    Raises Damaged, WeightsError for what is no version, and as `read_payload` does."""
    shapes = stage_shapes(manifest, stage)
    start, payload = _read_version(version, shapes), read_payload(manifest, shapes, own, plan)
    factor = np.float32(_float32(manifest.outer.alpha))
    for name, values in start.items():
        values -= payload[name] * factor
    return weights.weights_hash(start)


def pseudo_gradient(
    start: Mapping[str, Tensor],
    end: Mapping[str, Tensor],
    residual: Mapping[str, Tensor],
    decay: float,
    folded: Sequence[Mapping[str, Tensor]],
) -> dict[str, Tensor]:
    """u[t] = start - end + decay * residual + each folded payload in the order given; float32 throughout."""
    factor = _float32(decay)
    total = {name: start[name].sub(end[name]).add_(residual[name].mul(factor)) for name in start}
    for payload in folded:
        for name, tensor in total.items():
            tensor.add_(payload[name])
    return total


def _scale(values: np.ndarray, factor: float) -> None:
    values *= np.float32(factor)


def _momentum_root(momentum: Arrays | None) -> bytes:
    return NO_HASH if momentum is None else weights.tree_root(momentum)


def _read_version(path: Path, shapes: Shapes) -> dict[str, np.ndarray]:
    return weights.read_arrays(path, shapes, sha256=_named(path))


def _named(path: Path) -> bytes:
    try:
        name = bytes.fromhex(path.name)
    except ValueError:
        name = b""
    if len(name) != 32:
        raise OuterError(f"{path.name}: expected a blob, named by the hex of its sha256")
    return name


def _float32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]
