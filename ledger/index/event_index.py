"""Every event of the contracts in one SQLite file: read from the chain once, by whoever comes first, then by all.

Logs are kept as the chain gave them and decoded only for who asks for their run, so that nobody pays for the events of
strangers. What a reorg undoes goes, with all that was made of it; readers learn of it by their `Mark`.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from heapq import merge
from pathlib import Path
from time import time as now
from typing import Any

from dlx.ledger.abi import TypedError
from dlx.ledger.errors import LedgerError, LedgerUnavailable, RpcError
from dlx.ledger.events import Event, RawLog, RunCreated, Sealed, decode_log, event_topic
from dlx.ledger.index.database import PLACED, IndexFile
from dlx.ledger.index.log_reader import IndexLost, Timed, Unsettled, fetch_logs, insist
from dlx.ledger.rpc.failover import LAG
from dlx.ledger.rpc.headers import Header
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.ledger.typed import Domain

REGISTRY = b""  # what stands for a run in the registry's logs
_BATCH = 256  # events decoded at once
_TRIES = 5
_CREATED, _SEALED = event_topic(RunCreated), event_topic(Sealed)
_READ_ANEW = 60  # seconds between two readings of all events, where a chain node leaves some out
_BARE_BLOCKS = 64  # newest blocks without logs that are remembered, so that little is read again after a reorg

Place = tuple[int, int]  # of a log: its block and its index there
START: Place = (-1, -1)
LAST = 1 << 62  # a block that no chain reaches
_NONE = -1  # before every block, those of another chain too, on which the contracts may be older


@dataclass(frozen=True)
class Contracts:
    """Where both contracts are, and a block before which nothing happened to them."""

    ledger: str
    registry: str
    since: int = 0


@dataclass(frozen=True)
class Head:
    """A block, mostly the newest of the chain; time in seconds."""

    block: int
    hash: bytes
    time: int


@dataclass(frozen=True)
class Mark:
    """What a reader knows of the index's reorgs."""

    epoch: bytes
    rollbacks: int


class EventIndex:
    """The events of one ledger and its registry, as far as they were read. For one thread at a time; any number of
    processes may have the same file."""

    def __init__(self, path: Path | None, chain_id: int, contracts: Contracts) -> None:
        """Opens the file or makes it, anew where it is of an older format or damaged; None: in memory.

        Raises LedgerError for another ledger's file, which is left as it is.
        """
        self.domain = Domain(chain_id, contracts.ledger)
        self.contracts = contracts
        self._forgets_later = self._to_forget = False  # see `forgetting_at_end`
        self.unproven = _NONE  # the last block read here of whose logs a chain node's word is all there is
        self.counted = _NONE  # the block up to which all was compared with the contracts' counts: see crosscheck
        self._file = IndexFile(path, chain_id, contracts.ledger, contracts.registry, contracts.since)

    @property
    def trouble(self) -> str | None:
        """Why nothing is kept on disk although it should be."""
        return self._file.trouble

    def close(self) -> None:
        self._file.close()

    # From the chain.

    def sync(
        self, rpc: RpcClient, progress: Callable[[int, int], None] | None = None, until: Header | None = None
    ) -> Head:
        """Reads up to the head, or up to the block `until`, and gives the last block read. `progress` gets (block, last
        block) after each page.

        Raises LedgerError, LedgerUnavailable; nothing that was read is lost by that.
        """
        for left in reversed(range(_TRIES)):
            try:
                newest = rpc.head() if until is None else until
                tip = self.tip
                if tip is None or not self.is_late(newest, tip.block):
                    self.read(rpc, newest, progress)
                    tip = self.tip
                if tip is not None and tip.block >= newest.number:
                    return tip
            except Unsettled:
                if not left:
                    raise
        raise Unsettled(f"the chain node at {rpc.name} does not give all blocks up to its head")

    def read(self, rpc: RpcClient, newest: Header, progress: Callable[[int, int], None] | None = None) -> None:
        """Reads what is missing up to block `newest`, or as far as the chain node surely has everything.

        Forgets what a reorg has undone. Raises LedgerError, LedgerUnavailable where nothing new could be had.
        """
        reached = first = self._agreed(rpc, newest)
        if reached is not None and reached.block == newest.number:
            return
        start, previous = (self.contracts.since, None) if reached is None else (reached.block + 1, reached.hash)
        contracts = self.contracts.ledger, self.contracts.registry
        try:
            for last, logs, proven in fetch_logs(rpc, contracts, start, newest, previous):
                if not self._append(reached, last, logs):
                    return  # another process was quicker
                if not proven:
                    self.unproven = last.number
                reached = Head(last.number, last.hash, last.time)
                if progress is not None:
                    progress(last.number, newest.number)
        except (LedgerUnavailable, RpcError) as error:
            if reached is first or isinstance(error, IndexLost):
                raise

    def drop(self) -> None:
        """Drops everything, at once."""
        with self._writing():
            self._drop_after(_NONE)

    def forget(self) -> None:
        """As `drop`: what was read contradicts itself, so the chain node left something out. Nothing within a
        minute of the last time, in whichever process: a chain node that gives the same again is not read for ever."""
        if self._forgets_later:
            self._to_forget = True
            return
        with self._writing() as db:
            (last,) = db.execute("SELECT max(time) FROM rollbacks WHERE block = ?", (_NONE,)).fetchone()
            if last is None or not 0 <= now() - last < _READ_ANEW:
                self._drop_after(_NONE)

    @contextmanager
    def forgetting_at_end(self) -> Iterator[None]:
        """What `forget` is to drop goes at the end of this: for who reads many runs, of which one may not be sound."""
        self._forgets_later = True
        try:
            yield
        finally:
            self._forgets_later = False
            if self._to_forget:
                self._to_forget = False
                self.forget()

    def drop_snapshots(self, subject: bytes) -> None:
        """Those of a run, or of the registry."""
        with self._writing() as db:
            db.execute("DELETE FROM snapshots WHERE subject = ?", (subject,))

    # For readers.

    @property
    def tip(self) -> Head | None:
        """The last block read."""
        found = self._rows("SELECT number, hash, time FROM blocks ORDER BY number DESC LIMIT 1")
        return Head(*found[0]) if found else None

    def recent(self) -> dict[int, bytes]:
        """The hashes of the newest blocks that are known, by number."""
        return dict(self._rows("SELECT number, hash FROM blocks ORDER BY number DESC LIMIT ?", _BARE_BLOCKS))

    def is_late(self, newest: Header, highest: int) -> bool:
        """Whether a chain node with this head is merely late, where block `highest` was seen before.

        It is if it is at a block that was read. It is also if it is few blocks behind, and at none that is known to be
        another."""
        if newest.number >= highest:
            return False
        known = self._rows("SELECT hash FROM blocks WHERE number = ?", newest.number)
        return known[0][0] == newest.hash if known else highest - newest.number <= LAG

    def mark(self) -> Mark:
        """Of now: `undone` says later what was taken back since."""
        return Mark(*self._rows("SELECT epoch, (SELECT coalesce(max(id), 0) FROM rollbacks) FROM origin")[0])

    def undone(self, since: Mark) -> int | None:
        """The lowest block after which reorgs have undone everything since the mark; None where there was none."""
        if self.mark().epoch != since.epoch:
            return _NONE
        return self._rows("SELECT min(block) FROM rollbacks WHERE id > ?", since.rollbacks)[0][0]

    def runs(self) -> list[bytes]:
        """The id of every run, oldest first."""
        return [run for (run,) in self._rows("SELECT run FROM runs ORDER BY block, log_index")]

    def counts(self, until: int) -> tuple[int, int]:
        """How many runs there are, and events of the registry, up to a block."""
        query = "SELECT (SELECT count(*) FROM runs WHERE block <= ?), count(*) FROM logs WHERE run = ? AND block <= ?"
        runs, changes = self._rows(query, until, REGISTRY, until)[0]
        return runs, changes

    def logs(self, run: bytes | None = None, after: Place = START, until: int | None = None) -> Iterator[Timed]:
        """The logs of one run (REGISTRY: the registry's; None: all), in chain order, after a place up to a block."""
        last = LAST if until is None else until
        which, values = ("1", ()) if run is None else ("run = ?", (run,))
        while True:
            found = self._rows(
                "SELECT block, hash, time, log_index, run, topics, data, tx FROM logs JOIN blocks ON number = block "
                f"WHERE {which} AND (block, log_index) > (?, ?) AND block <= ? ORDER BY block, log_index "
                f"LIMIT {_BATCH}",
                *values, *after, last,
            )  # fmt: skip
            for row in found:
                yield self._log(row)
            if len(found) < _BATCH:
                return
            after = found[-1][0], found[-1][3]

    def events(self, run: bytes | None = None, after: Place = START, until: int | None = None) -> Iterator[Event]:
        """`logs`, decoded. Raises LedgerError for logs that no contract of ours emits."""
        for log, time in self.logs(run, after, until):
            event = decoded(log, time)
            if event is not None:
                yield event

    def deeds(self, run: bytes, after: Place = START) -> Iterator[Event]:
        """`events` of a run but for its seals, which are nearly all of them and have rows."""
        while True:
            found = self._rows(
                "SELECT block, hash, time, log_index, run, topics, data, tx FROM logs JOIN blocks ON number = block "
                "WHERE run = ? AND (block, log_index) > (?, ?) AND substr(topics, 1, 32) <> ? "
                f"ORDER BY block, log_index LIMIT {_BATCH}",
                run, *after, _SEALED,
            )  # fmt: skip
            for row in found:
                event = decoded(*self._log(row))
                if event is not None:
                    yield event
            if len(found) < _BATCH:
                return
            after = found[-1][0], found[-1][3]

    def events_of(self, run: bytes, after: Place = START, until: int | None = None) -> Iterator[Event]:
        """Those of a run and of the registry, in chain order."""
        both = self.events(run, after, until), self.events(REGISTRY, after, until)
        return merge(*both, key=lambda event: (event.at.block, event.at.log_index))

    def rows(self, query: str, *values: Any) -> list[Any]:
        """What the tables that are made of events hold. Raises Unsettled where the file turns out to be damaged."""
        return self._rows(query, *values)

    def event_at(self, place: Place) -> Event:
        """The event there. Raises KeyError where there is none."""
        found = self._rows(
            "SELECT block, hash, time, log_index, run, topics, data, tx FROM logs JOIN blocks ON number = block "
            "WHERE block = ? AND log_index = ?",
            *place,
        )
        event = decoded(*self._log(found[0])) if found else None
        if event is None:
            raise KeyError(place)
        return event

    def keep(self, mark: Mark, place: Place, write: Callable[[sqlite3.Connection], object]) -> bool:
        """Runs `write` in a transaction, unless a reorg since the mark has undone `place`: then False."""
        with self._writing() as db:
            undone = self.undone(mark)
            if undone is not None and undone < place[0]:
                return False
            write(db)
            return True

    # Inside.

    def _agreed(self, rpc: RpcClient, newest: Header) -> Head | None:
        """The last block that index and chain share; the index forgets everything later. Raises Unsettled, WrongLedger
        where it is another chain."""
        tip = self.tip
        if tip is None or self._continues(tip, newest, rpc):
            return tip
        if not rpc.check_chain():  # all of it would seem undone on another chain
            raise Unsettled("the chain node that told of the head is on another chain now, or fails")
        common = self._common(rpc, newest)
        with self._writing():
            if self.tip == tip:  # else another process has seen to it
                self._drop_after(_NONE if common is None else common.block)
        return common

    def _continues(self, tip: Head, newest: Header, rpc: RpcClient) -> bool:
        """Whether `newest` is `tip` or stands on it."""
        if newest.number <= tip.block:
            return newest.hash == tip.hash
        if newest.number == tip.block + 1:
            return newest.parent == tip.hash
        return insist(partial(rpc.header, tip.block), f"block {tip.block}").hash == tip.hash

    def _common(self, rpc: RpcClient, newest: Header) -> Head | None:
        """The newest block known that is on the chain: where one is, so are those before it."""

        def at(place: int) -> Head | None:
            found = self._rows(
                "SELECT number, hash, time FROM blocks ORDER BY number DESC LIMIT 1 OFFSET ?", place
            )  # the tip has place 0
            return Head(*found[0]) if found else None

        def shared(block: Head | None) -> bool:
            if block is None:
                return True
            there = block.block <= newest.number
            return there and insist(partial(rpc.header, block.block), f"block {block.block}").hash == block.hash

        gone, step = 0, 1
        while not shared(at(step)):
            gone, step = step, 2 * step
        while step - gone > 1:
            middle = (gone + step) // 2
            gone, step = (gone, middle) if shared(at(middle)) else (middle, step)
        return at(step)

    def _append(self, before: Head | None, last: Header, logs: list[Timed]) -> bool:
        """Adds a page that follows block `before`; False where that is not the last block any more."""
        rows = [self._row(log) for log, _ in logs]
        blocks = {log.block: (log.block, log.block_hash, time, False) for log, time in logs}
        blocks.setdefault(last.number, (last.number, last.hash, last.time, True))
        created = [(log.topics[1], log.block, log.log_index) for log, _ in logs if log.topics[:1] == (_CREATED,)]
        with self._writing() as db:
            if self.tip != before:
                return False
            db.executemany("INSERT INTO blocks VALUES (?, ?, ?, ?)", sorted(blocks.values()))
            db.executemany("INSERT INTO logs VALUES (?, ?, ?, ?, ?, ?)", rows)
            db.executemany("INSERT OR IGNORE INTO runs VALUES (?, ?, ?)", created)
            db.execute("DELETE FROM blocks WHERE bare AND number < ?", (last.number - _BARE_BLOCKS,))
        return True

    def _row(self, log: RawLog) -> tuple[Any, ...]:
        if log.address == self.contracts.registry:
            run = REGISTRY
        elif log.address == self.contracts.ledger and len(log.topics) > 1:
            run = log.topics[1]
        else:
            raise LedgerError(f"block {log.block} has a log of {log.address} that no contract of ours emits")
        return log.block, log.log_index, run, b"".join(log.topics), log.data, log.tx

    def _log(self, row: tuple[Any, ...]) -> Timed:
        block, block_hash, time, log_index, run, joined, data, tx = row
        topics = tuple(joined[i : i + 32] for i in range(0, len(joined), 32))
        address = self.contracts.ledger if run else self.contracts.registry
        return RawLog(address, topics, data, block, block_hash, log_index, tx), time

    def _drop_after(self, block: int) -> None:
        db = self._file.db
        self.counted = min(self.counted, block)
        for table in PLACED:
            db.execute(f"DELETE FROM {table} WHERE block > ?", (block,))
        db.execute("DELETE FROM blocks WHERE number > ?", (block,))
        db.execute("INSERT INTO rollbacks (block, time) VALUES (?, ?)", (block, int(now())))

    def _rows(self, query: str, *values: Any) -> list[Any]:
        try:
            return self._file.db.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            if self._file.db.in_transaction:
                raise  # to who began it
            raise self._file.lost(error) from None

    def _writing(self) -> "_Transaction":
        return _Transaction(self._file)


class _Transaction:
    """One writer at a time, for as short as can be; others wait a bounded time for it."""

    def __init__(self, file: IndexFile) -> None:
        self._file = file

    def __enter__(self) -> sqlite3.Connection:
        try:
            self._file.db.execute("BEGIN IMMEDIATE")
        except sqlite3.DatabaseError as error:
            self._give_up(error)
        return self._file.db

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            self._file.db.execute("COMMIT" if error is None else "ROLLBACK")
        except sqlite3.DatabaseError as failed:
            if error is None:
                error = failed
        if isinstance(error, sqlite3.DatabaseError):
            self._give_up(error)

    def _give_up(self, error: sqlite3.DatabaseError) -> None:
        raise self._file.lost(error) from None


def decoded(log: RawLog, time: int) -> Event | None:
    """The event in a log; None for one of no known kind. Raises LedgerError for what is none of ours."""
    try:
        return decode_log(log, time)
    except TypedError as error:
        raise LedgerError(f"block {log.block}, log {log.log_index}: {error}") from None
