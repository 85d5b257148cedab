"""The checking process: a question, an answer, its end; and what it cannot say."""

from pathlib import Path

import pytest
import trio

from dlx.ground.constants import NO_HASH
from dlx.node.trainer.checks import CheckFailed, Work, check
from dlx.training.recipe.recipe import Plan


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
