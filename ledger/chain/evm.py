"""The state transition: py-evm under Prague rules. Only this file and state_tries.py know py-evm.

py-evm executes transactions and keeps the state trie; blocks, receipts and logs are kept by the store in their own
tables, so none of py-evm's chain database is used.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from operator import or_
from typing import Any

import rlp
from eth.constants import EMPTY_SHA256, SECPK1_N
from eth.db.atomic import AtomicDB
from eth.db.backends.base import BaseDB
from eth.exceptions import Revert
from eth.rlp.accounts import Account
from eth.vm.execution_context import ExecutionContext
from eth.vm.forks.berlin.transactions import calculate_txn_intrinsic_gas_berlin
from eth.vm.forks.london.headers import calculate_expected_base_fee_per_gas
from eth.vm.forks.prague.blocks import PragueBlockHeader
from eth.vm.forks.prague.state import PragueState
from eth.vm.forks.prague.transactions import PragueTransactionBuilder
from eth_hash.auto import keccak
from eth_keys.datatypes import PrivateKey
from eth_utils import ValidationError

from dlx.ledger.chain import state_tries
from dlx.ledger.proof.tries import list_root

GAS_LIMIT = 30_000_000
GENESIS_BASE_FEE = 7  # wei: the lowest value that the fee rule never lowers further
GENESIS_BALANCE = 10**27  # wei: a thousand million ETH for the chain's own key
_CACHED_NODES = 20_000  # of at most 532 bytes, but for contract code
_CALL_STIPEND = 2_300
# py-evm types its arguments by NewTypes of bytes and int; plain bytes and int serve as well.
_Header: Any = PragueBlockHeader
_State: Any = PragueState
_Context: Any = ExecutionContext
_Builder: Any = PragueTransactionBuilder

log = logging.getLogger(__name__)


class Malformed(ValueError):
    """Bytes that are no valid signed transaction of a kind this chain takes."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A signed transaction, decoded; `cost` is the most it can take from the sender, in wei."""

    hash: bytes
    raw: bytes
    sender: bytes
    nonce: int
    gas: int
    max_fee: int
    tip: int
    cost: int
    evm: Any


@dataclass(frozen=True, slots=True)
class Log:
    address: bytes
    topics: tuple[bytes, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Executed:
    """What a transaction did; `price` is what it paid per gas, in wei."""

    transaction: Transaction
    status: int
    gas_used: int
    cumulative_gas: int
    price: int
    logs: tuple[Log, ...]


@dataclass(frozen=True, slots=True)
class Block:
    header: Any
    executed: tuple[Executed, ...] = ()
    nodes: dict[bytes, bytes] = field(default_factory=dict)
    """State trie nodes and code that the block added."""
    dropped: tuple[Transaction, ...] = ()
    """Transactions that can no longer be executed (the sender has spent the funds since)."""


@dataclass(frozen=True, slots=True)
class Call:
    """An unsigned message for `Evm.call`, in the shape that py-evm's executor reads."""

    sender: bytes
    to: bytes
    data: bytes
    value: int
    gas: int
    nonce: int = 0
    access_list: tuple[tuple[bytes, tuple[int, ...]], ...] = ()
    max_fee_per_gas: int = 0
    max_priority_fee_per_gas: int = 0
    type_id: int = 2

    @property
    def intrinsic_gas(self) -> int:
        message: Any = self
        return calculate_txn_intrinsic_gas_berlin(message)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call returned: `error` is None on success; `reverted` tells a REVERT (with data) from other failures."""

    output: bytes
    error: str | None
    reverted: bool
    gas_used: int
    gas_refund: int


def decode(raw: bytes) -> Transaction:
    """Decodes a signed transaction of type 0, 1 or 2 and recovers its sender; raises Malformed."""
    if raw[:1] in (b"\x03", b"\x04"):
        raise Malformed(f"transaction type not supported: {raw[0]}")
    try:
        evm = _Builder.decode(raw)
        evm.validate()
        if evm.s > SECPK1_N // 2:
            raise ValidationError("signature s value is too high")
        sender = evm.sender
        if evm.encode() != raw:
            raise ValidationError("not canonically encoded")
    except Exception as error:  # py-evm, rlp and eth-keys raise a dozen unrelated kinds on hostile bytes
        raise Malformed(f"malformed transaction: {str(error)[:200]}") from None
    max_fee, tip = evm.max_fee_per_gas, evm.max_priority_fee_per_gas
    cost = evm.value + evm.gas * max_fee
    return Transaction(keccak(raw), raw, sender, evm.nonce, evm.gas, max_fee, tip, cost, evm)


def decode_mined(raw: bytes) -> Any:
    """The fields of a transaction that `decode` has accepted before; no signature is checked again."""
    return _Builder.decode(raw)


def minimum_gas(transaction: Any) -> int:
    """The least gas limit with which a transaction is valid: the intrinsic gas or EIP-7623's calldata floor."""
    floor = 21_000 + 10 * (4 * len(transaction.data) - 3 * transaction.data.count(0))
    return max(transaction.intrinsic_gas, floor)


def transfer(key: bytes, chain_id: int, nonce: int, to: bytes, value: int, max_fee: int, tip: int) -> Transaction:
    """A signed plain transfer of `value` wei."""
    unsigned = _Builder.new_unsigned_dynamic_fee_transaction(
        chain_id=chain_id, nonce=nonce, max_priority_fee_per_gas=tip, max_fee_per_gas=max_fee, gas=21_000,
        to=to, value=value, data=b"", access_list=(),
    )  # fmt: skip
    return decode(unsigned.as_signed_transaction(PrivateKey(key), chain_id).encode())


def key_address(key: bytes) -> bytes:
    return PrivateKey(key).public_key.to_canonical_address()


def created_address(sender: bytes, nonce: int) -> bytes:
    """The address of the contract that a creating transaction makes."""
    return keccak(rlp.encode([sender, nonce]))[12:]


def decode_header(encoded: bytes) -> Any:
    return rlp.decode(encoded, sedes=_Header)


def encode_header(header: Any) -> bytes:
    return rlp.encode(header)


def next_base_fee(header: Any) -> int:
    return calculate_expected_base_fee_per_gas(header)


class Evm:
    """Executes against the state nodes that `read` returns (KeyError if absent); every method is thread-safe."""

    def __init__(
        self, chain_id: int, read: Callable[[bytes], bytes], hashes_before: Callable[[int], Iterator[bytes]]
    ) -> None:
        self._chain_id = chain_id
        self._read = lru_cache(maxsize=_CACHED_NODES)(read)
        self._hashes_before = hashes_before

    def genesis(self, funded: bytes, timestamp: int) -> Block:
        """Block 0, in which `funded` (20 bytes) holds everything."""
        header = _Header(
            difficulty=0,
            block_number=0,
            gas_limit=GAS_LIMIT,
            timestamp=timestamp,
            coinbase=funded,
            base_fee_per_gas=GENESIS_BASE_FEE,
            nonce=bytes(8),
            requests_hash=EMPTY_SHA256,
        )
        nodes = _Nodes(self._read)
        state = self._state(header, nodes)
        state.set_balance(funded, GENESIS_BALANCE)
        state.persist()
        return Block(header.copy(state_root=state.state_root), nodes=nodes.written)

    def next_header(self, parent: Any, timestamp: int) -> Any:
        """The header of the block after `parent`, before any transaction."""
        return _Header(
            difficulty=0,
            block_number=parent.block_number + 1,
            gas_limit=GAS_LIMIT,
            timestamp=timestamp,
            coinbase=parent.coinbase,
            parent_hash=parent.hash,
            state_root=parent.state_root,
            mix_hash=secrets.token_bytes(32),
            nonce=bytes(8),
            base_fee_per_gas=next_base_fee(parent),
            requests_hash=EMPTY_SHA256,
        )

    def build(self, parent: Any, timestamp: int, transactions: Iterable[Transaction], seconds: float) -> Block:
        """Executes `transactions` in order into the block after `parent`; what is left out keeps waiting.

        Stops at the first that the block has no gas left for, and after `seconds`.
        """
        header = self.next_header(parent, timestamp)
        nodes = _Nodes(self._read)
        state = self._state(header, nodes)
        executed: list[Executed] = []
        receipts: list[Any] = []
        dropped: list[Transaction] = []
        skipped: set[bytes] = set()
        gas_used, deadline = 0, time.monotonic() + seconds
        for transaction in transactions:
            if gas_used + transaction.gas > GAS_LIMIT or (executed and time.monotonic() > deadline):
                break
            if transaction.sender in skipped:
                continue
            state.lock_changes()
            snapshot = state.snapshot()
            try:
                computation = state.apply_transaction(transaction.evm)
            except Exception as error:  # an invalid transaction, or a fault of py-evm: neither may stop the chain
                state.revert(snapshot)
                log.warning("dropped transaction 0x%s: %s", transaction.hash.hex(), error)
                dropped.append(transaction)
                skipped.add(transaction.sender)
                continue
            state.commit(snapshot)
            refund = state.get_transaction_executor().calculate_gas_refund
            spent = transaction.gas - computation.get_gas_remaining()
            spent += computation.data_floor_gas - refund(computation, spent)
            gas_used += spent
            entries = computation.get_log_entries()
            status = 0 if computation.is_error else 1
            receipts.append(transaction.evm.make_receipt(b"\x01" if status else b"", gas_used, entries))
            logs = tuple(Log(a, tuple(t.to_bytes(32, "big") for t in topics), data) for a, topics, data in entries)
            price = state.get_gas_price(transaction.evm)
            executed.append(Executed(transaction, status, spent, gas_used, price, logs))
        if executed:
            state.persist()
        header = header.copy(
            state_root=state.state_root,
            transaction_root=list_root([e.transaction.raw for e in executed]),
            receipt_root=list_root([r.encode() for r in receipts]),
            bloom=reduce(or_, (r.bloom for r in receipts), 0),
            gas_used=gas_used,
        )
        return Block(header, tuple(executed), nodes.written, tuple(dropped))

    def account(self, root: bytes, address: bytes) -> tuple[int, int]:
        """(nonce, balance in wei)."""
        state = self._at(root)
        return state.get_nonce(address), state.get_balance(address)

    def code(self, root: bytes, address: bytes) -> bytes:
        return self._at(root).get_code(address)

    def storage(self, root: bytes, address: bytes, slot: int) -> int:
        return self._at(root).get_storage(address, slot)

    def prove(
        self, root: bytes, address: bytes, slots: list[int]
    ) -> tuple[Account, state_tries.Proved, list[state_tries.Proved]]:
        """The account, its proof, and those of its storage slots."""
        nodes = _Nodes(self._read)
        account, proved = state_tries.prove_account(nodes, root, address)
        return account, proved, [state_tries.prove_slot(nodes, account.storage_root, slot) for slot in slots]

    def call(self, header: Any, call: Call) -> Outcome:
        """Runs `call` on the state after `header`, in its block, without fees and leaving no trace."""
        if call.gas < call.intrinsic_gas:
            return _refused(f"intrinsic gas too low: gas {call.gas}, minimum needed {call.intrinsic_gas}")
        state = self._state(header.copy(base_fee_per_gas=0), _Nodes(self._read))
        if state.get_balance(call.sender) < call.value:
            return _refused(f"insufficient funds for gas * price + value: address 0x{call.sender.hex()}")
        executor: Any = state.get_transaction_executor()
        try:
            computation = executor.build_computation(executor.build_evm_message(call), call)
        except Exception as error:  # a fault of py-evm on odd input must be an answer, not a broken connection
            return _refused(f"execution failed: {type(error).__name__}: {str(error)[:200]}")
        used = call.gas - computation.get_gas_remaining()
        refund = executor.calculate_gas_refund(computation, used)
        used += executor.calc_data_floor_gas(call, used, refund) - refund
        if not computation.is_error:
            return Outcome(computation.output, None, False, used, refund)
        reverted = isinstance(computation.error, Revert)
        return Outcome(computation.output, _failure(computation.error), reverted, used, refund)

    def estimate(self, header: Any, call: Call) -> int | Outcome:
        """A gas limit with which `call` succeeds (call.gas at most), or the failed outcome at that limit."""
        outcome = self.call(header, call)
        if outcome.error is not None:
            return outcome
        # As geth guesses: a call passes on 63/64 of its gas, a transfer inside needs the stipend, a refund comes last.
        floor = minimum_gas(call)
        if outcome.gas_used == floor and not call.data:
            return floor
        gas = max(floor, (outcome.gas_used + outcome.gas_refund + _CALL_STIPEND) * 64 // 63)
        while gas < call.gas:
            trial = Call(call.sender, call.to, call.data, call.value, gas, call.nonce, call.access_list)
            if self.call(header, trial).error is None:
                return gas
            gas = gas * 3 // 2
        return call.gas

    def _at(self, root: bytes) -> Any:
        return _State(AtomicDB(_Nodes(self._read)), None, root)

    def _state(self, header: Any, nodes: _Nodes) -> Any:
        context = _Context(
            coinbase=header.coinbase,
            timestamp=header.timestamp,
            block_number=header.block_number,
            difficulty=header.difficulty,
            mix_hash=header.mix_hash,
            gas_limit=header.gas_limit,
            prev_hashes=self._hashes_before(header.block_number),
            chain_id=self._chain_id,
            base_fee_per_gas=header.base_fee_per_gas,
            excess_blob_gas=header.excess_blob_gas,
        )
        return _State(AtomicDB(nodes), context, header.state_root)


class _Nodes(BaseDB):
    """Stored state nodes with the new ones in memory above; nodes are named by their hash and never deleted."""

    def __init__(self, read: Callable[[bytes], bytes]) -> None:
        self._read = read
        self.written: dict[bytes, bytes] = {}

    def __getitem__(self, key: bytes) -> bytes:
        value = self.written.get(key)
        return self._read(key) if value is None else value

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self.written[key] = value

    def __delitem__(self, key: bytes) -> None:
        raise NotImplementedError("state nodes are never deleted")

    def _exists(self, key: bytes) -> bool:
        try:
            self[key]
        except KeyError:
            return False
        return True


def _refused(error: str) -> Outcome:
    return Outcome(b"", error, False, 0, 0)


def _failure(error: Exception) -> str:
    if isinstance(error, Revert):
        return "execution reverted"
    name = type(error).__name__
    known = {"OutOfGas": "out of gas", "InvalidInstruction": "invalid opcode", "InvalidJumpDestination": "invalid jump"}
    return known.get(name, f"{name}: {str(error)[:200]}")
