"""Reading logs so that none is missed: old blocks by ranges, the newest ones by their hashes.

A chain node behind a load balancer may not have a block yet whose header another one gave, and answers a range over it
with nothing. Asked by the block's hash it refuses, or answers with nothing, too. So only blocks that every chain node
has by now are read by ranges. Of the others the header says whether logs of ours may be missing, and then all logs of
the block have to make up its bloom. Whoever reads never advances past such a block whose logs were not surely complete.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from dlx.ledger.abi import TypedError
from dlx.ledger.errors import (
    AnswerTooLarge,
    AnswerUnusable,
    Contradiction,
    LedgerError,
    LedgerUnavailable,
    RpcError,
)
from dlx.ledger.events import RawLog, parse_log
from dlx.ledger.rpc.failover import LAG
from dlx.ledger.rpc.headers import Header, bloom_of, proven_bloom
from dlx.ledger.rpc.json_rpc import STORED, octets, quantity
from dlx.ledger.rpc.rpc_client import RpcClient

Timed = tuple[RawLog, int]  # a log and its block's time
T = TypeVar("T")

_FULL = 2_000  # logs in a page after which no larger one is tried: all are in memory at once
_AT_ONCE = 64  # ranges, where a chain node gives few blocks in each
_PAGE = 5_000  # blocks in ranges that are asked for at once
_TRIES, _PAUSE = 4, 0.25  # requests to a chain node that is late, seconds between them
_LATE, _MOST_LATE = 16, 64  # s by which one may be late on a chain where `LAG` blocks take less; blocks of it, at most


class Page(NamedTuple):
    """Some blocks' logs of the contracts, in chain order."""

    last: Header  # of the blocks
    logs: list[Timed]
    proven: bool  # whether the blocks' hashes show which of the contracts have any


class Unsettled(LedgerUnavailable):
    """The chain changed while it was read, or the chain node does not have yet what it told of: read again."""


class IndexLost(Unsettled):
    """The index's file could not be read or written, as on a full disk: all is read again, into memory or a new file.
    The chain has nothing to do with it."""


def fetch_logs(
    rpc: RpcClient, contracts: Sequence[str], start: int, end: Header, previous: bytes | None = None
) -> Iterator[Page]:
    """Pages that together cover blocks `start` to `end`, all of the chain of `end`.

    `previous`: the hash of block `start` - 1, where it is known. Raises Unsettled.
    """
    if start > end.number:
        return
    recent = _recent(rpc, start, end)
    if previous is not None:
        is_old = recent[0].number > start
        first = insist(partial(rpc.header, start), f"block {start}") if is_old else recent[0]
        if first.parent != previous:
            raise Unsettled(f"block {start} stands on another block than the one read before")
        if is_old:  # for want of its logs the reading before may have ended here
            yield _of_block(rpc, contracts, first, is_old=True)
            start += 1
    if recent[0].number > start:
        yield from _by_ranges(rpc, contracts, start, _parent(rpc, recent[0]))
    for block in recent:
        yield _of_block(rpc, contracts, block)


def insist(ask: Callable[[], T | None], what: str) -> T:
    """An answer that exists, though the chain node that is asked first may be late. Raises Unsettled."""
    reason = "no such block"
    for left in reversed(range(_TRIES)):
        try:
            found = ask()
        except (RpcError, Unsettled) as error:
            found, reason = None, str(error)
        if found is not None:
            return found
        if left:
            time.sleep(_PAUSE)
    raise Unsettled(f"the chain node does not give {what}: {reason}")


def _parent(rpc: RpcClient, block: Header) -> Header:
    """The block before. Raises Unsettled."""
    found = insist(partial(rpc.header, block.parent), f"block {block.number - 1}")
    if found.number != block.number - 1:  # else we might go back for ever
        raise Contradiction(f"the chain node at {rpc.name} says that block {found.number} is before {block.number}")
    return found


def _recent(rpc: RpcClient, start: int, end: Header) -> list[Header]:
    """The blocks up to `end`, not before `start`, that a chain node may be without. Raises Unsettled."""
    found = [end]
    while found[0].number > max(start, end.number - LAG + 1):
        found.insert(0, _parent(rpc, found[0]))
    if end.time - found[0].time < _LATE and proven_bloom(end.told) is not None:  # else each takes a request
        numbers = range(max(start, end.number - _MOST_LATE + 1), found[0].number)
        for header in reversed(insist(lambda: list(rpc.headers(numbers)), f"block {found[0].number - 1}")):
            if header is None or header.hash != found[0].parent:
                raise Unsettled(f"block {found[0].number - 1} changed while it was read")
            found.insert(0, header)
    return found


def _of_block(rpc: RpcClient, contracts: Sequence[str], block: Header, is_old: bool = False) -> Page:
    """`is_old`: every chain node has the block by now, so what none tells of counts as none."""
    bloom = proven_bloom(block.told)
    proven = bloom is not None
    named = {contract for contract in contracts if bloom is not None and _has(bloom, octets(contract, 20))}
    if bloom is not None and not named:
        return Page(block, [], proven)
    told = None if block.logs is None or block.logs.of != tuple(contracts) else _parsed(rpc, block.logs.found)
    if named and told is not None and _tell_of(told, named):
        found = told
    else:
        query = {"address": list(contracts), "blockHash": "0x" + block.hash.hex()}
        found = insist(partial(_get_logs, rpc, query), f"the logs of block {block.number}")
        if not _tell_of(found, named):
            found = _elsewhere(rpc, query, named) or found
        if bloom is not None and not _tell_of(found, named):
            try:
                whole = insist(partial(_whole, rpc, block, bloom), f"all logs of block {block.number}")
                found = [(log, time) for log, time in whole if log.address in contracts]
            except Unsettled:
                if not is_old:
                    raise
                proven = False
    logs = [log for log, _ in found]
    if any((log.block, log.block_hash) != (block.number, block.hash) for log in logs):
        raise Contradiction(f"the chain node at {rpc.name} gave logs of other blocks than asked for")
    return Page(block, [(log, block.time) for log in sorted(logs, key=lambda log: log.log_index)], proven)


def _has(bloom: int, value: bytes) -> bool:
    """Whether logs with this bloom may have the value: others set the same bits now and then."""
    bits = bloom_of([value])
    return bloom & bits == bits


def _tell_of(logs: list[tuple[RawLog, int | None]], contracts: set[str]) -> bool:
    """Whether each of the contracts has some of the logs."""
    return {log.address for log, _ in logs} >= contracts


def _elsewhere(rpc: RpcClient, query: dict[str, Any], contracts: set[str]) -> list[tuple[RawLog, int | None]] | None:
    """The logs from a chain node that tells of each of the contracts, where there are several: a small request."""
    several = rpc.each()
    for other in several if len(several) > 1 else ():
        with contextlib.suppress(LedgerError):
            if _tell_of(found := _get_logs(other, query), contracts):
                return found
    return None


def _whole(rpc: RpcClient, block: Header, bloom: int) -> list[tuple[RawLog, int | None]]:
    """Every log of a block, of whichever contract, from a chain node whose answer makes up the proven bloom.

    Raises Unsettled where none has them.
    """
    for node in rpc.each():
        for ask in _logs_of_all, _logs_of_receipts:
            try:
                found = ask(node, block)
            except LedgerError:
                continue
            if not bloom & ~bloom_of([value for log, _ in found for value in (octets(log.address), *log.topics)]):
                return found
    names = " and ".join(node.name for node in rpc.each())
    raise Unsettled(f"its header tells of more logs than {names}: if this lasts, name another chain node (--rpc-url)")


def _logs_of_all(rpc: RpcClient, block: Header) -> list[tuple[RawLog, int | None]]:
    return _get_logs(rpc, {"blockHash": "0x" + block.hash.hex()})


def _logs_of_receipts(rpc: RpcClient, block: Header) -> list[tuple[RawLog, int | None]]:
    """For a chain node that gives logs of named contracts only."""
    answer = rpc.call("eth_getBlockReceipts", hex(block.number))
    try:
        return _parsed(rpc, [log for receipt in answer for log in receipt["logs"]])
    except (TypeError, KeyError):
        raise Contradiction(f"the chain node at {rpc.name} gave something else than receipts") from None


def _by_ranges(rpc: RpcClient, contracts: Sequence[str], start: int, end: Header) -> Iterator[Page]:
    """Pages that shrink where the chain node finds them too large, and grow again only now and then. Where it gives few
    blocks at a time a page has several such ranges, in one exchange."""
    given = 0  # blocks in a range of which it gave the logs just now
    while start <= end.number:
        pages = rpc.log_range
        size = pages.limit
        count = 1 if size > given else max(1, min(_AT_ONCE, _PAGE // size))
        goal = min(end.number, start + count * size - 1)
        ranges = [(first, min(goal, first + size - 1)) for first in range(start, goal + 1, size)]
        try:
            last, found = _in_ranges(rpc, contracts, ranges)
        except (RpcError, AnswerTooLarge, AnswerUnusable) as error:
            size, given = min(size, goal - start + 1), 0
            if size == 1:
                raise
            pages.refused(size, slow=isinstance(error, LedgerUnavailable))
            continue
        given = size if last == goal else 0
        logs = sorted(found, key=lambda timed: (timed[0].block, timed[0].log_index))
        if last - start + 1 == count * size and len(logs) < _FULL:
            pages.given()
        block = end if last == end.number else insist(partial(rpc.header, last), f"block {last}")
        if logs:
            _check_canonical(rpc, logs[-1][0], block)
        times = _times(rpc, [log for log, time in logs if time is None])
        yield Page(block, [(log, times[log.block_hash] if time is None else time) for log, time in logs], False)
        start = last + 1


def _in_ranges(
    rpc: RpcClient, contracts: Sequence[str], ranges: Sequence[tuple[int, int]]
) -> tuple[int, list[tuple[RawLog, int | None]]]:
    """The last block, and the logs up to it, of ranges (first block, last block) that follow each other: of as many as
    the chain node gives. Raises RpcError, LedgerUnavailable where it does not give the first."""
    queries = [{"address": list(contracts), "fromBlock": hex(start), "toBlock": hex(end)} for start, end in ranges]
    divisible = any(end > start for start, end in ranges)
    answers = rpc.batch("eth_getLogs", [[query] for query in queries], divisible=divisible)
    last, found = None, []
    try:
        for (start, end), answer in zip(ranges, answers, strict=True):
            logs = _parsed(rpc, answer)
            if any(not start <= log.block <= end for log, _ in logs):
                raise Contradiction(f"the chain node at {rpc.name} gave logs of other blocks than asked for")
            found += logs
            last = end
    except (RpcError, LedgerUnavailable):
        if last is None:
            raise
    assert last is not None
    return last, found


def _check_canonical(rpc: RpcClient, newest: RawLog, end: Header) -> None:
    """A page comes from one chain: where its newest log is on ours, all are. Raises Unsettled."""
    block = end if newest.block == end.number else rpc.header(newest.block)
    if block is None or block.hash != newest.block_hash:
        raise Unsettled(f"block {newest.block} changed while it was read")


def _get_logs(rpc: RpcClient, query: dict[str, Any]) -> list[tuple[RawLog, int | None]]:
    """The logs with their blocks' times, which newer chain nodes give."""
    return _parsed(rpc, rpc.call("eth_getLogs", query))


def _parsed(rpc: RpcClient, answer: Any) -> list[tuple[RawLog, int | None]]:
    try:
        logs = [(parse_log(log), _time(log)) for log in answer]
    except (TypedError, TypeError, ValueError) as error:
        raise Contradiction(f"the chain node at {rpc.name} gave something else than logs: {error}") from None
    if len({(log.block, log.log_index) for log, _ in logs}) < len(logs):
        raise Contradiction(f"the chain node at {rpc.name} told of a log twice")
    return logs


def _time(log: dict[str, Any]) -> int | None:
    return quantity(log["blockTimestamp"], STORED) if log.get("blockTimestamp") else None


def _times(rpc: RpcClient, logs: list[RawLog]) -> dict[bytes, int]:
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
