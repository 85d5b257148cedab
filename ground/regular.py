"""Files of unknown origin: what is no regular file, such as a pipe or a device, is not waited for."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def opened(path: Path) -> BinaryIO:
    """A regular file, for reading: nothing else is waited for, whatever lies under the name. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")
