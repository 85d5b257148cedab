"""A run's view and the table of nodes, from the newest snapshot in the index up to any block that it has.

Whoever replays a run leaves its seals as rows and, every so many events, a snapshot: the next one starts there.
"""

import sqlite3
from abc import ABC, abstractmethod

import msgspec

from dlx.ledger.errors import LedgerError
from dlx.ledger.events import Event, Sealed
from dlx.ledger.index import seal_rows, snapshot
from dlx.ledger.index.event_index import LAST, REGISTRY, START, EventIndex, Mark, Place, decoded
from dlx.ledger.index.log_reader import Unsettled
from dlx.ledger.view.node_registry import NodeTable
from dlx.ledger.view.run_state import ViewError
from dlx.ledger.view.run_view import RunView

SNAPSHOT_EVENTS = 256  # of a run (or of the registry) between two snapshots
_SNAPSHOTS = 8  # kept of each: what a reorg may undo is far less


class Replay(ABC):
    """Events of one subject of the index, applied in order. For one thread."""

    subject: bytes

    def __init__(self, index: EventIndex) -> None:
        self._index = index
        self._mark: Mark | None = None  # None: nothing is replayed
        self._after, self._fresh = START, 0  # events since the last snapshot

    def advance(self, until: int | None = None) -> tuple[bool, bool]:
        """Applies the events up to block `until` (None: all): whether any came or went, and whether a reorg took some.

        Raises Unsettled where the chain is reorganised meanwhile: try again. Raises ViewError and LedgerError for
        events that the contracts cannot have emitted; all are then forgotten, and read anew by the next `sync` or
        `read`, since the chain node that gave them left something out.
        """
        try:
            mark, before = self._index.mark(), self._after
            undone = None if self._mark is None else self._index.undone(self._mark)
            reorg = undone is not None and undone < self._after[0]
            if self._mark is None or reorg:
                self._start(until)
            self._mark = mark
            self._apply_all(until)
        except BaseException as error:  # also Ctrl-C, which may come between an event and the state
            self._mark = None
            if isinstance(error, ViewError | LedgerError) and not isinstance(error, Unsettled):
                self._index.forget()
            raise
        return reorg or self._after != before, reorg

    @abstractmethod
    def _load(self, state: bytes | None, place: Place) -> None:
        """Begins with a snapshot taken at a place, or with nothing. Raises snapshot.SnapshotMismatch."""

    @abstractmethod
    def _apply(self, event: Event) -> None:
        """Raises ViewError."""

    @abstractmethod
    def _dump(self) -> bytes:
        """The snapshot of now."""

    def _is_whole(self) -> bool:
        """Whether no event of the last transaction is missing: what is due is not in a snapshot."""
        return True

    def _write_rows(self, db: sqlite3.Connection) -> None:  # noqa: B027  the registry has none
        """Leaves what the events applied since the last time say for queries."""

    def _start(self, until: int | None) -> None:
        found = self._index.rows(
            "SELECT block, log_index, state FROM snapshots WHERE subject = ? AND block <= ? "
            "ORDER BY block DESC, log_index DESC LIMIT 1",
            self.subject, LAST if until is None else until,
        )  # fmt: skip
        self._after, self._fresh = START, 0
        if found:
            block, log_index, state = found[0]
            try:
                self._load(state, (block, log_index))
                self._after = block, log_index
                return
            except (msgspec.DecodeError, snapshot.SnapshotMismatch, KeyError):  # read from the start, then
                self._index.drop_snapshots(self.subject)
        self._load(None, START)

    def _apply_all(self, until: int | None) -> None:
        count, place = 0, self._after
        for log, time in self._index.logs(self.subject, self._after, until):
            event = decoded(log, time)
            if event is not None:
                self._apply(event)
                count += 1
            place = log.block, log.log_index
            if count == SNAPSHOT_EVENTS:
                self._keep(count, place)
                count = 0
        if place != self._after:
            self._keep(count, place)

    def _keep(self, count: int, place: Place) -> None:
        assert self._mark is not None
        self._fresh += count
        state = self._dump() if self._fresh >= SNAPSHOT_EVENTS and self._is_whole() else None

        def write(db: sqlite3.Connection) -> None:
            self._write_rows(db)
            if state is not None:
                db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)", (self.subject, *place, state))
                db.execute(
                    "DELETE FROM snapshots WHERE subject = ?1 AND (block, log_index) < (SELECT block, log_index FROM "
                    "snapshots WHERE subject = ?1 ORDER BY block DESC, log_index DESC LIMIT 1 OFFSET ?2)",
                    (self.subject, _SNAPSHOTS - 1),
                )

        if not self._index.keep(self._mark, place, write):
            raise Unsettled("the chain was reorganised while it was read")
        self._after = place
        if state is not None:
            self._fresh = 0


class RunReplay(Replay):
    """`view` is the run's. `keep` as in RunView; None: older seals are read from the index when they are asked for."""

    def __init__(self, index: EventIndex, run: bytes, keep: int | None = None) -> None:
        super().__init__(index)
        self.subject, self._keep_seals = run, keep
        self.view = self._empty()

    def _empty(self) -> RunView:
        self._sealed: list[Sealed] = []  # as the view gave them, without rows yet
        if self._keep_seals is not None:
            return RunView(self.subject, self._index.domain, self._keep_seals)
        return RunView(self.subject, self._index.domain, 1, self._read)

    def _read(self, stage: int, round: int) -> Sealed:
        fresh = (event for event in self._sealed if (event.stage, event.round) == (stage, round))
        return next(fresh, None) or seal_rows.sealed(self._index, self.subject, stage, round)

    def _load(self, state: bytes | None, place: Place) -> None:
        self.view = self._empty()
        if state is not None:
            snapshot.load_view(self.view, state, seal_rows.outlines(self._index, self.subject, place), self._read)

    def _apply(self, event: Event) -> None:
        self.view.apply(event)
        if isinstance(event, Sealed):
            self._sealed.append(self.view.sealed[event.stage, event.round])

    def _is_whole(self) -> bool:
        return self.view.is_whole

    def _dump(self) -> bytes:
        return snapshot.dump_view(self.view)

    def _write_rows(self, db: sqlite3.Connection) -> None:
        seal_rows.write(db, self.view, self._sealed)
        self._sealed = []


class NodesReplay(Replay):
    """`nodes` are those registered."""

    subject = REGISTRY

    def __init__(self, index: EventIndex) -> None:
        super().__init__(index)
        self.nodes = NodeTable()

    def _load(self, state: bytes | None, place: Place) -> None:
        self.nodes = NodeTable() if state is None else snapshot.load_nodes(state)

    def _apply(self, event: Event) -> None:
        self.nodes.apply(event)

    def _dump(self) -> bytes:
        return snapshot.dump_nodes(self.nodes)
