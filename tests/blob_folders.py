"""Copies of a history's blobs for a test to damage."""

import shutil
from pathlib import Path

import pytest

from tests.history_builder import History


def copied(history: History, folder: Path) -> Path:
    """All blobs of the history in a new folder, without the index beside them, which its owner may be writing."""
    return Path(shutil.copytree(history.blobs, folder, ignore=shutil.ignore_patterns(".*")))


def flip(folder: Path, digest: bytes) -> None:
    """Change a bit of the blob."""
    path = folder / digest.hex()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.fixture
def folder(honest_history: History, tmp_path: Path) -> Path:
    return copied(honest_history, tmp_path / "blobs")
