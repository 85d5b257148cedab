"""The checking process: a question, an answer, its end; and what it cannot say."""

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from dlx.ground.constants import NO_HASH
from dlx.node.trainer.checks import CheckFailed, Work, check
from dlx.training.recipe.recipe import Plan
from dlx.training.slot.segments import SegmentState
from dlx.training.slot.trace import Boundary, Step, Trace
from tests.node.made_statements import contribution


def work(blobs: Path, **changes: object) -> Work:
    values = dict(
        manifest=NO_HASH, blobs=str(blobs), stage=0, segment=0, statement=bytes(896), trace=b"",
        plan=Plan(4, 0, 5), steps_before=0, total_steps=5,
    )  # fmt: skip
    return Work(**{**values, **changes})  # type: ignore[arg-type]


def test_what_it_lacks_itself_is_no_finding(tmp_path: Path) -> None:
    outcome = trio.run(check, work(tmp_path), 60.0)
    assert not outcome.done and outcome.reasons == () and "this machine" in outcome.refusal


def test_a_process_that_ends_or_takes_too_long_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="longer than 0 s"):
        trio.run(check, work(tmp_path), 0.0)
    with pytest.raises(CheckFailed, match="ended"):
        trio.run(check, work(tmp_path, statement=b"not one", segment=-1, stage="none"), 60.0)


def test_a_last_payload_that_is_in_the_start_too_is_its_makers_to_serve(tmp_path: Path) -> None:
    """Else a maker could name one that nobody has, and no check of its work would ever come to an end."""
    payload, version = b"p" * 32, b"v" * 32
    said = replace(
        contribution(), base_weights=version, start_payload=payload, change_before=b"c" * 32, payload_before=payload,
        segments=2, inner_steps=1,
    )  # fmt: skip
    states, between = (SegmentState(NO_HASH, NO_HASH),) * 3, (Boundary(NO_HASH, NO_HASH, NO_HASH, NO_HASH),) * 2
    trace = Trace(states, between, (Step(0.0, 1.0, 1.0, 1.0),)).encode()
    first, last = (work(tmp_path, statement=said.encode(), trace=trace, segment=one) for one in (0, 1))
    assert first.shared(0.0) - {NO_HASH} == {version, payload}
    assert first.shared(0.5) - {NO_HASH} == last.shared(0.0) - {NO_HASH} == {version}
