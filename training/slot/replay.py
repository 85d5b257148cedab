"""The inner replay: a segment of a replica's inner steps run again on one machine, and how far it ends from the claim.

The distance of a stage is norm(replayed change - claimed change) / norm(claimed change) over the segment, in float64.
Honest float32 work of another process or machine stays below 1e-4; the mildest cheats measured are above 1e-2. So the
threshold is 1e-3, and a segment has at most SEGMENT_STEPS steps, because honest distances grow with the steps.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from dlx.ground.blobs import Damaged
from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import InnerLoop, TrainingError
from dlx.training.inner.pipeline import Link, queue_links
from dlx.training.inner.states import STATE_KINDS, optimiser_shapes
from dlx.training.models import weights
from dlx.training.models.stages import stage_shapes
from dlx.training.recipe.manifest import Manifest
from dlx.training.slot.segments import SEGMENT_STEPS, SegmentState

THRESHOLD = 1e-3  # of a distance: above it the work was not honest

_PATIENCE = 3600.0  # seconds that a stage waits for the next one's part of a step

Tensors = Mapping[str, Tensor]


class NotReplayable(Exception):
    """The run's or the contribution's terms rule a replay out (an audit says SKIP); the message says which."""


class ReplayError(ValueError):
    """A state is missing, damaged, or not the committed one: there is nothing to compare."""


@dataclass(frozen=True)
class Segment:
    """One stage's states at both ends of a segment: float32 weights by name and the optimiser's state. Use
    `read_segment`, which checks them against their hashes."""

    weights: Tensors
    optimiser: Tensors
    end_weights: Tensors
    end_optimiser: Tensors


class Distance(NamedTuple):
    """Of one stage. Infinite where a change is not finite, or the replay diverges where the claim does not.

    `optimiser` is the largest over the kinds of optimiser state: false moments at a segment's end would steer the next.
    """

    stage: int
    weights: float
    optimiser: float

    @property
    def honest(self) -> bool:
        return max(self.weights, self.optimiser) <= THRESHOLD


def read_segment(
    manifest: Manifest, stage: int, start: SegmentState, end: SegmentState, folders: Sequence[Path]
) -> Segment:
    """The states that a contribution has committed to as `start` and `end`, from files named by their hash, each in
    one of the folders (a state of zeros needs no file). Every file's bytes are hashed. Raises ReplayError."""
    shapes = stage_shapes(manifest, stage)
    moments = optimiser_shapes(manifest, stage)
    return Segment(
        _read(start.weights, shapes, folders),
        _read(start.optimiser, moments, folders),
        _read(end.weights, shapes, folders),
        _read(end.optimiser, moments, folders),
    )


def replay(
    manifest: Manifest,
    replica: int,
    segments: Sequence[Segment],
    first_step: int,
    steps: int,
    total_steps: int,
    dataset: Dataset,
    *,
    private_data: bool = False,
) -> list[Distance]:
    """Train a replica's inner steps `first_step` .. `first_step + steps - 1` of a run of `total_steps` once more, from
    the start of `segments` (one per stage, in order), and compare with their end.

    `private_data`: the contribution's flag. All stages run here, each in a thread of its own; set torch's threads to
    one before. Raises NotReplayable, ReplayError for tensors that do not fit the stages, ValueError for a number of
    steps or stages that no segment has.
    """
    refuse(manifest, private_data)
    if len(segments) != len(manifest.stages):
        raise ValueError(f"expected {len(manifest.stages)} stages, got {len(segments)}")
    if not 1 <= steps <= SEGMENT_STEPS:
        raise ValueError(f"expected 1 to {SEGMENT_STEPS} steps, got {steps}")
    try:
        loops = [_loop(manifest, stage, replica, dataset, segment) for stage, segment in enumerate(segments)]
    except TrainingError as error:
        raise ReplayError(str(error)) from error
    indices = range(first_step, first_step + steps)
    if not _run(loops, indices, total_steps):
        return [Distance(stage, math.inf, math.inf) for stage in range(len(loops))]
    return [_compare(stage, segment, loop) for stage, (segment, loop) in enumerate(zip(segments, loops, strict=True))]


def refuse(manifest: Manifest, private_data: bool) -> None:
    """Raises NotReplayable where no honest replay could come near the claim."""
    if manifest.precision != "float32":
        raise NotReplayable(f"the run's precision is {manifest.precision}: honest machines differ by more than cheats")
    if private_data:
        raise NotReplayable("the replica trains on data of its own, which only it has")


def _read(digest: bytes, shapes: weights.Shapes, folders: Sequence[Path]) -> Tensors:
    for folder in folders:
        path = folder / digest.hex()
        if path.exists():
            try:
                return weights.read(path, shapes, sha256=digest, finite=True)
            except (Damaged, weights.WeightsError) as error:
                raise ReplayError(str(error)) from error
    zeros = {name: torch.zeros(shape) for name, shape in shapes.items()}
    if weights.weights_hash(zeros) == digest:
        return zeros
    raise ReplayError(f"{digest.hex()}: in none of the folders")


def _loop(manifest: Manifest, stage: int, replica: int, dataset: Dataset, segment: Segment) -> InnerLoop:
    needs_data = stage in (0, len(manifest.stages) - 1)
    loop = InnerLoop(manifest, stage, replica, dataset if needs_data else None)
    loop.load_weights(segment.weights)
    loop.load_optimiser_state(segment.optimiser)
    return loop


def _run(loops: Sequence[InnerLoop], indices: Iterable[int], total_steps: int) -> bool:
    """Take the steps with all stages; False when the replica diverges."""
    links = [queue_links(_PATIENCE) for _ in loops[1:]]
    before = [None, *(behind for _, behind in links)]
    after = [*(ahead for ahead, _ in links), None]
    with ThreadPoolExecutor(len(loops)) as pool:
        running = [
            pool.submit(_steps, loop, indices, total_steps, previous, next)
            for loop, previous, next in zip(loops, before, after, strict=True)
        ]
    errors = [error for one in running if (error := one.exception())]
    diverged = any(isinstance(error, TrainingError) for error in errors)
    if errors and not diverged:
        raise errors[0]
    return not diverged


def _steps(loop: InnerLoop, indices: Iterable[int], total_steps: int, previous: Link | None, next: Link | None) -> None:
    try:
        for index in indices:
            loop.step(index, total_steps, previous, next)
    except BaseException:
        for link in (previous, next):
            if link is not None:
                link.send("broken", 0, 0, b"")  # or the neighbour would wait for what never comes
        raise


def _compare(stage: int, segment: Segment, loop: InnerLoop) -> Distance:
    state = loop.optimiser_state()
    kinds = (_distance(segment.optimiser, segment.end_optimiser, state, kind) for kind in STATE_KINDS)
    return Distance(stage, _distance(segment.weights, segment.end_weights, loop.weights()), max(kinds))


def _distance(start: Tensors, claimed: Tensors, replayed: Tensors, kind: str | None = None) -> float:
    """Over all tensors, or over those of one kind of optimiser state."""
    apart = change = 0.0
    for name, end in replayed.items():
        if kind is None or name == kind or name.startswith(f"{kind}."):
            claim = claimed[name].double()
            apart += (end.double() - claim).square().sum().item()
            change += (claim - start[name]).square().sum().item()
    if apart == 0:
        return 0.0
    return math.sqrt(apart / change) if change > 0 and math.isfinite(apart) else math.inf
