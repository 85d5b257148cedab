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
    neighbours_faults,
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
        tuple(Step(0.25 * stage, 1.5, 5.0 - one) for one in range(steps)),
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
    assert len(data) == size(2, 3) == 64 * 3 + 128 * 2 + 24 * 3
    assert data[:64] == trace.states[0].weights + trace.states[0].optimiser
    assert data[192:224] == trace.boundaries[0].activations_in
    assert data[224:256] == trace.boundaries[0].gradients_in
    assert data[-24:] == struct.pack("<3d", 0.25, 1.5, 3.0)
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
    assert isinstance(neighbours_faults([found, None, found, found]), list)


@pytest.mark.parametrize("stage", range(3))
def test_an_honest_trace_has_no_fault(stage: int) -> None:
    assert trace_faults(_said(_trace(stage)), stage, 3, _trace(stage)) == []
    assert neighbours_faults([_trace(one) for one in range(3)]) == []
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
def test_a_tampered_boundary_is_seen_beside_its_neighbour(field: str, stage: int) -> None:
    traces = [_trace(one) for one in range(3)]
    old = traces[stage].boundaries[1]
    other = _hash("other") if getattr(old, field) != NO_HASH else None
    if other is None:  # there is no such neighbour: a name at all is the fault
        traces[stage] = replace(
            traces[stage], boundaries=(traces[stage].boundaries[0], replace(old, **{field: _hash(0)}))
        )
        assert any(
            "a neighbour that there is not" in one
            for one in trace_faults(_said(traces[stage]), stage, 3, traces[stage])
        )
        return
    traces[stage] = replace(traces[stage], boundaries=(traces[stage].boundaries[0], replace(old, **{field: other})))
    (fault,) = neighbours_faults(traces)
    assert f"{stage}" in fault and "name different tensors in segment 1" in fault
    gone = replace(traces[stage], boundaries=(traces[stage].boundaries[0], replace(old, **{field: NO_HASH})))
    assert any("or lacks some" in one for one in trace_faults(_said(gone), stage, 3, gone))


@pytest.mark.parametrize(
    "step",
    [
        Step(math.nan, 1.5, 4.0), Step(0.25, math.inf, 4.0), Step(0.25, 1.5, math.nan), Step(-0.1, 1.5, 4.0),
        Step(0.25, -1.0, 4.0), Step(0.25, 1.5, -4.0), Step(0.25, 1.5, 1e308), Step(0.25, 0.4, 4.0),
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


def test_numbers_that_differ_along_the_replica_are_a_fault() -> None:
    traces: list[Trace | None] = [_trace(one) for one in range(3)]
    other = replace(_trace(2), steps=(*_trace(2).steps[:2], Step(0.5, 1.5, math.nextafter(3.0, 4))))
    assert neighbours_faults([*traces[:2], other]) == ["the stages name different norms or losses"]
    fallen = replace(_trace(2), steps=(*_trace(2).steps[:2], Step(0.2, 1.5, 3.0)))
    assert neighbours_faults([*traces[:2], fallen]) == ["stages 1 and 2 have falling norms in step 2"]
    shorter = _trace(2, segments=1)
    assert neighbours_faults([*traces[:2], shorter]) == ["stages 1 and 2 differ in their numbers of segments or steps"]
    assert neighbours_faults([traces[0], None, traces[2]]) == []


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


def test_what_neighbours_agree_on_changes_with_every_tensor_and_number() -> None:
    tensors, numbers = [(_hash(1), _hash(2)), (_hash(3), _hash(4))], [(0.5, 1.5, 3.0)]
    same = agreement(tensors, numbers)
    assert (
        same == hashlib.sha256(_hash(1) + _hash(2) + _hash(3) + _hash(4) + struct.pack("<3d", 0.5, 1.5, 3.0)).digest()
    )
    for other in ([tensors[1], tensors[0]], tensors[:1], [(_hash(2), _hash(1)), tensors[1]]):
        assert agreement(other, numbers) != same
    for index in range(3):
        changed = [*numbers[0]]
        changed[index] = math.nextafter(changed[index], 9)
        assert agreement(tensors, [(changed[0], changed[1], changed[2])]) != same
