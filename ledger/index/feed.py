"""The contracts' events as they happen: incremental, behind the head by the confirmations, taken back by a reorg.

What a feed tells lies in the index, which polling brings up to the chain's head.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dlx.ledger.errors import Contradiction, LedgerError
from dlx.ledger.events import Event
from dlx.ledger.index.crosscheck import Comparison, incomplete, left_out, miscounted
from dlx.ledger.index.event_index import START, EventIndex, Head, Mark
from dlx.ledger.index.log_reader import Unsettled
from dlx.ledger.index.rebuild import NodesReplay, RunReplay
from dlx.ledger.rpc.headers import Header
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.ledger.view.node_registry import NodeTable
from dlx.ledger.view.run_state import ViewError
from dlx.ledger.view.run_view import RunView

_PATIENCE = 5  # polls in a row that may find nothing because the chain node has less than it says

OpenIndex = Callable[[], EventIndex]  # an index of its own for each feed; may raise LedgerError


@dataclass(frozen=True)
class ChainUpdate:
    """What a poll found. After a reorg `events` starts over: drop every earlier event and view.

    `complete`: whether the events told so far, these included, are all up to the block that the feed wants to be at. A
    view of fewer is true of no block: after a first read or a reorg, wait for the rest.
    """

    head: Head
    events: tuple[Event, ...]
    reorg: bool
    complete: bool = True


@dataclass(frozen=True)
class RunUpdate:
    """A run and the registered nodes after a poll. The next poll changes both: copy what you keep.

    `changed`: whether events came, or went by a `reorg`; `complete` as in ChainUpdate.
    """

    head: Head
    view: RunView
    nodes: NodeTable
    changed: bool
    reorg: bool
    complete: bool = True
    recent: Mapping[int, bytes] = field(default_factory=dict)  # hashes of some of the newest blocks, by number


class EventFeed:
    """Every event of the registry and of one run (or of all runs). Not thread-safe."""

    def __init__(self, open_index: OpenIndex, run: bytes | None = None, confirmations: int = 0) -> None:
        self._tracker, self._run = _Tracker(open_index, confirmations), run
        self._comparison = Comparison()
        self._mark: Mark | None = None
        self._after = START

    def poll(self, rpc: RpcClient, wait: float = 0.0) -> ChainUpdate:
        """Reads what is new: one request where there is no new block, two or three where there is one. Where the chain
        node tells of blocks, it waits for one up to `wait` seconds.

        What the chain node cannot give yet is left to the next poll. Raises LedgerError, LedgerUnavailable (Unsettled
        where the chain node is without what it says it has: at once while nothing was read, else poll after poll);
        nothing is lost by that. A feed of all runs has as many of them, and of the registry's events, as the contracts
        count: compared as in RunFeed.
        """
        reached = self._tracker.poll(rpc, wait)
        index = self._tracker.index
        if self._run is None and reached.complete and self._comparison.is_due(index, reached.until):
            name = rpc.name
            if about := miscounted(rpc, index, reached.until):
                self._comparison.failed(index, rpc)
                raise Unsettled(incomplete(name, "events", about))
            self._comparison.passed(reached.until)
        mark, undone = index.mark(), None if self._mark is None else index.undone(self._mark)
        reorg = undone is not None and undone < self._after[0]
        after = START if reorg else self._after
        try:
            if self._run is None:
                events = tuple(index.events(None, after, reached.until))
            else:
                events = tuple(index.events_of(self._run, after, reached.until))
        except Unsettled:
            raise
        except LedgerError:  # a log that no contract of ours emits: the chain node may give others next time
            index.forget()
            raise
        if events:
            after = events[-1].at.block, events[-1].at.log_index
        self._mark, self._after = mark, after
        return ChainUpdate(reached.head, events, reorg, reached.complete)


class RunFeed:
    """The view of one run, and the registered nodes, from the index's newest snapshot on. Not thread-safe.

    `keep` as in RunView; None: seals that are not at hand are read when they are asked for, from the index: use such a
    view where the feed is used.
    """

    def __init__(self, open_index: OpenIndex, run: bytes, confirmations: int = 0, keep: int | None = None) -> None:
        self._tracker, self._run, self._keep = _Tracker(open_index, confirmations), run, keep
        self._replays: tuple[RunReplay, NodesReplay] | None = None
        self._comparison = Comparison()

    @property
    def index(self) -> EventIndex:
        """What the feed reads, once it was polled."""
        return self._tracker.index

    def poll(self, rpc: RpcClient, wait: float = 0.0) -> RunUpdate:
        """As in EventFeed; raises what `Replay.advance` raises, too.

        In the first complete poll, in the first after others, and where many blocks came at once, the run has to be as
        the contracts say themselves. Where it is not, Unsettled is raised until it is: by a reorg meanwhile, or, from
        the second time in a row on, because a chain node left events out. Then all are read again, now and then, from
        another chain node where there is one. Raises Contradiction for events that the contracts cannot have emitted.
        """
        reached = self._tracker.poll(rpc, wait)
        if self._replays is None:
            self._replays = RunReplay(self._tracker.index, self._run, self._keep), NodesReplay(self._tracker.index)
        run, nodes = self._replays
        try:
            moved, reorg = run.advance(reached.until)
            others_moved, others_reorg = nodes.advance(reached.until)
        except ViewError as error:
            name = rpc.name
            rpc.rest()
            raise Contradiction(incomplete(name, self._events, str(error))) from error
        if reorg or others_reorg or not reached.complete:  # what was missing may be told as nothing
            self._comparison.void()
        if reached.complete and self._comparison.is_due(self._tracker.index, reached.until):
            self._compare(rpc, run.view, nodes.nodes, reached.until)
        return RunUpdate(
            reached.head, run.view, nodes.nodes, moved or others_moved, reorg or others_reorg, reached.complete,
            self._tracker.index.recent(),
        )  # fmt: skip

    def _compare(self, rpc: RpcClient, view: RunView, nodes: NodeTable, block: int) -> None:
        """Raises Unsettled where a chain node left events out."""
        index, name = self._tracker.index, rpc.name
        about = left_out(rpc, index.contracts, view, nodes, block)
        if about is not None:
            self._comparison.failed(index, rpc)
            raise Unsettled(incomplete(name, self._events, about))
        self._comparison.passed(block)

    @property
    def _events(self) -> str:
        return f"events of run 0x{self._run.hex()}"


@dataclass(frozen=True)
class _Reached:
    """How far a poll came: events count up to block `until`."""

    head: Head
    until: int
    complete: bool


class _Tracker:
    """Brings an index up to the chain's head, poll by poll."""

    def __init__(self, open_index: OpenIndex, confirmations: int) -> None:
        self._open, self._confirmations = open_index, confirmations
        self._index: EventIndex | None = None
        self._newest: Header | None = None  # the highest head seen
        self._unsettled = 0  # polls in a row

    @property
    def index(self) -> EventIndex:
        """Opened by the first poll."""
        assert self._index is not None
        return self._index

    def poll(self, rpc: RpcClient, wait: float) -> _Reached:
        if self._index is None:
            self._index = self._open()
        seen, tip = self._newest, self._index.tip
        # Where the last poll did not get as far as the head, nothing is waited for.
        settled = seen is not None and tip is not None and tip.hash == seen.hash
        if seen is not None and settled:
            contracts = self._index.contracts
            newest = rpc.newer(seen, wait, [contracts.ledger, contracts.registry])
        else:
            newest = rpc.head()
        highest = max(seen.number if seen else -1, tip.block if tip else -1)
        if self._index.is_late(newest, highest):
            if tip is None or tip.block < highest:
                return self._nothing(
                    newest if seen is None else seen,
                    Unsettled(f"a chain node at block {newest.number} follows one at {highest}"),
                )
            return self._reached(tip, tip.block)
        if newest.number < self._index.contracts.since:
            since = self._index.contracts.since
            raise Unsettled(f"the chain node is at block {newest.number}, the contracts came in {since}")
        self._newest = newest
        if tip is None or tip.hash != newest.hash:
            try:
                self._index.read(rpc, newest)
            except Unsettled as error:
                return self._nothing(newest, error)
        self._unsettled = 0
        return self._reached(_head(newest), newest.number)

    def _reached(self, head: Head, newest: int) -> _Reached:
        tip = self.index.tip
        last, wanted = tip.block if tip else -1, newest - self._confirmations
        return _Reached(head, min(last, wanted), last >= wanted)

    def _nothing(self, newest: Header, reason: Unsettled) -> _Reached:
        """No news, although there must be some: `reason` is raised where that cannot be passed over."""
        self._unsettled += 1
        if self.index.tip is None or self._unsettled >= _PATIENCE:
            raise reason
        return _Reached(_head(newest), self._reached(_head(newest), newest.number).until, complete=False)


def _head(header: Header) -> Head:
    return Head(header.number, header.hash, header.time)
