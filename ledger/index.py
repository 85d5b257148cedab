"""Every event of the contracts in one SQLite file, for long histories: read once, then only what is new."""

import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from dlx.ledger.abi import account_bytes
from dlx.ledger.errors import LedgerError
from dlx.ledger.events import Event, RawLog, RunCreated, decode_log, event_topic
from dlx.ledger.logs import Timed, Unsettled, fetch_logs, insist
from dlx.ledger.rpc import Header, Rpc
from dlx.ledger.typed import Domain

_FORMAT = 2  # 1: read by ranges only, so that blocks which a late chain node did not have may be missing
_TRIES = 5
_SCHEMA = """
    CREATE TABLE origin (chain_id INTEGER, ledger BLOB, registry BLOB);
    CREATE TABLE blocks (number INTEGER PRIMARY KEY, hash BLOB NOT NULL, time INTEGER NOT NULL);
    CREATE TABLE logs (
        block INTEGER NOT NULL REFERENCES blocks ON DELETE CASCADE, log_index INTEGER NOT NULL, address BLOB NOT NULL,
        kind BLOB, subject BLOB, topics BLOB NOT NULL, data BLOB NOT NULL, tx BLOB NOT NULL,
        PRIMARY KEY (block, log_index)
    );
    CREATE INDEX logs_by_subject ON logs (subject, block, log_index);
    CREATE INDEX logs_by_kind ON logs (kind, block, log_index);
"""


class _Damaged(Exception):
    """The file has nothing that can be used."""


class EventIndex:
    """The events of one ledger and its registry, as far as `sync` has read them. For one thread."""

    def __init__(self, path: Path, chain_id: int, ledger: str, registry: str, start: int = 0) -> None:
        """Opens the file or makes it, anew where it is of an older format or damaged: all in it is on the chain.

        `start` is the block to read from. Raises LedgerError for another ledger's file or a newer format's, which is
        left as it is.
        """
        self._path, self._contracts, self._start = path, [ledger, registry], start
        self.domain = Domain(chain_id, ledger)
        self._origin = chain_id, account_bytes(ledger), account_bytes(registry)
        try:
            self._open()
        except _Damaged:
            self._rebuild()

    def sync(self, rpc: Rpc, confirmations: int = 0, progress: Callable[[int, int], None] | None = None) -> int:
        """Reads up to the head less the confirmations and returns the last block read (-1 for none).

        `progress` gets (block, last block) after each page. Drops what a reorg has undone.
        """
        for left in reversed(range(_TRIES)):
            try:
                end = rpc.head()
                if confirmations:
                    number = max(0, end.number - confirmations)
                    end = insist(partial(rpc.header, number), f"block {number}")
                common, known = self._common_block(rpc)
                for last, logs in fetch_logs(rpc, [{"address": self._contracts}], common + 1, end, known):
                    self._store(last, logs)
                    if progress is not None:
                        progress(last.number, end.number)
                return self._tidy()
            except Unsettled:
                if not left:
                    raise
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError) or not left:  # locked, or the disk is full
                    raise LedgerError(f"{self._path} cannot be written: {error}") from None
                self._rebuild()
        raise AssertionError("unreachable")

    def events(self, run: bytes | None = None) -> Iterator[Event]:
        """The events of one run, or all (the registry's too), in chain order."""
        yield from self._decoded("WHERE subject = ?" if run is not None else "", () if run is None else (run,))

    def runs(self) -> tuple[RunCreated, ...]:
        """Every run created."""
        return tuple(
            e for e in self._decoded("WHERE kind = ?", (event_topic(RunCreated),)) if isinstance(e, RunCreated)
        )

    def close(self) -> None:
        self._db.close()

    def _open(self) -> None:
        self._db = sqlite3.connect(self._path, isolation_level=None)
        try:
            (found,) = self._db.execute("PRAGMA user_version").fetchone()
            if found > _FORMAT:
                raise LedgerError(f"{self._path} was written by a newer dlx-node (format {found}): use that one")
            self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA foreign_keys=ON;")
            if found == 0:
                self._db.executescript(f"BEGIN; {_SCHEMA}")
                self._db.execute("INSERT INTO origin VALUES (?, ?, ?)", self._origin)
                self._db.execute(f"PRAGMA user_version={_FORMAT}")
                self._db.execute("COMMIT")
            elif found < _FORMAT:
                raise _Damaged
            origin = self._db.execute("SELECT * FROM origin").fetchone()
        except sqlite3.OperationalError as error:
            raise LedgerError(f"{self._path} cannot be opened: {error}") from None
        except sqlite3.DatabaseError:
            raise _Damaged from None
        if origin is None:
            raise _Damaged
        if origin != self._origin:
            raise LedgerError(f"{self._path} belongs to another ledger or chain: remove it or name another file")

    def _rebuild(self) -> None:
        self._db.close()
        for end in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + end).unlink(missing_ok=True)
        self._open()

    def _decoded(self, where: str, values: tuple[bytes, ...]) -> Iterator[Event]:
        rows = self._db.execute(
            "SELECT block, hash, time, log_index, topics, data, tx FROM logs JOIN blocks ON number = block "
            f"{where} ORDER BY block, log_index",
            values,
        )
        for block, block_hash, time, log_index, topics, data, tx in self._whole(rows):
            parts = tuple(topics[i : i + 32] for i in range(0, len(topics), 32))
            event = decode_log(RawLog("", parts, data, block, block_hash, log_index, tx), time)
            if event is not None:
                yield event

    def _whole(self, rows: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from rows
        except sqlite3.DatabaseError as error:
            raise LedgerError(f"{self._path} is damaged ({error}): remove it and it is read again") from None

    def _tidy(self) -> int:
        """The last block read, after forgetting earlier ones without logs."""
        (last,) = self._db.execute("SELECT coalesce(max(number), -1) FROM blocks").fetchone()
        self._db.execute("DELETE FROM blocks WHERE number < ? AND number NOT IN (SELECT block FROM logs)", (last,))
        return last

    def _common_block(self, rpc: Rpc) -> tuple[int, bytes | None]:
        """The last block that index and chain share, and its hash. The index forgets everything later."""
        found: tuple[int, bytes | None] = self._start - 1, None
        for number, known in self._db.execute("SELECT number, hash FROM blocks ORDER BY number DESC"):
            header = rpc.header(number)
            if header is not None and header.hash == known:
                found = number, known
                break
        self._db.execute("DELETE FROM blocks WHERE number > ?", (found[0],))
        return found

    def _store(self, last: Header, logs: list[Timed]) -> None:
        blocks = {log.block: (log.block, log.block_hash, time) for log, time in logs}
        blocks[last.number] = (last.number, last.hash, last.time)
        self._db.execute("BEGIN")
        try:
            self._db.executemany("INSERT OR REPLACE INTO blocks VALUES (?, ?, ?)", blocks.values())
            self._db.executemany("INSERT INTO logs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (_row(log) for log, _ in logs))
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise


def _row(log: RawLog) -> tuple[int | bytes | None, ...]:
    kind, subject = (*log.topics[:2], None, None)[:2]
    topics = b"".join(log.topics)
    return log.block, log.log_index, account_bytes(log.address), kind, subject, topics, log.data, log.tx
