"""The verdicts of a node and of others that it was told, in one SQLite file of its data folder."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from dlx.ledger.typed import Domain
from dlx.node.round.challenges.verdicts import Finding, ReportedVerdict, VerdictError

FILE = "verdicts.sqlite"  # in the folder of a run's state
MAX_ROWS = 100_000  # more than members can give; the oldest give way

_SCHEMA = """
CREATE TABLE IF NOT EXISTS verdicts (
    round INTEGER NOT NULL, statement BLOB NOT NULL, checker TEXT NOT NULL, finding INTEGER NOT NULL,
    report BLOB NOT NULL, signature BLOB NOT NULL, PRIMARY KEY (statement, checker)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_round ON verdicts (round);
"""
_LISTED = "SELECT report, signature FROM verdicts WHERE round >= ? ORDER BY round, statement, checker LIMIT ?"


class VerdictStore:
    """Of one run. A checker has one verdict on a contribution: the first that came. All methods block on the disk, and
    may be called from any thread; they raise OSError."""

    def __init__(self, path: Path, run: bytes, domain: Domain) -> None:
        """Whatever was in a file that is none is given up: verdicts can be had again from others."""
        self._path, self._run, self._domain = path, run, domain
        self._lock = threading.Lock()
        try:
            self._db = self._open()
        except sqlite3.DatabaseError:
            path.unlink(missing_ok=True)
            self._db = self._open()

    def add(self, verdict: ReportedVerdict) -> bool:
        """Whether it is the first of its checker on the contribution."""
        row = (
            verdict.report.round, verdict.report.statement, verdict.checker, verdict.report.finding,
            verdict.data, verdict.signature,
        )  # fmt: skip
        with self._table() as table:
            added = table.execute("INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?, ?, ?, ?)", row).rowcount == 1
            (count,) = table.execute("SELECT count(*) FROM verdicts").fetchone()
            if count > MAX_ROWS:
                table.execute(
                    "DELETE FROM verdicts WHERE (statement, checker) IN "
                    "(SELECT statement, checker FROM verdicts ORDER BY finding <> 1, round LIMIT ?)",
                    (count - MAX_ROWS,),
                )  # fmt: skip
        return added

    def since(self, round: int) -> list[ReportedVerdict]:
        """Those of a round and later ones, oldest first."""
        found = []
        for report, signature in self.listed(round, MAX_ROWS):
            try:
                found.append(ReportedVerdict.read(report, signature, self._run, self._domain))
            except VerdictError:  # the disk's fault
                continue
        return found

    def listed(self, round: int, limit: int) -> list[tuple[bytes, bytes]]:
        """(report, signature) of the first so many of the same, as they lie there."""
        with self._table() as table:
            return table.execute(_LISTED, (round, limit)).fetchall()

    def forget(self, before: int) -> None:
        """Remove what is honest of earlier rounds; the rest stays."""
        with self._table() as table:
            table.execute("DELETE FROM verdicts WHERE round < ? AND finding = ?", (before, int(Finding.HONEST)))

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _table(self) -> Iterator[sqlite3.Connection]:
        """One transaction."""
        try:
            with self._lock, self._db:
                yield self._db
        except sqlite3.Error as error:
            raise OSError(f"{self._path}: {error}") from error

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self._path, timeout=10, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.executescript(_SCHEMA)
        except BaseException:
            db.close()
            raise
        return db


def listed_in(path: Path, round: int, limit: int) -> list[tuple[bytes, bytes]]:
    """`VerdictStore.listed` of a file that is another process's, and is only read. Raises OSError."""
    try:
        with closing(sqlite3.connect(path.absolute().as_uri() + "?mode=ro", timeout=2, uri=True)) as db:
            return db.execute(_LISTED, (round, limit)).fetchall()
    except sqlite3.Error as error:
        raise OSError(f"{path}: {error}") from error


def verdicts_beside(folders: Iterable[Path], run: bytes, domain: Domain) -> list[ReportedVerdict]:
    """The verdicts of the nodes of these blob folders, each once, oldest first."""
    paths = (blobs.parent / "state" / run.hex()[:16] / FILE for blobs in folders)
    found = dict.fromkeys(verdict for path in paths for verdict in read_verdicts(path, run, domain))
    return sorted(found, key=by_place)


def by_place(verdict: ReportedVerdict) -> tuple[int, int, int, str]:
    return verdict.report.round, verdict.report.stage, verdict.report.replica, verdict.checker


def read_verdicts(path: Path, run: bytes, domain: Domain) -> list[ReportedVerdict]:
    """Those of a node, for who only reads; none where there is no such file."""
    if not path.is_file():
        return []
    with closing(VerdictStore(path, run, domain)) as store:
        return store.since(0)
