"""One URL of a chain node, and what is remembered of the node behind it."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from random import SystemRandom
from typing import Any, Protocol
from urllib.parse import urlsplit

from dlx.ground.backoff import Backoff
from dlx.ground.meter import Meter
from dlx.ledger.errors import LedgerError
from dlx.ledger.rpc.http_transport import HttpTransport
from dlx.ledger.rpc.json_rpc import NoAnswer, RateLimited, Request
from dlx.ledger.rpc.websocket import WebSocketTransport

CHANCE = SystemRandom()  # others would have the same in all forks of one process
REST = Backoff(2.0, 60.0)  # of one that failed, while others answer
_RATE_LIMITED = Backoff(1.0, 8.0)  # where the chain node names no time

_LADDER = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
_BATCH = 500  # requests
_CAUTIOUS = 8  # times that is asked for no more after a refusal


class Transport(Protocol):
    """How requests reach a chain node. Thread-safe. `timeout` in seconds, for one exchange."""

    def ask(self, requests: Sequence[Request], timeout: float) -> list[Any]:
        """What `json_rpc.results` makes of the answer, which is whole after `timeout`."""
        ...

    def tells(self, timeout: float) -> bool:
        """Whether `next_head` can be asked for. Raises as `ask` does."""
        ...

    def next_head(self, seen: bytes, seconds: float, timeout: float, contracts: Sequence[str]) -> Any:
        """The header of the newest block as soon as its hash is another than `seen`, perhaps with its logs of these
        contracts; None after so many seconds. Raises as `ask` does."""
        ...


class AdaptiveSize:
    """How much a chain node gives at once: found out by asking, and remembered."""

    def __init__(self, first: int, top: int) -> None:
        """Both of the ladder."""
        self._rung, self._top, self._cautious = _LADDER.index(first), _LADDER.index(top), 0

    @property
    def limit(self) -> int:
        return _LADDER[self._rung]

    def refused(self, size: int, slow: bool = False) -> None:
        """So much was too much; `slow`: and took all the time there was to say so, which few tries can be spent on."""
        self._rung, self._cautious = max(0, bisect_left(_LADDER, size) - (3 if slow else 1)), _CAUTIOUS

    def given(self) -> None:
        """As much as may be was given: now and then more is asked for."""
        self._cautious = max(0, self._cautious - 1)
        if not self._cautious:
            self._rung = min(self._rung + 1, self._top)


class Endpoint:
    """A chain node behind a URL. Times are of the monotonic clock."""

    def __init__(self, url: str, transport: Transport | None = None) -> None:
        """Asks nothing. `transport`: another than the URL says, which then is but a name. Raises LedgerError for what
        is no URL."""
        self.name = _host(url)  # the full URL never gets into a message
        self.log_range = AdaptiveSize(5_000, 100_000)  # of how many blocks it gives the logs
        self.batches: defaultdict[str, AdaptiveSize] = defaultdict(lambda: AdaptiveSize(_BATCH, _BATCH))  # by method
        self.failures = 0  # in a row
        self.rests_until = 0.0  # before which others are asked first
        self.closed_until = 0.0  # before which it wants no requests
        self.highest, self.risen_at = -1, 0.0  # its highest head, and when that was seen
        self.checked_at: float | None = None  # when it was on our chain; None: not since it last failed
        self.wrong_chain: str | None = None  # why it is never asked again
        self.meter = Meter()  # of requests and answers with their headers
        parts = urlsplit(url)
        direct = parts.hostname in ("127.0.0.1", "::1", "localhost")
        by_socket = parts.scheme in ("ws", "wss")
        by_url = WebSocketTransport if by_socket else HttpTransport
        self.transport: Transport = transport or by_url(url, direct, self.meter)

    def failed(self, error: NoAnswer, now: float) -> None:
        """Notes that it gave no answer."""
        self.failures += 1
        if isinstance(error, RateLimited):
            self.closed_until = now + (error.wait or _RATE_LIMITED.delay(self.failures, CHANCE))
        else:
            self.rests_until = now + REST.delay(self.failures, CHANCE)
            self.checked_at = None  # what comes back may be another chain's

    def answered(self) -> None:
        self.failures, self.rests_until = 0, 0.0


def _host(url: str) -> str:
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https", "ws", "wss") and (parts.port is None or parts.port > 0)
    except ValueError:
        fine = False
    if not fine or not parts.hostname:
        raise LedgerError("the RPC URL must look like http://127.0.0.1:8545, https://host/path or wss://host/path")
    return parts.netloc.rpartition("@")[2]
