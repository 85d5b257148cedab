"""The chain's JSON-RPC over one URL or several: bounded answers, asked for again while no chain node can be reached."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from web3 import Web3
from web3.providers import JSONBaseProvider
from web3.types import RPCEndpoint, RPCResponse

from dlx.ledger.errors import AnswerTooLarge, Contradiction, LedgerError, LedgerUnavailable, RpcError
from dlx.ledger.rpc.endpoint import AtOnce, Endpoint, Garbled
from dlx.ledger.rpc.failover import Endpoints
from dlx.ledger.rpc.quantity import STORED, as_number, quantity

_LONGEST = 10.0  # s that a chain node is asked to wait for a block
_MOST_BLOCKS = 10**10  # ten a second for thirty years: pages of logs up to a higher head would never end

Request = tuple[str, Sequence[Any]]  # a method and its params, as plain JSON has them


@dataclass(frozen=True)
class Header:
    """A block's header; time in seconds, base fee in wei (None: a chain without EIP-1559)."""

    number: int
    hash: bytes
    parent: bytes
    time: int
    base_fee: int | None
    logs: "Logs | None" = field(default=None, compare=False)  # as the chain node told them with it
    told: Any = field(default=None, compare=False, repr=False)  # all that the chain node said of it


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
        urls: "str | Sequence[str] | Endpoints",
        timeout: float = 10.0,
        patience: float = 20.0,
        chain_id: int | None = None,
    ) -> None:
        """Asks nothing. Raises LedgerError for what is no URL."""
        self._endpoints = urls if isinstance(urls, Endpoints) else Endpoints(urls, chain_id)
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

    def batch(
        self, method: str, calls: Sequence[Sequence[Any]], at_once: int = 500, patience: float | None = None
    ) -> Iterator[Any]:
        """The results of one method for the params of each call (plain JSON), in order; asked for in batches of at most
        `at_once` that shrink where the chain node refuses them. Raises as `call` does, where a single one fails."""
        done = 0
        while done < len(calls):
            size = self._endpoints.next().batches[method]
            some = calls[done : done + min(at_once, size.most)]
            try:
                if len(some) == 1:
                    found = [self.call(method, *some[0], patience=patience)]
                else:
                    found = self._batch(method, some, patience)
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

    def _batch(self, method: str, calls: Sequence[Sequence[Any]], patience: float | None) -> list[Any]:
        patience = self._patience if patience is None else patience
        request = _encoded_batch([(method, params) for params in calls])

        def send(one: Endpoint, timeout: float) -> list[Any]:
            return one.ask_all(method, request, len(calls), timeout)

        found: list[Any] = self._endpoints.ask(send, self._timeout, time.monotonic() + patience)
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

    def headers(self, blocks: Sequence[int | bytes]) -> Iterator[Header | None]:
        """Those with these numbers, or with these hashes, in batches."""
        by_hash = any(isinstance(block, bytes) for block in blocks)
        names = [("0x" + block.hex() if isinstance(block, bytes) else hex(block), False) for block in blocks]
        answers = self.batch("eth_getBlockByHash" if by_hash else "eth_getBlockByNumber", names)
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


def _header(found: Any) -> Header:
    try:
        return Header(
            number=quantity(found["number"], STORED),
            hash=bytes.fromhex(found["hash"][2:]),
            parent=bytes.fromhex(found["parentHash"][2:]),
            time=quantity(found["timestamp"], STORED),
            base_fee=None if found.get("baseFeePerGas") is None else quantity(found["baseFeePerGas"]),
            told=found,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LedgerError(f"not a block: {error!r}") from None
