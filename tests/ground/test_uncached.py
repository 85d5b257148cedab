"""Files past the page cache have the bytes of any other, also where the system does not know the way."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlx.ground.uncached import ReadOnce, UncachedFile

SIZES = ([], [1], [4096], [4095, 2], [8, 5_000_000, 3], [1 << 22, 1 << 22], [(1 << 22) + 1])


@pytest.mark.parametrize("sizes", SIZES)
def test_what_is_written_in_pieces_is_what_is_read(tmp_path: Path, sizes: list[int]) -> None:
    pieces = [np.random.default_rng(size).integers(0, 256, size, np.uint8) for size in sizes]
    _write(tmp_path / "file", pieces)
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


def test_what_is_dropped_behind_a_reader_can_be_read_again(tmp_path: Path) -> None:
    data = os.urandom(20_000_000)
    (tmp_path / "file").write_bytes(data)
    with open(tmp_path / "file", "rb") as file:
        once, found = ReadOnce(file.fileno()), b""
        while piece := file.read(1 << 20):
            found += piece
            once.reached(len(found))
    assert found == data == (tmp_path / "file").read_bytes()


def _write(path: Path, pieces: list[np.ndarray]) -> None:
    with open(path, "wb") as file:
        uncached = UncachedFile(file)
        for piece in pieces:
            uncached.write(piece)
        uncached.flush()
