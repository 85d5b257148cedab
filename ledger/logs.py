"""Reading logs so that none is missed: old blocks by ranges, the newest ones by their hashes.

A chain node behind a load balancer may not have a block yet whose header another one gave, and answers a range over it
with nothing. Asked by the block's hash it refuses. So only blocks that every chain node has by now are read by ranges,
and whoever reads never advances past a block whose logs were not surely complete.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from dlx.ledger.abi import TypedError
from dlx.ledger.endpoints import LAG
from dlx.ledger.errors import AnswerTooLarge, Contradiction, LedgerUnavailable, RpcError
from dlx.ledger.events import RawLog, parse_log
from dlx.ledger.headers import bloom_of, octets, proven_bloom
from dlx.ledger.quantity import STORED, quantity
from dlx.ledger.rpc import Header, Rpc

LogFilter = dict[str, Any]  # address and topics of eth_getLogs
Timed = tuple[RawLog, int]  # a log and its block's time
T = TypeVar("T")

_FULL = 2_000  # logs in a page after which no larger one is tried: all are in memory at once
_TRIES, _PAUSE = 4, 0.25  # requests to a chain node that is late, seconds between them


class Unsettled(LedgerUnavailable):
    """The chain changed while it was read, or the chain node does not have yet what it told of: read again."""


class IndexLost(Unsettled):
    """The index's file could not be read or written, as on a full disk: all is read again, into memory or a new file.
    The chain has nothing to do with it."""


def fetch_logs(
    rpc: Rpc, filters: list[LogFilter], start: int, end: Header, previous: bytes | None = None
) -> Iterator[tuple[Header, list[Timed]]]:
    """Pages (last block, logs in chain order) that together cover blocks `start` to `end`, all of the chain of `end`.

    `previous`: the hash of block `start` - 1, where it is known. Raises Unsettled.
    """
    if start > end.number:
        return
    recent = [end]
    while recent[0].number > max(start, end.number - LAG + 1):
        recent.insert(0, _parent(rpc, recent[0]))
    if recent[0].number > start:
        yield from _by_ranges(rpc, filters, start, _parent(rpc, recent[0]))
    elif previous is not None and recent[0].parent != previous:
        raise Unsettled(f"block {start} stands on another block than the one read before")
    for block in recent:
        yield block, _of_block(rpc, filters, block)


def insist(ask: Callable[[], T | None], what: str) -> T:
    """An answer that exists, though the chain node that is asked first may be late. Raises Unsettled."""
    reason = "no such block"
    for left in reversed(range(_TRIES)):
        try:
            found = ask()
        except RpcError as error:
            found, reason = None, str(error)
        if found is not None:
            return found
        if left:
            time.sleep(_PAUSE)
    raise Unsettled(f"the chain node does not give {what}: {reason}")


def _parent(rpc: Rpc, block: Header) -> Header:
    """The block before. Raises Unsettled."""
    found = insist(partial(rpc.header, block.parent), f"block {block.number - 1}")
    if found.number != block.number - 1:  # else we might go back for ever
        raise Contradiction(f"the chain node at {rpc.name} says that block {found.number} is before {block.number}")
    return found


def _of_block(rpc: Rpc, filters: list[LogFilter], block: Header) -> list[Timed]:
    if not block.has_logs:  # by the word of the chain node that has it
        return []
    if block.logs is not None and filters == [{"address": list(block.logs.of)}]:
        found = [_parsed(rpc, block.logs.found)]
    elif not _may_have(block, filters):
        return []
    else:
        queries = [{**one, "blockHash": "0x" + block.hash.hex()} for one in filters]
        found = [insist(partial(_get_logs, rpc, query), f"the logs of block {block.number}") for query in queries]
    logs = [log for part in found for log, _ in part]
    if any((log.block, log.block_hash) != (block.number, block.hash) for log in logs):
        raise Contradiction(f"the chain node at {rpc.name} gave logs of other blocks than asked for")
    return [(log, block.time) for log in sorted(logs, key=lambda log: log.log_index)]


def _may_have(block: Header, filters: list[LogFilter]) -> bool:
    """Whether its bloom has one of the addresses; where its hash does not prove the bloom, perhaps."""
    bloom = proven_bloom(block.told)
    if bloom is None:
        return True
    wanted = [bloom_of([octets(address, 20)]) for one in filters for address in one["address"]]
    return any(bloom & bits == bits for bits in wanted)


def _by_ranges(rpc: Rpc, filters: list[LogFilter], start: int, end: Header) -> Iterator[tuple[Header, list[Timed]]]:
    """Pages that shrink where the chain node finds them too large, and grow again only now and then."""
    while start <= end.number:
        pages = rpc.log_range
        last = min(end.number, start + pages.most - 1)
        try:
            found = [_in_range(rpc, one, start, last) for one in filters]
        except (RpcError, AnswerTooLarge) as error:
            if last == start:
                raise
            pages.refused(last - start + 1, slow=isinstance(error, AnswerTooLarge))
            continue
        logs = sorted((log for part in found for log in part), key=lambda timed: (timed[0].block, timed[0].log_index))
        if last - start + 1 == pages.most and len(logs) < _FULL:
            pages.given()
        block = end if last == end.number else insist(partial(rpc.header, last), f"block {last}")
        if logs:
            _check_canonical(rpc, logs[-1][0], block)
        times = _times(rpc, [log for log, time in logs if time is None])
        yield block, [(log, times[log.block_hash] if time is None else time) for log, time in logs]
        start = last + 1


def _in_range(rpc: Rpc, one: LogFilter, start: int, end: int) -> list[tuple[RawLog, int | None]]:
    logs = _get_logs(rpc, {**one, "fromBlock": hex(start), "toBlock": hex(end)})
    if any(not start <= log.block <= end for log, _ in logs):
        raise Contradiction(f"the chain node at {rpc.name} gave logs of other blocks than asked for")
    return logs


def _check_canonical(rpc: Rpc, newest: RawLog, end: Header) -> None:
    """A page comes from one chain: where its newest log is on ours, all are. Raises Unsettled."""
    block = end if newest.block == end.number else rpc.header(newest.block)
    if block is None or block.hash != newest.block_hash:
        raise Unsettled(f"block {newest.block} changed while it was read")


def _get_logs(rpc: Rpc, query: dict[str, Any]) -> list[tuple[RawLog, int | None]]:
    """The logs with their blocks' times, which newer chain nodes give."""
    return _parsed(rpc, rpc.call("eth_getLogs", query))


def _parsed(rpc: Rpc, answer: Any) -> list[tuple[RawLog, int | None]]:
    try:
        return [(parse_log(log), _time(log)) for log in answer]
    except (TypedError, TypeError, ValueError) as error:
        raise Contradiction(f"the chain node at {rpc.name} gave something else than logs: {error}") from None


def _time(log: dict[str, Any]) -> int | None:
    return quantity(log["blockTimestamp"], STORED) if log.get("blockTimestamp") else None


def _times(rpc: Rpc, logs: list[RawLog]) -> dict[bytes, int]:
    """Of the logs' blocks, by their hashes: many at once."""
    blocks = {log.block_hash: log.block for log in logs}
    try:
        found = list(rpc.headers(list(blocks)))
    except RpcError:
        found = [None] * len(blocks)
    return {
        name: (header or insist(partial(rpc.header, name), f"block {block}")).time
        for (name, block), header in zip(blocks.items(), found, strict=True)
    }
