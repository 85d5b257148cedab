"""What was measured of versions with this folder, kept beside a run's state for the page: held-out losses by `dlx-node
evaluate`, and the answers of two versions by `dlx-node compare --page`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from dlx.node.home.datadir import DataDir

FILE = "evaluations.jsonl"  # one Evaluation a line, in the folder of a run's state
COMPARISONS = "comparisons.jsonl"  # one Comparison a line, there
_MAX_BYTES = 4 << 20  # read of a file: the longest line has less
_MAX_SHOWN = 1000  # shown of a run
_MAX_ANSWERS, _MAX_TEXT = 50, 2000  # kept of a comparison, and characters of each text

_Measured = TypeVar("_Measured", bound=msgspec.Struct)


class Evaluation(msgspec.Struct, frozen=True):
    """The mean loss of a version on held-out text, in nats per token, and that of the mean that its run publishes as
    that version."""

    version: int
    loss: float
    average: float | None = None


class Compared(msgspec.Struct, frozen=True):
    """What each of two versions answered to a prompt, and whether that was expected (None: nothing was)."""

    prompt: str
    expected: str | None
    answers: tuple[str, str]
    right: tuple[bool | None, bool | None]


class Comparison(msgspec.Struct, frozen=True):
    """Two versions of a run on the same prompts."""

    versions: tuple[int, int]
    prompts: list[Compared]


def add(folder: DataDir, run: bytes, evaluation: Evaluation) -> None:
    """Add a line to the folder's file of the run. Raises OSError."""
    _add(folder.state_of(run) / FILE, evaluation)


def read(blob_folders: Sequence[Path], run: bytes) -> list[Evaluation]:
    """Of the folders that these belong to: the newest measurement of each version, ascending."""
    measured = (one for blobs in blob_folders for one in _lines(_state(blobs, run) / FILE, Evaluation))
    found = {evaluation.version: evaluation for evaluation in measured}
    return [found[version] for version in sorted(found)[-_MAX_SHOWN:]]


def add_comparison(folder: DataDir, run: bytes, comparison: Comparison) -> None:
    """Add the first prompts of it, each text cut, to the folder's file of the run. Raises OSError."""
    prompts = [
        replace(
            one,
            prompt=one.prompt[:_MAX_TEXT],
            expected=one.expected and one.expected[:_MAX_TEXT],
            answers=(one.answers[0][:_MAX_TEXT], one.answers[1][:_MAX_TEXT]),
        )
        for one in comparison.prompts[:_MAX_ANSWERS]
    ]
    _add(folder.state_of(run) / COMPARISONS, Comparison(comparison.versions, prompts))


def comparison(blob_folders: Sequence[Path], run: bytes, versions: tuple[int, int]) -> list[Compared]:
    """Of the folders that these belong to: the newest answers of these two versions, in their order; none where nobody
    kept any."""
    for blobs in blob_folders:
        for one in reversed(_lines(_state(blobs, run) / COMPARISONS, Comparison)):
            if one.versions == versions:
                return one.prompts
            if one.versions == versions[::-1]:
                return [replace(each, answers=each.answers[::-1], right=each.right[::-1]) for each in one.prompts]
    return []


def _state(blobs: Path, run: bytes) -> Path:
    return DataDir(blobs.parent).state_of(run)


def _add(path: Path, measured: msgspec.Struct) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("a+b") as file:
        if size := file.seek(0, os.SEEK_END):
            file.seek(size - 1)
        begun = size and file.read(1) != b"\n"  # a line that a full disk or a crash cut
        file.write(b"\n" * bool(begun) + msgspec.json.encode(measured) + b"\n")


def _lines(path: Path, kind: type[_Measured]) -> list[_Measured]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MAX_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(msgspec.json.decode(line, type=kind))
        except msgspec.DecodeError:  # cut by the limit, or by a crash
            continue
    return found
