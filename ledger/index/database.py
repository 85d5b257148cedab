"""The index's SQLite file: opened by any number of processes, made anew where it is damaged or of another format.

All in it is on the chain, so it may be lost at any time. Where a file cannot be used (no room, no permission, locked,
of a newer release) the index is kept in memory, and `trouble` says why.
"""

import os
import secrets
import sqlite3
import weakref
from pathlib import Path
from typing import Any

from dlx.ground import locks
from dlx.ground.errors import Unsuited
from dlx.ledger.errors import LedgerError
from dlx.ledger.index.log_reader import IndexLost

# 12: without evaluations; 11: of an older ledger, without pay; 10: rollbacks without times; 8: no replicas' steps; 7
# and 6 to 4: other views; 3: of the first ledger; 2: raw logs only; 1: may lack blocks that a node did not have.
FORMAT = 13
_BUSY_SECONDS = 5.0  # that a writer waits for another process's transaction
_SCHEMA = """
    CREATE TABLE origin (chain_id INTEGER, ledger TEXT, registry TEXT, since INTEGER, epoch BLOB);
    CREATE TABLE blocks (number INTEGER PRIMARY KEY, hash BLOB NOT NULL, time INTEGER NOT NULL, bare INTEGER NOT NULL);
    CREATE INDEX bare_blocks ON blocks (number) WHERE bare;
    CREATE TABLE logs (
        block INTEGER NOT NULL, log_index INTEGER NOT NULL, run BLOB NOT NULL, topics BLOB NOT NULL, data BLOB NOT NULL,
        tx BLOB NOT NULL, PRIMARY KEY (block, log_index)
    );
    CREATE INDEX logs_by_run ON logs (run, block, log_index);
    CREATE TABLE runs (run BLOB PRIMARY KEY, block INTEGER NOT NULL, log_index INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE seals (
        run BLOB, round INTEGER, stage INTEGER, block INTEGER NOT NULL, log_index INTEGER NOT NULL,
        time INTEGER NOT NULL, tx BLOB NOT NULL, weights BLOB NOT NULL, momentum BLOB NOT NULL,
        accounts BLOB NOT NULL, counted INTEGER NOT NULL, signers INTEGER NOT NULL, tokens INTEGER NOT NULL,
        loss INTEGER NOT NULL, inner_steps INTEGER NOT NULL, level INTEGER, rank INTEGER,
        next_level INTEGER NOT NULL, next_rank INTEGER NOT NULL, next_inner_steps INTEGER NOT NULL,
        outline BLOB NOT NULL, paid BLOB NOT NULL,
        PRIMARY KEY (run, round, stage)
    ) WITHOUT ROWID;
    CREATE INDEX tokens_of_rounds ON seals (run, round, tokens) WHERE stage = 0;
    CREATE TABLE snapshots (
        subject BLOB, block INTEGER, log_index INTEGER, state BLOB NOT NULL, PRIMARY KEY (subject, block, log_index)
    );
    CREATE TABLE rollbacks (id INTEGER PRIMARY KEY AUTOINCREMENT, block INTEGER NOT NULL, time INTEGER NOT NULL);
"""
PLACED = ("logs", "runs", "seals", "snapshots")  # tables whose rows belong to a block


class IndexFile:
    """A connection to the file at `path` (None: in memory). For one thread at a time."""

    def __init__(self, path: Path | None, chain_id: int, ledger: str, registry: str, since: int) -> None:
        """Raises LedgerError for another ledger's file, which is left as it is."""
        self.trouble: str | None = None  # why nothing is kept
        self._path: Path | None = None  # None: in memory
        self._origin, self._since = (chain_id, ledger, registry), since
        self._open(path)

    def lost(self, error: sqlite3.DatabaseError) -> IndexLost:
        """`recover`, and what to tell of it."""
        path = self._path
        self.recover(error)
        if self._path is None:
            return IndexLost(f"the index of events {self.trouble}: the ledger is read again, into memory")
        return IndexLost(f"the index of events {path} was damaged ({error}): the ledger is read again")

    def recover(self, error: sqlite3.DatabaseError) -> None:
        """After an error: a damaged file is made anew, one that cannot be written is left for memory.

        Raises LedgerError where even that is out of the question.
        """
        path, self._path = self._path, None
        self.db.close()
        if path is None:
            raise LedgerError(f"the index of events fails in memory: {error}") from None
        if isinstance(error, sqlite3.OperationalError) or not self._make_anew(path):
            self._use_memory(f"{path} cannot be used: {error}")

    def close(self) -> None:
        self.db.close()
        if self._path is not None:
            self._unlock()

    def _open(self, path: Path | None) -> None:
        self._path = path
        if path is None:
            return self._connect(":memory:")
        try:
            self._lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
            self._unlock = weakref.finalize(self, os.close, self._lock)
            if not locks.take(self._lock, path, shared=True):
                return self._use_memory(f"{path} cannot be used: another process makes it anew")
            self._connect(path)
        except (OSError, Unsuited, sqlite3.OperationalError) as error:
            self._use_memory(f"{path} cannot be used: {error}")
        except _Newer as newer:
            self._use_memory(f"{path} was written by a newer dlx-node (format {newer}) and is left alone")
        except sqlite3.DatabaseError as error:
            self.recover(error)

    def _connect(self, where: Path | str) -> None:
        """Opens the file, and fills a new one. Raises sqlite3.DatabaseError for what is of no use."""
        self.db = sqlite3.connect(where, _BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        self.db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA cache_size = -2048;")
        self.db.execute("BEGIN IMMEDIATE")
        try:
            (found,) = self._one("PRAGMA user_version")
            if found == 0:
                for statement in _SCHEMA.split(";"):
                    self.db.execute(statement)
                values = *self._origin, self._since, secrets.token_bytes(16)
                self.db.execute("INSERT INTO origin VALUES (?, ?, ?, ?, ?)", values)
                self.db.execute(f"PRAGMA user_version = {FORMAT}")
            elif found > FORMAT:
                raise _Newer(str(found))
            elif found < FORMAT:
                raise sqlite3.DatabaseError(f"format {found} is an older one")
            *origin, since = self._one("SELECT chain_id, ledger, registry, since FROM origin") or (None, 0)
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")
        if origin == [None] or since > self._since:
            raise sqlite3.DatabaseError("it is incomplete")
        if tuple(origin) != self._origin:
            raise LedgerError(f"{where} belongs to another ledger or chain: remove it or name another file")

    def _make_anew(self, path: Path) -> bool:
        """Whether the file at `path` could be replaced: not while another process has it open."""
        try:
            if not locks.take(self._lock, path):
                return False
            for end in ("", "-wal", "-shm"):
                path.with_name(path.name + end).unlink(missing_ok=True)
            self._connect(path)
            locks.take(self._lock, path, shared=True)
        except (OSError, sqlite3.DatabaseError):
            return False
        self._path = path
        return True

    def _use_memory(self, trouble: str) -> None:
        self._path, self.trouble = None, trouble
        self._connect(":memory:")

    def _one(self, query: str) -> Any:
        return self.db.execute(query).fetchone()


class _Newer(Exception):
    """The format is a later release's."""
