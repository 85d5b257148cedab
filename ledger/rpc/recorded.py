"""A chain node's answers, kept in a file, and a transport that gives them again without any chain node.

The file has a line of JSON for each request: `method`, `params`, and the `result`, or the `error` with its `code` and
`message`. It is as trustworthy as a chain node: what is proven to a block's hash is proven here too.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from dlx.ground import durable
from dlx.ground.regular import opened
from dlx.ground.untrusted import decode_json, printable
from dlx.ledger.errors import LedgerError, RpcError
from dlx.ledger.rpc.endpoint import Transport
from dlx.ledger.rpc.json_rpc import Request, encode, quantity

MOST = 512 << 20  # bytes of a file

_Place = tuple[int, int]  # block, index of a log
_UNKNOWN = -32601
_LOGS = "eth_getLogs"
_NO_ANSWER = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, ValueError, LookupError)


class Kept:
    """Answers that are kept, the newest to each request, as lines of the file. Thread-safe."""

    def __init__(self) -> None:
        self._lines: dict[bytes, bytes] = {}
        self._bytes = 0

    def add(self, request: Request, answer: Any) -> None:
        """Raises LedgerError where it is too much for a file."""
        method, params = _plain(request)
        if isinstance(answer, RpcError):
            if method == _LOGS:
                return  # how many blocks are too many: here none are
            said: dict[str, Any] = {"error": {"code": answer.code, "message": "refused"}}  # text may name a key
        else:
            said = {"result": answer}
        line = msgspec.json.encode({"method": method, "params": params, **said}) + b"\n"
        key = _key(method, params)
        self._bytes += len(line) - len(self._lines.get(key, b""))
        self._lines[key] = line
        if self._bytes > MOST:
            raise LedgerError(f"the chain node's answers are more than {MOST:,} bytes: the run is too old for a kit")

    def write(self, path: Path) -> None:
        """Raises OSError."""
        durable.write_chunks(path, self._lines.values())


class Recording:
    """The transport to a chain node, whose answers are kept. Thread-safe."""

    def __init__(self, inner: Transport, kept: Kept) -> None:
        """Several transports may share `kept`."""
        self._inner, self._kept = inner, kept

    def ask(self, requests: Sequence[Request], timeout: float) -> list[Any]:
        """See `Transport`."""
        try:
            answers = self._inner.ask(requests, timeout)
        except RpcError as error:
            if len(requests) == 1:
                self._kept.add(requests[0], error)
            raise
        for request, answer in zip(requests, answers, strict=True):
            self._kept.add(request, answer)
        return answers

    def tells(self, timeout: float) -> bool:
        """See `Transport`."""
        return self._inner.tells(timeout)

    def next_head(self, seen: bytes, seconds: float, timeout: float, contracts: Sequence[str]) -> Any:
        """See `Transport`."""
        return self._inner.next_head(seen, seconds, timeout, contracts)


class _Error(msgspec.Struct):
    code: int
    message: str


class _Line(msgspec.Struct):
    """Of the file. Results stay bytes until they are asked for: they are most of it."""

    method: str
    params: list[Any]
    result: msgspec.Raw = msgspec.Raw()
    error: _Error | None = None


class _Log(msgspec.Struct):
    """Where a log is."""

    blockNumber: str
    logIndex: str


class Recorded:
    """The transport that answers from such a file. Requests that were not made then are refused. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, and LedgerError for a file that is none."""
        self._path = path
        self._answers: dict[bytes, bytes | RpcError] = {}
        self._logs: dict[bytes, dict[_Place, bytes]] = {}  # by filter
        with opened(path) as file:
            if os.fstat(file.fileno()).st_size > MOST:
                raise LedgerError(f"{path} has more than {MOST:,} bytes")
            for number, line in enumerate(file, 1):
                try:
                    self._take(decode_json(line, _Line))
                except _NO_ANSWER:
                    raise LedgerError(f"{path}: line {number} is no answer of a chain node") from None
        self._places = {key: sorted(pool) for key, pool in self._logs.items()}

    def ask(self, requests: Sequence[Request], timeout: float) -> list[Any]:
        """See `Transport`."""
        found = [self._answer(*_plain(request)) for request in requests]
        if len(found) == 1 and isinstance(found[0], RpcError):
            raise found[0]
        return found

    def tells(self, timeout: float) -> bool:
        """It does not: no block follows."""
        return False

    def next_head(self, seen: bytes, seconds: float, timeout: float, contracts: Sequence[str]) -> NoReturn:
        """Refused, see `tells`."""
        raise RpcError(_UNKNOWN, "no block follows in a file of answers")

    def _take(self, line: _Line) -> None:
        key = _key(line.method, line.params)
        if line.error is not None:
            self._answers[key] = RpcError(line.error.code, printable(line.error.message, 500))
        elif not bytes(line.result):
            raise ValueError("neither a result nor an error")
        elif line.method == _LOGS and "blockHash" not in line.params[0]:
            pool = self._logs.setdefault(_key(_LOGS, _filter(line.params)), {})
            for log in msgspec.json.decode(line.result, type=list[msgspec.Raw]):
                place = msgspec.json.decode(log, type=_Log)
                pool[quantity(place.blockNumber), quantity(place.logIndex)] = bytes(log)
        else:
            self._answers[key] = bytes(line.result)

    def _answer(self, method: str, params: Sequence[Any]) -> Any:
        if method == _LOGS and "blockHash" not in params[0]:
            if (pool := self._logs.get(key := _key(_LOGS, _filter(params)))) is not None:
                first, last = quantity(params[0]["fromBlock"]), quantity(params[0]["toBlock"])
                places = self._places[key]
                chosen = places[bisect_left(places, (first, 0)) : bisect_left(places, (last + 1, 0))]
                return [decode_json(pool[place]) for place in chosen]
        elif isinstance(found := self._answers.get(_key(method, params)), RpcError):
            return found
        elif found is not None:
            try:
                return decode_json(found)
            except _NO_ANSWER:
                return RpcError(_UNKNOWN, f"{self._path.name} has no JSON for this {printable(method, 50)}")
        return RpcError(_UNKNOWN, f"{self._path.name} has no answer to this {printable(method, 50)}")


def _filter(params: Sequence[Any]) -> list[Any]:
    """Of logs, without the blocks."""
    return [{name: value for name, value in params[0].items() if name not in ("fromBlock", "toBlock")}]


def _plain(request: Request) -> tuple[str, Any]:
    """As it goes out: the params may be web3's own types."""
    message = msgspec.json.decode(encode([request]))
    return message["method"], message["params"]


def _key(method: str, params: Any) -> bytes:
    return msgspec.json.encode([method, params], order="deterministic")
