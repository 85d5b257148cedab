"""A file that is hashed and written while it is made: little is left to wait for when its last piece comes."""

import hashlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from dlx.ground import durable, hash_memory
from dlx.ground.constants import NO_HASH
from dlx.ground.durable import Chunk
from dlx.ground.large import SyncedFile, UncachedFile
from dlx.ground.merkle import TreeHash

_SHORT = 1 << 22  # bytes: of pieces no longer than that
_AHEAD = 3  # may be under way at a time, of longer ones one


class Written(NamedTuple):
    """A file's sha256 and its Merkle root (see ground.merkle), 32 zero bytes where it was not asked for."""

    sha256: bytes
    root: bytes


class Stream:
    """Takes a file piece by piece, from front to back, about `size` bytes; it is durable at the end.

    Use it as a context manager: what is not finished leaves nothing behind. Without a `folder` no file is written. With
    `tree` the Merkle root is computed too. What is not `cached` goes past the page cache (see ground.large). Each of
    this is done by a thread of its own, so that none waits for the slowest with every piece.
    """

    def __init__(self, folder: Path | None, size: int, *, tree: bool = False, cached: bool = True) -> None:
        self._folder, self._size, self._cached, self._opened = folder, size, cached, ExitStack()
        self._digest, self._tree = hashlib.sha256(), TreeHash() if tree else None
        self._under_way = deque[list[Future[object]]]()

    def __enter__(self) -> Self:
        takers: list[Callable[[Any], object]] = [self._digest.update]
        if self._tree is not None:
            takers.append(self._tree.update)
        if self._folder is not None:
            file, self._draft = self._opened.enter_context(durable.draft(self._folder))
            self._file: SyncedFile | UncachedFile
            self._file = SyncedFile(file) if self._cached else UncachedFile(file, self._size)
            self._opened.enter_context(self._file)
            takers.append(self._file.write)
        self._takers = [(self._opened.enter_context(ThreadPoolExecutor(1, "stream")), take) for take in takers]
        return self

    def __exit__(self, *raised: Any) -> None:
        self._opened.__exit__(*raised)  # a full disk is told with the folder, which the draft knows

    def feed(self, data: Chunk) -> None:
        """The next piece: it must not change until it was taken (see `Buffers`). Raises OSError for a full disk, maybe
        of a piece before."""
        self._wait(_ahead(memoryview(data).nbytes) - 1)
        self._under_way.append([thread.submit(take, data) for thread, take in self._takers])

    def finish(self, path: Path | None = None) -> Written:
        """The file is at `path` now, in the folder; without one it is a blob named by its sha256. Raises OSError."""
        self._wait(0)
        written = Written(self._digest.digest(), NO_HASH if self._tree is None else self._tree.root)
        if self._folder is not None:
            durable.place(self._file, self._draft, path or self._folder / written.sha256.hex())
            hash_memory.remember(self._file.fileno(), written.sha256)
        return written

    def _wait(self, left: int) -> None:
        """Until no more pieces are under way."""
        while len(self._under_way) > left:
            for one in self._under_way.popleft():
                one.result()


class Buffers:
    """Float32 memory for the pieces of a stream, used again and again: fresh memory costs more than a sha256 of it."""

    def __init__(self) -> None:
        self._of_kind: dict[int, deque[np.ndarray]] = {}

    def of(self, length: int) -> np.ndarray:
        """A flat array for the next piece, with anything in it. A stream to which everything was fed that came before
        has taken what lay there."""
        ahead = _ahead(4 * length)
        arrays = self._of_kind.setdefault(ahead, deque(np.empty(0, np.float32) for _ in range(ahead + 1)))
        arrays.rotate()
        if len(arrays[0]) < length:
            arrays[0] = np.empty(length, np.float32)
        return arrays[0][:length]


def _ahead(length: int) -> int:
    """How many pieces may be under way when one of so many bytes has come."""
    return _AHEAD if length <= _SHORT else 1
