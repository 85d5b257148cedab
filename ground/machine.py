"""What this machine has: the user's home, folders for sockets, signals, when it was started."""

import os
import platform
import signal
import tempfile
from functools import cache
from pathlib import Path

import psutil

from dlx.ground.errors import DlxError

# What their kinds are called; fuse.sshfs and others come through FUSE.
_NETWORKS = frozenset(
    {"9p", "afpfs", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "drvfs", "fuse.ceph", "fuse.glusterfs"}
    | {"fuse.rclone", "fuse.sshfs", "fuse.vmhgfs-fuse", "glusterfs", "gpfs", "lustre", "nfs", "nfs3", "nfs4", "prl_fs"}
    | {"smb2", "smb3", "smbfs", "vboxsf", "webdav"}
)
LOOK_SECONDS = 1.0  # between two looks of a main thread: a signal that another thread hears does not wake it
_SOCKET_PATH = 80  # bytes that a folder's path may have: that of a socket in it has room for 103 on every system


def for_sockets(prefix: str) -> Path:
    """A new folder that only its owner may enter, and where a socket's path is not too long, whatever TMPDIR says.
    Raises OSError."""
    too_long = len(os.fsencode(tempfile.gettempdir())) + len(prefix) > _SOCKET_PATH
    return Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp" if too_long else None))


def nearest(path: Path) -> Path:
    """The path, or of the folders that it would be in the first that exists."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def network_disk(path: Path) -> str | None:
    """The kind of file system that the path is on where that is a network's, or a host's that lends it to a virtual
    machine (WSL's /mnt/c is 9p); else None."""
    place = nearest(path).resolve()
    mounts = [one for one in psutil.disk_partitions(all=True) if place.is_relative_to(one.mountpoint)]
    kind = max(enumerate(mounts), key=lambda one: (len(one[1].mountpoint), one[0]))[1].fstype if mounts else ""
    return kind if kind in _NETWORKS else None


class Homeless(DlxError):
    """A path begins with ~, and nobody knows where that is."""

    exit_code = 2


def expand(path: Path | str) -> Path:
    """The path with ~ for the home folder. Raises Homeless."""
    try:
        if os.environ.get("HOME") == "":  # the library would take the root of the disk for it
            raise RuntimeError
        return Path(path).expanduser()
    except RuntimeError:
        if not str(path).startswith("~"):
            return Path(path)
        raise Homeless(
            f"{path}: the user has no home folder that is known (HOME is not set): write whole paths; --datadir or "
            "DLX_HOME names the node's folder"
        ) from None


@cache
def boot() -> str:
    """A word for this machine since it was started: no other machine has it, and no other start. Containers share it
    with what they run on."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux
        return f"{platform.node()}-{psutil.boot_time():.0f}".replace(" ", "-")


def stop_signals() -> tuple[signal.Signals, ...]:
    """Those that ask a program to stop: of Ctrl-C, of a service, and of a terminal that closes, unless the program was
    started to outlive it (nohup)."""
    asked = signal.SIGINT, signal.SIGTERM
    return asked if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*asked, signal.SIGHUP)
