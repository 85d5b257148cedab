"""Files whose sha256 this process knows, because it wrote or hashed them: gigabytes need not be hashed twice.

Known is a file's content under an inode, size and time of change: another name for it is known as well, and what was
put in its place is not. A disk may lose bits, and a file be written to and its time set back. So what is known is
believed for an hour, which is longer than a file is usually read again and again.
"""

import os
import threading
import time
from typing import NamedTuple

_RACE = 10_000_000  # ns: a file changed so shortly ago may be changed again without a later time
BELIEVED = 3600.0  # s since it was written or hashed
_WORTH = 1 << 24  # bytes: to hash so many takes longer than to wait for that
_MOST = 4096  # files remembered; of more the oldest are forgotten


class _File(NamedTuple):
    device: int
    inode: int
    size: int
    changed: int  # ns


_known: dict[_File, tuple[bytes, float]] = {}  # with the monotonic time when it was so
_one_at_a_time = threading.Lock()


def remember(descriptor: int, sha256: bytes) -> None:
    """This process has read or written all of the open file, and it has this hash."""
    file = _of(descriptor)
    if file.size >= _WORTH:
        time.sleep(max(0, min(_RACE, file.changed + _RACE - time.time_ns()) + 1) / 1e9)
    if file.changed < time.time_ns() - _RACE:
        with _one_at_a_time:
            _known[file] = sha256, time.monotonic()
            while len(_known) > _MOST:
                _known.pop(next(iter(_known)))


def is_known(descriptor: int, sha256: bytes) -> bool:
    """Whether the open file has this hash, as far as this process has seen; False: hash it."""
    found, since = _known.get(_of(descriptor), (b"", 0.0))
    return found == sha256 and time.monotonic() < since + BELIEVED


def _of(descriptor: int) -> _File:
    found = os.fstat(descriptor)
    return _File(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
