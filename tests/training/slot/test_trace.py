"""Traces: their bytes, hostile ones, and what they say against a statement and against each other."""

import hashlib
import math
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dlx.ground.constants import NO_HASH
from dlx.training.slot.segments import SegmentState
from dlx.training.slot.trace import (
    MOST_STATED,
    Boundary,
    Step,
    Trace,
    TraceError,
    agreement,
    decode,
    handed_over,
    size,
    stated_loss,
    trace_faults,
)


def _hash(*parts: Any) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()


def _trace(stage: int, stages: int = 3, segments: int = 2, steps: int = 3) -> Trace:
    """What honest neighbours have."""

    def sent(what: str, low: int, segment: int) -> bytes:
        return _hash(what, low, segment) if 0 <= low < stages - 1 else NO_HASH

    return Trace(
        tuple(SegmentState(_hash("w", stage, one), _hash("o", stage, one)) for one in range(segments + 1)),
        tuple(
            Boundary(sent("a", stage - 1, one), sent("g", stage, one), sent("a", stage, one), sent("g", stage - 1, one))
            for one in range(segments)
        ),
        tuple(Step(0.25 * stage, 0.25 * (stage + 1), 1.5, 5.0 - one) for one in range(steps)),
        (bytes([stage]) * 65, bytes([stage + 1]) * 65),
    )


def _said(trace: Trace, **changes: Any) -> Any:
    values = {
        "weights_before": trace.states[0].weights, "optimiser_before": trace.states[0].optimiser,
        "change": trace.states[-1].weights, "optimiser_after": trace.states[-1].optimiser,
        "loss": 4_000_000,
    }  # fmt: skip
    return SimpleNamespace(**(values | changes))


def test_the_layout_is_the_documented_one() -> None:
    trace = _trace(1)
    data = trace.encode()
    assert len(data) == size(2, 3) == 64 * 3 + 128 * 2 + 32 * 3 + 130
    assert data[:64] == trace.states[0].weights + trace.states[0].optimiser
    assert data[192:224] == trace.boundaries[0].activations_in
    assert data[224:256] == trace.boundaries[0].gradients_in
    assert data[-162:-130] == struct.pack("<4d", 0.25, 0.5, 1.5, 3.0)
    assert data[-130:] == b"\1" * 65 + b"\2" * 65
    assert decode(data, 2, 3) == trace


@given(st.binary(max_size=2000), st.integers(1, 4), st.integers(1, 8))
def test_any_bytes_are_a_trace_or_refused_by_their_number(data: bytes, segments: int, steps: int) -> None:
    if len(data) != size(segments, steps):
        with pytest.raises(TraceError, match=f"expected {size(segments, steps)} bytes of a trace, got {len(data)}"):
            decode(data, segments, steps)
    padded = data.ljust(size(segments, steps), b"\xff")[: size(segments, steps)]
    found = decode(padded, segments, steps)
    assert found.encode() == padded
    assert isinstance(trace_faults(_said(found), 1, 3, found), list)  # whatever the numbers are
    assert len(agreement(found.boundaries, found.steps, behind=True)) == 32


@pytest.mark.parametrize("stage", range(3))
def test_an_honest_trace_has_no_fault(stage: int) -> None:
    assert trace_faults(_said(_trace(stage)), stage, 3, _trace(stage)) == []
    assert trace_faults(_said(_trace(0, 1)), 0, 1, _trace(0, 1)) == []


@pytest.mark.parametrize("field", ["weights_before", "change", "optimiser_before", "optimiser_after"])
def test_another_end_than_the_statements_is_a_fault(field: str) -> None:
    (fault,) = trace_faults(_said(_trace(1), **{field: _hash("other")}), 1, 3, _trace(1))
    assert field.split("_")[-1] in fault and "not those of the statement" in fault


def test_another_loss_than_the_mean_of_the_steps_is_a_fault() -> None:
    assert trace_faults(_said(_trace(1), loss=4_000_001), 1, 3, _trace(1)) == [
        "the stated loss is not the mean of the steps' losses"
    ]


@pytest.mark.parametrize("field", Boundary.__struct_fields__)
@pytest.mark.parametrize("stage", range(3))
def test_a_boundary_names_what_there_is_a_neighbour_for_and_no_more(field: str, stage: int) -> None:
    trace = _trace(stage)
    old = trace.boundaries[1]
    is_there = getattr(old, field) != NO_HASH
    other = replace(old, **{field: NO_HASH if is_there else _hash(0)})
    tampered = replace(trace, boundaries=(trace.boundaries[0], other))
    faults = trace_faults(_said(tampered), stage, 3, tampered)
    assert any("a neighbour that there is not, or lacks some" in one for one in faults)


@pytest.mark.parametrize(
    "step",
    [
        Step(math.nan, 1, 1.5, 4.0), Step(0.25, math.nan, 1.5, 4.0), Step(0.25, 1, math.inf, 4.0),
        Step(0.25, 1, 1.5, math.nan), Step(-0.1, 1, 1.5, 4.0), Step(0.25, -1, 1.5, 4.0), Step(0.25, 1, -1.0, 4.0),
        Step(0.25, 1, 1.5, -4.0), Step(0.25, 1, 1.5, 1e308), Step(0.25, 0.2, 1.5, 4.0), Step(0.25, 1, 0.9, 4.0),
    ],
)  # fmt: skip
def test_impossible_numbers_are_a_fault(step: Step) -> None:
    trace = _trace(1)
    trace = replace(trace, steps=(trace.steps[0], step, trace.steps[2]))
    (fault,) = trace_faults(_said(trace), 1, 3, trace)
    assert fault.startswith("trace: step 1 has")


def test_the_first_stage_received_no_norm() -> None:
    trace = _trace(0)
    trace = replace(trace, steps=(*trace.steps[:2], replace(trace.steps[2], norm_in=0.1)))
    assert trace_faults(_said(trace), 0, 3, trace) == ["trace: step 2 has impossible numbers"]


def test_the_stated_loss_is_rounded_once_and_never_too_large() -> None:
    assert stated_loss([5.0, 4.0, 3.0]) == 4_000_000
    assert stated_loss([0.1] * 10) == 100_000
    assert stated_loss([1e9]) == stated_loss([math.nan]) == stated_loss([math.inf]) == MOST_STATED


def test_what_is_handed_over_is_the_drawn_segments_and_what_the_payload_follows_from() -> None:
    trace, before = _trace(1), SimpleNamespace(change_before=_hash("change"), payload_before=_hash("payload"))
    first, second = (handed_over(trace, one, before, 0.0) for one in range(2))
    assert second == {
        "start weights": trace.states[1].weights, "start optimiser": trace.states[1].optimiser,
        "end optimiser": trace.states[2].optimiser, "change": trace.states[2].weights,
        "activations in": trace.boundaries[1].activations_in, "gradients in": trace.boundaries[1].gradients_in,
        "change before": before.change_before, "payload before": before.payload_before,
    }  # fmt: skip
    assert first == {
        "start optimiser": trace.states[0].optimiser, "end optimiser": trace.states[1].optimiser,
        "end weights": trace.states[1].weights, "change": trace.states[2].weights,
        "activations in": trace.boundaries[0].activations_in, "gradients in": trace.boundaries[0].gradients_in,
    }, "the weights at the start anybody can compute, and what was before is in the round's end alone"  # fmt: skip
    assert handed_over(trace, 0, before, 0.5) == first | {
        "change before": before.change_before, "payload before": before.payload_before,
    }, "the start follows from them too"  # fmt: skip
    assert "activations in" not in handed_over(_trace(0), 1, before, 0.0)
    assert "change before" not in handed_over(
        trace, 1, SimpleNamespace(change_before=NO_HASH, payload_before=NO_HASH), 0.0
    )
    for segment in (-1, 2):
        with pytest.raises(IndexError, match="no segment"):
            handed_over(trace, segment, before, 0.0)


def test_neighbours_record_the_same_of_the_pipe_between_them_and_nothing_else_is_it() -> None:
    one, after = _trace(1), _trace(2)
    ahead = agreement(one.boundaries, one.steps, behind=False)
    digest = hashlib.sha256()
    for boundary in one.boundaries:
        digest.update(boundary.activations_out + boundary.gradients_in)
    for step in one.steps:
        digest.update(struct.pack("<3d", 0.5, 1.5, step.loss))
    assert ahead == digest.digest() == agreement(after.boundaries, after.steps, behind=True)
    assert ahead != agreement(one.boundaries, one.steps, behind=True)
    for field in ("norm_out", "norm", "loss"):
        last = one.steps[-1]
        steps = (*one.steps[:-1], replace(last, **{field: math.nextafter(getattr(last, field), 9)}))
        assert agreement(one.boundaries, steps, behind=False) != ahead
    for field in ("activations_out", "gradients_in"):
        other = replace(one.boundaries[1], **{field: _hash("other")})
        assert agreement((one.boundaries[0], other), one.steps, behind=False) != ahead
    assert agreement(one.boundaries[::-1], one.steps, behind=False) != ahead
