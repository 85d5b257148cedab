"""A chain node's JSON-RPC through web3: bounded answers, asked for again while the node cannot be reached."""

import logging
import re
import sys
import time
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import urlsplit

import requests
from web3 import HTTPProvider, Web3
from web3.types import RPCEndpoint, RPCResponse

from dlx.ground.backoff import Backoff
from dlx.ledger.errors import LedgerError, LedgerUnavailable, RpcError

_MAX_ANSWER = 64 << 20
_RETRIED_STATUS = {408, 425, 429, 500, 502, 503, 504}
_REVERTED = 3  # the error code whose message is a contract's word
_CHANCE = Random()
_RETRY = Backoff(0.1, 3.0)
_RATE_LIMITED = Backoff(1.0, 8.0)
# Providers name a rate limit in an HTTP 200 with code 429, or -32005, which stands for too many results as well.
_RATE_LIMIT = re.compile(r"rate.?limit|request rate|rate exceeded|too many requests|requests? (count|limit)|"
                         r"compute units|throughput|throttl", re.IGNORECASE)  # fmt: skip

# web3 imports py_ecc, which raises it to 100,000: deeply nested JSON would overflow the C stack and end the process
# instead of raising RecursionError. The embedded chain needs this much.
sys.setrecursionlimit(min(sys.getrecursionlimit(), 12_288))

for _library in ("urllib3", "web3"):
    logging.getLogger(_library).setLevel(logging.ERROR)  # below that they log the URL, which may hold an access key


@dataclass(frozen=True)
class Header:
    """A block's header; time in seconds, base fee in wei."""

    number: int
    hash: bytes
    parent: bytes
    time: int
    base_fee: int


class Rpc:
    """A chain node at a URL. Thread-safe. Times in seconds: `timeout` for one request, `patience` for all retries.

    `web3` is for contracts. Requests of ours go through `call`: web3's own methods fill in defaults, decode laxly,
    and some (get_block) are not thread-safe, because they keep the method's name in an object that all threads share.
    """

    def __init__(self, url: str, timeout: float = 10.0, patience: float = 20.0) -> None:
        """Asks nothing. Raises LedgerError for what is no URL."""
        self.name = _host(url)  # the full URL never gets into a message
        self._provider = _Provider(url, self.name, timeout, patience)
        # No middleware and no ENS: they would ask the node for chain ids, gas, fees and names behind our back.
        self.web3 = Web3(self._provider, middleware=(), ens=None)  # type: ignore[arg-type]

    def call(self, method: str, *params: Any, patience: float | None = None) -> Any:
        """The result. Raises RpcError for an error answer, LedgerUnavailable when the node stays silent."""
        return self._provider.make_request(RPCEndpoint(method), params, patience)["result"]

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

    def is_pending_old(self) -> bool:
        """Whether the chain node answers for "pending" as of some blocks ago, as some do."""
        pending = self.call("eth_getBlockByNumber", "pending", False)
        number = pending.get("number") if isinstance(pending, dict) else None
        return number is not None and _quantity(number) <= self.head().number


class _Provider(HTTPProvider):
    """web3's provider, with what it lacks: a deadline (its retries are counted), a limit on what is read, our errors.

    Error answers are raised before web3 sees them: it would fail on some that a hostile node can make up.
    """

    global_ccip_read_enabled = False  # else a revert could send us to any URL (EIP-3668)

    def __init__(self, url: str, name: str, timeout: float, patience: float) -> None:
        super().__init__(url)
        self._name, self._timeout, self._patience = name, timeout, patience
        self._direct = name in ("127.0.0.1", "::1", "localhost")

    def make_request(self, method: RPCEndpoint, params: Any, patience: float | None = None) -> RPCResponse:
        request = self.encode_rpc_request(method, params)
        deadline = time.monotonic() + (self._patience if patience is None else patience)
        failures = 0
        while True:
            try:
                return self._once(method, request, max(0.5, min(self._timeout, deadline - time.monotonic())))
            except (requests.RequestException, _Garbled) as error:
                failures += 1
                pause = (_RATE_LIMITED if isinstance(error, _Busy) else _RETRY).delay(failures, _CHANCE)
                if time.monotonic() + pause >= deadline:
                    reason = str(error) if isinstance(error, _Garbled) else type(error).__name__
                    raise LedgerUnavailable(f"no answer from the chain node at {self._name}: {reason}") from None
            time.sleep(pause)

    def _once(self, method: str, request: bytes, timeout: float) -> RPCResponse:
        assert self.endpoint_uri is not None
        session = self._request_session_manager.cache_and_return_session(self.endpoint_uri)  # this thread's own
        session.trust_env = not self._direct  # a proxy cannot know our own machine
        options: dict[str, Any] = {"timeout": timeout, "stream": True, "allow_redirects": False}
        with session.post(self.endpoint_uri, request, headers=self.get_request_headers(), **options) as response:
            if response.status_code == 429:
                raise _Busy("it limits the rate of requests")
            if response.status_code in _RETRIED_STATUS:
                raise _Garbled(f"HTTP status {response.status_code}")
            body = bytearray()
            for chunk in response.iter_content(1 << 16):
                body += chunk
                if len(body) > _MAX_ANSWER:
                    raise RpcError(-32005, f"the answer to {method} is over {_MAX_ANSWER >> 20} MiB: too many results")
        try:
            answer: Any = self.decode_rpc_response(bytes(body))
        except (ValueError, RecursionError):
            raise _Garbled(f"HTTP status {response.status_code}, no JSON") from None
        error = answer.get("error") if isinstance(answer, dict) else None
        if error is not None:
            known = error if isinstance(error, dict) else {"message": str(error)}
            code, message = known.get("code"), str(known.get("message", ""))[:500]
            if code == 429 or (code != _REVERTED and _RATE_LIMIT.search(message)):
                raise _Busy(f"it limits the rate of requests: {message}")
            raise RpcError(code if isinstance(code, int) else 0, message, known.get("data"))
        if not isinstance(answer, dict) or "result" not in answer:
            raise _Garbled("an answer that is no JSON-RPC")
        return {"jsonrpc": "2.0", "id": 0, "result": answer["result"]}


class _Garbled(Exception):
    """An answer that another try may improve."""


class _Busy(_Garbled):
    """A refusal because we asked too often."""


def _host(url: str) -> str:
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and (parts.port is None or parts.port > 0)
    except ValueError:
        fine = False
    if not fine or not parts.hostname:
        raise LedgerError("the RPC URL must look like http://127.0.0.1:8545 or https://host/path")
    return parts.hostname


def _quantity(text: Any) -> int:
    try:
        return int(text, 16)
    except (TypeError, ValueError):
        raise LedgerError(f"not a number: {str(text)[:40]!r}") from None
