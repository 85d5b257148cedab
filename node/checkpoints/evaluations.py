"""Held-out losses that `dlx-node evaluate` has measured with this folder: kept beside a run's state, for the page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

FILE = "evaluations.jsonl"  # one Evaluation a line, in the folder of a run's state
_MOST_BYTES = 1 << 20  # read of a file
_MOST = 1000  # shown of a run


class Evaluation(msgspec.Struct, frozen=True):
    """The mean loss of a version on held-out text, in nats per token, and that of the mean that its run publishes as
    that version."""

    version: int
    loss: float
    average: float | None = None


def record(state: Path, run: bytes, found: Evaluation) -> None:
    """Adds a line to what the folder `state` keeps of the run. Raises OSError."""
    path = state / run.hex()[:16] / FILE
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(found) + b"\n")


def read(blob_folders: Sequence[Path], run: bytes) -> list[Evaluation]:
    """What the folders that these belong to have kept: of each version what came last, ascending."""
    found = {one.version: one for folder in blob_folders for one in _lines(folder.parent / "state", run)}
    return [found[version] for version in sorted(found)[-_MOST:]]


def _lines(state: Path, run: bytes) -> list[Evaluation]:
    try:
        with (state / run.hex()[:16] / FILE).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(msgspec.json.decode(line, type=Evaluation))
        except msgspec.DecodeError:  # cut by the limit, or by a crash
            continue
    return found
