"""Large files have the bytes of any other, also where the system knows no way past the page cache."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlx.ground.large import ReadOnce, SyncedFile, UncachedFile

SIZES = ([], [1], [4096], [4095, 2], [8, 5_000_000, 3], [1 << 22, 1 << 22], [(1 << 22) + 1], [40_000_000, 40_000_000])


@pytest.mark.parametrize("kind", [UncachedFile, SyncedFile])
@pytest.mark.parametrize("sizes", SIZES)
def test_what_is_written_in_pieces_is_what_is_read(tmp_path: Path, sizes: list[int], kind: Any) -> None:
    pieces = [np.random.default_rng(size).integers(0, 256, size, np.uint8) for size in sizes]
    _write(tmp_path / "file", pieces, kind)
    assert (tmp_path / "file").read_bytes() == b"".join(one.tobytes() for one in pieces)


def test_a_file_system_that_refuses_on_the_first_write_gets_ordinary_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, refused = os.pwrite, []

    def refusing(descriptor: int, data: Any, at: int) -> int:
        if not refused:
            refused.append(at)
            raise OSError(errno.EINVAL, "not aligned as I want it")
        return pwrite(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", refusing)
    _write(tmp_path / "file", [np.arange(10_000, dtype=np.uint8)])
    assert refused
    assert (tmp_path / "file").read_bytes() == np.arange(10_000, dtype=np.uint8).tobytes()


@pytest.mark.parametrize(("kind", "call"), [(UncachedFile, "pwrite"), (SyncedFile, "fsync")])
def test_a_full_disk_is_told_to_whoever_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, call: str
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="full"):
        _write(tmp_path / "file", [np.zeros(40_000_000, np.uint8)], kind)


def test_what_is_dropped_behind_a_reader_can_be_read_again(tmp_path: Path) -> None:
    data = os.urandom(20_000_000)
    (tmp_path / "file").write_bytes(data)
    with open(tmp_path / "file", "rb") as file:
        once, found = ReadOnce(file.fileno()), b""
        while piece := file.read(1 << 20):
            found += piece
            once.reached(len(found))
    assert found == data == (tmp_path / "file").read_bytes()


def _write(path: Path, pieces: list[np.ndarray], kind: Any = UncachedFile) -> None:
    size = sum(map(len, pieces))
    with open(path, "wb") as file, SyncedFile(file) if kind is SyncedFile else UncachedFile(file, size) as writer:
        for piece in pieces:
            writer.write(piece)
        writer.flush()
