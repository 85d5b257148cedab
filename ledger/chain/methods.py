"""The Ethereum JSON-RPC methods that this project's client, web3.py, ethers and viem call of their own accord."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dlx.ledger.chain.blockchain import TIP, Blockchain
from dlx.ledger.chain.calls import Busy, CallFailed, Question
from dlx.ledger.chain.evm import GAS_LIMIT, Call, Malformed, Outcome, encode_header, next_base_fee
from dlx.ledger.chain.filters import Filters
from dlx.ledger.chain.pool import Refused
from dlx.ledger.chain.prune import KEPT_STATES
from dlx.ledger.chain.wire import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LIMIT_EXCEEDED,
    METHOD_NOT_FOUND,
    SERVER_ERROR,
    RpcError,
    execution_error,
    header_json,
    mined_json,
    news_json,
    parse_bytes,
    parse_quantity,
    proof_json,
    receipt_json,
    to_hex,
    waiting_json,
)

_MAX_HISTORY = 1_024  # blocks in eth_feeHistory
_MAX_PROVED = 1_024  # slots in eth_getProof
LONGEST_WAIT = 30  # seconds for which a request waits for a block
_WAITS = "dlx_waitForBlock"


class Methods:
    """Answers requests; thread-safe."""

    def __init__(self, chain: Blockchain) -> None:
        self._chain = chain
        filters = self._filters = Filters(chain, self._number)
        self._mined_block = lru_cache(maxsize=64)(self._block_with_hashes)
        self._methods: dict[str, Callable[..., Any]] = {
            "web3_clientVersion": lambda: f"dlx-chain/{_version()}",
            "net_version": lambda: str(chain.chain_id),
            "eth_accounts": lambda: [],
            "eth_chainId": lambda: hex(chain.chain_id),
            "eth_syncing": lambda: False,
            "eth_blockNumber": lambda: hex(chain.head.block_number),
            "eth_gasPrice": lambda: hex(next_base_fee(chain.head) + TIP),
            "eth_maxPriorityFeePerGas": lambda: hex(TIP),
            "eth_feeHistory": self._fee_history,
            "eth_getBlockByNumber": self._block_by_number,
            "eth_getBlockByHash": self._block_by_hash,
            "eth_getBlockReceipts": self._block_receipts,
            "eth_getBalance": self._balance,
            "eth_getTransactionCount": self._transaction_count,
            "eth_getCode": self._code,
            "eth_getStorageAt": self._storage,
            "eth_getProof": self._proof,
            "eth_call": self._call,
            "eth_estimateGas": self._estimate,
            "eth_sendRawTransaction": self._send,
            "eth_getTransactionByHash": self._transaction,
            "eth_getTransactionReceipt": self._receipt,
            "eth_getLogs": filters.logs,
            "eth_newFilter": filters.new_logs,
            "eth_newBlockFilter": filters.new_blocks,
            "eth_getFilterChanges": filters.changes,
            "eth_getFilterLogs": filters.all_logs,
            "eth_uninstallFilter": filters.uninstall,
            "dlx_faucet": self._faucet,
            _WAITS: self._wait_for_block,
        }
        self._signatures = {name: inspect.signature(method) for name, method in self._methods.items()}

    def answer(self, request: Any, may_wait: bool = True) -> dict[str, Any]:
        """The response object to one request object (a batch's members come one by one); unless it `may_wait`, one that
        would wait for a block is answered as if its time were over."""
        identity = request.get("id") if isinstance(request, dict) else None
        response: dict[str, Any] = {"jsonrpc": "2.0", "id": identity}
        try:
            response["result"] = self._dispatch(request, may_wait)
        except RpcError as error:
            response["error"] = {"code": error.code, "message": error.message}
            if error.data is not None:
                response["error"]["data"] = error.data
        return response

    def _dispatch(self, request: Any, may_wait: bool) -> Any:
        if not isinstance(request, dict) or not isinstance(request.get("method"), str):
            raise RpcError(INVALID_REQUEST, "invalid request: an object with a method and params is needed")
        if request["method"] not in self._methods:
            raise RpcError(METHOD_NOT_FOUND, f"the method {request['method'][:64]} does not exist/is not available")
        params = request.get("params") or []
        if not isinstance(params, list):
            raise RpcError(INVALID_PARAMS, "params must be a list")
        try:
            self._signatures[request["method"]].bind(*params)
        except TypeError as error:
            raise RpcError(INVALID_PARAMS, f"wrong number of params: {error}") from None
        if request["method"] == _WAITS and not may_wait:
            params = [params[0], 0, *params[2:]]
        try:
            return self._methods[request["method"]](*params)
        except sqlite3.Error as error:
            raise RpcError(INTERNAL_ERROR, f"the chain's store {self._chain.store.path} failed: {error}") from None

    # Blocks.

    def _block_by_number(self, tag: Any, full: Any = False) -> dict[str, Any] | None:
        if tag == "pending":
            return self._pending_block()
        number = self._number(tag)
        return None if number > self._chain.head.block_number else self._block(number, bool(full))

    def _block_by_hash(self, block_hash: Any, full: Any = False) -> dict[str, Any] | None:
        number = self._chain.store.number_of(parse_bytes(block_hash, 32))
        return None if number is None or number > self._chain.head.block_number else self._block(number, bool(full))

    def _block(self, number: int, full: bool) -> dict[str, Any]:
        block = self._mined_block(number)
        if full:
            transactions = self._chain.store.transactions(number)
            return {**block, "transactions": [mined_json(m) for m in transactions]}
        return block

    def _block_with_hashes(self, number: int) -> dict[str, Any]:
        header: Any = self._chain.header(number)
        hashes = [to_hex(h) for h in self._chain.store.transaction_hashes(number)]
        return {**header_json(header), "hash": to_hex(header.hash), "transactions": hashes}

    def _pending_block(self) -> dict[str, Any]:
        header = self._chain.evm.next_header(self._chain.head, self._chain.next_timestamp())
        unknown = {"hash": None, "nonce": None, "logsBloom": None, "miner": None}
        return {**header_json(header), **unknown, "transactions": [to_hex(h) for h in self._chain.waiting_hashes()]}

    def _block_receipts(self, tag: Any) -> list[dict[str, Any]] | None:
        if tag == "pending":
            return []
        number = self._known_number(tag)
        if number is None:
            return None
        return [receipt_json(m, self._chain.store.receipt_logs(m)) for m in self._chain.store.transactions(number)]

    def _fee_history(self, count: Any, newest: Any, percentiles: Any = None) -> dict[str, Any]:
        wanted = min(parse_quantity(count), _MAX_HISTORY)
        last = min(self._number(newest), self._chain.head.block_number)
        headers = [self._header_at(n) for n in range(max(0, last - wanted + 1), last + 1)] if wanted else []
        if not headers:
            return {"oldestBlock": "0x0", "baseFeePerGas": [], "gasUsedRatio": []}
        fees = [h.base_fee_per_gas for h in headers] + [next_base_fee(headers[-1])]
        result = {
            "oldestBlock": hex(headers[0].block_number),
            "baseFeePerGas": [hex(fee) for fee in fees],
            "gasUsedRatio": [h.gas_used / h.gas_limit for h in headers],
        }
        if percentiles:
            if not isinstance(percentiles, list) or not all(isinstance(p, int | float) for p in percentiles):
                raise RpcError(INVALID_PARAMS, "invalid argument 2: a list of percentiles is needed")
            result["reward"] = [self._rewards(h, percentiles[:100]) for h in headers]
        return result

    def _rewards(self, header: Any, percentiles: list[float]) -> list[str]:
        mined = self._chain.store.transactions(header.block_number) if header.gas_used else []
        tips = sorted((m.price - header.base_fee_per_gas, m.gas_used) for m in mined)
        rewards = []
        for percentile in percentiles:
            reward, seen = TIP if not tips else tips[-1][0], 0
            for tip, gas in tips:
                seen += gas
                if seen >= header.gas_used * percentile / 100:
                    reward = tip
                    break
            rewards.append(hex(reward))
        return rewards

    # State.

    def _balance(self, address: Any, tag: Any = "latest") -> str:
        return hex(self._chain.evm.account(self._state_at(tag), parse_bytes(address, 20))[1])

    def _transaction_count(self, address: Any, tag: Any = "latest") -> str:
        if tag == "pending":
            return hex(self._chain.next_nonce(parse_bytes(address, 20)))
        return hex(self._chain.evm.account(self._state_at(tag), parse_bytes(address, 20))[0])

    def _code(self, address: Any, tag: Any = "latest") -> str:
        return to_hex(self._chain.evm.code(self._state_at(tag), parse_bytes(address, 20)))

    def _storage(self, address: Any, slot: Any, tag: Any = "latest") -> str:
        value = self._chain.evm.storage(self._state_at(tag), parse_bytes(address, 20), parse_quantity(slot, 256))
        return to_hex(value.to_bytes(32, "big"))

    def _proof(self, address: Any, slots: Any, tag: Any = "latest") -> dict[str, Any]:
        if not isinstance(slots, list) or len(slots) > _MAX_PROVED:
            raise RpcError(INVALID_PARAMS, f"invalid argument 1: a list of at most {_MAX_PROVED} slots is needed")
        wanted = [parse_quantity(slot, 256) for slot in slots]
        proved = self._chain.evm.prove(self._state_at(tag), parse_bytes(address, 20), wanted)
        return proof_json(address, slots, *proved)

    def _call(self, message: Any, tag: Any = "latest", overrides: Any = None) -> str:
        outcome = self._run(self._parse_call(message, tag, overrides, estimate=False))
        assert isinstance(outcome, Outcome)
        return to_hex(outcome.output)

    def _estimate(self, message: Any, tag: Any = "latest", overrides: Any = None) -> str:
        gas = self._run(self._parse_call(message, tag, overrides, estimate=True))
        assert isinstance(gas, int)
        return hex(gas)

    def _run(self, question: Question) -> Outcome | int:
        try:
            outcome = self._chain.calls.run(question)
        except Busy as error:
            raise RpcError(LIMIT_EXCEEDED, str(error)) from None
        except CallFailed as error:
            raise RpcError(SERVER_ERROR, str(error)) from None
        if isinstance(outcome, Outcome) and outcome.error is not None:
            raise execution_error(outcome)
        return outcome

    def _parse_call(self, message: Any, tag: Any, overrides: Any, estimate: bool) -> Question:
        if not isinstance(message, dict):
            raise RpcError(INVALID_PARAMS, "invalid argument 0: a transaction object is needed")
        if overrides:
            raise RpcError(INVALID_PARAMS, "state overrides are not supported")
        # The newest state is asked in order to send a transaction: in the next block, so for its number and time, which
        # is the time now. An idle chain's head is half a minute old.
        if tag in ("latest", "pending"):
            header = self._chain.evm.next_header(self._chain.head, self._chain.next_timestamp())
        else:
            header = self._with_state(tag)
        sender = parse_bytes(message.get("from") or to_hex(bytes(20)), 20)
        call = Call(
            sender=sender,
            to=parse_bytes(message["to"], 20) if message.get("to") else b"",
            data=parse_bytes(message.get("input") or message.get("data") or "0x"),
            value=parse_quantity(message.get("value") or "0x0", 256),
            gas=min(parse_quantity(message["gas"]), GAS_LIMIT) if message.get("gas") else GAS_LIMIT,
            nonce=self._chain.evm.account(header.state_root, sender)[0],
        )
        return Question(encode_header(header), call, estimate)

    # Transactions and logs.

    def _send(self, raw: Any) -> str:
        try:
            return to_hex(self._chain.submit(parse_bytes(raw)))
        except (Malformed, Refused) as error:
            raise RpcError(SERVER_ERROR, str(error)) from None

    def _faucet(self, address: Any) -> str | None:
        try:
            granted = self._chain.faucet(parse_bytes(address, 20))
        except Refused as error:
            raise RpcError(SERVER_ERROR, str(error)) from None
        return None if granted is None else to_hex(granted)

    def _wait_for_block(self, seen: Any, seconds: Any, addresses: Any = None) -> dict[str, Any] | None:
        """The header of the head, once it is another than the one it knows, with its logs of these contracts
        where one answer has room for them; null after some seconds."""
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST_WAIT:
            raise RpcError(INVALID_PARAMS, f"invalid argument 1: 0 to {LONGEST_WAIT} seconds are needed")
        header = self._chain.newer(parse_bytes(seen, 32), seconds)
        if header is None:
            return None
        news = news_json(header)
        if addresses is not None and header.bloom:
            with suppress(RpcError):
                news["logs"] = self._filters.logs({"address": addresses, "blockHash": news["hash"]})
        return news

    def _transaction(self, transaction_hash: Any) -> dict[str, Any] | None:
        wanted = parse_bytes(transaction_hash, 32)
        if (waiting := self._chain.waiting(wanted)) is not None:
            return waiting_json(waiting)
        mined = self._chain.store.transaction(wanted)
        return None if mined is None else mined_json(mined)

    def _receipt(self, transaction_hash: Any) -> dict[str, Any] | None:
        mined = self._chain.store.transaction(parse_bytes(transaction_hash, 32))
        if mined is None or mined.block > self._chain.head.block_number:
            return None
        return receipt_json(mined, self._chain.store.receipt_logs(mined))

    # Block tags.

    def _number(self, tag: Any) -> int:
        """The number a tag stands for; no block is ever taken back, so `safe` and `finalized` are the latest."""
        if isinstance(tag, str) and tag in ("latest", "safe", "finalized", "pending"):
            return self._chain.head.block_number
        if tag == "earliest":
            return 0
        return tag if isinstance(tag, int) and tag >= 0 else parse_quantity(tag)

    def _known_number(self, tag: Any) -> int | None:
        """The number of a block that is there, by tag, quantity, hash or EIP-1898 object."""
        block = tag if isinstance(tag, dict) else {"blockHash": tag} if _is_hash(tag) else {"blockNumber": tag}
        if "blockHash" in block:
            number = self._chain.store.number_of(parse_bytes(block["blockHash"], 32))
        else:
            number = self._number(block.get("blockNumber"))
        return None if number is None or number > self._chain.head.block_number else number

    def _header_at(self, tag: Any) -> Any:
        number = self._known_number("latest" if tag is None else tag)
        header = None if number is None else self._chain.header(number)
        if header is None:
            raise RpcError(SERVER_ERROR, "header not found")
        return header

    def _with_state(self, tag: Any) -> Any:
        """The header of a block whose state is kept."""
        header = self._header_at(tag)
        if header.block_number <= self._chain.head.block_number - KEPT_STATES:
            raise RpcError(
                SERVER_ERROR,
                f"the state of block {header.block_number} is pruned: only those of the newest {KEPT_STATES} are kept",
            )
        return header

    def _state_at(self, tag: Any) -> bytes:
        return self._with_state(tag).state_root


def _is_hash(tag: Any) -> bool:
    return isinstance(tag, str) and len(tag) == 66


def _version() -> str:
    try:
        return version("dlx-node")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "source"
