"""Chain nodes at some URLs, of which another is asked where the first does not answer."""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from dlx.ground.backoff import Backoff
from dlx.ledger.errors import (
    AnswerTooLarge,
    AnswerUnusable,
    LedgerError,
    LedgerUnavailable,
    RateExceeded,
    RpcError,
    WrongLedger,
)
from dlx.ledger.rpc.endpoint import CHANCE, REST, Endpoint, Transport
from dlx.ledger.rpc.json_rpc import (
    NoAnswer,
    RateLimited,
    Request,
    SlowAnswer,
    Unusable,
    as_number,
    may_be_answered_elsewhere,
)
from dlx.ledger.rpc.recorded import Kept, Recording

LAG = 8  # blocks by which a chain node, or one behind a load balancer, may be late

_RETRY = Backoff(0.1, 3.0)  # once every chain node has failed
_STALE = 30.0  # seconds without a new block after which the others are asked for theirs
_CHECK_AGAIN = 60.0  # seconds between two looks at the chain id
_LOOK_AGAIN = 600.0  # whether a chain node tells of blocks
_SHORTEST = 0.5  # seconds for one try

_log = logging.getLogger("dlx.ledger")

_T = TypeVar("_T")
Exchange = Callable[[Transport, float], _T]  # asks a chain node; the seconds within which


class Failover:
    """Thread-safe. `timeout`: seconds for one request.

    The first URL that is well is asked. One that fails rests while others answer, one that wants us to wait is not
    asked before, and one on another chain is never used: `chain_id`, or else what the first to answer says.
    """

    def __init__(self, endpoints: Iterable[Endpoint], timeout: float, chain_id: int | None = None) -> None:
        """Asks nothing. Raises LedgerError where no URL is given."""
        self._endpoints = tuple(endpoints)
        if not self._endpoints:
            raise LedgerError("no RPC URL is given")
        self.timeout = timeout
        self._chain_id = chain_id
        self.teller: Endpoint | None = None  # of which it is known that it tells of blocks
        self._look_again = 0.0  # for a teller
        self._asking: dict[object, float] = {}  # requests under way -> when their answers were due at once
        self._late = 0.0  # the last answer

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes (sent, received) so far, with the headers of HTTP."""
        meters = [endpoint.meter for endpoint in self._endpoints]
        return sum(meter.sent for meter in meters), sum(meter.received for meter in meters)

    @property
    def late(self) -> float:
        """Seconds that the last answer took, or that one is waited for longer by now; of a block that is waited for
        only what is beyond the time that was asked for."""
        due = min(self._asking.copy().values(), default=math.inf)
        return max(self._late, time.monotonic() - due)

    @contextlib.contextmanager
    def timed(self, wait: float = 0.0) -> Iterator[None]:
        """Of requests. `wait`: seconds that the chain node is asked to wait."""
        request, due = object(), time.monotonic() + wait
        self._asking[request] = due
        try:
            yield
        finally:
            del self._asking[request]
            self._late = max(0.0, time.monotonic() - due)

    def ask(self, requests: Sequence[Request], patience: float, divisible: bool = False) -> list[Any]:
        """The results of requests that go out together. Raises RpcError where one is refused, LedgerUnavailable when no
        node answers in time (AnswerTooLarge where one began to, RateExceeded where it is for the rate of requests),
        WrongLedger where all are on other chains. Of what is `divisible`, for which less can be asked, an answer that
        is none counts the second time: AnswerUnusable."""

        def exchange(transport: Transport, timeout: float) -> list[Any]:
            found = transport.ask(requests, timeout)
            if (error := next((each for each in found if isinstance(each, RpcError)), None)) is not None:
                raise error
            return found

        with self.timed():
            return self._first_answer(exchange, time.monotonic() + patience, divisible)

    def once(self, endpoint: Endpoint, exchange: Exchange[_T], timeout: float, last: bool = True) -> _T:
        """One exchange with one chain node. Raises NoAnswer where it, or another, should be asked again."""
        try:
            self._check_chain(endpoint, timeout)
            result = exchange(endpoint.transport, timeout)
        except NoAnswer as error:
            endpoint.failed(error, time.monotonic())
            raise
        except RpcError as error:
            if last or not may_be_answered_elsewhere(error):
                raise
            endpoint.rests_until = time.monotonic() + REST.first
            raise NoAnswer(str(error)) from None
        endpoint.answered()
        return result

    def expect(self, chain_id: int) -> None:
        """Only chain nodes on this chain are asked from now on, where no chain is named."""
        self._chain_id = chain_id if self._chain_id is None else self._chain_id

    def check_chain(self) -> bool:
        """Asks again for the chain id; whether the same chain node is still the one to ask. Raises as `ask` does."""
        endpoint = self.next()
        endpoint.checked_at = None
        self.ask([("eth_chainId", ())], self.timeout)
        return self.next() is endpoint

    def rest(self) -> None:
        """The one that is asked first rests, while others answer: what it said cannot be true."""
        if len(self._endpoints) > 1:
            self.next().rests_until = time.monotonic() + REST.cap

    def next(self) -> Endpoint:
        """The first that is well, else the one whose rest ends first. Raises WrongLedger."""
        now = time.monotonic()
        return min(self._usable(), key=lambda endpoint: max(endpoint.rests_until, endpoint.closed_until, now))

    def each(self) -> "Iterator[Failover]":
        """One for every URL, which asks no other. Raises WrongLedger where all are on other chains."""
        return (Failover([endpoint], self.timeout, self._chain_id) for endpoint in self._usable())

    def recording(self, kept: Kept) -> "Failover":
        """The same chain nodes, whose answers go to `kept` (see `recorded`). Raises WrongLedger as `each` does."""
        endpoints = [Endpoint(f"http://{one.name}", Recording(one.transport, kept)) for one in self._usable()]
        return Failover(endpoints, self.timeout, self._chain_id)

    def find_teller(self) -> Endpoint | None:
        """A chain node that can be waited at. Of several none: the one that is waited at may be the one that is
        stuck."""
        now = time.monotonic()
        if self.teller is None and len(self._endpoints) == 1 and now >= self._look_again:
            self._look_again = now + _LOOK_AGAIN
            with contextlib.suppress(LedgerUnavailable, RpcError):
                tells = self._first_answer(lambda transport, timeout: transport.tells(timeout), now + self.timeout)
                self.teller = self._endpoints[0] if tells else None
        return self.teller

    def see(self, number: int) -> None:
        """Where the head has not risen for long, looks whether the others have a newer one: then the node rests."""
        now, asked = time.monotonic(), self.next()
        if number > asked.highest:
            asked.highest, asked.risen_at = number, now
        elif len(self._endpoints) > 1 and now > asked.risen_at + _STALE:
            asked.risen_at = now
            for other in self._usable():
                if other is not asked and self._head_of(other) > number + LAG:
                    _log.warning("the chain node at %s is stuck at block %d: another is asked", asked.name, number)
                    asked.rests_until = now + REST.cap
                    break

    def _first_answer(self, exchange: Exchange[_T], deadline: float, divisible: bool = False) -> _T:
        """Of the first chain node that gives one."""
        tried: dict[Endpoint, NoAnswer] = {}
        passes = 0
        while True:
            endpoint, pause = self.next(), 0.0
            if endpoint in tried:
                passes += 1
                pause = _RETRY.delay(passes, CHANCE)
                reasons, tried = tried, {}
                if divisible and passes == 2 and any(isinstance(one, Unusable) for one in reasons.values()):
                    raise AnswerUnusable(f"no answer from {_words(reasons)}")
            else:
                reasons = tried
            pause = max(pause, endpoint.closed_until - time.monotonic())
            if pause > 0:
                if time.monotonic() + pause >= deadline:
                    if not reasons:  # it was not even asked
                        raise LedgerUnavailable(f"no answer from {_words({endpoint: RateLimited('', pause)})}")
                    raise _unavailable(reasons)
                time.sleep(pause)
            untried = sum(other not in tried for other in self._usable())
            share = (deadline - time.monotonic()) / untried
            try:
                return self.once(endpoint, exchange, max(_SHORTEST, min(self.timeout, share)), last=untried == 1)
            except NoAnswer as error:
                tried[endpoint] = error

    def _head_of(self, endpoint: Endpoint) -> int:
        try:
            found = self.once(
                endpoint, lambda transport, timeout: transport.ask([("eth_blockNumber", ())], timeout), self.timeout
            )
            return as_number(found[0])
        except (LedgerError, NoAnswer):
            return -1

    def _check_chain(self, endpoint: Endpoint, timeout: float) -> None:
        """Whether it is on our chain: before it is used, after each failure, and now and then, as another chain may
        come to be behind its URL."""
        known, now = endpoint.checked_at, time.monotonic()
        if known is not None and now < known + _CHECK_AGAIN:
            return
        if len(self._endpoints) == 1 and self._chain_id is None:
            return
        try:
            found = as_number(endpoint.transport.ask([("eth_chainId", ())], timeout)[0])
        except LedgerError as error:
            raise NoAnswer(f"no chain id: {error}") from None
        if self._chain_id is None:
            self._chain_id = found
        if found != self._chain_id:
            endpoint.wrong_chain = f"the chain node at {endpoint.name} is on chain {found}, not {self._chain_id}"
            if any(other.wrong_chain is None for other in self._endpoints):
                _log.warning("%s: it is never asked again", endpoint.wrong_chain)
            raise NoAnswer(endpoint.wrong_chain)
        endpoint.checked_at = now

    def _usable(self) -> list[Endpoint]:
        usable = [endpoint for endpoint in self._endpoints if endpoint.wrong_chain is None]
        if not usable:
            raise WrongLedger("; ".join(str(endpoint.wrong_chain) for endpoint in self._endpoints))
        return usable


def _unavailable(reasons: dict[Endpoint, NoAnswer]) -> LedgerUnavailable:
    kinds = (
        (SlowAnswer, AnswerTooLarge),
        (RateLimited, RateExceeded),
        (Unusable, AnswerUnusable),
        (NoAnswer, LedgerUnavailable),
    )
    kind = next(kind for cause, kind in kinds if all(isinstance(reason, cause) for reason in reasons.values()))
    return kind(f"no answer from {_words(reasons)}")


def _words(reasons: dict[Endpoint, NoAnswer]) -> str:
    return " and ".join(f"the chain node at {endpoint.name}: {reason}" for endpoint, reason in reasons.items())
