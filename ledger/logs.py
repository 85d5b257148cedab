"""Reading logs over long block ranges: pages that shrink when the chain node finds them too large."""

from collections.abc import Callable, Iterator
from typing import Any

from dlx.ledger.abi import TypedError
from dlx.ledger.errors import LedgerError, RpcError
from dlx.ledger.events import RawLog, parse_log
from dlx.ledger.rpc import Rpc

LogFilter = dict[str, Any]  # address and topics of eth_getLogs
Timed = tuple[RawLog, int]  # a log and its block's time

_FIRST_PAGE, _LARGEST_PAGE = 5_000, 100_000


class Reorganised(LedgerError):
    """The chain changed while it was read."""


def fetch_logs(rpc: Rpc, filters: list[LogFilter], start: int, end: int) -> Iterator[tuple[int, list[Timed]]]:
    """Pages (last block, logs in chain order) that together cover blocks start..end.

    Raises Reorganised when a block with logs is gone by the time its header is read.
    """
    time_of = _block_times(rpc)
    size = _FIRST_PAGE
    while start <= end:
        last = min(end, start + size - 1)
        try:
            found = [_get_logs(rpc, one, start, last) for one in filters]
        except RpcError:
            if last == start:
                raise
            size = (last - start + 1) // 2
            continue
        logs = sorted((log for part in found for log in part), key=lambda timed: (timed[0].block, timed[0].log_index))
        yield last, [(log, time_of(log) if time is None else time) for log, time in logs]
        start, size = last + 1, min(2 * size, _LARGEST_PAGE)


def _get_logs(rpc: Rpc, one: LogFilter, start: int, end: int) -> list[tuple[RawLog, int | None]]:
    answer = rpc.call("eth_getLogs", {**one, "fromBlock": hex(start), "toBlock": hex(end)})
    try:
        logs = [(parse_log(log), _time(log)) for log in answer]
    except (TypedError, TypeError, ValueError) as error:
        raise LedgerError(f"the chain node at {rpc.name} gave something else than logs: {error}") from None
    if any(not start <= log.block <= end for log, _ in logs):
        raise LedgerError(f"the chain node at {rpc.name} gave logs of other blocks than asked for")
    return logs


def _time(log: dict[str, Any]) -> int | None:
    """The block's time, which newer chain nodes give with the log."""
    return int(log["blockTimestamp"], 16) if log.get("blockTimestamp") else None


def _block_times(rpc: Rpc) -> Callable[[RawLog], int]:
    known: dict[bytes, int] = {}

    def time_of(log: RawLog) -> int:
        if log.block_hash not in known:
            header = rpc.header(log.block_hash)
            if header is None:
                raise Reorganised(f"block {log.block} is gone")
            known[log.block_hash] = header.time
        return known[log.block_hash]

    return time_of
