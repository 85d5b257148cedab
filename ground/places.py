"""Where things lie on this machine: the user's home, folders for sockets."""

import os
import tempfile
from pathlib import Path

from dlx.ground.errors import DlxError

_SOCKET_PATH = 80  # bytes of a folder's: a socket's own path has room for 103 where that is least


def for_sockets(prefix: str) -> Path:
    """A new folder that only its owner may enter, and where a socket's path is not too long, whatever TMPDIR says.
    Raises OSError."""
    room = _SOCKET_PATH - len(prefix)
    return Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp" if len(os.fsencode(tempfile.gettempdir())) > room else None))


class Homeless(DlxError):
    """A path begins with ~, and nobody knows where that is."""

    exit_code = 2


def expand(path: Path | str) -> Path:
    """The path with ~ for the home folder. Raises Homeless."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise Homeless(
            f"{path}: the user has no home folder that is known (HOME is not set): write whole paths; --datadir or "
            "DLX_HOME names the node's folder"
        ) from None
