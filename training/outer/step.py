"""The outer step: the next version of a stage's weights, bit for bit the same on every machine (see `arithmetic`).

It streams: of version, momentum and sum only a piece of a tensor is in memory. Payloads are decoded where they lie and
added block by block, and the new files are hashed and written while the next piece is computed. So it takes the same
memory whatever the size of the stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dlx.ground.constants import NO_HASH, UNIT
from dlx.ground.streamed import Buffers, Written
from dlx.training.codecs import codec
from dlx.training.codecs.base import Decoder, count, spans
from dlx.training.models import weights
from dlx.training.models.shapes import stage_shapes
from dlx.training.models.weights import Shapes, Stored, Writer
from dlx.training.outer.arithmetic import add_part, descend, rounded
from dlx.training.outer.inner_products import InnerProducts
from dlx.training.outer.payloads import Payload, opened
from dlx.training.outer.policy import Measured, measure
from dlx.training.outer.reach import reach_of_a_step
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Outer, Plan

Arrays = Mapping[str, np.ndarray]

_PIECE = 1 << 20  # values of a tensor that are in memory at a time


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
    threads: int = 1,
    device: str | None = None,
) -> Version:
    """Make V[t+1] of `stage` from V[t] and the contributions sealed in round t, in their listed order.

    All files are blobs named by their sha256; the new ones are written to `out`. `momentum_path` is None as long as
    there is no momentum file. No contributions leave weights and momentum as they are, and write nothing. `device`: of
    torch, one on which the self-test found the same bits; None: in main memory, on so many `threads`.

    Every input's bytes are hashed, unless this process has done so; what fails leaves no file. Raises Damaged for an
    input that is missing or not what its name says. Raises WeightsError, BlobError or CodecError for one that is, and
    still is not what the manifest says; OuterError for weights that no seal can have; OSError for a full disk.
    """
    shapes = stage_shapes(manifest, stage)
    # With a delay the slot reads its base once more; a momentum is nobody else's.
    version = Stored(weights_path, shapes, sha256=_named(weights_path), once=manifest.outer.delay == 0)
    momentum = None if momentum_path is None else Stored(momentum_path, shapes, sha256=_named(momentum_path), once=True)
    if not contributions:
        names = [NO_HASH if path is None else _named(path) for path in (weights_path, momentum_path)]
        return Version(*names, *(NO_HASH if one is None else weights.tree_root(one) for one in (version, momentum)))
    payloads = _opened(manifest, shapes, contributions, threads, device)
    sealed = parts([one.steps for one in contributions], [one.multiplier for one in contributions])
    stepper = _Stepper(sealed, manifest.outer, device)
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(threads, "outer"))
        has_momentum = momentum is not None or manifest.outer.momentum > 0
        cached = (True, False)[: 1 + has_momentum]  # the weights are read again soon
        files = [stack.enter_context(Writer(shapes, out, tree=True, cached=one)) for one in cached]
        buffers = [Buffers() for _ in files]
        for name in sorted(shapes):
            decoders = [one.decoder(name) for one in payloads]
            for start, length in spans(count(shapes[name]), decoders[0].block, _PIECE):
                piece = [one.of(length) for one in buffers]
                version.read_into(piece[0], name, start)
                if momentum is not None:
                    momentum.read_into(piece[1], name, start)
                elif has_momentum:
                    piece[1][...] = 0
                stepper.step(pool, threads, piece, decoders, start)
                for file, values in zip(files, piece, strict=True):
                    file.extend(name, values)
        version.verify()
        made = [file.finish() for file in files]
    moments = made[1] if has_momentum else Written(NO_HASH, NO_HASH)
    return Version(made[0].sha256, moments.sha256, made[0].root, moments.root)


def measure_round(
    manifest: Manifest, stage: int, contributions: Sequence[SealedPayload], products: InnerProducts | None = None
) -> Measured:
    """What the run's policy needs to know of these payloads, whatever their multipliers. `products` remembers what was
    computed before. Raises Damaged, BlobError, CodecError."""
    if products is None:
        products = InnerProducts(codec(manifest.codec.name), stage_shapes(manifest, stage))
    blobs, policy = [(one.payload, one.plan) for one in contributions], manifest.outer.policy
    gram = products.matrix(blobs) if policy == "clip+cosine" else np.diag(products.norms(blobs)).tolist()
    return measure(policy, [one.steps for one in contributions], gram, reach_of_a_step(manifest, stage))


def outer_step(
    version: Arrays,
    momentum: Arrays | None,
    gradients: Iterable[Arrays],
    parts: Sequence[float],
    outer: Outer,
) -> Arrays | None:
    """One step of float32 arrays with g = the sum of each gradient times its part, in the order given.

    Changes `version`, `momentum` and the gradients in place; returns the new momentum, None where `outer` has none.

    Examples:
        Two replicas' changes, one with twice the steps of the other, without momentum:

        >>> version = {"w": np.array([1.0, 2.0], np.float32)}
        >>> gradients = [{"w": np.array([0.3, 0.0], np.float32)}, {"w": np.array([0.0, 0.6], np.float32)}]
        >>> outer_step(version, None, gradients, [2 / 3, 1 / 3], Outer(lr=1.0, momentum=0.0, nesterov=False))
        >>> [round(float(value), 3) for value in version["w"]]
        [0.8, 1.8]
    """
    total = {name: np.zeros_like(values) for name, values in version.items()}
    for gradient, part in zip(gradients, parts, strict=True):
        for name, values in total.items():
            add_part(values, gradient[name], part)
    if outer.momentum > 0 and momentum is None:
        momentum = {name: np.zeros_like(values) for name, values in version.items()}
    for name, values in version.items():
        descend(values, None if momentum is None else momentum[name], total[name], outer)
    return momentum


def parts(steps: Sequence[int], multipliers: Sequence[int]) -> list[float]:
    """Each contribution's part of g, a float32: steps_i^2 x multiplier_i x longest / (32768 x sum(steps_j^3)), over
    those whose multiplier is above 0; multiplier / (32768 x n) among n equals.

    Where each has moved as far as it took steps, g is as long as what the longest of them did. A slow replica adds what
    it found and shortens no round, as weights by steps alone would (FedAvg; compare FedNova, arXiv 2007.07481). Short
    rounds say less a step than long ones, so their say falls faster than their steps. With squares in place of the
    cubes three replicas of half the speed cost AdamW 3% of the loss (docs/uneven.md). What the policy has dropped takes
    nothing from the others. Raises OuterError for numbers that no seal can have.

    Examples:
        One that took all steps of a round, and one that took a quarter of them:

        >>> parts([20, 5], [32768, 32768])
        [0.9846153855323792, 0.0615384615957737]
    """
    for taken, multiplier in zip(steps, multipliers, strict=True):
        if taken <= 0 or not 0 <= multiplier < 2 * UNIT:
            raise OuterError(f"a contribution of {taken} steps with the multiplier {multiplier}")
    counted = [taken for taken, multiplier in zip(steps, multipliers, strict=True) if multiplier]
    longest, total = max(counted, default=0), max(1, sum(taken**3 for taken in counted))
    # Exact integers, one correctly rounded float64 division, one rounding to float32.
    return [
        rounded(taken * taken * by * longest / (total * UNIT)) for taken, by in zip(steps, multipliers, strict=True)
    ]


def start_hash(manifest: Manifest, stage: int, version: Path, own: Path, plan: Plan) -> bytes:
    """The hash of start[t], the version less alpha times the slot's own decoded payload, from two blobs: the version's
    weights, and the payload of that plan.

    Raises Damaged, WeightsError for what is no version, BlobError or CodecError for what is no such payload."""
    shapes, factor = stage_shapes(manifest, stage), rounded(manifest.outer.alpha)
    stored, payload = (
        Stored(version, shapes, sha256=_named(version)),
        Payload(codec(manifest.codec.name), shapes, own, plan),
    )
    buffers, gradient = Buffers(), np.empty(0, np.float32)
    with Writer(shapes) as file:
        for name in sorted(shapes):
            decoder = payload.decoder(name)
            for start, length in spans(count(shapes[name]), decoder.block):
                if len(gradient) < length:
                    gradient = np.empty(length, np.float32)
                values, decoded = buffers.of(length), gradient[:length]
                stored.read_into(values, name, start)
                decoder.into(decoded, start)
                decoded *= factor
                values -= decoded
                file.extend(name, values)
        stored.verify()
        return file.finish().sha256


class _Stepper:
    """Takes the outer step of a piece of a tensor, its blocks dealt among threads."""

    def __init__(self, parts: Sequence[float], outer: Outer, device: str | None) -> None:
        self._parts, self._outer, self._device = parts, outer, device
        self._scratch: dict[int, np.ndarray] = {}  # of each thread: a block of the sum, one of a gradient

    def step(
        self,
        pool: ThreadPoolExecutor,
        threads: int,
        piece: Sequence[np.ndarray],
        decoders: Sequence[Decoder],
        start: int,
    ) -> None:
        """`piece`: values (and moments), flat float32, from number `start` of the tensor on; changed in place. Raises
        CodecError."""
        if self._device is not None:
            from dlx.training.outer import on_device

            on_device.step(piece, decoders, self._parts, self._outer, start, self._device)
            return
        length = len(piece[0])
        shares = list(spans(length, decoders[0].block, max(1, -(-length // threads))))

        def share(number: int) -> None:
            longest = max(size for _, size in shares)
            if number not in self._scratch or self._scratch[number].shape[1] < longest:
                self._scratch[number] = np.empty((2, longest), np.float32)
            for low, size in shares[number::threads]:
                block = [one[low : low + size] for one in piece]
                mean, gradient = self._scratch[number][:, :size]
                mean[...] = 0
                for decoder, part in zip(decoders, self._parts, strict=True):
                    decoder.into(gradient, start + low)
                    add_part(mean, gradient, part)
                descend(block[0], block[1] if len(block) > 1 else None, mean, self._outer)

        if len(shares) == 1:
            share(0)
        else:
            list(pool.map(share, range(threads)))


def _opened(
    manifest: Manifest, shapes: Shapes, contributions: Sequence[SealedPayload], threads: int, device: str | None
) -> list[Payload]:
    """Of one round, so of one plan: their blocks are alike."""
    if len({one.plan for one in contributions}) > 1:
        raise OuterError("the payloads of one round have one plan")
    blobs = [(one.payload, one.plan) for one in contributions]
    return opened(codec(manifest.codec.name, device), shapes, blobs, threads)


def _named(path: Path) -> bytes:
    try:
        name = bytes.fromhex(path.name)
    except ValueError:
        name = b""
    if len(name) != 32:
        raise OuterError(f"{path.name}: expected a blob, named by the hex of its sha256")
    return name
