"""The chain on disk: one SQLite file (WAL, synchronous=FULL), one SQL transaction per block.

A block's header, transactions, receipts, logs and new state nodes, and the removal of its transactions from the
waiting ones, are written together or not at all: a killed process leaves a whole chain.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from dlx.ground import locks
from dlx.ledger.chain import ChainError
from dlx.ledger.chain.evm import Block, Log, Transaction, encode_header
from dlx.ledger.chain.on_disk import FILE

_VERSION = 1
# A log's id is block << 20 | index, so that ids are in chain order and a block range is an id range, also within the
# two indexes (SQLite ends each index entry with the row id).
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE nodes (hash BLOB PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE blocks (number INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, header BLOB NOT NULL);
CREATE TABLE transactions (
    hash BLOB PRIMARY KEY, block INTEGER NOT NULL, position INTEGER NOT NULL, status INTEGER NOT NULL,
    gas_used INTEGER NOT NULL, cumulative_gas INTEGER NOT NULL, price TEXT NOT NULL, sender BLOB NOT NULL,
    raw BLOB NOT NULL
);
CREATE UNIQUE INDEX transactions_by_block ON transactions (block, position);
CREATE TABLE logs (
    id INTEGER PRIMARY KEY, transaction_position INTEGER NOT NULL, address BLOB NOT NULL,
    topic0 BLOB, topic1 BLOB, topic2 BLOB, topic3 BLOB, data BLOB NOT NULL
);
CREATE INDEX logs_by_address ON logs (address);
CREATE INDEX logs_by_topic ON logs (topic0);
CREATE TABLE waiting (
    arrival INTEGER PRIMARY KEY AUTOINCREMENT, hash BLOB NOT NULL, sender BLOB NOT NULL, nonce INTEGER NOT NULL,
    raw BLOB NOT NULL, UNIQUE (sender, nonce)
);
CREATE TABLE faucet (address BLOB PRIMARY KEY, hash BLOB NOT NULL) WITHOUT ROWID;
"""
_LOG_BITS = 20


@dataclass(frozen=True, slots=True)
class Mined:
    """A mined transaction and its receipt's figures."""

    hash: bytes
    block: int
    block_hash: bytes
    position: int
    status: int
    gas_used: int
    cumulative_gas: int
    price: int
    sender: bytes
    raw: bytes


@dataclass(frozen=True, slots=True)
class MinedLog:
    log: Log
    block: int
    block_hash: bytes
    index: int
    """Position among the block's logs."""
    transaction: bytes
    transaction_position: int


class TooMany(Exception):
    """A log query matches more than the cap on results or bytes."""


class Reader:
    """What is on disk, also while another process writes it. Every method is thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = _connect(path)
        self._read_lock = threading.Lock()

    def chain_id(self) -> int | None:
        """None before the genesis block."""
        rows = self._read("SELECT value FROM meta WHERE key = 'chain_id'")
        return rows[0][0] if rows else None

    def node(self, key: bytes) -> bytes:
        """A state node or contract code by its hash; KeyError if absent."""
        rows = self._read("SELECT value FROM nodes WHERE hash = ?", (key,))
        if not rows:
            raise KeyError(key)
        return rows[0][0]

    def node_names(self) -> Iterator[list[bytes]]:
        """The hashes of all state nodes and code, 1,000 at a time."""
        last = b""
        while rows := self._read("SELECT hash FROM nodes WHERE hash > ? ORDER BY hash LIMIT 1000", (last,)):
            last = rows[-1][0]
            yield [row[0] for row in rows]

    def waiting(self) -> list[bytes]:
        """Waiting transactions, raw, in order of arrival."""
        return [raw for (raw,) in self._read("SELECT raw FROM waiting ORDER BY arrival")]

    def granted(self, address: bytes) -> bool:
        return bool(self._read("SELECT 1 FROM faucet WHERE address = ?", (address,)))

    def last_headers(self, count: int) -> list[bytes]:
        return [row[0] for row in self._read("SELECT header FROM blocks ORDER BY number DESC LIMIT ?", (count,))]

    def header(self, number: int) -> bytes | None:
        rows = self._read("SELECT header FROM blocks WHERE number = ?", (number,))
        return rows[0][0] if rows else None

    def number_of(self, block_hash: bytes) -> int | None:
        rows = self._read("SELECT number FROM blocks WHERE hash = ?", (block_hash,))
        return rows[0][0] if rows else None

    def hashes_before(self, number: int) -> Iterator[bytes]:
        """Hashes of the 256 blocks before `number`, the newest first; read when first asked for."""
        query = "SELECT hash FROM blocks WHERE number < ? ORDER BY number DESC LIMIT 256"
        yield from (row[0] for row in self._read(query, (number,)))

    def block_hashes(self, first: int, last: int) -> list[bytes]:
        query = "SELECT hash FROM blocks WHERE number BETWEEN ? AND ? ORDER BY number"
        return [row[0] for row in self._read(query, (first, last))]

    def transaction(self, transaction_hash: bytes) -> Mined | None:
        rows = self._read(f"{_MINED} WHERE t.hash = ?", (transaction_hash,))
        return _mined(rows[0]) if rows else None

    def transactions(self, number: int) -> list[Mined]:
        return [_mined(row) for row in self._read(f"{_MINED} WHERE t.block = ? ORDER BY t.position", (number,))]

    def transaction_hashes(self, number: int) -> list[bytes]:
        query = "SELECT hash FROM transactions WHERE block = ? ORDER BY position"
        return [row[0] for row in self._read(query, (number,))]

    def receipt_logs(self, mined: Mined) -> list[MinedLog]:
        first = mined.block << _LOG_BITS
        query = f"{_LOG} WHERE l.id >= ? AND l.id < ? AND l.transaction_position = ? ORDER BY l.id"
        return [_mined_log(r) for r in self._read(query, (first, first + (1 << _LOG_BITS), mined.position))]

    def logs(
        self,
        first: int,
        last: int,
        addresses: list[bytes],
        topics: list[list[bytes]],
        max_results: int,
        max_bytes: int,
    ) -> list[MinedLog]:
        """Logs of blocks `first` to `last`; an empty list of addresses, or of values for a topic, matches any.

        Raises TooMany beyond `max_results` logs or `max_bytes` of their data.
        """
        where = ["l.id >= ? AND l.id < ?"]
        values: list[Any] = [first << _LOG_BITS, (last + 1) << _LOG_BITS]
        columns = [("l.address", addresses), *((f"l.topic{i}", wanted) for i, wanted in enumerate(topics))]
        for column, wanted in columns:
            if wanted:
                where.append(f"{column} IN ({', '.join('?' * len(wanted))})")
                values += wanted
        if len(topics) and not topics[-1]:  # a wildcard still asks for a topic at its place
            where.append(f"l.topic{len(topics) - 1} IS NOT NULL")
        # Sizes first: SQLite reads them without the data, and nothing large is fetched for a query that is refused.
        query = f"SELECT l.id, length(l.data) FROM logs l WHERE {' AND '.join(where)} ORDER BY l.id LIMIT ?"
        found = self._read(query, (*values, max_results + 1))
        if len(found) > max_results or sum(size for _, size in found) > max_bytes:
            raise TooMany
        result: list[MinedLog] = []
        for start in range(0, len(found), 500):
            ids = [row[0] for row in found[start : start + 500]]
            query = f"{_LOG} WHERE l.id IN ({', '.join('?' * len(ids))}) ORDER BY l.id"
            result += (_mined_log(r) for r in self._read(query, tuple(ids)))
        return result

    def _read(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._read_lock:
            return self._reader.execute(query, values).fetchall()


class Store(Reader):
    """Reading uses its own connection, so that it never waits for a block's write."""

    def __init__(self, directory: Path) -> None:
        """Opens `directory`, creating it (0700) and its files (0600); raises ChainError if another process has it."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock_file = _lock(directory / "lock")
        try:
            path = directory / FILE
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # SQLite would create it by the umask
            self._writer = _open(path)
            super().__init__(path)
            self.nodes: int = self._read("SELECT count(*) FROM nodes")[0][0]
        except BaseException:
            self._lock_file.close()
            raise
        self._write_lock = threading.Lock()
        self._swept_around: set[bytes] | None = None

    def close(self) -> None:
        with self._write_lock, self._read_lock:
            self._reader.close()
            self._writer.close()
            self._lock_file.close()

    # All of this is durable when it returns.

    def commit_block(self, block: Block, chain_id: int | None = None) -> None:
        """Stores a block with everything it changes; `chain_id` comes with the genesis block."""
        number = block.header.block_number
        logs = ((position, log) for position, e in enumerate(block.executed) for log in e.logs)
        with self._write() as sql:
            if chain_id is not None:
                sql.execute("INSERT INTO meta VALUES ('chain_id', ?)", (chain_id,))
            added = sql.executemany("INSERT OR IGNORE INTO nodes VALUES (?, ?)", block.nodes.items()).rowcount
            sql.execute("INSERT INTO blocks VALUES (?, ?, ?)", (number, block.header.hash, encode_header(block.header)))
            for i, e in enumerate(block.executed):
                figures = (number, i, e.status, e.gas_used, e.cumulative_gas, str(e.price))
                values = (e.transaction.hash, *figures, e.transaction.sender, e.transaction.raw)
                sql.execute("INSERT INTO transactions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
            for i, (position, log) in enumerate(logs):
                row = (number << _LOG_BITS | i, position, log.address, *_pad(log.topics), log.data)
                sql.execute("INSERT INTO logs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            sql.executemany(
                "DELETE FROM waiting WHERE sender = ? AND nonce <= ?",
                ((e.transaction.sender, e.transaction.nonce) for e in block.executed),
            )
            sql.executemany("DELETE FROM waiting WHERE hash = ?", ((t.hash,) for t in block.dropped))
            if self._swept_around is not None:
                self._swept_around.update(block.nodes)
        self.nodes += max(0, added)

    def add_waiting(self, transaction: Transaction, granted: bytes | None = None) -> None:
        """Stores a waiting transaction, in place of one with its sender and nonce; `granted`: the faucet's account."""
        with self._write() as sql:
            sql.execute(
                "INSERT OR REPLACE INTO waiting (hash, sender, nonce, raw) VALUES (?, ?, ?, ?)",
                (transaction.hash, transaction.sender, transaction.nonce, transaction.raw),
            )
            if granted is not None:
                sql.execute("INSERT INTO faucet VALUES (?, ?)", (granted, transaction.hash))

    @contextmanager
    def sweeping(self) -> Iterator[None]:
        """Within it, `remove_nodes` spares what blocks have written since: they may have brought back an old node."""
        with self._write_lock:
            self._swept_around = set()
        try:
            yield
        finally:
            with self._write_lock:
                self._swept_around = None

    def remove_nodes(self, names: list[bytes]) -> int:
        """Returns how many were removed."""
        with self._write() as sql:
            assert self._swept_around is not None
            spared = self._swept_around
            removed = sql.executemany(
                "DELETE FROM nodes WHERE hash = ?", ((n,) for n in names if n not in spared)
            ).rowcount
        self.nodes -= max(0, removed)
        return max(0, removed)

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._write_lock:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise


_MINED = """
SELECT t.hash, t.block, b.hash, t.position, t.status, t.gas_used, t.cumulative_gas, t.price, t.sender, t.raw
FROM transactions t JOIN blocks b ON b.number = t.block
"""
_LOG = f"""
SELECT l.id, l.transaction_position, l.address, l.topic0, l.topic1, l.topic2, l.topic3, l.data, b.hash, t.hash
FROM logs l JOIN blocks b ON b.number = l.id >> {_LOG_BITS}
JOIN transactions t ON t.block = b.number AND t.position = l.transaction_position
"""


def _mined(row: tuple[Any, ...]) -> Mined:
    mined = Mined(*row)
    return replace(mined, price=int(mined.price))  # stored as text: wei may exceed SQLite's 64-bit integers


def _mined_log(row: tuple[Any, ...]) -> MinedLog:
    number, position, address, *topics, data, block_hash, transaction_hash = row
    log = Log(address, tuple(t for t in topics if t is not None), data)
    index = number & ((1 << _LOG_BITS) - 1)
    return MinedLog(log, number >> _LOG_BITS, block_hash, index, transaction_hash, position)


def _pad(topics: tuple[bytes, ...]) -> tuple[bytes | None, ...]:
    return (*topics, *(None,) * (4 - len(topics)))


def _open(path: Path) -> sqlite3.Connection:
    """A connection to a file with the schema of this release, made if the file is new."""
    try:
        connection = _connect(path)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
    except sqlite3.DatabaseError as error:
        raise ChainError(f"{path} cannot be opened: {error}; put it back as it was, or use another directory") from None
    if version not in (0, _VERSION):
        raise ChainError(f"{path} has format {version}, this release reads {_VERSION}: use another directory")
    return connection


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _lock(path: Path) -> TextIO:
    file = os.fdopen(os.open(path, os.O_CREAT | os.O_RDWR, 0o600), "r+")
    try:
        alone = locks.take(file.fileno(), path)
    except BaseException:
        file.close()
        raise
    if not alone:
        owner = file.read(20).strip() or "unknown"
        file.close()
        raise ChainError(
            f"a chain server already runs on {path.parent} (process {owner}): stop it first, or use another directory"
        )
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
