"""What is asked of chain nodes by JSON-RPC, and what their answers say: numbers, bytes, headers, batches, new heads."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from web3 import Web3
from web3.providers import BaseProvider
from web3.types import RPCEndpoint, RPCResponse

from dlx.ledger.errors import (
    AnswerTooLarge,
    AnswerUnusable,
    Contradiction,
    LedgerError,
    LedgerUnavailable,
    RateExceeded,
    RpcError,
)
from dlx.ledger.rpc.endpoint import AdaptiveSize, Endpoint, Transport
from dlx.ledger.rpc.failover import Failover
from dlx.ledger.rpc.headers import Header, Logs, told_header
from dlx.ledger.rpc.json_rpc import STORED, NoAnswer, Request, as_number, octets
from dlx.ledger.rpc.recorded import Kept

TIMEOUT = 10.0  # s for an answer, where nobody says otherwise
_LONGEST = 10.0  # s that a chain node is asked to wait for a block
_MOST_BLOCKS = 10**10  # ten a second for thirty years: pages of logs up to a higher head would never end


class PatientProvider(BaseProvider):
    """What web3's contracts ask through: some chain nodes, with `patience` in seconds for all retries."""

    global_ccip_read_enabled = False  # else a revert could send us to any URL (EIP-3668)

    def __init__(self, chain_nodes: Failover, patience: float) -> None:
        super().__init__()
        self._chain_nodes, self._patience = chain_nodes, patience

    def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        """Error answers are raised before web3 sees them: it would fail on some that a hostile node can make up."""
        return {"jsonrpc": "2.0", "id": 0, "result": self._chain_nodes.ask([(method, params)], self._patience)[0]}


class RpcClient:
    """The chain nodes at some URLs, asked as `Failover` says. Thread-safe.

    `web3` is for contracts. Requests of ours go through `call`: web3's own methods fill in defaults, decode laxly,
    and some (get_block) are not thread-safe, because they keep the method's name in an object that all threads share.
    """

    def __init__(
        self,
        urls: str | Sequence[str] | Failover,
        timeout: float = TIMEOUT,
        patience: float | None = None,
        chain_id: int | None = None,
    ) -> None:
        """Asks nothing. `timeout`: seconds after which an answer has to be whole; `patience`: for which a request is
        repeated, twice as long where none is given. Raises LedgerError for what is no URL."""
        if not isinstance(urls, Failover):
            each = [urls] if isinstance(urls, str) else list(dict.fromkeys(urls))
            urls = Failover(map(Endpoint, each), timeout, chain_id)
        patience = 2 * urls.timeout if patience is None else patience
        self._chain_nodes, self._patience = urls, patience
        # No middleware and no ENS: they would ask the node for chain ids, gas, fees and names behind our back.
        self.web3 = Web3(PatientProvider(self._chain_nodes, patience), middleware=(), ens=None)

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes (sent, received) so far, with the headers of HTTP: of all who share these chain nodes."""
        return self._chain_nodes.traffic

    @property
    def late(self) -> float:
        """As in Failover."""
        return self._chain_nodes.late

    def with_patience(self, patience: float) -> "RpcClient":
        """The same chain nodes, and what is known of them."""
        return RpcClient(self._chain_nodes, patience=patience)

    def impatient(self) -> "RpcClient":
        """The same, for who asks again anyway: it gives up after half the time of an answer."""
        return self.with_patience(self.timeout / 2)

    @property
    def timeout(self) -> float:
        """Seconds after which an answer has to be whole."""
        return self._chain_nodes.timeout

    def each(self) -> "tuple[RpcClient, ...]":
        """One for every URL, which asks no other. Raises WrongLedger where all are on other chains."""
        return tuple(RpcClient(one, patience=self._patience) for one in self._chain_nodes.each())

    def recording(self, kept: Kept) -> Failover:
        """As in Failover."""
        return self._chain_nodes.recording(kept)

    @property
    def name(self) -> str:
        """The host that is asked next, and its port."""
        return self._chain_nodes.next().name

    @property
    def log_range(self) -> AdaptiveSize:
        """Of how many blocks the chain node that is asked next gives the logs."""
        return self._chain_nodes.next().log_range

    def call(self, method: str, *params: Any, patience: float | None = None) -> Any:
        """The result. Raises RpcError for an error answer, LedgerUnavailable when no node answers in time
        (AnswerTooLarge where one began to), WrongLedger where all are on other chains."""
        return self._ask([(method, params)], patience)[0]

    def batch(
        self,
        method: str,
        calls: Sequence[Sequence[Any]],
        at_once: int = 500,
        patience: float | None = None,
        divisible: bool = False,
    ) -> Iterator[Any]:
        """The results of one method for the params of each call, in order; asked for in batches of at most `at_once`
        that shrink where the chain node refuses them. Raises as `call` does, where a single one fails; sooner where it
        is `divisible`, as in Failover."""
        done = 0
        while done < len(calls):
            size = self._chain_nodes.next().batches[method]
            page = calls[done : done + min(at_once, size.limit)]
            try:
                found = self._ask([(method, params) for params in page], patience, divisible or len(page) > 1)
            except (RpcError, AnswerTooLarge, AnswerUnusable, RateExceeded) as error:
                if len(page) == 1:
                    raise
                size.refused(len(page), slow=isinstance(error, AnswerTooLarge | RateExceeded))
                continue
            if len(page) == size.limit:
                size.given()
            yield from found
            done += len(page)

    def several(self, *requests: Request) -> list[Any]:
        """The results of different requests, in one exchange where the chain node takes batches, else one after the
        other; the RpcError that answers one stands in its place. Raises LedgerUnavailable, WrongLedger."""
        endpoint, refused = self._chain_nodes.next(), False
        size = endpoint.batches["several"]
        if len(requests) <= size.limit:
            try:
                return self._chain_nodes.once(
                    endpoint, lambda transport, timeout: transport.ask(requests, timeout), self._chain_nodes.timeout
                )
            except (NoAnswer, RpcError):
                refused = True  # unless it cannot be asked at all
        found = [self._result_or_error(method, *params) for method, params in requests]
        if refused:
            size.refused(len(requests))
        else:
            size.given()
        return found

    def number(self, method: str, *params: Any) -> int:
        """The result as a quantity."""
        return as_number(self.call(method, *params))

    def expect(self, chain_id: int) -> None:
        """As in Failover."""
        self._chain_nodes.expect(chain_id)

    def check_chain(self) -> bool:
        """As in Failover."""
        return self._chain_nodes.check_chain()

    def rest(self) -> None:
        """As in Failover."""
        self._chain_nodes.rest()

    def chain_id(self) -> int:
        return as_number(self.call("eth_chainId"), STORED)

    def data(self, method: str, *params: Any) -> bytes:
        """The result as bytes."""
        result = self.call(method, *params)
        try:
            return octets(result)
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
        return self._seen(None if found is None else told_header(found)), others

    def _seen(self, head: Header | None) -> Header:
        if head is None:
            raise LedgerUnavailable(f"the chain node at {self.name} has no blocks")
        self._chain_nodes.see(self._plausible(head).number)
        return head

    @property
    def tells(self) -> bool:
        """Whether `newer` waits for a block, as far as is known: where no other chain node is asked, the embedded chain
        or one by a websocket."""
        return self._chain_nodes.teller is not None

    def newer(self, seen: Header, seconds: float, contracts: Sequence[str] = ()) -> Header:
        """The head, as `head`. Where the chain node can tell, as soon as it is another than `seen`, or after so many
        seconds (at most 10); perhaps with its logs of these contracts."""
        teller = self._chain_nodes.find_teller() if seconds > 0 else None
        if teller is None:
            return self.head()

        def wait(transport: Transport, timeout: float) -> Any:
            return transport.next_head(seen.hash, min(seconds, _LONGEST), timeout, contracts)

        try:
            with self._chain_nodes.timed(seconds):
                found = self._chain_nodes.once(teller, wait, seconds + self._chain_nodes.timeout)
        except (NoAnswer, RpcError) as error:
            if isinstance(error, RpcError):  # another version's
                self._chain_nodes.teller = None
            return self.head()  # which is asked for again and again
        if found is None:
            return seen
        newest, logs = self._plausible(told_header(found)), found.get("logs") if contracts else None
        return newest if logs is None else replace(newest, logs=Logs(tuple(contracts), logs))

    def _plausible(self, head: Header) -> Header:
        if head.number > _MOST_BLOCKS:
            raise LedgerError(f"the chain node at {self.name} says that it is at block {head.number}: no chain is")
        return head

    def _asked_for(self, block: int | bytes | str, found: Any) -> Header:
        header = told_header(found)
        if not isinstance(block, str) and block not in (header.number, header.hash):
            name = block if isinstance(block, int) else "0x" + block.hex()
            raise Contradiction(f"the chain node at {self.name} gave another block than {name}, which it was asked for")
        return header

    def _ask(self, requests: Sequence[Request], patience: float | None, divisible: bool = False) -> list[Any]:
        return self._chain_nodes.ask(requests, self._patience if patience is None else patience, divisible)

    def _result_or_error(self, method: str, *params: Any) -> Any:
        try:
            return self.call(method, *params)
        except RpcError as error:
            return error
