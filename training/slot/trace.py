"""The trace of a contribution: a public blob that commits to everything between its start and its end.

Its sha256 is the statement's field `trace`. With n segments and H inner steps it has exactly 64 (n + 1) + 128 n + 24 H
bytes, little-endian where numeric:

    n + 1 states       weights, optimiser (sha256 of the files): at the start, between the segments, at the end, where
                       the change that the payload encodes stands for the weights, which follow from it
    n boundaries       activations in, gradients in, activations out, gradients out (sha256; zeros: no such neighbour)
    H steps            three float64: sum of squares received from the stage before, the replica's norm, loss (nats)

What went over a pipe in a segment is one file: the raw float32 tensors in the order (step, micro-batch). What a stage
sent is what its neighbour received, so both name the same file.
"""

import hashlib
import math
import struct
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Protocol

from msgspec import Struct

from dlx.ground.constants import MICRO, MOST_LOSS, NO_HASH
from dlx.training.slot.segments import SegmentState

MOST_STATED = 2**32 - 1  # micro-nats: that, or more

_STATE, _BOUNDARY, _STEP = 64, 128, struct.Struct("<3d")


class TraceError(ValueError):
    """Bytes that are no trace of so many segments and steps."""


class Statement(Protocol):
    """What the training code reads of a contribution's statement (`ledger.typed.Contribution` is one)."""

    @property
    def base_weights(self) -> bytes: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def inner_steps(self) -> int: ...
    @property
    def loss(self) -> int: ...
    @property
    def kept(self) -> int: ...
    @property
    def start_payload(self) -> bytes: ...
    @property
    def folded_payload(self) -> bytes: ...
    @property
    def folded_payload2(self) -> bytes: ...
    @property
    def weights_before(self) -> bytes: ...
    @property
    def optimiser_before(self) -> bytes: ...
    @property
    def optimiser_after(self) -> bytes: ...
    @property
    def change_before(self) -> bytes: ...
    @property
    def payload_before(self) -> bytes: ...
    @property
    def change(self) -> bytes: ...
    @property
    def trace(self) -> bytes: ...
    @property
    def segments(self) -> int: ...


class Boundary(Struct, frozen=True):
    """What went over the pipes in one segment: names of the files, 32 zero bytes where there is no such neighbour."""

    activations_in: bytes
    gradients_in: bytes
    activations_out: bytes
    gradients_out: bytes


class Step(Struct, frozen=True):
    """One inner step's numbers, as they went over the pipes."""

    norm_in: float  # sum of squared gradients of the stages before; 0.0 on the first
    norm: float  # of the whole replica's gradient
    loss: float  # nats per token


class Trace(Struct, frozen=True):
    states: tuple[SegmentState, ...]
    boundaries: tuple[Boundary, ...]
    steps: tuple[Step, ...]

    def encode(self) -> bytes:
        states = [part for one in self.states for part in (one.weights, one.optimiser)]
        edges = [
            part
            for one in self.boundaries
            for part in (one.activations_in, one.gradients_in, one.activations_out, one.gradients_out)
        ]
        steps = [_STEP.pack(one.norm_in, one.norm, one.loss) for one in self.steps]
        return b"".join((*states, *edges, *steps))


def size(segments: int, inner_steps: int) -> int:
    """The bytes of every trace of a contribution with so many."""
    return _STATE * (segments + 1) + _BOUNDARY * segments + _STEP.size * inner_steps


def decode(data: bytes, segments: int, inner_steps: int) -> Trace:
    """The trace of a contribution that states so many segments and inner steps. Raises TraceError."""
    if len(data) != size(segments, inner_steps):
        raise TraceError(f"expected {size(segments, inner_steps)} bytes of a trace, got {len(data)}")
    edges, steps = _STATE * (segments + 1), _STATE * (segments + 1) + _BOUNDARY * segments
    return Trace(
        tuple(SegmentState(*_hashes(data[at : at + _STATE])) for at in range(0, edges, _STATE)),
        tuple(Boundary(*_hashes(data[at : at + _BOUNDARY])) for at in range(edges, steps, _BOUNDARY)),
        tuple(Step(*numbers) for numbers in _STEP.iter_unpack(data[steps:])),
    )


def stated_loss(losses: Sequence[float]) -> int:
    """What a statement says of a round's losses (nats): their mean in micro-nats, the sum rounded once, halves to even.
    More than fits, and what is no number, is MOST_STATED."""
    mean = math.fsum(losses) / len(losses) * MICRO
    return round(mean) if mean < MOST_STATED else MOST_STATED


def trace_faults(statement: Statement, stage: int, stages: int, trace: Trace) -> list[str]:
    """What a trace says against its own statement; empty where it may be true. Needs nothing but the two."""
    faults = []
    ends = (
        ("weights before", statement.weights_before, trace.states[0].weights),
        ("optimiser state before", statement.optimiser_before, trace.states[0].optimiser),
        ("change", statement.change, trace.states[-1].weights),
        ("optimiser state after", statement.optimiser_after, trace.states[-1].optimiser),
    )
    faults += [f"trace: the {what} are not those of the statement" for what, one, other in ends if one != other]
    first, last = stage == 0, stage == stages - 1
    for index, one in enumerate(trace.boundaries):
        towards = ((first, one.activations_in, one.gradients_out), (last, one.gradients_in, one.activations_out))
        if any((part == NO_HASH) != missing for missing, *parts in towards for part in parts):
            faults.append(f"trace: segment {index} names tensors of a neighbour that there is not, or lacks some")
    sound = True
    for index, step in enumerate(trace.steps):
        numbers = (step.norm_in, step.norm, step.loss)
        possible = all(math.isfinite(one) and one >= 0 for one in numbers) and step.loss <= MOST_LOSS
        if not possible or (first and step.norm_in != 0):
            sound = False
            faults.append(f"trace: step {index} has impossible numbers")
        elif step.norm < math.sqrt(step.norm_in):
            faults.append(f"trace: step {index} has a norm below that of the stages before")
    if sound and statement.loss != stated_loss([one.loss for one in trace.steps]):
        faults.append("the stated loss is not the mean of the steps' losses")
    return faults


def neighbours_faults(traces: Sequence[Trace | None]) -> list[str]:
    """Where the traces of a replica's round, by stage, contradict each other; those that are not here are None."""
    faults = []
    for stage, (one, after) in enumerate(pairwise(traces)):
        if one is None or after is None:
            continue
        between = f"stages {stage} and {stage + 1}"
        if (len(one.boundaries), len(one.steps)) != (len(after.boundaries), len(after.steps)):
            faults.append(f"{between} differ in their numbers of segments or steps")
        for index, (here, there) in enumerate(zip(one.boundaries, after.boundaries, strict=False)):
            if (here.activations_out, here.gradients_in) != (there.activations_in, there.gradients_out):
                faults.append(f"{between} name different tensors in segment {index}")
        for index, (mine, its) in enumerate(zip(one.steps, after.steps, strict=False)):
            if its.norm_in < mine.norm_in:
                faults.append(f"{between} have falling norms in step {index}")
    numbers = {tuple((step.norm, step.loss) for step in one.steps) for one in traces if one is not None}
    if len(numbers) > 1:
        faults.append("the stages name different norms or losses")
    return faults


class Before(Protocol):
    """What a round has of the one before: the change and the payload that leave the residual."""

    @property
    def change_before(self) -> bytes: ...
    @property
    def payload_before(self) -> bytes: ...


def handed_over(trace: Trace, segment: int, before: Before, ahead: float) -> dict[str, bytes]:
    """What is public of a contribution whose `segment` was drawn: role -> name of the file. Raises IndexError.

    The weights at the round's start are not among it, which anybody can compute, nor those at its end, which follow
    from the change and from what the round before has left. Where the manifest's `ahead` is above 0 the start too
    follows from that, so it is there whatever is drawn. Of a state of zeros there is no file.
    """
    last = len(trace.boundaries) - 1
    if not 0 <= segment <= last:
        raise IndexError(f"a round of {last + 1} segments has no segment {segment}")
    start, end, between = trace.states[segment], trace.states[segment + 1], trace.boundaries[segment]
    found = {
        "start optimiser": start.optimiser,
        "end optimiser": end.optimiser,
        "activations in": between.activations_in,
        "gradients in": between.gradients_in,
        "change": trace.states[-1].weights,
    }
    if segment > 0:
        found["start weights"] = start.weights
    if segment < last:
        found["end weights"] = end.weights
    if segment == last or ahead:
        found |= {"change before": before.change_before, "payload before": before.payload_before}
    return {role: name for role, name in found.items() if name != NO_HASH}


def agreement(boundaries: Iterable[tuple[bytes, bytes]], norms: Iterable[tuple[float, float, float]]) -> bytes:
    """What two neighbours must have in common at the end of a round, as 32 bytes. They cover of each segment the
    tensors that went forth and back (sha256), of each step the sum of squares that went forth, and norm and loss that
    came back."""
    digest = hashlib.sha256()
    for forth, back in boundaries:
        digest.update(forth + back)
    for numbers in norms:
        digest.update(_STEP.pack(*numbers))
    return digest.digest()


def _hashes(data: bytes) -> list[bytes]:
    return [data[at : at + 32] for at in range(0, len(data), 32)]
