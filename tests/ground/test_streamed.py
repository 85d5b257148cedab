"""What comes piece by piece is hashed and written as it was, however late the disk takes it."""

import hashlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlx.ground import streamed
from dlx.ground.large import UncachedFile
from dlx.ground.merkle import tree_root
from dlx.ground.streamed import Buffers, Stream


def test_memory_that_is_used_again_was_taken_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, late = UncachedFile.write, threading.Event()

    def slow(file: UncachedFile, data: Any) -> None:
        late.wait(0.002)
        write(file, data)

    monkeypatch.setattr(UncachedFile, "write", slow)
    monkeypatch.setattr(streamed, "_SHORT", 4096)
    random, buffers, sent = np.random.default_rng(1), Buffers(), list[bytes]()
    with Stream(tmp_path, 1 << 20, tree=True, cached=False) as stream:
        for length in random.choice([1, 700, 1024, 1025, 3000], 200):
            piece = buffers.of(length)
            piece[...] = random.random(length, np.float32)
            sent.append(piece.tobytes())
            stream.feed(piece.view(np.uint8))
        made = stream.finish()
    assert made == (hashlib.sha256(b"".join(sent)).digest(), tree_root(sent))
    assert (tmp_path / made.sha256.hex()).read_bytes() == b"".join(sent)


def test_what_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    with Stream(tmp_path, 10) as stream:
        stream.feed(b"piece")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("cached", [True, False])
def test_a_full_disk_is_told_with_the_folder_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "full")

    monkeypatch.setattr("os.fsync", full)
    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(OSError, match="full") as raised, Stream(tmp_path, 10, cached=cached) as stream:
        for _ in range(5):
            stream.feed(bytes(1 << 23))
        stream.finish()
    assert raised.value.filename == str(tmp_path) and not list(tmp_path.iterdir())
