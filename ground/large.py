"""Large files that are written while they are made: little is left to wait for when the last byte comes.

What is written once and read once, if ever, goes past the page cache where the system can. It drives out nothing that
is read often, and takes no memory that has to be cleared first. Elsewhere it is a file as any other.
"""

import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, BinaryIO, Self

import numpy as np

from dlx.ground.durable import Chunk

_ALIGNED = 4096  # bytes: what disks want addresses, offsets and lengths to be multiples of
_STAGE = 1 << 22  # bytes written at once
_UNSYNCED = 1 << 25  # bytes that are written before they are brought to the disk
_BEHIND = 1 << 22  # bytes that are read before those that were read are dropped
_AHEAD = 1 << 23  # bytes that the system reads ahead


class _Background:
    """One thing at a time done by a thread of its own; what fails is raised by the next call."""

    def __init__(self) -> None:
        self._thread, self._last = ThreadPoolExecutor(1, "disk"), Future[object]()
        self._last.set_result(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def _idle(self) -> bool:
        return self._last.done()

    def _do(self, what: Callable[..., object], *arguments: Any) -> None:
        self._wait()
        self._last = self._thread.submit(what, *arguments)

    def _wait(self) -> None:
        self._last.result()


class SyncedFile(_Background):
    """Writes an open file as it comes. Use it as a context manager."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file, self._unsynced = file, 0

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, data: Chunk) -> None:
        """Raises OSError."""
        self._file.write(data)
        self._unsynced += len(data)
        if self._unsynced >= _UNSYNCED and self._idle():
            self._file.flush()
            self._do(os.fsync, self.fileno())
            self._unsynced = 0

    def flush(self) -> None:
        """Raises OSError."""
        self._wait()
        self._file.flush()


class UncachedFile(_Background):
    """Writes an empty open file from front to back, about `size` bytes. Use it as a context manager."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        super().__init__()
        self._file, self._size, self._filled = file, 0, 0
        self._stage = max(_ALIGNED, min(_STAGE, _up(size)))
        self._stages = [_aligned(self._stage) for _ in range(2)]  # one is filled, the other written
        _bypass_cache(file.fileno(), True)

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, data: Chunk) -> None:
        """Raises OSError."""
        left = np.frombuffer(data, np.uint8)
        while len(left):
            piece = left[: self._stage - self._filled]
            self._stages[0][self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            left = left[len(piece) :]
            if self._filled == self._stage:
                self._drain(self._stage)

    def flush(self) -> None:
        """The last write: the file has its size. Raises OSError."""
        size = self._size + self._filled
        self._drain(_up(self._filled))
        self._wait()
        os.ftruncate(self.fileno(), size)

    def _drain(self, length: int) -> None:
        self._do(self._write, self._stages[0][:length], self._size)
        self._stages.reverse()
        self._size, self._filled = self._size + length, 0

    def _write(self, data: np.ndarray, at: int) -> None:
        done = 0
        while done < len(data):
            try:
                done += os.pwrite(self.fileno(), data[done:].data, at + done)
            except OSError as error:
                if error.errno != errno.EINVAL or not _bypass_cache(self.fileno(), False):
                    raise


class ReadOnce:
    """Tells the system, while a file is read front to back, what comes next and what is not wanted any more, until it
    is read from the front again."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._told = descriptor, 0

    def reached(self, at: int) -> None:
        """Byte `at` was read, and all before it, if not quite all."""
        began_again = at < self._told - 3 * _BEHIND  # threads that share the reading are late by less
        if (at >= self._told or began_again) and hasattr(os, "posix_fadvise"):
            self._told = at + _BEHIND
            with suppress(OSError):  # advice
                os.posix_fadvise(self._descriptor, at, _AHEAD, os.POSIX_FADV_WILLNEED)
                os.posix_fadvise(self._descriptor, 0, max(0, at - _BEHIND), os.POSIX_FADV_DONTNEED)


def _up(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _aligned(size: int) -> np.ndarray:
    memory = mmap.mmap(-1, size)
    if size == _STAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # advice
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def _bypass_cache(descriptor: int, wanted: bool) -> bool:
    """Whether that changed anything: not every system and file system knows it."""
    if not hasattr(os, "O_DIRECT"):
        return False
    before = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    after = before | os.O_DIRECT if wanted else before & ~os.O_DIRECT
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETFL, after)
        return before != after
    return False
