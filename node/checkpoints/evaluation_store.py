"""Held-out losses that `dlx-node evaluate` has measured with this folder: kept beside a run's state, for the page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

FILE = "evaluations.jsonl"  # one Evaluation a line, in the folder of a run's state
_MAX_BYTES = 1 << 20  # read of a file
_MAX_SHOWN = 1000  # shown of a run


class Evaluation(msgspec.Struct, frozen=True):
    """The mean loss of a version on held-out text, in nats per token, and that of the mean that its run publishes as
    that version."""

    version: int
    loss: float
    average: float | None = None


def add(state: Path, run: bytes, evaluation: Evaluation) -> None:
    """Add a line to the file of the run in the folder `state`. Raises OSError."""
    path = state / run.hex()[:16] / FILE
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(evaluation) + b"\n")


def read(blob_folders: Sequence[Path], run: bytes) -> list[Evaluation]:
    """Of the folders that these belong to: the newest measurement of each version, ascending."""
    measured = (evaluation for folder in blob_folders for evaluation in _lines(folder.parent / "state", run))
    found = {evaluation.version: evaluation for evaluation in measured}
    return [found[version] for version in sorted(found)[-_MAX_SHOWN:]]


def _lines(state: Path, run: bytes) -> list[Evaluation]:
    try:
        with (state / run.hex()[:16] / FILE).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MAX_BYTES))
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
