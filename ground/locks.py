"""Locks between processes, on open files: the kernel frees one when its owner dies."""

import errno
import fcntl
from pathlib import Path

from dlx.ground.errors import Unsuited

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def take(file: int, path: Path, *, shared: bool = False) -> bool:
    """Lock an open file, alone or with others that share it; False while a lock of somebody else excludes that.

    Raises Unsuited where the file system of `path`, its name, has no locks; OSError.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise Unsuited(path, "without locks") from None
        raise OSError(error.errno, error.strerror, str(path)) from None
    return True


def free(file: int) -> None:
    """For who keeps the file open."""
    fcntl.flock(file, fcntl.LOCK_UN)
