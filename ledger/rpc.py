"""The chain's JSON-RPC over one URL or several: bounded answers, asked for again while no chain node can be reached."""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import SystemRandom
from typing import Any

import msgspec
from web3 import Web3
from web3.providers import JSONBaseProvider
from web3.types import RPCEndpoint, RPCResponse

from dlx.ground.backoff import Backoff
from dlx.ledger.endpoint import AtOnce, Busy, Endpoint, Garbled, TooLate
from dlx.ledger.errors import AnswerTooLarge, Contradiction, LedgerError, LedgerUnavailable, RpcError, WrongLedger
from dlx.ledger.quantity import STORED, quantity

_INTERNAL_ERROR = -32603  # of the chain node itself: another may have the answer
_CHANCE = SystemRandom()  # others would have the same in all forks of one process
_RETRY = Backoff(0.1, 3.0)  # once every chain node has failed
_RATE_LIMITED = Backoff(1.0, 8.0)  # where the chain node names no time
_REST = Backoff(2.0, 60.0)  # of one that failed, while others answer
_STALE = 30.0  # seconds without a new block after which the others are asked for theirs
_LONGEST = 10.0  # that a chain node is asked to wait for a block
_LOOK_AGAIN = 600.0  # whether a chain node tells of blocks
_BEHIND = 8  # blocks by which a chain node may be late
_MOST_BLOCKS = 10**10  # ten a second for thirty years: pages of logs up to a higher head would never end

# web3 imports py_ecc, which raises it to 100,000: deeply nested JSON would overflow the C stack and end the process
# instead of raising RecursionError. The embedded chain needs this much.
sys.setrecursionlimit(min(sys.getrecursionlimit(), 12_288))

_log = logging.getLogger("dlx.ledger")

Send = Callable[[Endpoint, float], Any]  # asks a chain node; the seconds within which
Request = tuple[str, Sequence[Any]]  # a method and its params, as plain JSON has them


@dataclass(frozen=True)
class Header:
    """A block's header; time in seconds, base fee in wei."""

    number: int
    hash: bytes
    parent: bytes
    time: int
    base_fee: int
    has_logs: bool = True  # False: the chain node says that nothing in it has logs
    logs: "Logs | None" = field(default=None, compare=False)  # as the chain node told them with it


@dataclass(frozen=True)
class Logs:
    """What a chain node says are a block's logs of some contracts."""

    of: tuple[str, ...]
    found: Any


class Rpc:
    """The chain nodes at some URLs. Thread-safe. Times in seconds: `timeout` for one request, `patience` for all
    retries.

    The first URL that is well is asked. One that fails rests while others answer, one that wants us to wait is not
    asked before, and one on another chain is never used: `chain_id`, or else what the first to answer says.

    `web3` is for contracts. Requests of ours go through `call`: web3's own methods fill in defaults, decode laxly,
    and some (get_block) are not thread-safe, because they keep the method's name in an object that all threads share.
    """

    def __init__(
        self,
        urls: "str | Sequence[str] | _Endpoints",
        timeout: float = 10.0,
        patience: float = 20.0,
        chain_id: int | None = None,
    ) -> None:
        """Asks nothing. Raises LedgerError for what is no URL."""
        self._endpoints = urls if isinstance(urls, _Endpoints) else _Endpoints(urls, chain_id)
        self._timeout, self._patience = timeout, patience
        # No middleware and no ENS: they would ask the node for chain ids, gas, fees and names behind our back.
        self.web3 = Web3(_Provider(self), middleware=(), ens=None)  # type: ignore[arg-type]

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes (sent, received) so far, with the headers of HTTP: of all who share these chain nodes."""
        return self._endpoints.traffic

    def with_patience(self, patience: float) -> "Rpc":
        """The same chain nodes, and what is known of them."""
        return Rpc(self._endpoints, self._timeout, patience)

    @property
    def name(self) -> str:
        """The host that is asked next, and its port."""
        return self._endpoints.next().name

    @property
    def log_range(self) -> AtOnce:
        """Of how many blocks the chain node that is asked next gives the logs."""
        return self._endpoints.next().log_range

    def call(self, method: str, *params: Any, patience: float | None = None) -> Any:
        """The result. Raises RpcError for an error answer, LedgerUnavailable when no node answers in time
        (AnswerTooLarge where one began to), WrongLedger where all are on other chains."""
        patience = self._patience if patience is None else patience
        request = _encoded(method, params)

        def send(one: Endpoint, timeout: float) -> Any:
            return one.ask(method, request, timeout)

        return self._endpoints.ask(send, self._timeout, time.monotonic() + patience)

    def batch(self, method: str, calls: Sequence[Sequence[Any]], at_once: int = 500) -> Iterator[Any]:
        """The results of one method for the params of each call (plain JSON), in order; asked for in batches of at most
        `at_once` that shrink where the chain node refuses them. Raises as `call` does, where a single one fails."""
        done = 0
        while done < len(calls):
            size = self._endpoints.next().batches[method]
            some = calls[done : done + min(at_once, size.most)]
            try:
                found = [self.call(method, *some[0])] if len(some) == 1 else self._batch(method, some)
            except (RpcError, AnswerTooLarge) as error:
                if len(some) == 1:
                    raise
                size.refused(len(some), slow=isinstance(error, AnswerTooLarge))
                continue
            if len(some) == size.most:
                size.given()
            yield from found
            done += len(some)

    def several(self, *requests: Request) -> list[Any]:
        """The results of different requests, in one exchange where the chain node takes batches, else one after the
        other; the RpcError that answers one stands in its place. Raises LedgerUnavailable, WrongLedger."""
        one, refused = self._endpoints.next(), False
        size = one.batches["several"]
        if len(requests) <= size.most:
            batch = _encoded_batch(requests)
            try:
                return self._endpoints.once(
                    one, lambda one, timeout: one.ask_each("several", batch, len(requests), timeout), self._timeout
                )  # type: ignore[no-any-return]
            except (Garbled, RpcError):
                refused = True  # unless it cannot be asked at all
        found = [self._result_or_error(method, *params) for method, params in requests]
        if refused:
            size.refused(len(requests))
        else:
            size.given()
        return found

    def _result_or_error(self, method: str, *params: Any) -> Any:
        try:
            return self.call(method, *params)
        except RpcError as error:
            return error

    def _batch(self, method: str, calls: Sequence[Sequence[Any]]) -> list[Any]:
        request = _encoded_batch([(method, params) for params in calls])

        def send(one: Endpoint, timeout: float) -> list[Any]:
            return one.ask_all(method, request, len(calls), timeout)

        found: list[Any] = self._endpoints.ask(send, self._timeout, time.monotonic() + self._patience)
        return found

    def each(self) -> "tuple[Rpc, ...]":
        """One for every URL, which asks no other. Raises WrongLedger where all are on other chains."""
        return tuple(Rpc(one, self._timeout, self._patience) for one in self._endpoints.each())

    def number(self, method: str, *params: Any) -> int:
        """The result as a quantity."""
        return as_number(self.call(method, *params))

    def chain_id(self) -> int:
        return as_number(self.call("eth_chainId"), STORED)

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
        return None if found is None else self._asked_for(block, found)

    def headers(self, blocks: Sequence[bytes]) -> Iterator[Header | None]:
        """Those with these hashes, in batches."""
        answers = self.batch("eth_getBlockByHash", [("0x" + block.hex(), False) for block in blocks])
        for block, found in zip(blocks, answers, strict=True):
            yield None if found is None else self._asked_for(block, found)

    def head(self) -> Header:
        return self._seen(self.header("latest"))

    def head_and(self, *requests: Request) -> tuple[Header, list[Any]]:
        """The head, and the answers to other requests, as `several` gives them."""
        found, *others = self.several(("eth_getBlockByNumber", ("latest", False)), *requests)
        if isinstance(found, RpcError):
            raise found
        return self._seen(None if found is None else _header(found)), others

    def _seen(self, head: Header | None) -> Header:
        if head is None:
            raise LedgerUnavailable(f"the chain node at {self.name} has no blocks")
        self._endpoints.see(self._plausible(head).number, self._timeout)
        return head

    @property
    def tells(self) -> bool:
        """Whether `newer` waits for a block, as far as is known: where no other chain node is asked, the embedded chain
        or one by a websocket."""
        return self._endpoints.teller is not None

    def newer(self, known: Header, seconds: float, contracts: Sequence[str] = ()) -> Header:
        """The head, as `head`. Where the chain node can tell, as soon as it is another than `known`, or after so many
        seconds (at most 10); perhaps with its logs of these contracts."""
        one = self._endpoints.find_teller(self._timeout) if seconds > 0 else None
        if one is None:
            return self.head()

        def send(one: Endpoint, timeout: float) -> Any:
            return one.next_head(known.hash, min(seconds, _LONGEST), timeout, contracts)

        try:
            found = self._endpoints.once(one, send, seconds + self._timeout)
        except (Garbled, RpcError) as error:
            if isinstance(error, RpcError):  # another version's
                self._endpoints.teller = None
            return self.head()  # which is asked for again and again
        if found is None:
            return known
        newest, logs = self._plausible(_header(found)), found.get("logs") if contracts else None
        return newest if logs is None else replace(newest, logs=Logs(tuple(contracts), logs))

    def _plausible(self, head: Header) -> Header:
        if head.number > _MOST_BLOCKS:
            raise LedgerError(f"the chain node at {self.name} says that it is at block {head.number}: no chain is")
        return head

    def _asked_for(self, block: int | bytes | str, found: Any) -> Header:
        header = _header(found)
        if not isinstance(block, str) and block not in (header.number, header.hash):
            name = block if isinstance(block, int) else "0x" + block.hex()
            raise Contradiction(f"the chain node at {self.name} gave another block than {name}, which it was asked for")
        return header


class _Endpoints:
    """Which chain node is asked, and which again."""

    def __init__(self, urls: str | Sequence[str] | list[Endpoint], chain_id: int | None) -> None:
        given: list[str | Endpoint] = [urls] if isinstance(urls, str) else list(dict.fromkeys(urls))
        self._all = [Endpoint(one) if isinstance(one, str) else one for one in given]
        if not self._all:
            raise LedgerError("no RPC URL is given")
        self._chain_id = chain_id
        self._risen: tuple[int, float] = (-1, 0.0)  # the highest head seen, and when
        self.teller: Endpoint | None = None  # of which it is known that it tells of blocks
        self._look_again = 0.0  # for a teller

    @property
    def traffic(self) -> tuple[int, int]:
        return sum(one.meter.sent for one in self._all), sum(one.meter.received for one in self._all)

    def next(self) -> Endpoint:
        """The first that is well, else the one whose rest ends first. Raises WrongLedger."""
        now = time.monotonic()
        return min(self._usable(), key=lambda one: max(one.rests_until, one.closed_until, now))

    def each(self) -> "tuple[_Endpoints, ...]":
        return tuple(_Endpoints([one], self._chain_id) for one in self._usable())

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
                    raise _unavailable(reasons or {one: Busy("", None)})
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
        now = time.monotonic()
        if number > self._risen[0] or len(self._all) == 1:
            self._risen = number, now
        elif now > self._risen[1] + _STALE:
            self._risen = self._risen[0], now
            late = self.next()
            for other in self._usable():
                if other is not late and self._number(other, timeout) > number + _BEHIND:
                    _log.warning("the chain node at %s is stuck at block %d: another is asked", late.name, number)
                    late.rests_until = now + _REST.cap
                    break

    def _number(self, one: Endpoint, timeout: float) -> int:
        try:
            return as_number(self.once(one, _block_number, timeout))
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
            found = as_number(one.ask("eth_chainId", _encoded("eth_chainId"), timeout))
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


class _Provider(JSONBaseProvider):
    """What web3's contracts ask through. Error answers are raised before web3 sees them: it would fail on some that a
    hostile node can make up."""

    global_ccip_read_enabled = False  # else a revert could send us to any URL (EIP-3668)

    def __init__(self, rpc: Rpc) -> None:
        super().__init__()
        self._rpc = rpc

    def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        return {"jsonrpc": "2.0", "id": 0, "result": self._rpc.call(method, *params)}


_provider = JSONBaseProvider()  # for its encoder: what contracts are given may be web3's own types


def _encoded(method: str, params: Any = ()) -> bytes:
    return _provider.encode_rpc_request(RPCEndpoint(method), params)


def _encoded_batch(requests: Sequence[Request]) -> bytes:
    """With ids that count from 0."""
    return msgspec.json.encode(
        [{"jsonrpc": "2.0", "id": i, "method": method, "params": params} for i, (method, params) in enumerate(requests)]
    )


def _block_number(one: Endpoint, timeout: float) -> Any:
    return one.ask("eth_blockNumber", _encoded("eth_blockNumber"), timeout)


def _unavailable(reasons: dict[Endpoint, Garbled]) -> LedgerUnavailable:
    words = " and ".join(f"the chain node at {one.name}: {reason}" for one, reason in reasons.items())
    kind = AnswerTooLarge if all(isinstance(reason, TooLate) for reason in reasons.values()) else LedgerUnavailable
    return kind(f"no answer from {words}")


def _header(found: Any) -> Header:
    try:
        return Header(
            number=quantity(found["number"], STORED),
            hash=bytes.fromhex(found["hash"][2:]),
            parent=bytes.fromhex(found["parentHash"][2:]),
            time=quantity(found["timestamp"], STORED),
            base_fee=quantity(found.get("baseFeePerGas", "0x0")),
            has_logs=found.get("hasLogs") is not False,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LedgerError(f"not a block: {error!r}") from None


def as_number(text: Any, bits: int = 256) -> int:
    """What a chain node answers as a quantity. Raises LedgerError."""
    try:
        return quantity(text, bits)
    except (TypeError, ValueError):
        raise LedgerError(f"not a number: {str(text)[:40]!r}") from None
