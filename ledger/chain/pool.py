"""Transactions that wait: which may, and which go into the next block.

Not thread-safe: the node holds its lock around every call. The store keeps the same transactions on disk.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from dlx.ledger.chain.evm import GAS_LIMIT, Transaction, minimum_gas

MAX_RAW = 128 * 1024  # bytes of one transaction
MAX_INITCODE = 49_152  # bytes (EIP-3860)
MAX_PER_SENDER = 256  # nonces ahead of the account's
MAX_WAITING = 5_000
MAX_BYTES = 64 * 2**20
# Transactions behind a nonce gap may wait for ever; these bounds keep them from filling the pool.
MAX_GAPPED_PER_SENDER = 64
MAX_GAPPED = 1_000

AccountOf = Callable[[bytes], tuple[int, int]]
"""(nonce, balance in wei) of an address at the head."""


class Refused(ValueError):
    """A transaction that may not wait; the message is worded as geth words it, since clients look for those words."""


class Pool:
    def __init__(self) -> None:
        self._by_hash: dict[bytes, Transaction] = {}
        self._queues: dict[bytes, dict[int, Transaction]] = {}
        self._arrival: dict[bytes, int] = {}
        self._arrivals = 0
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._by_hash)

    def get(self, transaction_hash: bytes) -> Transaction | None:
        return self._by_hash.get(transaction_hash)

    def hashes(self) -> list[bytes]:
        return list(self._by_hash)

    def next_nonce(self, sender: bytes, nonce: int) -> int:
        """The first nonce from the account's `nonce` on that no waiting transaction uses."""
        queue = self._queues.get(sender, {})
        while nonce in queue:
            nonce += 1
        return nonce

    def check(self, transaction: Transaction, chain_id: int, base_fee: int, account_of: AccountOf) -> None:
        """Raises Refused unless the transaction may wait (or replace the one with its nonce)."""
        t = transaction
        if t.hash in self._by_hash:
            raise Refused("already known")
        check_form(t, chain_id)
        if t.max_fee < base_fee:
            raise Refused(
                f"max fee per gas less than block base fee: address 0x{t.sender.hex()}, "
                f"maxFeePerGas: {t.max_fee}, baseFee: {base_fee}"
            )
        nonce, balance = account_of(t.sender)
        if t.nonce < nonce:
            raise Refused(f"nonce too low: next nonce {nonce}, tx nonce {t.nonce}")
        if t.nonce >= nonce + MAX_PER_SENDER:
            raise Refused(f"nonce too high: next nonce {nonce}, tx nonce {t.nonce}, at most {MAX_PER_SENDER} may wait")
        queue = self._queues.get(t.sender, {})
        replaced = queue.get(t.nonce)
        if replaced and (t.max_fee * 10 < replaced.max_fee * 11 or t.tip * 10 < replaced.tip * 11):
            raise Refused("replacement transaction underpriced")
        cost = sum(other.cost for other in queue.values() if other.nonce != t.nonce) + t.cost
        if cost > balance:
            raise Refused(
                f"insufficient funds for gas * price + value: address 0x{t.sender.hex()} have {balance} want {cost}"
            )
        if replaced:
            return
        if len(self._by_hash) >= MAX_WAITING or self._bytes + len(t.raw) > MAX_BYTES:
            raise Refused("txpool is full: wait until transactions are mined")
        reachable = self.next_nonce(t.sender, nonce)
        if t.nonce > reachable:
            gapped = len(queue) - (reachable - nonce)
            if gapped >= MAX_GAPPED_PER_SENDER or self._gapped(account_of) >= MAX_GAPPED:
                raise Refused(f"nonce too high: too many transactions wait behind a gap, next nonce {reachable}")

    def add(self, transaction: Transaction) -> None:
        """Adds a checked transaction, in place of one with its sender and nonce."""
        queue = self._queues.setdefault(transaction.sender, {})
        if replaced := queue.get(transaction.nonce):
            self._forget(replaced)
        queue = self._queues.setdefault(transaction.sender, {})
        queue[transaction.nonce] = transaction
        self._by_hash[transaction.hash] = transaction
        self._arrival[transaction.hash] = self._arrivals
        self._arrivals += 1
        self._bytes += len(transaction.raw)

    def settle(self, mined: dict[bytes, int], dropped: tuple[Transaction, ...]) -> None:
        """Removes what a block made obsolete: `mined` has each sender's last mined nonce."""
        for sender, nonce in mined.items():
            for transaction in [t for t in self._queues.get(sender, {}).values() if t.nonce <= nonce]:
                self._forget(transaction)
        for transaction in dropped:
            if transaction.hash in self._by_hash:
                self._forget(transaction)

    def ready(self, base_fee: int, account_of: AccountOf) -> Iterator[Transaction]:
        """What the next block may execute: nonces in order, otherwise first come, first served."""
        heads = []
        for sender, queue in self._queues.items():
            head = queue.get(account_of(sender)[0])
            if head and head.max_fee >= base_fee:
                heads.append((self._arrival[head.hash], head))
        heapq.heapify(heads)
        while heads:
            _, head = heapq.heappop(heads)
            yield head
            following = self._queues[head.sender].get(head.nonce + 1)
            if following and following.max_fee >= base_fee:
                heapq.heappush(heads, (self._arrival[following.hash], following))

    def _gapped(self, account_of: AccountOf) -> int:
        gapped = 0
        for sender, queue in self._queues.items():
            nonce = account_of(sender)[0]
            gapped += len(queue) - (self.next_nonce(sender, nonce) - nonce)
        return gapped

    def _forget(self, transaction: Transaction) -> None:
        queue = self._queues[transaction.sender]
        del queue[transaction.nonce], self._by_hash[transaction.hash], self._arrival[transaction.hash]
        if not queue:
            del self._queues[transaction.sender]
        self._bytes -= len(transaction.raw)


def check_form(transaction: Transaction, chain_id: int) -> None:
    """The part of the check that asks only the transaction itself; raises Refused."""
    t = transaction
    if len(t.raw) > MAX_RAW:
        raise Refused(f"oversized data: transaction size {len(t.raw)}, limit {MAX_RAW}")
    if t.evm.chain_id is None:
        raise Refused("only replay-protected (EIP-155) transactions allowed over RPC")
    if t.evm.chain_id != chain_id:
        raise Refused(f"invalid chain id for signer: have {t.evm.chain_id} want {chain_id}")
    if t.gas > GAS_LIMIT:
        raise Refused(f"exceeds block gas limit: gas {t.gas}, limit {GAS_LIMIT}")
    if t.tip > t.max_fee:
        raise Refused(f"max priority fee per gas higher than max fee per gas: {t.tip} > {t.max_fee}")
    if t.gas < (least := minimum_gas(t.evm)):
        raise Refused(f"intrinsic gas too low: gas {t.gas}, minimum needed {least}")
    if not t.evm.to and len(t.evm.data) > MAX_INITCODE:
        raise Refused("max initcode size exceeded")
