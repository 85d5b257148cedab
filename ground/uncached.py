"""Files past the page cache, where the system can: large ones that are written once and read once, if ever.

They drive out nothing that is read often, take no memory that has to be cleared first, and their bytes go to the disk
while the next ones are made instead of all at the end. Elsewhere they are files as any other.
"""

import errno
import fcntl
import mmap
import os
from contextlib import suppress
from typing import BinaryIO

import numpy as np

_ALIGNED = 4096  # bytes: what disks want addresses, offsets and lengths to be multiples of
_STAGE = 1 << 22  # bytes written at once
_BEHIND = 1 << 22  # bytes that are read before those that were read are dropped
_AHEAD = 1 << 23  # bytes that the system reads ahead


class UncachedFile:
    """Writes an empty open file from front to back."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._size, self._filled = file, 0, 0
        self._stage = np.frombuffer(mmap.mmap(-1, _STAGE), np.uint8)  # aligned
        _bypass_cache(file.fileno(), True)

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, data: memoryview | bytes | np.ndarray) -> None:
        """Raises OSError."""
        left = np.frombuffer(data, np.uint8)
        while len(left):
            piece = left[: _STAGE - self._filled]
            self._stage[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            left = left[len(piece) :]
            if self._filled == _STAGE:
                self._drain(_STAGE)

    def flush(self) -> None:
        """The last write: the file has its size. Raises OSError."""
        size = self._size + self._filled
        self._drain(-(-self._filled // _ALIGNED) * _ALIGNED)
        os.ftruncate(self.fileno(), size)

    def _drain(self, length: int) -> None:
        done = 0
        while done < length:
            try:
                done += os.pwrite(self.fileno(), self._stage[done:length].data, self._size + done)
            except OSError as error:
                if error.errno != errno.EINVAL or not _bypass_cache(self.fileno(), False):
                    raise
        self._size, self._filled = self._size + length, 0


class ReadOnce:
    """Tells the system, while a file is read front to back, what comes next and what nobody wants again."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._told = descriptor, 0

    def reached(self, at: int) -> None:
        """Byte `at` was read, and all before it, if not quite all."""
        if at >= self._told and hasattr(os, "posix_fadvise"):
            self._told = at + _BEHIND
            with suppress(OSError):  # advice
                os.posix_fadvise(self._descriptor, at, _AHEAD, os.POSIX_FADV_WILLNEED)
                os.posix_fadvise(self._descriptor, 0, max(0, at - _BEHIND), os.POSIX_FADV_DONTNEED)


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
