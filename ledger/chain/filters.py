"""Log queries, and the filters that clients install in order to ask for what is new since they asked last."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from dlx.ledger.chain.blockchain import Blockchain
from dlx.ledger.chain.store import MinedLog, TooMany
from dlx.ledger.chain.wire import (
    INVALID_PARAMS,
    LIMIT_EXCEEDED,
    SERVER_ERROR,
    RpcError,
    log_json,
    parse_bytes,
    parse_values,
    to_hex,
)

MAX_LOGS = 10_000
MAX_LOG_BYTES = 8 * 2**20  # of log data in one answer; one block's gas buys less, so a one-block query always fits
MAX_FILTERS = 1_000
_EXPIRY_SECONDS = 300.0  # after it was last asked
_MOVING = ("latest", "pending", "safe", "finalized")


@dataclass(frozen=True, slots=True)
class _Query:
    addresses: list[bytes]
    topics: list[list[bytes]]
    first: Any = "latest"
    """A block number, or a tag that means another one each time it is asked."""
    last: Any = "latest"


@dataclass(slots=True)
class _Filter:
    kind: Literal["logs", "blocks"]
    query: _Query
    seen: int
    """The last block that its owner has been told about."""
    asked: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Filters:
    """Thread-safe; `number` tells the block number that a tag or quantity stands for."""

    def __init__(self, chain: Blockchain, number: Callable[[Any], int]) -> None:
        self._chain, self._number = chain, number
        self._filters: dict[str, _Filter] = {}
        self._lock = threading.Lock()

    def logs(self, query: Any) -> list[dict[str, Any]]:
        if isinstance(query, dict) and query.get("blockHash") is not None:
            number = self._chain.store.number_of(parse_bytes(query["blockHash"], 32))
            if number is None or number > self._chain.head.block_number:
                raise RpcError(SERVER_ERROR, "unknown block")
            query = query | {"fromBlock": number, "toBlock": number}
        return self._found(self._parse(query))

    def new_logs(self, query: Any) -> str:
        if isinstance(query, dict) and query.get("blockHash") is not None:
            raise RpcError(
                INVALID_PARAMS, "invalid argument 0: a filter with blockHash has nothing new, use eth_getLogs"
            )
        return self._install(_Filter("logs", self._parse(query), self._chain.head.block_number))

    def new_blocks(self) -> str:
        return self._install(_Filter("blocks", _Query([], []), self._chain.head.block_number))

    def changes(self, identity: Any) -> list[Any]:
        """What is new since the last time: logs or block hashes."""
        asked = self._get(identity)
        with asked.lock:
            first, head = asked.seen + 1, self._chain.head.block_number
            if asked.kind == "blocks":
                asked.seen = head
                return [to_hex(mined) for mined in self._chain.store.block_hashes(first, head)]
            logs, asked.seen = self._new_logs(asked.query, first, head)
            return logs

    def all_logs(self, identity: Any) -> list[dict[str, Any]]:
        asked = self._get(identity)
        if asked.kind != "logs":
            raise RpcError(SERVER_ERROR, "filter not found")
        return self._found(asked.query)

    def uninstall(self, identity: Any) -> bool:
        with self._lock:
            return self._filters.pop(str(identity), None) is not None

    def _parse(self, query: Any) -> _Query:
        if not isinstance(query, dict):
            raise RpcError(INVALID_PARAMS, "invalid argument 0: a filter object is needed")
        topics = query.get("topics") or []
        if not isinstance(topics, list) or len(topics) > 4:
            raise RpcError(INVALID_PARAMS, "invalid topics: a list of at most 4 is needed")
        blocks = [query.get(key) if query.get(key) is not None else "latest" for key in ("fromBlock", "toBlock")]
        first, last = (self._number(block) for block in blocks)
        if first > last and blocks[1] not in _MOVING:
            raise RpcError(INVALID_PARAMS, "invalid block range params: fromBlock is above toBlock")
        return _Query(parse_values(query.get("address"), 20), [parse_values(topic, 32) for topic in topics], *blocks)

    def _found(self, query: _Query) -> list[dict[str, Any]]:
        first, last = (self._number(block) for block in (query.first, query.last))
        try:
            return [log_json(log) for log in self._between(query, first, min(last, self._chain.head.block_number))]
        except TooMany:
            raise RpcError(
                LIMIT_EXCEEDED,
                f"too many results: query returned more than {MAX_LOGS} results or {MAX_LOG_BYTES >> 20} MiB, "
                "ask for fewer blocks",
            ) from None

    def _new_logs(self, query: _Query, first: int, head: int) -> tuple[list[dict[str, Any]], int]:
        """Logs from block `first` on, and the block up to which one answer has room for them."""
        if query.first not in _MOVING:
            first = max(first, self._number(query.first))
        last = head if query.last in _MOVING else min(head, self._number(query.last))
        until = last
        while first <= until:
            try:
                logs = [log_json(log) for log in self._between(query, first, until)]
            except TooMany:
                until = (first + until) // 2
            else:
                return logs, head if until == last else until
        return [], head

    def _between(self, query: _Query, first: int, last: int) -> list[MinedLog]:
        return self._chain.store.logs(first, last, query.addresses, query.topics, MAX_LOGS, MAX_LOG_BYTES)

    def _install(self, made: _Filter) -> str:
        made.asked = time.monotonic()
        with self._lock:
            self._filters = {
                i: other for i, other in self._filters.items() if other.asked > made.asked - _EXPIRY_SECONDS
            }
            if len(self._filters) >= MAX_FILTERS:
                raise RpcError(LIMIT_EXCEEDED, f"{MAX_FILTERS} filters are installed: uninstall some, or wait")
            identity = hex(secrets.randbits(128))
            self._filters[identity] = made
        return identity

    def _get(self, identity: Any) -> _Filter:
        now = time.monotonic()
        with self._lock:
            asked = self._filters.get(str(identity))
            if asked is None or asked.asked < now - _EXPIRY_SECONDS:
                raise RpcError(SERVER_ERROR, "filter not found")
            asked.asked = now
        return asked
