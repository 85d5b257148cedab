"""What waits for a draw: handed over and removed, also twice, half, and to another disk."""

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from dlx.ground.blobs import write_blob
from dlx.ground.constants import NO_HASH
from dlx.training.recipe.recipe import Plan
from dlx.training.slot.rounds import RoundInputs, Trained
from dlx.training.slot.segments import SegmentState
from dlx.training.slot.trace import Boundary, Step, Trace
from dlx.training.slot.undecided import Undecided


@pytest.fixture
def blobs(tmp_path: Path) -> Path:
    (tmp_path / "blobs").mkdir()
    return tmp_path / "blobs"


def _finish(slot: Path, round: int = 3) -> tuple[Undecided, Trace]:
    """A finished round of two segments on a stage between others; the optimiser state at its start is of zeros."""
    undecided = Undecided(slot)
    folder = undecided.begin(round)

    def write(what: str) -> bytes:
        return write_blob(folder, [f"{what} of round {round}".encode()])

    states = (
        SegmentState(bytes([1]) * 32, bytes([2]) * 32),
        *(SegmentState(write(f"weights {one}"), write(f"optimiser {one}")) for one in range(2)),
    )
    edges = tuple(
        Boundary(write(f"activations {one}"), write(f"gradients {one}"), bytes([3]) * 32, bytes([4]) * 32)
        for one in range(2)
    )
    trace = Trace(states, edges, (Step(0.0, 1.0, 1.0, 2.0),))
    values: dict[str, Any] = {name: NO_HASH for name in Trained.__struct_fields__}
    values |= {
        "folded": (),
        "round": round,
        "change_before": write("change"),
        "payload_before": write("payload"),
        "private_data": False,
    }
    values["inputs"] = RoundInputs(round, Plan(), 0, 1, round, NO_HASH)
    for name in ("payload_size", "segments", "inner_steps", "tokens", "loss", "kept", "training_ms"):
        values[name] = 1
    undecided.finish(Trained(**(values | {"reset": False})), trace)
    return undecided, trace


def test_the_drawn_segments_files_go_to_the_blobs_and_the_rest_is_removed(tmp_path: Path, blobs: Path) -> None:
    undecided, trace = _finish(tmp_path)
    _finish(tmp_path, 4)
    assert undecided.rounds() == [3, 4] and undecided.size() > 0
    found, edges = undecided.decide(3, [0], blobs), trace.boundaries[0]
    assert found == {
        trace.states[1].weights, trace.states[1].optimiser, edges.activations_in, edges.gradients_in,
        trace.states[2].weights,
    }, "of a state of zeros there is no file, and anybody can compute the weights at the start"  # fmt: skip
    assert {path.name for path in blobs.iterdir()} == {name.hex() for name in found}
    assert undecided.rounds() == [4]
    assert not undecided.folder(3).exists()


def test_several_drawn_segments_of_a_round_are_all_handed_over(tmp_path: Path, blobs: Path) -> None:
    """What they share, the state between them and the change, is there once."""
    each = [_finish(tmp_path / str(one))[0].decide(3, [one], blobs) for one in range(2)]
    for path in blobs.iterdir():
        path.unlink()
    undecided, _ = _finish(tmp_path)
    found = undecided.decide(3, [0, 1], blobs)
    assert found == each[0] | each[1] and len(each[0] & each[1]) == 3
    assert {path.name for path in blobs.iterdir()} == {name.hex() for name in found}
    assert undecided.rounds() == []


def test_what_is_not_drawn_is_removed(tmp_path: Path, blobs: Path) -> None:
    undecided, _ = _finish(tmp_path)
    assert undecided.decide(3, (), blobs) == set()
    assert undecided.rounds() == [] and not [*blobs.iterdir()]
    assert undecided.decide(3, [1], blobs) == set(), "too late"


def test_a_process_that_is_killed_while_it_decides_can_do_it_again(
    tmp_path: Path, blobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _finish(tmp_path / "other")[0].decide(3, [1], blobs)
    for path in blobs.iterdir():
        path.unlink()
    undecided, _ = _finish(tmp_path)
    link, links = os.link, [0]

    def killed(source: Path, target: Path) -> None:
        links[0] += 1
        if links[0] == 3:
            raise KeyboardInterrupt
        link(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", killed)
        with pytest.raises(KeyboardInterrupt):
            undecided.decide(3, [1], blobs)
    assert len([*blobs.iterdir()]) == 2 and undecided.rounds() == [3]
    before = hashlib.sha256(b"change of round 3").hexdigest()
    (undecided.folder(3) / before).unlink()  # as if killed while it removed the rest
    write_blob(blobs, [b"change of round 3"])
    assert undecided.decide(3, [1], blobs) == whole


def test_another_disk_gets_copies(tmp_path: Path, blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undecided, _ = _finish(tmp_path)

    def elsewhere(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link") if Path(source).exists() else FileNotFoundError

    monkeypatch.setattr(os, "link", elsewhere)
    found = undecided.decide(3, [1], blobs)
    before = hashlib.sha256(b"change of round 3")
    assert before.digest() in found and (blobs / before.hexdigest()).read_bytes() == b"change of round 3"
    assert len(found) == 8 and undecided.rounds() == []


def test_a_segment_that_the_round_has_not_changes_nothing(tmp_path: Path, blobs: Path) -> None:
    undecided, _ = _finish(tmp_path)
    with pytest.raises(IndexError, match="a round of 2 segments has no segment 2"):
        undecided.decide(3, [2], blobs)
    assert undecided.rounds() == [3]


def test_broken_off_rounds_and_those_beyond_the_newest_few_go(tmp_path: Path) -> None:
    for round in (1, 2, 5, 9):
        undecided, _ = _finish(tmp_path, round)
    undecided.begin(7)  # broken off
    undecided.clean(5, 2)
    assert undecided.rounds() == [2, 5], "9 was never made the slot's state"
    assert sorted(path.name for path in (tmp_path / "rounds").iterdir()) == ["2", "5"]
    (undecided.folder(5) / "round").write_bytes(b"damaged")
    assert undecided.find(5) is None and undecided.find(8) is None
    undecided.clean(None, 2)
    assert undecided.rounds() == []
