"""The chain nodes at some URLs: which is asked, which rests, and which is never asked again."""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from random import SystemRandom
from typing import Any

from dlx.ground.backoff import Backoff
from dlx.ledger.errors import AnswerTooLarge, LedgerError, LedgerUnavailable, RpcError, WrongLedger
from dlx.ledger.rpc.endpoint import Busy, Endpoint, Garbled, TooLate, request
from dlx.ledger.rpc.quantity import as_number

_INTERNAL_ERROR = -32603  # of the chain node itself: another may have the answer
_CHANCE = SystemRandom()  # others would have the same in all forks of one process
_RETRY = Backoff(0.1, 3.0)  # once every chain node has failed
_RATE_LIMITED = Backoff(1.0, 8.0)  # where the chain node names no time
_REST = Backoff(2.0, 60.0)  # of one that failed, while others answer
_STALE = 30.0  # seconds without a new block after which the others are asked for theirs
_LOOK_AGAIN = 600.0  # whether a chain node tells of blocks
LAG = 8  # blocks by which a chain node, or one behind a load balancer, may be late

_log = logging.getLogger("dlx.ledger")

Send = Callable[[Endpoint, float], Any]  # asks a chain node; the seconds within which


class Endpoints:
    """Which chain node is asked, and which again."""

    def __init__(self, urls: str | Sequence[str] | list[Endpoint], chain_id: int | None) -> None:
        given: list[str | Endpoint] = [urls] if isinstance(urls, str) else list(dict.fromkeys(urls))
        self._all = [Endpoint(one) if isinstance(one, str) else one for one in given]
        if not self._all:
            raise LedgerError("no RPC URL is given")
        self._chain_id = chain_id
        self._risen: dict[Endpoint, tuple[int, float]] = {}  # the highest head of each, and when it was seen
        self.teller: Endpoint | None = None  # of which it is known that it tells of blocks
        self._look_again = 0.0  # for a teller

    @property
    def traffic(self) -> tuple[int, int]:
        return sum(one.meter.sent for one in self._all), sum(one.meter.received for one in self._all)

    def next(self) -> Endpoint:
        """The first that is well, else the one whose rest ends first. Raises WrongLedger."""
        now = time.monotonic()
        return min(self._usable(), key=lambda one: max(one.rests_until, one.closed_until, now))

    def each(self) -> "tuple[Endpoints, ...]":
        return tuple(Endpoints([one], self._chain_id) for one in self._usable())

    def ask(self, send: Send, timeout: float, deadline: float) -> Any:
        """The result of the first that gives one. Raises as `Rpc.call` does."""
        tried: dict[Endpoint, Garbled] = {}
        passes = 0
        while True:
            one, pause = self.next(), 0.0
            if one in tried:
                passes += 1
                pause = _RETRY.delay(passes, _CHANCE)
                reasons, tried = tried, {}
            else:
                reasons = tried
            pause = max(pause, one.closed_until - time.monotonic())
            if pause > 0:
                if time.monotonic() + pause >= deadline:
                    raise _unavailable(reasons or {one: Busy("", pause)})
                time.sleep(pause)
            untried = sum(other not in tried for other in self._usable())
            share = (deadline - time.monotonic()) / untried
            try:
                return self.once(one, send, max(0.5, min(timeout, share)), last=untried == 1)
            except Garbled as error:
                tried[one] = error

    def find_teller(self, timeout: float) -> Endpoint | None:
        """A chain node that can be waited at. Of several none: the one that is waited at may be the one that is
        stuck."""
        now = time.monotonic()
        if self.teller is None and len(self._all) == 1 and now >= self._look_again:
            self._look_again = now + _LOOK_AGAIN
            with contextlib.suppress(LedgerUnavailable, RpcError):
                tells = self.ask(lambda one, timeout: one.tells(timeout), timeout, now + timeout)
                self.teller = self._all[0] if tells else None
        return self.teller

    def see(self, number: int, timeout: float) -> None:
        """Where the head has not risen for long, looks whether the others have a newer one: then the node rests."""
        now, late = time.monotonic(), self.next()
        highest, since = self._risen.get(late, (-1, now))
        if number > highest or len(self._all) == 1:
            self._risen[late] = number, now
        elif now > since + _STALE:
            self._risen[late] = highest, now
            for other in self._usable():
                if other is not late and self._number(other, timeout) > number + LAG:
                    _log.warning("the chain node at %s is stuck at block %d: another is asked", late.name, number)
                    late.rests_until = now + _REST.cap
                    break

    def _number(self, one: Endpoint, timeout: float) -> int:
        try:
            return as_number(
                self.once(one, lambda one, timeout: one.ask(*request("eth_blockNumber"), timeout), timeout)
            )
        except (LedgerError, Garbled):
            return -1

    def once(self, one: Endpoint, send: Send, timeout: float, last: bool = True) -> Any:
        """One request to one chain node. Raises Garbled where it, or another, should be asked again."""
        try:
            self._check(one, timeout)
            result = send(one, timeout)
        except Garbled as error:
            one.failures += 1
            if isinstance(error, Busy):
                wait = error.wait or _RATE_LIMITED.delay(one.failures, _CHANCE)
                one.closed_until = time.monotonic() + wait
            else:
                one.rests_until = time.monotonic() + _REST.delay(one.failures, _CHANCE)
                one.checked = False  # what comes back may be another chain's
            raise
        except RpcError as error:
            if error.code != _INTERNAL_ERROR or last:
                raise
            one.rests_until = time.monotonic() + _REST.first
            raise Garbled(str(error)) from None
        one.failures, one.rests_until = 0, 0.0
        return result

    def _check(self, one: Endpoint, timeout: float) -> None:
        """Whether it is on our chain: before it is used, and after each failure."""
        if one.checked or (len(self._all) == 1 and self._chain_id is None):
            return
        try:
            found = as_number(one.ask(*request("eth_chainId"), timeout))
        except LedgerError as error:
            raise Garbled(f"no chain id: {error}") from None
        if self._chain_id is None:
            self._chain_id = found
        if found != self._chain_id:
            one.wrong = f"the chain node at {one.name} is on chain {found}, not {self._chain_id}"
            if any(other.wrong is None for other in self._all):
                _log.warning("%s: it is never asked again", one.wrong)
            raise Garbled(one.wrong)
        one.checked = True

    def _usable(self) -> list[Endpoint]:
        usable = [one for one in self._all if one.wrong is None]
        if not usable:
            raise WrongLedger("; ".join(str(one.wrong) for one in self._all))
        return usable


def _unavailable(reasons: dict[Endpoint, Garbled]) -> LedgerUnavailable:
    words = " and ".join(f"the chain node at {one.name}: {reason}" for one, reason in reasons.items())
    kind = AnswerTooLarge if all(isinstance(reason, TooLate) for reason in reasons.values()) else LedgerUnavailable
    return kind(f"no answer from {words}")
