"""A chain node's answers, kept in a file, and a transport that gives them again without any chain node.

The file has a line of JSON for each request: `method`, `params`, and the `result`, or the `error` with its `code` and
`message`. It is as trustworthy as a chain node: what is proven to a block's hash is proven here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from dlx.ground import durable
from dlx.ground.untrusted import decode_json, printable
from dlx.ledger.errors import LedgerError, RpcError
from dlx.ledger.rpc.endpoint import Transport
from dlx.ledger.rpc.json_rpc import Request, encode, quantity

MOST = 1 << 30  # bytes of a file

_UNKNOWN = -32601
_LOGS = "eth_getLogs"


class Recording:
    """The transport to a chain node, whose answers are kept. Thread-safe."""

    def __init__(self, inner: Transport, kept: dict[bytes, dict[str, Any]]) -> None:
        """`kept` gets them, the newest of each request; several transports may share it."""
        self._inner, self._kept = inner, kept

    def ask(self, requests: Sequence[Request], timeout: float) -> list[Any]:
        """See `Transport`."""
        try:
            answers = self._inner.ask(requests, timeout)
        except RpcError as error:
            if len(requests) == 1:
                self._keep(requests[0], error)
            raise
        for request, answer in zip(requests, answers, strict=True):
            self._keep(request, answer)
        return answers

    def tells(self, timeout: float) -> bool:
        """See `Transport`."""
        return self._inner.tells(timeout)

    def next_head(self, seen: bytes, seconds: float, timeout: float, contracts: Sequence[str]) -> Any:
        """See `Transport`."""
        return self._inner.next_head(seen, seconds, timeout, contracts)

    def _keep(self, request: Request, answer: Any) -> None:
        method, params = _plain(request)
        if isinstance(answer, RpcError):
            if method == _LOGS:
                return  # how many blocks are too many: here none are
            said: dict[str, Any] = {"error": {"code": answer.code, "message": str(answer)}}
        else:
            said = {"result": answer}
        self._kept[_key(method, params)] = {"method": method, "params": params, **said}


def write(path: Path, kept: dict[bytes, dict[str, Any]]) -> None:
    """The file of what Recordings kept. Raises OSError."""
    durable.write_chunks(path, (msgspec.json.encode(one) + b"\n" for one in kept.values()))


class Recorded:
    """The transport that answers from such a file. Requests that were not made then are refused. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, and LedgerError for a file that is none."""
        self._path = path
        self._answers: dict[bytes, Any] = {}
        self._logs: dict[bytes, dict[tuple[int, int], Any]] = {}  # by filter: by block and index
        if path.stat().st_size > MOST:
            raise LedgerError(f"{path} has more than {MOST:,} bytes")
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    self._take(decode_json(line))
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, ValueError, LookupError):
                    raise LedgerError(f"{path}: line {number} is no answer of a chain node") from None

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

    def _take(self, line: dict[str, Any]) -> None:
        method, params = line["method"], line["params"]
        if method == _LOGS and "blockHash" not in params[0]:
            pool = self._logs.setdefault(_key(method, _filter(params)), {})
            for log in line["result"]:
                pool[quantity(log["blockNumber"]), quantity(log["logIndex"])] = log
        elif "result" in line:
            self._answers[_key(method, params)] = line["result"]
        else:
            error = line["error"]
            self._answers[_key(method, params)] = RpcError(int(error["code"]), printable(str(error["message"]), 500))

    def _answer(self, method: str, params: Sequence[Any]) -> Any:
        if method == _LOGS and "blockHash" not in params[0]:
            if (pool := self._logs.get(_key(method, _filter(params)))) is not None:
                first, last = quantity(params[0]["fromBlock"]), quantity(params[0]["toBlock"])
                return [pool[place] for place in sorted(pool) if first <= place[0] <= last]
        elif (found := self._answers.get(_key(method, params), self)) is not self:
            return found
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
