"""Files whose sha256 this process knows, because it wrote or hashed them: gigabytes need not be hashed twice.

Known is a file's content under an inode, size and time of change: another name for it is known as well, and what was
put in its place is not.
"""

import os
import threading
import time
from typing import NamedTuple

_RACE = 10_000_000  # ns: a file changed so shortly ago may be changed again without a later time
_MOST = 4096  # files remembered; of more the oldest are forgotten


class _File(NamedTuple):
    device: int
    inode: int
    size: int
    changed: int  # ns


_known: dict[_File, bytes] = {}
_one_at_a_time = threading.Lock()


def remember(descriptor: int, sha256: bytes) -> None:
    """This process has read or written all of the open file, and it has this hash."""
    file = _of(descriptor)
    if file.changed < time.time_ns() - _RACE:
        with _one_at_a_time:
            _known[file] = sha256
            while len(_known) > _MOST:
                _known.pop(next(iter(_known)))


def is_known(descriptor: int, sha256: bytes) -> bool:
    """Whether the open file has this hash, as far as this process has seen; False: hash it."""
    return _known.get(_of(descriptor)) == sha256


def _of(descriptor: int) -> _File:
    found = os.fstat(descriptor)
    return _File(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
