"""JSON-RPC by HTTP: bounded answers, whole by a deadline however slowly their bytes come, and counted."""

import contextlib
import http.client
import io
import logging
import socket
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec
from requests import RequestException, Response, Session, Timeout
from requests.adapters import HTTPAdapter
from requests.exceptions import ConnectionError as Unconnected
from requests.exceptions import ProxyError, SSLError
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from dlx.ground.meter import Meter
from dlx.ground.untrusted import decode_json, printable
from dlx.ledger.errors import RpcError
from dlx.ledger.rpc.json_rpc import (
    LIMIT_EXCEEDED,
    LONGEST_WAIT,
    MAX_ANSWER,
    NoAnswer,
    RateLimited,
    Request,
    SlowAnswer,
    Unusable,
    encode,
    is_refusal,
    may_be_answered_elsewhere,
    refusal_of_batch,
    results,
)

_RETRIED_STATUS = {408, 425, 500, 502, 503, 504}
_LATER = {408, 425, 502, 503}  # of those: it says nothing about what was asked for
_TOO_LARGE = 413
_HEADERS = {
    "Content-Type": "application/json",
    "User-Agent": "dlx-node",
    "Accept": None,
    "Accept-Encoding": "gzip",
    "Connection": None,
}

logging.getLogger("urllib3").setLevel(logging.ERROR)  # below that it logs the URL, which may hold an access key


class HttpTransport:
    """As `endpoint.Transport` says."""

    def __init__(self, url: str, direct: bool, meter: Meter) -> None:
        self._url, self._direct, self._meter = url, direct, meter
        self._idle: list[Session] = []  # threads share them: a chain node has few connections for each client

    def ask(self, requests: Sequence[Request], timeout: float) -> list[Any]:
        answer, wait, failed = self._post(requests, timeout)
        try:
            return results(requests, answer, wait)
        except RpcError as error:
            if failed and len(requests) == 1 and may_be_answered_elsewhere(error):
                raise Unusable(f"HTTP status {failed}: {error}") from None
            raise

    def tells(self, timeout: float) -> bool:
        """As the embedded chain does."""
        return str(self.ask([("web3_clientVersion", ())], timeout)[0]).startswith("dlx-chain/")

    def next_head(self, seen: bytes, seconds: float, timeout: float, contracts: Sequence[str]) -> Any:
        params = ["0x" + seen.hex(), seconds, *([list(contracts)] if contracts else [])]
        return self.ask([("dlx_waitForBlock", params)], timeout)[0]

    def _post(self, requests: Sequence[Request], timeout: float) -> tuple[Any, float | None, int]:
        """The decoded answer, the seconds that the chain node wants us to wait, and the status by which it failed, 0
        where it did not. Some providers send a refusal that way, of a batch that is too large for instance."""
        options: dict[str, Any] = {"timeout": timeout, "stream": True, "allow_redirects": False, "headers": _HEADERS}
        session = self._session()
        try:
            with session.post(self._url, encode(requests), **options) as response:
                wait = _seconds(response.headers.get("Retry-After"))
                _check_status(response, wait, requests)
                content, status = _read(response, requests[0][0]), response.status_code
        except Timeout:
            raise NoAnswer("no answer in time") from None
        except RequestException as error:
            raise NoAnswer(_in_words(error)) from None
        finally:
            self._idle.append(session)
        failed = status if status in _RETRIED_STATUS else 0
        kind = NoAnswer if status in _LATER else Unusable
        try:
            answer = decode_json(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise kind(f"HTTP status {status}{'' if failed else ', no JSON'}") from None
        if failed and not is_refusal(answer):
            raise kind(f"HTTP status {status}")
        return answer, wait, failed

    def _session(self) -> Session:
        """For this thread, until it is laid back."""
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        session = Session()
        session.trust_env = not self._direct  # a proxy cannot know our own machine
        for scheme in ("http://", "https://"):
            session.mount(scheme, _DeadlineAdapter(self._meter))
        return session


def _in_words(error: RequestException) -> str:
    """What went wrong, without URL, which may hold a key."""
    words = {SSLError: "TLS fails", ProxyError: "the proxy does not connect", Unconnected: "no connection"}
    return next((said for kind, said in words.items() if isinstance(error, kind)), type(error).__name__)


def _check_status(response: Response, wait: float | None, requests: Sequence[Request]) -> None:
    """Raises NoAnswer, RateLimited or RpcError for what is no answer, whatever its body: but that of a limited rate may
    refuse a batch for good."""
    if response.status_code == 429 or (response.status_code == 503 and wait is not None):
        raise (_refusal_of_batch(response) if len(requests) > 1 else None) or RateLimited("", wait)
    if response.status_code == _TOO_LARGE:
        raise RpcError(LIMIT_EXCEEDED, "HTTP status 413: too much at once")
    if response.is_redirect:
        raise NoAnswer(f"it redirects to {_target(response)}, which is not followed: name that as --rpc-url")


def _refusal_of_batch(response: Response) -> RpcError | None:
    try:
        return refusal_of_batch(decode_json(_read(response, "a batch")))
    except (NoAnswer, RpcError, RequestException, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _read(response: Response, method: str) -> bytes:
    if response.headers.get("Content-Encoding", "identity").strip().lower() not in ("gzip", "identity"):
        raise NoAnswer("an answer in an encoding that was not asked for")  # layers of it unpack for ever, to nothing
    body = bytearray()
    try:
        for chunk in response.iter_content(1 << 16):
            body += chunk
            if len(body) > MAX_ANSWER:
                text = f"the answer to {method} is over {MAX_ANSWER >> 20} MiB: too many results"
                raise RpcError(LIMIT_EXCEEDED, text)
    except RequestException as error:
        if "timed out" in str(error) or "not whole in time" in str(error):
            raise SlowAnswer("the answer was not whole in time") from None
        raise
    return bytes(body)


def _target(response: Response) -> str:
    """The scheme and host of a redirect: the rest may hold an access key."""
    try:
        parts = urlsplit(urljoin(response.url, response.headers["Location"]))
    except ValueError:
        return "no URL"
    return printable(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", 100)


def _seconds(retry_after: str | None) -> float | None:
    """What a Retry-After header means: a number of seconds, or a date."""
    if retry_after is None:
        return None
    try:
        if retry_after.strip().isascii() and retry_after.strip().isdecimal():
            seconds = float(retry_after[:12])
        else:
            seconds = (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds()
    except (TypeError, ValueError):
        return None
    return min(max(0.0, seconds), LONGEST_WAIT)


class _DeadlineAdapter(HTTPAdapter):
    """For a Session: its read timeout is the time for headers and body together. A socket's own begins anew
    with each byte, so that a server which drips them would hold a request for ever.

    `meter` counts requests and answers with their headers, as they are before TLS.
    """

    def __init__(self, meter: Meter) -> None:
        self._pools = _pools(meter)
        super().__init__()

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*args, **options)
        manager.pool_classes_by_scheme = self._pools
        return manager


class _Response(http.client.HTTPResponse):
    def __init__(self, meter: Meter, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        deadline = time.monotonic() + (sock.gettimeout() or 0.0)
        self.fp = io.BufferedReader(_UntilDeadline(self.fp.detach(), sock, deadline, meter))


class _UntilDeadline(io.RawIOBase):
    """A socket's bytes. Raises TimeoutError after the deadline."""

    def __init__(self, source: Any, sock: socket.socket, deadline: float, meter: Meter) -> None:
        self._source, self._sock, self._deadline, self._meter = source, sock, deadline, meter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer was not whole in time")
        self._sock.settimeout(left)
        size: int | None = self._source.readinto(buffer)
        self._meter.add(received=size or 0)
        return size

    def close(self) -> None:
        self._source.close()
        super().close()


def _pools(meter: Meter) -> dict[str, Any]:
    """The classes of connections that a session makes, by scheme."""

    class Metered(HTTPConnection):
        response_class = staticmethod(partial(_Response, meter))  # type: ignore[assignment]

        def send(self, data: Any) -> None:
            super().send(data)
            meter.add(sent=len(data))

    class SecureMetered(Metered, HTTPSConnection):
        pass

    class Pool(HTTPConnectionPool):
        ConnectionCls = Metered

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = SecureMetered

    return {"http": Pool, "https": SecurePool}
