"""The trace of a contribution: a public blob that commits to everything between its start and its end.

Its sha256 is the statement's field `trace`. With n segments and H inner steps it has exactly 64 (n + 1) + 128 n +
32 H + 130 bytes, little-endian where numeric:

    n + 1 states       weights, optimiser (sha256 of the files): at the start, between the segments, at the end, where
                       the change that the payload encodes stands for the weights, which follow from it
    n boundaries       activations in, gradients in, activations out, gradients out (sha256; zeros: no such neighbour)
    H steps            four float64: sum of squares received from the stage before, the same with the stage's own, the
                       replica's norm, loss (nats)
    2 signatures       of the members of the stages before and after, over what both recorded of the link between them
                       (zeros: no such neighbour)

What went over a pipe in a segment is one file: the raw float32 tensors in the order (step, micro-batch). What a stage
sent is what its neighbour received, so both name the same file. The signatures make that more than a word: who
publishes another trace than it agreed on has signed both.
"""

import hashlib
import math
import struct
from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from dlx.ground.constants import MICRO, MOST_LOSS, NO_HASH
from dlx.training.slot.segments import SegmentState

MOST_STATED = 2**32 - 1  # micro-nats: that, or more

SIGNATURE = 65  # bytes
NO_SIGNATURE = bytes(SIGNATURE)
_STATE, _BOUNDARY, _STEP = 64, 128, struct.Struct("<4d")
_RECORDED = struct.Struct("<3d")  # of a step, by both ends of a link


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
    norm_out: float  # the same with this stage's, which it passes on
    norm: float  # of the whole replica's gradient
    loss: float  # nats per token


class Trace(Struct, frozen=True):
    states: tuple[SegmentState, ...]
    boundaries: tuple[Boundary, ...]
    steps: tuple[Step, ...]
    agreed: tuple[bytes, bytes] = (NO_SIGNATURE, NO_SIGNATURE)  # of the stages before and after

    def encode(self) -> bytes:
        states = [part for one in self.states for part in (one.weights, one.optimiser)]
        edges = [
            part
            for one in self.boundaries
            for part in (one.activations_in, one.gradients_in, one.activations_out, one.gradients_out)
        ]
        steps = [_STEP.pack(one.norm_in, one.norm_out, one.norm, one.loss) for one in self.steps]
        return b"".join((*states, *edges, *steps, *self.agreed))


def size(segments: int, inner_steps: int) -> int:
    """The bytes of every trace of a contribution with so many."""
    return _STATE * (segments + 1) + _BOUNDARY * segments + _STEP.size * inner_steps + 2 * SIGNATURE


def decode(data: bytes, segments: int, inner_steps: int) -> Trace:
    """The trace of a contribution that states so many segments and inner steps. Raises TraceError."""
    if len(data) != size(segments, inner_steps):
        raise TraceError(f"expected {size(segments, inner_steps)} bytes of a trace, got {len(data)}")
    edges, steps = _STATE * (segments + 1), _STATE * (segments + 1) + _BOUNDARY * segments
    agreed, last = len(data) - 2 * SIGNATURE, len(data) - SIGNATURE
    return Trace(
        tuple(SegmentState(*_hashes(data[at : at + _STATE])) for at in range(0, edges, _STATE)),
        tuple(Boundary(*_hashes(data[at : at + _BOUNDARY])) for at in range(edges, steps, _BOUNDARY)),
        tuple(Step(*numbers) for numbers in _STEP.iter_unpack(data[steps:agreed])),
        (bytes(data[agreed:last]), bytes(data[last:])),
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
        numbers = (step.norm_in, step.norm_out, step.norm, step.loss)
        possible = all(math.isfinite(one) and one >= 0 for one in numbers) and step.loss <= MOST_LOSS
        if not possible or (first and step.norm_in != 0):
            sound = False
            faults.append(f"trace: step {index} has impossible numbers")
        elif step.norm_out < step.norm_in or step.norm < math.sqrt(step.norm_out):
            faults.append(f"trace: step {index} has falling norms")
    if sound and statement.loss != stated_loss([one.loss for one in trace.steps]):
        faults.append("the stated loss is not the mean of the steps' losses")
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


def agreement(boundaries: Iterable[Boundary], steps: Iterable[Step], *, behind: bool) -> bytes:
    """What the stages at both ends of a link must have recorded of it in a round, as 32 bytes: of that to the stage
    before (`behind`), else to the one after. It covers the tensors of each segment that went forth and back (sha256).
    Of each step it covers the sum of squares that went forth, and norm and loss that came back."""
    digest = hashlib.sha256()
    for one in boundaries:
        forth, back = (one.activations_in, one.gradients_out) if behind else (one.activations_out, one.gradients_in)
        digest.update(forth + back)
    for step in steps:
        digest.update(_RECORDED.pack(step.norm_in if behind else step.norm_out, step.norm, step.loss))
    return digest.digest()


def _hashes(data: bytes) -> list[bytes]:
    return [data[at : at + 32] for at in range(0, len(data), 32)]
