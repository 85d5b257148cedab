"""One URL of a chain node: a request, its bounded answer, and what is remembered of the node."""

import contextlib
import logging
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec
import requests

from dlx.ground.meter import Meter
from dlx.ground.untrusted import decode_json, printable
from dlx.ledger.errors import LedgerError, RpcError
from dlx.ledger.rpc.deadline_http import WholeAnswers
from dlx.ledger.rpc.websocket import SocketBroken, WebSocket

_MAX_ANSWER = 64 << 20
_RETRIED_STATUS = {408, 425, 500, 502, 503, 504}
_TOO_LARGE = 413
_LONGEST_WAIT = 120.0  # seconds that a chain node may ask us to wait
_HEADERS = {
    "Content-Type": "application/json",
    "User-Agent": "dlx-node",
    "Accept": None,
    "Accept-Encoding": "gzip",
    "Connection": None,
}
_REVERTED = 3  # the error code whose message is a contract's word
_LIMITED = (429, -32007)  # what providers answer, inside an HTTP 200, to those who ask too often
_LIMIT_EXCEEDED = -32005  # the same, but of logs it also says that there are too many
_RATE_LIMIT = re.compile(r"rate.?limit|request rate|rate exceeded|too many requests|requests? (count|limit)|"
                         r"compute units|throughput|throttl", re.IGNORECASE)  # fmt: skip

_LADDER = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
_BATCH = 500  # requests
_CAUTIOUS = 8  # times that is asked for no more after a refusal

logging.getLogger("urllib3").setLevel(logging.ERROR)  # below that it logs the URL, which may hold an access key


class Garbled(Exception):
    """No answer, or one that another try may improve."""


class TooLate(Garbled):
    """The answer began and was not whole in time: a smaller one may be."""


class Busy(Garbled):
    """A refusal because we asked too often; `wait` has the seconds that the chain node named, if it did."""

    def __init__(self, message: str, wait: float | None) -> None:
        pause = f", and wants a pause of {wait:.0f} s" if wait else ""
        super().__init__(f"it limits the rate of requests{message and ': '}{message}{pause}")
        self.wait = wait


class AtOnce:
    """How much a chain node gives at once: found out by asking, and remembered."""

    def __init__(self, first: int, most: int) -> None:
        """Both of the ladder."""
        self._rung, self._top, self._cautious = _LADDER.index(first), _LADDER.index(most), 0

    @property
    def most(self) -> int:
        return _LADDER[self._rung]

    def refused(self, asked: int, slow: bool = False) -> None:
        """So much was too much; `slow`: and took all the time there was to say so, which few tries can be spent on."""
        self._rung, self._cautious = max(0, bisect_left(_LADDER, asked) - (3 if slow else 1)), _CAUTIOUS

    def given(self) -> None:
        """As much as may be was given: now and then more is asked for."""
        self._cautious = max(0, self._cautious - 1)
        if not self._cautious:
            self._rung = min(self._rung + 1, self._top)


class Endpoint:
    """A chain node behind a URL. Thread-safe. Times are of the monotonic clock."""

    def __init__(self, url: str) -> None:
        """Asks nothing. Raises LedgerError for what is no URL."""
        self.name = _host(url)  # the full URL never gets into a message
        self.log_range = AtOnce(5_000, 100_000)  # of how many blocks it gives the logs
        self.batches: defaultdict[str, AtOnce] = defaultdict(lambda: AtOnce(_BATCH, _BATCH))  # by method
        self.failures = 0  # in a row
        self.rests_until = 0.0  # before which others are asked first
        self.closed_until = 0.0  # before which it wants no requests
        self.checked = False  # whether it is on the chain that it should be on
        self.wrong: str | None = None  # why it is never asked again
        self.meter = Meter()  # of requests and answers with their headers
        parts = urlsplit(url)
        self._url, self._direct = url, parts.hostname in ("127.0.0.1", "::1", "localhost")
        is_socket = parts.scheme in ("ws", "wss")
        self._socket = WebSocket(url, self._direct, _MAX_ANSWER, self.meter) if is_socket else None
        self._idle: list[requests.Session] = []  # threads share them: a chain node has few connections for each client

    def ask(self, method: str, request: bytes, timeout: float) -> Any:
        """The result of a JSON-RPC request, whole after `timeout` seconds. Raises RpcError for an error answer,
        Garbled where another try may help."""
        answer, wait = self._post(method, request, timeout)
        if isinstance(answer, list):
            raise Garbled("an answer that is no JSON-RPC")
        return _result(method, answer, wait)

    def ask_all(self, method: str, batch: bytes, count: int, timeout: float) -> list[Any]:
        """The results of a batch of `count` requests whose ids count from 0; raises as `ask` does, for all at once."""
        found = self.ask_each(method, batch, count, timeout)
        for one in found:
            if isinstance(one, RpcError):
                raise one
        return found

    def ask_each(self, method: str, batch: bytes, count: int, timeout: float) -> list[Any]:
        """As `ask_all`, but the error that answers one of the requests stands in its place."""
        answers, wait = self._post(method, batch, timeout)
        if not isinstance(answers, list):
            _result(method, answers, wait)  # says why there is no batch
            raise Garbled("an answer that is no batch")
        by_id = {answer.get("id"): answer for answer in answers if isinstance(answer, dict)}
        if len(answers) != count or set(by_id) != set(range(count)):
            refusal = next((answer for answer in answers if isinstance(answer, dict) and answer.get("error")), None)
            _result(method, refusal, wait)
            raise Garbled("a batch of other answers than were asked for")
        return [_result_or_error(method, by_id[identity], wait) for identity in range(count)]

    def tells(self, timeout: float) -> bool:
        """Whether it tells of new blocks: by a subscription over a websocket, or as the embedded chain does. Raises as
        `ask` does."""
        if self._socket is None:
            return str(self.ask(*request("web3_clientVersion"), timeout)).startswith("dlx-chain/")
        with _garbled():
            return self._socket.tells(timeout)

    def next_head(self, known: bytes, seconds: float, timeout: float, contracts: Sequence[str] = ()) -> Any:
        """Of one that tells: the header of its newest block as soon as that is another than `known`, perhaps with its
        logs of these contracts; None after so many seconds. Raises as `ask` does."""
        if self._socket is None:
            more = [list(contracts)] if contracts else []
            return self.ask(*request("dlx_waitForBlock", "0x" + known.hex(), seconds, *more), timeout)
        with _garbled():
            return self._socket.newer(known, seconds, timeout)

    def _post(self, method: str, request: bytes, timeout: float) -> tuple[Any, float | None]:
        """The decoded answer, and the seconds that the chain node wants us to wait."""
        if self._socket is not None:
            with _garbled():
                return self._socket.ask(request, timeout), None
        options: dict[str, Any] = {"timeout": timeout, "stream": True, "allow_redirects": False, "headers": _HEADERS}
        session = self._session()
        try:
            with session.post(self._url, request, **options) as response:
                wait = _seconds(response.headers.get("Retry-After"))
                if response.status_code == 429 or (response.status_code == 503 and wait is not None):
                    raise Busy("", wait)
                if response.status_code in _RETRIED_STATUS:
                    raise Garbled(f"HTTP status {response.status_code}")
                if response.status_code == _TOO_LARGE:
                    raise RpcError(_LIMIT_EXCEEDED, "HTTP status 413: too much at once")
                if response.is_redirect:
                    raise Garbled(f"it redirects to {_target(response)}, which is not followed: name that as --rpc-url")
                body = _read(response, method)
        except requests.RequestException as error:
            raise Garbled(type(error).__name__) from None
        finally:
            self._idle.append(session)
        try:
            return decode_json(body), wait
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Garbled(f"HTTP status {response.status_code}, no JSON") from None

    def _session(self) -> requests.Session:
        """For this thread, until it is laid back."""
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        session = requests.Session()
        session.trust_env = not self._direct  # a proxy cannot know our own machine
        for scheme in ("http://", "https://"):
            session.mount(scheme, WholeAnswers(self.meter))
        return session


@contextlib.contextmanager
def _garbled() -> Iterator[None]:
    try:
        yield
    except SocketBroken as error:
        raise Garbled(str(error)) from None


def request(method: str, *params: Any) -> tuple[str, bytes]:
    """A method, and the request for it, as `ask` takes them."""
    return method, msgspec.json.encode({"jsonrpc": "2.0", "id": 0, "method": method, "params": params})


def _result(method: str, answer: Any, wait: float | None) -> Any:
    refusal = answer.get("error") if isinstance(answer, dict) else None
    if refusal is not None:
        raise _error(method, refusal if isinstance(refusal, dict) else {"message": str(refusal)}, wait)
    if not isinstance(answer, dict) or "result" not in answer:
        raise Garbled("an answer that is no JSON-RPC")
    return answer["result"]


def _result_or_error(method: str, answer: Any, wait: float | None) -> Any:
    try:
        return _result(method, answer, wait)
    except RpcError as error:
        return error


def _read(response: requests.Response, method: str) -> bytes:
    if response.headers.get("Content-Encoding", "identity").strip().lower() not in ("gzip", "identity"):
        raise Garbled("an answer in an encoding that was not asked for")  # layers of it unpack for ever, to nothing
    body = bytearray()
    try:
        for chunk in response.iter_content(1 << 16):
            body += chunk
            if len(body) > _MAX_ANSWER:
                raise RpcError(-32005, f"the answer to {method} is over {_MAX_ANSWER >> 20} MiB: too many results")
    except requests.RequestException as error:
        if "timed out" in str(error) or "not whole in time" in str(error):
            raise TooLate("the answer was not whole in time") from None
        raise
    return bytes(body)


def _error(method: str, error: dict[str, Any], wait: float | None) -> Exception:
    code, data = error.get("code"), error.get("data")
    message = printable(" ".join(str(error.get("message", "")).split()), 500)
    limited = code in _LIMITED or (code == _LIMIT_EXCEEDED and method != "eth_getLogs")
    if limited or (code != _REVERTED and _RATE_LIMIT.search(message)):
        return Busy(message, _named_wait(data) if wait is None else wait)
    return RpcError(code if isinstance(code, int) else 0, message, data)


def _target(response: requests.Response) -> str:
    """The scheme and host of a redirect: the rest may hold an access key."""
    try:
        parts = urlsplit(urljoin(response.url, response.headers["Location"]))
    except ValueError:
        return "no URL"
    return printable(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", 100)


def _named_wait(data: Any) -> float | None:
    """The seconds that Infura names inside its error."""
    rate = data.get("rate", data) if isinstance(data, dict) else None
    seconds = rate.get("backoff_seconds") if isinstance(rate, dict) else None
    return min(max(0.0, float(seconds)), _LONGEST_WAIT) if isinstance(seconds, int | float) else None


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
    return min(max(0.0, seconds), _LONGEST_WAIT)


def _host(url: str) -> str:
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https", "ws", "wss") and (parts.port is None or parts.port > 0)
    except ValueError:
        fine = False
    if not fine or not parts.hostname:
        raise LedgerError("the RPC URL must look like http://127.0.0.1:8545, https://host/path or wss://host/path")
    return parts.netloc.rpartition("@")[2]
