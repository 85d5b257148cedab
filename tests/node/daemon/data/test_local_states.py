"""A node goes on with the training state that it has, and loses none before another is on disk."""

import os
from pathlib import Path

import pytest

from dlx.node.daemon.data.local_states import drop_other_stages, kept_stage


def hold(run: Path, stage: int) -> Path:
    """What joining a stage makes: its folder, without a finished round."""
    slot = run / f"stage-{stage}" / "slot"
    slot.mkdir(parents=True, exist_ok=True)
    (slot / ("ab" * 32)).write_bytes(b"half a round")
    return slot / "slot.json"


def finish(run: Path, stage: int, second: int) -> Path:
    """What the first finished round makes, `second` s after the epoch."""
    state = hold(run, stage)
    state.write_text("{}")
    os.utime(state, (second, second))
    return state


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0), (2, 5), (5, 2)])
def test_a_change_of_stage_keeps_the_old_state_until_the_new_one_is_there(
    tmp_path: Path, first: int, second: int
) -> None:
    old = finish(tmp_path, first, 10)
    hold(tmp_path, second)
    drop_other_stages(tmp_path, second)
    assert old.exists() and kept_stage(tmp_path) == first, "given up before a round there: it has the old state only"
    new = finish(tmp_path, second, 20)
    assert kept_stage(tmp_path) == second
    drop_other_stages(tmp_path, second)
    assert new.exists() and not old.parent.exists() and kept_stage(tmp_path) == second


def test_a_new_node_has_no_stage_to_go_back_to(tmp_path: Path) -> None:
    assert kept_stage(tmp_path) is None
    (tmp_path / "stage-3" / "evidence").mkdir(parents=True)
    hold(tmp_path, 2)
    assert kept_stage(tmp_path) is None


def test_evidence_stays(tmp_path: Path) -> None:
    evidence = tmp_path / "stage-0" / "evidence" / "5-0xab-cd"
    evidence.parent.mkdir(parents=True)
    evidence.write_bytes(b"two records")
    finish(tmp_path, 0, 10)
    finish(tmp_path, 1, 20)
    drop_other_stages(tmp_path, 1)
    assert evidence.exists()
