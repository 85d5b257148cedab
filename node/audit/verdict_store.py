"""The verdicts of a node and of others that it was told, in one SQLite file of its data folder."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from dlx.ground.durable import naming_database
from dlx.ledger.typed import Domain
from dlx.node.home.datadir import DataDir
from dlx.node.round.challenges.verdicts import ReportedVerdict, VerdictError

FILE = "verdicts.sqlite"  # in the folder of a run's state
MAX_ROWS = 100_000  # the oldest honest ones give way first

_SCHEMA = """
CREATE TABLE IF NOT EXISTS verdicts (
    round INTEGER NOT NULL, statement BLOB NOT NULL, segment INTEGER NOT NULL, checker TEXT NOT NULL,
    finding INTEGER NOT NULL, report BLOB NOT NULL, signature BLOB NOT NULL,
    PRIMARY KEY (statement, segment, checker)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_round ON verdicts (round);
"""
_LISTED = "SELECT report, signature FROM verdicts WHERE round >= ? ORDER BY round, statement, segment, checker LIMIT ?"


class VerdictStore:
    """Of one run. A checker has one verdict on a segment of a contribution: the first that came. All methods block on
    the disk, and may be called from any thread; they raise OSError."""

    def __init__(self, path: Path, run: bytes, domain: Domain) -> None:
        """A file that is no database is given up: verdicts can be had again from others. One that cannot be read or
        written now, as on a full disk, stays."""
        self._path, self._run, self._domain = path, run, domain
        self._lock = threading.Lock()
        with naming_database(path):
            try:
                self._db = self._open()
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError:
                path.unlink(missing_ok=True)
                self._db = self._open()

    def add(self, verdict: ReportedVerdict) -> bool:
        """Whether it is the first of its checker on the segment."""
        row = (
            verdict.report.round, *verdict.report.key, verdict.checker, verdict.report.finding, verdict.data,
            verdict.signature,
        )  # fmt: skip
        with self._table() as table:
            added = table.execute("INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?)", row).rowcount == 1
            (count,) = table.execute("SELECT count(*) FROM verdicts").fetchone()
            if count > MAX_ROWS:
                table.execute(
                    "DELETE FROM verdicts WHERE (statement, segment, checker) IN "
                    "(SELECT statement, segment, checker FROM verdicts ORDER BY finding <> 1, round LIMIT ?)",
                    (count - MAX_ROWS,),
                )  # fmt: skip
        return added

    def since(self, round: int) -> list[ReportedVerdict]:
        """Those of a round and later ones, oldest first."""
        return _read(self.listed(round, MAX_ROWS), self._run, self._domain)

    def listed(self, round: int, limit: int) -> list[tuple[bytes, bytes]]:
        """(report, signature) of the first so many of the same, as they lie there."""
        with self._table() as table:
            return table.execute(_LISTED, (round, limit)).fetchall()

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _table(self) -> Iterator[sqlite3.Connection]:
        """One transaction."""
        with naming_database(self._path), self._lock, self._db:
            yield self._db

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
    with naming_database(path):
        try:
            return _listed(path, "mode=ro", round, limit)
        except sqlite3.OperationalError:
            if path.with_name(f"{path.name}-wal").exists():
                raise
            # SQLite would make files beside one that is closed, which this user may not. So nobody else writes it now.
            return _listed(path, "mode=ro&immutable=1", round, limit)


def _listed(path: Path, how: str, round: int, limit: int) -> list[tuple[bytes, bytes]]:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", timeout=2, uri=True)) as db:
        begun = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'verdicts'").fetchone()
        return db.execute(_LISTED, (round, limit)).fetchall() if begun else []


def verdicts_beside(
    folders: Iterable[Path], run: bytes, domain: Domain, say: Callable[[str], None]
) -> list[ReportedVerdict]:
    """The verdicts of the nodes of these blob folders, each once, oldest first. `say` is told of a file that cannot be
    read."""
    found = dict[ReportedVerdict, None]()
    for blobs in folders:
        try:
            found |= dict.fromkeys(read_verdicts(DataDir(blobs.parent).state_of(run) / FILE, run, domain))
        except OSError as error:
            say(f"verdicts that cannot be read: {error}")
    return sorted(found, key=by_place)


def by_place(verdict: ReportedVerdict) -> tuple[int, int, int, int, str]:
    report = verdict.report
    return report.round, report.stage, report.replica, report.segment, verdict.checker


def read_verdicts(path: Path, run: bytes, domain: Domain) -> list[ReportedVerdict]:
    """Those of a node, for who only reads; none where there is no such file. Raises OSError."""
    return _read(listed_in(path, 0, MAX_ROWS), run, domain) if path.is_file() else []


def _read(rows: Iterable[tuple[bytes, bytes]], run: bytes, domain: Domain) -> list[ReportedVerdict]:
    found = []
    for report, signature in rows:
        with suppress(VerdictError):  # the disk's fault
            found.append(ReportedVerdict.read(report, signature, run, domain))
    return found
