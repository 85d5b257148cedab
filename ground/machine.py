"""What this machine has: the user's home, folders for sockets, signals."""

import os
import signal
import tempfile
from pathlib import Path

from dlx.ground.errors import DlxError

_SOCKET_PATH = 80  # bytes that a folder's path may have: that of a socket in it has room for 103 on every system


def for_sockets(prefix: str) -> Path:
    """A new folder that only its owner may enter, and where a socket's path is not too long, whatever TMPDIR says.
    Raises OSError."""
    too_long = len(os.fsencode(tempfile.gettempdir())) + len(prefix) > _SOCKET_PATH
    return Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp" if too_long else None))


def nearest(path: Path) -> Path:
    """The path, or of the folders that it would be in the first that exists."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


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


def stop_signals() -> tuple[signal.Signals, ...]:
    """Those that ask a program to stop: of Ctrl-C, of a service, and of a terminal that closes, unless the program was
    started to outlive it (nohup)."""
    asked = signal.SIGINT, signal.SIGTERM
    return asked if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*asked, signal.SIGHUP)
