"""The contracts' events as they happen: incremental, behind the head by the confirmations, rebuilt after a reorg."""

from dataclasses import dataclass

from dlx.ledger.abi import TypedError
from dlx.ledger.errors import LedgerError
from dlx.ledger.events import Event, decode_log
from dlx.ledger.logs import LogFilter, Reorganised, fetch_logs
from dlx.ledger.rpc import Header, Rpc

_SHORT_RANGE = 64  # blocks of which all logs of the contracts are read, whatever their run
_LAG = 8  # blocks by which a chain node behind a load balancer may fall back without a reorg


@dataclass(frozen=True)
class Head:
    """The newest block of the chain; time in seconds."""

    block: int
    hash: bytes
    time: int


@dataclass(frozen=True)
class ChainUpdate:
    """What a poll found. After a reorg `events` starts over: drop every earlier event and view."""

    head: Head
    events: tuple[Event, ...]
    reorg: bool


class EventFeed:
    """The events of the registry and of one run (or of all runs) from block `start` on. Not thread-safe."""

    def __init__(self, run: bytes | None = None, confirmations: int = 0, start: int = 0) -> None:
        self.run = run
        self._confirmations, self._start = confirmations, start
        self._head: bytes | None = None
        self._tip: tuple[int, bytes] | None = None  # the last block read

    def poll(self, rpc: Rpc, ledger: str, registry: str) -> ChainUpdate:
        """Reads what is new: one request where there is no new block, two or three where there is one."""
        newest = rpc.head()
        head = Head(newest.number, newest.hash, newest.time)
        target = newest.number - self._confirmations
        if newest.hash == self._head or target < self._start:
            return ChainUpdate(head, (), False)
        block = newest if target == newest.number else rpc.header(target)
        if block is None or (self._tip and 0 < self._tip[0] - target <= _LAG):
            return ChainUpdate(head, (), False)
        reorg = not self._continues(block, rpc)
        start = self._start if reorg or not self._tip else self._tip[0] + 1
        try:
            events = self._read(rpc, self._filters(ledger, registry, block.number - start), start, block)
        except Reorganised:
            return ChainUpdate(head, (), False)  # nothing was taken over: the next poll sees the new chain
        self._head, self._tip = newest.hash, (block.number, block.hash)
        return ChainUpdate(head, events, reorg)

    def _continues(self, block: Header, rpc: Rpc) -> bool:
        """Whether `block` stands on the last block read."""
        if not self._tip:
            return True
        number, known = self._tip
        if block.number == number:
            return block.hash == known
        if block.number == number + 1:
            return block.parent == known
        earlier = rpc.header(number) if block.number > number else None
        return earlier is not None and earlier.hash == known

    def _read(self, rpc: Rpc, filters: list[LogFilter], start: int, end: Header) -> tuple[Event, ...]:
        events: list[Event] = []
        for _, logs in fetch_logs(rpc, filters, start, end.number):
            for log, time in logs:
                if log.block == end.number and log.block_hash != end.hash:
                    raise Reorganised("the newest block changed while it was read")
                try:
                    event = decode_log(log, time)
                except TypedError as error:
                    raise LedgerError(f"block {log.block}, log {log.log_index}: {error}") from None
                if event is not None and (self.run is None or getattr(event, "run", self.run) == self.run):
                    events.append(event)
        return tuple(events)

    def _filters(self, ledger: str, registry: str, blocks: int) -> list[LogFilter]:
        if self.run is None or blocks < _SHORT_RANGE:
            return [{"address": [ledger, registry]}]
        return [{"address": ledger, "topics": [None, "0x" + self.run.hex()]}, {"address": registry}]
