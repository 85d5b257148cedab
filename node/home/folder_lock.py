"""Who runs in a folder: at most one process, also where several machines see the folder.

The kernel's lock on the file is enough on one machine, and ends with the process. A network's disk may lock on each
machine alone. So who runs there also writes host, boot and a number that goes up, and who finds the entry of another
boot looks whether that number still does.
"""

import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dlx.ground import durable, locks, machine
from dlx.node.home.errors import Failure

BEAT_SECONDS = 5.0  # between two numbers
LOOK_SECONDS = 20.0  # for which one of another boot may stand still
_LOOKERS = 1.0  # s until who only asks whether a node runs is gone
_SIZE = 256  # bytes of an entry, always: it is written over in place


class Entry(NamedTuple):
    """`host` and `boot` are words as the file holds them: 1 to 64 ASCII characters, none of them blank."""

    pid: int
    host: str
    boot: str
    beat: int

    @classmethod
    def own(cls) -> "Entry":
        """That with which this process begins."""
        return cls(os.getpid(), _plain(platform.node())[:64] or "unknown", _plain(machine.boot())[-64:], 0)


@dataclass
class FolderLock:
    """That of this process, while it holds it."""

    path: Path
    file: int  # open, and locked
    entry: Entry

    def beat(self) -> None:
        """To be called every BEAT_SECONDS. Raises Failure where another machine has taken the folder, OSError."""
        there = _read(self.path)
        if there is not None and there[:3] != self.entry[:3]:
            raise _taken(self.path, there)
        self.entry = self.entry._replace(beat=self.entry.beat + 1)
        _write(self.file, self.path, self.entry)

    def release(self) -> None:
        """Nobody has to look for how long it stands still."""
        there = _read(self.path)
        if there is not None and there[:3] == self.entry[:3]:
            os.ftruncate(self.file, 0)


@contextmanager
def hold(path: Path) -> Iterator[FolderLock]:
    """Raises Failure while another process, of whichever machine, has the folder of `path`; Unsuited, OSError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        until = time.monotonic() + _LOOKERS
        while not locks.take(file, path):
            if time.monotonic() > until:
                raise _taken(path, _read(path))
            time.sleep(_LOOKERS / 10)
        before, own = _read(path), Entry.own()
        if before is not None and before.boot != own.boot and _is_beating(path, before):
            raise _taken(path, before)
        held = FolderLock(path, file, own)
        _write(file, path, held.entry)
        try:
            yield held
        finally:
            held.release()
    finally:
        os.close(file)


def is_held(path: Path) -> bool:
    """Whether a process of this machine has the folder now: not where it was copied from. Raises Unsuited, OSError."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not locks.take(file, path, shared=True)
    finally:
        os.close(file)


def _is_beating(path: Path, before: Entry) -> bool:
    until = time.monotonic() + LOOK_SECONDS
    while time.monotonic() < until:
        time.sleep(min(1.0, LOOK_SECONDS / 4))
        if _read(path) != before:
            return True
    return False


def _read(path: Path) -> Entry | None:
    """Opened anew each time: a network's disk shows then what others wrote."""
    with open(path, "rb") as file:
        words = file.read(_SIZE).decode("ascii", "replace").split()
    if len(words) != 4 or not (words[0].isdigit() and words[3].isdigit()):
        return None
    return Entry(int(words[0]), words[1], words[2], int(words[3]))


def _write(file: int, path: Path, entry: Entry) -> None:
    line = " ".join(map(str, entry))
    with durable.naming(path):
        os.pwrite(file, f"{line:<{_SIZE - 1}}\n".encode(), 0)
        os.fsync(file)


def _plain(text: str) -> str:
    return re.sub("[^!-~]", "?", text)


def _taken(path: Path, by: Entry | None) -> Failure:
    here = by is None or by.boot == Entry.own().boot
    who = "unknown" if by is None else str(by.pid) if here else f"{by.pid} on {by.host}"
    return Failure(f"another dlx-node (pid {who}) runs in {path.parent}: stop it, or choose another --datadir")
