"""JSON-RPC over HTTP: one request, one checked answer, retried while the chain node cannot be reached."""

import itertools
import json
import threading
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import requests

from ledger.errors import LedgerError, LedgerUnavailable, RpcError

_MAX_ANSWER = 64 << 20
_RETRIED_STATUS = {408, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True)
class Header:
    """A block's header; time in seconds, base fee in wei."""

    number: int
    hash: bytes
    parent: bytes
    time: int
    base_fee: int


class Rpc:
    """A chain node at a URL. Thread-safe. Times in seconds: `timeout` for one request, `patience` for all retries."""

    def __init__(self, url: str, timeout: float = 10.0, patience: float = 20.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("the RPC URL must look like http://host:port")
        self.name = parts.hostname  # the full URL may hold an access key: it never gets into a message
        self._url, self._timeout, self._patience = url, timeout, patience
        self._direct = parts.hostname in ("127.0.0.1", "::1", "localhost")
        self._ids = itertools.count(1)
        self._local = threading.local()

    def call(self, method: str, *params: Any, patience: float | None = None) -> Any:
        """The result. Raises RpcError for an error answer, LedgerUnavailable when the node stays silent."""
        deadline = time.monotonic() + (self._patience if patience is None else patience)
        pause = 0.1
        while True:
            try:
                return self._once(method, list(params), max(0.5, min(self._timeout, deadline - time.monotonic())))
            except (requests.RequestException, _Garbled) as error:
                if time.monotonic() + pause >= deadline:
                    reason = str(error) if isinstance(error, _Garbled) else type(error).__name__
                    raise LedgerUnavailable(f"no answer from the chain node at {self.name}: {reason}") from None
            time.sleep(pause)
            pause = min(2 * pause, 3.0)

    def number(self, method: str, *params: Any) -> int:
        """The result as a quantity."""
        return _quantity(self.call(method, *params))

    def data(self, method: str, *params: Any) -> bytes:
        """The result as bytes."""
        result = self.call(method, *params)
        try:
            return bytes.fromhex(result.removeprefix("0x"))
        except (AttributeError, ValueError):
            raise LedgerError(f"{method}: the chain node answered something else than bytes") from None

    def header(self, block: int | bytes | str) -> Header | None:
        """The block with this number, hash or tag ("latest"); None where the node has none."""
        if isinstance(block, bytes):
            found = self.call("eth_getBlockByHash", "0x" + block.hex(), False)
        else:
            found = self.call("eth_getBlockByNumber", hex(block) if isinstance(block, int) else block, False)
        if found is None:
            return None
        try:
            return Header(
                number=_quantity(found["number"]),
                hash=bytes.fromhex(found["hash"][2:]),
                parent=bytes.fromhex(found["parentHash"][2:]),
                time=_quantity(found["timestamp"]),
                base_fee=_quantity(found.get("baseFeePerGas", "0x0")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerError(f"not a block: {error!r}") from None

    def head(self) -> Header:
        header = self.header("latest")
        if header is None:
            raise LedgerUnavailable(f"the chain node at {self.name} has no blocks")
        return header

    def _once(self, method: str, params: list[Any], timeout: float) -> Any:
        request = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        options: dict[str, Any] = {"timeout": timeout, "stream": True, "allow_redirects": False}
        with self._session().post(self._url, json=request, **options) as response:
            if response.status_code in _RETRIED_STATUS:
                raise _Garbled(f"HTTP status {response.status_code}")
            body = bytearray()
            for chunk in response.iter_content(1 << 16):
                body += chunk
                if len(body) > _MAX_ANSWER:
                    raise RpcError(-32005, f"the answer to {method} is over {_MAX_ANSWER >> 20} MiB: too many results")
        try:
            answer = json.loads(body)
        except ValueError:
            raise _Garbled(f"HTTP status {response.status_code}, no JSON") from None
        if not isinstance(answer, dict) or ("result" not in answer and "error" not in answer):
            raise _Garbled("an answer that is no JSON-RPC")
        error = answer.get("error")
        if error is not None:
            known = error if isinstance(error, dict) else {"message": str(error)}
            raise RpcError(int(known.get("code", 0)), str(known.get("message", ""))[:500], known.get("data"))
        return answer["result"]

    def _session(self) -> requests.Session:
        session = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = requests.Session()
            session.trust_env = not self._direct  # a proxy cannot know our own machine
        return session


class _Garbled(Exception):
    """An answer that another try may improve."""


def _quantity(text: Any) -> int:
    try:
        return int(text, 16)
    except (TypeError, ValueError):
        raise LedgerError(f"not a number: {str(text)[:40]!r}") from None
