"""The contracts' events as they happen: incremental, behind the head by the confirmations, rebuilt after a reorg."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from dlx.ledger.abi import TypedError
from dlx.ledger.errors import LedgerError, LedgerUnavailable, RpcError
from dlx.ledger.events import Event, decode_log
from dlx.ledger.logs import LAG, LogFilter, Timed, Unsettled, fetch_logs, insist
from dlx.ledger.rpc import Header, Rpc

_SHORT_RANGE = 64  # blocks of which all logs of the contracts are read, whatever their run
_PATIENCE = 5  # polls in a row that may find nothing because the chain node has less than it says


@dataclass(frozen=True)
class Head:
    """The newest block of the chain; time in seconds."""

    block: int
    hash: bytes
    time: int


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
class Contracts:
    """Where both contracts are, and a block before which nothing happened to them."""

    ledger: str
    registry: str
    since: int = 0


class EventFeed:
    """The events of the registry and of one run (or of all runs). Not thread-safe."""

    def __init__(self, run: bytes | None = None, confirmations: int = 0) -> None:
        self.run = run
        self._confirmations = confirmations
        self._newest: Header | None = None  # the highest head seen
        self._complete = False  # whether all that is wanted up to it is read
        self._tip: Header | None = None  # the last block read
        self._unsettled = 0  # polls in a row

    def poll(self, rpc: Rpc, contracts: Contracts) -> ChainUpdate:
        """Reads what is new: one request where there is no new block, two or three where there is one.

        What the chain node cannot give yet is left to the next poll. Raises LedgerError, LedgerUnavailable (Unsettled
        where the chain node is without what it says it has: at once while nothing was read, else poll after poll);
        nothing is lost by that.
        """
        newest, seen = rpc.head(), self._newest
        if seen is not None and 0 < seen.number - newest.number <= LAG:  # from a chain node that is late
            if self._complete:
                return ChainUpdate(_head(seen), (), False)
            return self._nothing(seen, Unsettled(f"a chain node at block {newest.number} follows one at {seen.number}"))
        if newest.number < contracts.since:
            raise Unsettled(f"the chain node is at block {newest.number}, the contracts came in {contracts.since}")
        self._complete = self._complete and seen is not None and newest.hash == seen.hash
        self._newest = newest
        target = newest.number - self._confirmations
        if self._complete or target < contracts.since:
            self._complete = True
            return ChainUpdate(_head(newest), (), False)
        try:
            update = self._advance(rpc, contracts, target)
        except Unsettled as error:
            return self._nothing(newest, error)
        self._unsettled = 0
        return update

    def _nothing(self, newest: Header, reason: Unsettled) -> ChainUpdate:
        """No news, although there must be some: `reason` is raised where that cannot be passed over."""
        self._unsettled += 1
        if self._tip is None or self._unsettled >= _PATIENCE:
            raise reason
        return ChainUpdate(_head(newest), (), False, complete=False)

    def _advance(self, rpc: Rpc, contracts: Contracts, target: int) -> ChainUpdate:
        """Reads up to block `target`, or as far as the chain node surely has everything."""
        assert self._newest is not None
        newest, tip = self._newest, self._tip
        block = newest if target == newest.number else insist(partial(rpc.header, target), f"block {target}")
        reorg = tip is not None and not _continues(tip, block, rpc)
        start, previous = (contracts.since, None) if tip is None or reorg else (tip.number + 1, tip.hash)
        events: list[Event] = []
        read: Header | None = None
        try:
            for last, logs in fetch_logs(rpc, self._filters(contracts, target - start), start, block, previous):
                events += self._decoded(logs)
                read = last
        except (LedgerUnavailable, RpcError):
            if read is None:
                raise
        self._tip = read or tip
        self._complete = self._tip is not None and self._tip.number == target
        return ChainUpdate(_head(newest), tuple(events), reorg, self._complete)

    def _decoded(self, logs: Iterable[Timed]) -> Iterator[Event]:
        for log, time in logs:
            try:
                event = decode_log(log, time)
            except TypedError as error:
                raise LedgerError(f"block {log.block}, log {log.log_index}: {error}") from None
            if event is not None and (self.run is None or getattr(event, "run", self.run) == self.run):
                yield event

    def _filters(self, contracts: Contracts, blocks: int) -> list[LogFilter]:
        if self.run is None or blocks < _SHORT_RANGE:
            return [{"address": [contracts.ledger, contracts.registry]}]
        return [
            {"address": contracts.ledger, "topics": [None, "0x" + self.run.hex()]},
            {"address": contracts.registry},
        ]


def _head(header: Header) -> Head:
    return Head(header.number, header.hash, header.time)


def _continues(tip: Header, block: Header, rpc: Rpc) -> bool:
    """Whether `block` is `tip` or stands on it. Raises Unsettled."""
    if block.number <= tip.number:
        return block.hash == tip.hash
    if block.number == tip.number + 1:
        return block.parent == tip.hash
    return insist(partial(rpc.header, tip.number), f"block {tip.number}").hash == tip.hash
