"""Log lines where they cannot be kept."""

import io
import logging
from pathlib import Path

import pytest

from dlx.node.home import logs


def test_a_full_disk_is_told_once_each_time_and_never_as_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, own = logging.getLogger(), logging.getLogger("dlx")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(own, "level", own.level)
    logs.setup("text", tmp_path)
    (file,) = (handler for handler in root.handlers if isinstance(handler, logging.FileHandler))
    said, kept = logs.get("test"), file.stream
    for place in ("/dev/full", "", "/dev/full"):
        file.stream = io.TextIOWrapper(io.FileIO(place, "w"), write_through=True) if place else kept
        for number in range(3):
            said.info(f"line {number}")
    lines = capsys.readouterr().err.splitlines()
    told = [line for line in lines if "line " not in line]
    assert told == [f"dlx-node: {tmp_path}/node.log: No space left on device: lines are missing there"] * 2
    assert len(lines) == 9 + 2, "and each line is on stderr"
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True))
    logs.setup("text", tmp_path)
    (file,) = (handler for handler in root.handlers if isinstance(handler, logging.FileHandler))
    file.stream = io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True)
    said.info("line 9")  # of which nobody hears, and which ends nothing
    assert (tmp_path / "node.log").read_text().count("line ") == 3
