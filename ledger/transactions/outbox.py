"""One account's transactions on disk, shared by processes: a lock, and one file for each nonce."""

import contextlib
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from dlx.ground import durable, locks
from dlx.ledger.errors import LedgerError, LedgerUnavailable

TURN = 60.0  # seconds for another thread or process to be done
_POLL = 0.03  # seconds between looks at a lock
_FORMAT = 2  # of an entry; 1 had nothing from `former` on
_log = logging.getLogger("dlx.ledger")


@dataclass(frozen=True)
class Pending:
    """A signed transaction; hex strings with 0x, fees in wei per gas, `value` in wei.

    `hashes`: every version of it, newest last; `former`: of other calls that were signed with this nonce. `expires`:
    the Unix time until which it is wanted, unless asked for again. `mined`: whether a block had it; `told`: whether
    whoever asked for it knows.
    """

    nonce: int
    to: str | None
    data: str
    gas: int
    max_fee: int
    tip: int
    raw: str
    hashes: tuple[str, ...]
    former: tuple[str, ...] = ()
    expires: float = 0.0
    mined: bool = False
    told: bool = False
    value: int = 0

    @property
    def call(self) -> tuple[str | None, str, int]:
        """What it asks for: whom, what, and with how much."""
        return self.to, self.data, self.value

    @property
    def cap(self) -> int:
        """The most that it may cost, in wei, without its value."""
        return self.gas * self.max_fee


class Outbox:
    """The entries by nonce, as they are on disk while one has the `turn`. `folder` None keeps them in memory."""

    def __init__(self, folder: Path | None, account: str) -> None:
        self.entries: dict[int, Pending] = {}
        self._folder, self._account = folder, account
        self._lock = threading.Lock()
        self._guard: _Guard | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._guard = _Guard(folder / "lock")

    @contextlib.contextmanager
    def turn(self, patience: float = TURN) -> Iterator[bool]:
        """Alone with the outbox; whether others have changed it since the last turn. Raises LedgerUnavailable after
        `patience` seconds."""
        deadline = time.monotonic() + patience
        busy = LedgerUnavailable(
            f"earlier transactions of {self._account} still wait for the chain node: try again later"
        )
        if not self._lock.acquire(timeout=patience):
            raise busy
        try:
            if self._guard is None or self._folder is None:
                yield False
                return
            if not self._guard.acquire(deadline):
                raise busy
            try:
                changed = self._guard.has_changed()
                if changed:
                    loaded = map(_load, self._files())
                    self.entries = {entry.nonce: entry for entry in loaded if entry is not None}
                    self._guard.see()
                yield changed
            finally:
                self._guard.release()
        finally:
            self._lock.release()

    def keep(self, pending: Pending) -> None:
        """Raises OSError where it cannot be written; then nobody knows of it."""
        if self._guard is not None and self._folder is not None:
            self._guard.change()
            entry = {"format": _FORMAT, **asdict(pending)}
            durable.write_bytes(self._folder / f"{pending.nonce:012d}.json", json.dumps(entry).encode())
        self.entries[pending.nonce] = pending

    def drop(self, nonce: int) -> None:
        self.entries.pop(nonce, None)
        if self._guard is not None and self._folder is not None:
            self._guard.change()
            (self._folder / f"{nonce:012d}.json").unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        assert self._folder is not None
        return sorted(self._folder.glob("[0-9]*.json"))


class _Guard:
    """A lock between processes, which the kernel frees when its owner dies. The file counts the changes of what it
    guards: the count goes up before a change, so that whoever comes after a crash reads everything anew."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        weakref.finalize(self, os.close, self._file)
        self._known = -1

    def acquire(self, deadline: float) -> bool:
        while not locks.take(self._file, self._path):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL)
        return True

    def release(self) -> None:
        locks.free(self._file)

    def has_changed(self) -> bool:
        """Whether others have changed anything since we last saw it."""
        return self._count() != self._known

    def see(self) -> None:
        self._known = self._count()

    def change(self) -> None:
        self._known = self._count() + 1
        os.pwrite(self._file, self._known.to_bytes(8, "big"), 0)

    def _count(self) -> int:
        return int.from_bytes(os.pread(self._file, 8, 0), "big")


def _load(path: Path) -> Pending | None:
    """None for one that is damaged, which is set aside: it must not keep the others from going out."""
    try:
        fields = json.loads(path.read_text())
        found = fields.pop("format", _FORMAT)  # the first releases wrote none
        if found > _FORMAT:
            raise LedgerError(f"{path} was written by a newer dlx-node (format {found}): use that one")
        lists = {name: tuple(fields[name]) for name in ("hashes", "former") if name in fields}
        loaded = Pending(**{**fields, **lists})
        if not (isinstance(loaded.nonce, int) and loaded.hashes and isinstance(loaded.cap, int)):
            raise ValueError("no transaction")
        return loaded
    except (AttributeError, ValueError, TypeError, KeyError) as error:
        aside = path.with_suffix(".damaged")
        path.replace(aside)
        _log.warning("%s was damaged (%s) and is now %s: that transaction may be lost", path, error, aside.name)
        return None
