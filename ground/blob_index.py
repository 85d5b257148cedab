"""What a blob's name cannot say: its class, and who still needs it. SQLite, shared by the processes of one folder.

It only remembers what can be said again, so a damaged index is made anew.
"""

import errno
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

FORMAT = 1
BUSY = 30.0  # s to wait for another process
_DAMAGED = {"SQLITE_CORRUPT", "SQLITE_NOTADB"}


class BlobIndex:
    """Opened when it is first asked. Every method raises OSError where the disk does not do its part."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    def note(self, hash_: bytes, kind: str) -> None:
        """The last word counts."""
        with self._table() as table:
            table.execute("INSERT OR REPLACE INTO blob VALUES (?, ?, ?)", (hash_, kind, int(time.time())))

    def kind(self, hash_: bytes) -> str | None:
        with self._table() as table:
            row = table.execute("SELECT kind FROM blob WHERE hash = ?", (hash_,)).fetchone()
        return row[0] if row else None

    def kinds(self) -> dict[bytes, str]:
        with self._table() as table:
            return dict(table.execute("SELECT hash, kind FROM blob").fetchall())

    def pin(self, owner: str, hashes: Collection[bytes]) -> None:
        """From now on `owner` needs exactly these."""
        with self._table() as table:
            table.execute("DELETE FROM pin WHERE owner = ?", (owner,))
            table.executemany("INSERT OR IGNORE INTO pin VALUES (?, ?)", [(owner, hash_) for hash_ in hashes])

    def owners(self, prefix: str) -> set[str]:
        """Whose names begin so and who need anything."""
        with self._table() as table:
            rows = table.execute(
                "SELECT DISTINCT owner FROM pin WHERE substr(owner, 1, ?) = ?", (len(prefix), prefix)
            ).fetchall()
        return {row[0] for row in rows}

    def pinned(self, prefix: str) -> set[bytes]:
        """What those owners need."""
        with self._table() as table:
            rows = table.execute(
                "SELECT DISTINCT hash FROM pin WHERE substr(owner, 1, ?) = ?", (len(prefix), prefix)
            ).fetchall()
        return {row[0] for row in rows}

    def unpin(self, owner: str) -> list[bytes]:
        """What `owner` needed until now."""
        with self._table() as table:
            rows = table.execute("SELECT hash FROM pin WHERE owner = ?", (owner,)).fetchall()
            table.execute("DELETE FROM pin WHERE owner = ?", (owner,))
        return [row[0] for row in rows]

    def unpinned(self, kinds: Collection[str], before: float) -> list[bytes]:
        """Those of the kinds that nobody needs, said until the unix time `before`, oldest first."""
        with self._table() as table:
            rows = table.execute(
                f"SELECT hash FROM blob WHERE kind IN ({_marks(kinds)}) AND noted <= ? "
                "AND hash NOT IN (SELECT hash FROM pin) ORDER BY noted, rowid",
                (*kinds, int(before)),
            ).fetchall()
        return [row[0] for row in rows]

    def drop(self, hash_: bytes, kinds: Collection[str], remove: Callable[[], None]) -> bool:
        """Forget a blob of the kinds, and `remove` it before anybody can pin it; False where somebody has."""
        with self._table() as table:
            found = table.execute(
                f"DELETE FROM blob WHERE hash = ? AND kind IN ({_marks(kinds)}) AND hash NOT IN (SELECT hash FROM pin)",
                (hash_, *kinds),
            )
            if found.rowcount:
                remove()
            return bool(found.rowcount)

    def forget(self, hashes: Collection[bytes], before: float) -> None:
        """What was said of these until the unix time `before`."""
        with self._table() as table:
            table.executemany(
                "DELETE FROM blob WHERE hash = ? AND noted <= ?", [(hash_, int(before)) for hash_ in hashes]
            )

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def _table(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._open()
                with self._connection:
                    yield self._connection
            except sqlite3.DatabaseError as error:
                if _is_damage(error) and self._connection is not None:
                    self._connection.close()
                    self._connection = None
                    self._delete()
                code = errno.ENOSPC if _name(error) == "SQLITE_FULL" else errno.EIO
                raise OSError(code, f"the index of the blobs: {error}", str(self._path)) from error

    def _open(self) -> sqlite3.Connection:
        try:
            return self._prepared()
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):  # busy, or the disk is full: it is whole
                raise
            self._delete()
            return self._prepared()

    def _prepared(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=BUSY, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA cache_size = -256")  # kB: it grows with the file, up to this
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, FORMAT):
                raise _OtherFormat(f"format {version}")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS blob (hash BLOB PRIMARY KEY, kind TEXT NOT NULL, noted INTEGER NOT NULL)"
            )
            connection.execute(
                "CREATE TABLE IF NOT EXISTS pin (owner TEXT NOT NULL, hash BLOB NOT NULL, PRIMARY KEY (owner, hash))"
            )
            if version == 0:
                connection.execute(f"PRAGMA user_version = {FORMAT}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _delete(self) -> None:
        for part in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + part).unlink(missing_ok=True)


class _OtherFormat(sqlite3.DatabaseError):
    """An index of another version of this program: as good as a damaged one."""


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    return isinstance(error, _OtherFormat) or _name(error) in _DAMAGED


def _name(error: sqlite3.DatabaseError) -> str:
    """The library's name of what is wrong, without what follows its second part."""
    return "_".join(getattr(error, "sqlite_errorname", "").split("_")[:2])


def _marks(kinds: Collection[str]) -> str:
    return ", ".join("?" * len(kinds))
