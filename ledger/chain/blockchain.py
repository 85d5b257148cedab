"""The chain itself: takes transactions, mines them, knows the head."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from pathlib import Path
from typing import Any

from dlx.ground import durable
from dlx.ledger.chain import ChainError
from dlx.ledger.chain.calls import Calls
from dlx.ledger.chain.evm import Block, Evm, Transaction, decode, decode_header, key_address, next_base_fee, transfer
from dlx.ledger.chain.pool import Pool
from dlx.ledger.chain.store import Store

TIP = 1_000_000  # wei per gas, suggested to clients: 100 ETH pay for 10^14 gas
FAUCET_GRANT = 100 * 10**18  # wei, once per address
_TAIL = 8  # empty blocks after one with transactions that come at their own pace: who waits for confirmations has them

log = logging.getLogger(__name__)


class Blockchain:
    """One chain in one directory. Thread-safe; `mine_forever` runs in a thread of its own.

    A transaction is acknowledged once it is on disk among the waiting ones, not once it is mined. Clients see nonce
    gaps, replacements and `pending` nonces as on a public chain, many transactions share a block, and acknowledging
    costs one write whatever the transaction executes. After a restart the waiting ones are mined first.
    """

    def __init__(
        self,
        directory: Path,
        chain_id: int,
        block_time: float,
        empty_block_time: float,
        heartbeat: float,
        time_lapse: bool,
    ) -> None:
        """Opens the chain, or creates it with a genesis block; see `ledger.chain.serve`. Raises ChainError."""
        self.chain_id = chain_id
        self._block_time, self._empty_block_time, self._heartbeat = block_time, empty_block_time, heartbeat
        self._empty_blocks = 0  # since the last block with transactions, or the start
        self._seconds_apart = 1 if time_lapse or block_time >= 1 else 0
        self.store = Store(directory)
        self.evm = Evm(chain_id, self.store.node, self.store.hashes_before)
        self.calls = Calls(self.store.path, chain_id)
        self._pool = Pool()
        self._changed = threading.Condition(threading.RLock())  # guards the pool and the head
        try:
            stored = self.store.chain_id()
            if stored not in (None, chain_id):
                found = f"{directory} holds chain id {stored}, not {chain_id}"
                raise ChainError(f"{found}: check --chain-id, or use another folder")
            self._key = _load_key(directory / "faucet.key", create=stored is None)
            if stored is None:
                self.store.commit_block(self.evm.genesis(key_address(self._key), int(time.time())), chain_id)
            self.head: Any = decode_header(self.store.last_headers(1)[0])
            for raw in self.store.waiting():
                self._pool.add(decode(raw))
        except BaseException:
            self.store.close()
            raise
        age = max(0.0, time.time() - self.head.timestamp)
        self._last_block = time.monotonic() - age

    # Transactions.

    def submit(self, raw: bytes) -> bytes:
        """Takes a signed transaction and returns its hash once it is on disk; raises Malformed or Refused."""
        transaction = decode(raw)
        with self._changed:
            self._take(transaction)
        return transaction.hash

    def faucet(self, address: bytes) -> bytes | None:
        """Sends `address` its grant and returns the transaction's hash; None if it was granted before."""
        with self._changed:
            if self.store.granted(address):
                return None
            nonce = self.next_nonce(key_address(self._key))
            max_fee = 2 * next_base_fee(self.head) + TIP
            transaction = transfer(self._key, self.chain_id, nonce, address, FAUCET_GRANT, max_fee, TIP)
            self._take(transaction, granted=address)
        return transaction.hash

    def next_nonce(self, address: bytes) -> int:
        """The account's nonce after its waiting transactions."""
        with self._changed:
            return self._pool.next_nonce(address, self.account(address)[0])

    def waiting(self, transaction_hash: bytes) -> Transaction | None:
        with self._changed:
            return self._pool.get(transaction_hash)

    def waiting_hashes(self) -> list[bytes]:
        with self._changed:
            return self._pool.hashes()

    def newer(self, seen: bytes, seconds: float) -> Any | None:
        """The head's header as soon as it is another than the one with hash `seen`; None after so many seconds."""
        with self._changed:
            return self.head if self._changed.wait_for(lambda: self.head.hash != seen, seconds) else None

    def account(self, address: bytes) -> tuple[int, int]:
        """(nonce, balance in wei) at the head."""
        return self.evm.account(self.head.state_root, address)

    # Blocks.

    def header(self, number: int) -> Any | None:
        if number == self.head.block_number:
            return self.head
        encoded = self.store.header(number)
        return None if encoded is None else decode_header(encoded)

    def next_timestamp(self) -> int:
        """The wall clock's, unless that is too soon after the head."""
        return max(int(time.time()), self.head.timestamp + self._seconds_apart)

    def mine_forever(self, stop: threading.Event) -> None:
        """Mines until `stop` is set (call `wake` after setting it)."""
        while not stop.is_set():
            with self._changed:
                elapsed = time.monotonic() - self._last_block
                if elapsed < self._block_time:
                    self._changed.wait(self._block_time - elapsed)
                    continue
                ready = list(self._pool.ready(next_base_fee(self.head), self.account))
                pause = self._empty_block_time if self._empty_blocks < _TAIL else self._heartbeat
                if not ready and elapsed < pause:
                    self._changed.wait(pause - elapsed)
                    continue
            try:
                self._mine(ready)
            except Exception:  # a full disk, say: everything acknowledged is kept, so say so and try again
                log.exception("cannot mine block %d, trying again", self.head.block_number + 1)
                stop.wait(max(1.0, self._block_time))

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        self.calls.close()
        self.store.close()

    def _take(self, transaction: Transaction, granted: bytes | None = None) -> None:
        self._pool.check(transaction, self.chain_id, next_base_fee(self.head), self.account)
        self.store.add_waiting(transaction, granted)
        self._pool.add(transaction)
        self._changed.notify_all()

    def _mine(self, transactions: list[Transaction]) -> None:
        # Only this thread moves the head, so executing needs no lock; it is held for the short write.
        block: Block = self.evm.build(self.head, self.next_timestamp(), transactions, self._block_time)
        with self._changed:
            self.store.commit_block(block)
            self.head = block.header
            self._last_block = time.monotonic()
            self._empty_blocks = 0 if block.executed else self._empty_blocks + 1
            mined: dict[bytes, int] = {}
            for executed in block.executed:
                mined[executed.transaction.sender] = executed.transaction.nonce
            self._pool.settle(mined, block.dropped)
            self._changed.notify_all()


def _load_key(path: Path, create: bool) -> bytes:
    try:
        key = bytes.fromhex(path.read_text().strip())
        if len(key) != 32:
            raise ValueError
        return key
    except FileNotFoundError:
        if not create:
            raise ChainError(f"{path} is missing: put it back, or remove the directory to start a new chain") from None
    except ValueError:
        raise ChainError(f"{path} is not a key (64 hex digits): put it back as it was") from None
    key = secrets.token_bytes(32)
    durable.write_bytes(path, key.hex().encode(), durable.SECRET)
    return key
