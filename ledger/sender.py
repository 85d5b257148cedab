"""One account's transactions: signed here, numbered here, on disk before they are sent and until they are mined.

A transaction that was accepted can still vanish (a restarted node, a full pool), and one that seems refused may have
arrived. So the raw bytes stay in the outbox and are sent again until their nonce is used; sending the same bytes twice
is harmless. A call that is already waiting is not signed a second time. Several processes may share an outbox: a lock
on it is held from the choice of a nonce until the transaction is on disk and sent.
"""

import contextlib
import fcntl
import json
import os
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from eth_account import Account

from dlx.ground import durable
from dlx.ledger.errors import LedgerError, LedgerUnavailable, RpcError
from dlx.ledger.rpc import Rpc

_POLL, _SLOWEST = 0.03, 1.0  # seconds between looks for a receipt: at first, at last
_PATIENCE, _TURN = 2.0, 60.0  # seconds for one look, and for another thread's send to end
_RESEND, _STUCK = 3.0, 20.0  # seconds between resubmissions, and until something must be done about it
_FORMAT = 1  # of an entry of the outbox
_HELD = ("already known", "known transaction", "already imported", "already exists", "alreadyknown")


class Unconfirmed(LedgerError):
    """The transaction was not mined in time; it stays in the outbox and is sent again with the next one."""


@dataclass(frozen=True)
class Pending:
    """A signed transaction; hex strings with 0x, fees in wei per gas. `hashes`: every version of it, newest last."""

    nonce: int
    to: str | None
    data: str
    gas: int
    max_fee: int
    tip: int
    raw: str
    hashes: tuple[str, ...]


class Sender:
    """Sends for one account on one chain. Thread-safe; other processes may send from the same outbox meanwhile, but
    without a common outbox two senders would give the same nonce twice."""

    def __init__(self, rpc: Rpc, chain_id: int, key: bytes, outbox: Path | None) -> None:
        """Reads the outbox (a directory, made if absent; None keeps nothing) and sends again what is in it."""
        self._rpc, self._chain_id, self._signer = rpc, chain_id, Account.from_key(key)
        self.account: str = self._signer.address
        self._lock = threading.Lock()
        self._next: int | None = None
        self._folder = None if outbox is None else outbox / f"{chain_id}-{self.account}"
        self._pending: dict[int, Pending] = {}
        self._guard: _Guard | None = None
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._guard = _Guard(self._folder / "lock")
        with contextlib.suppress(LedgerUnavailable), self._turn():
            self._resubmit()

    def send(self, to: str | None, data: bytes, gas: int) -> Pending:
        """Signs and submits a call (a creation where `to` is None) and returns without waiting for a block.

        Raises LedgerUnavailable when the node is silent: the transaction is kept and goes out later. Raises
        LedgerError where the node refuses it (no funds, say).
        """
        text = "0x" + data.hex()
        with self._turn():
            self._prune()
            if (same := self._same(to, text)) is not None:
                return same
            for _ in range(5):
                nonce = self._free_nonce() if self._next is None else self._next
                max_fee, tip = self._fees()
                pending = self._sign(Pending(nonce, to, text, gas, max_fee, tip, "", ()))
                self._keep(pending)
                self._next = nonce + 1
                refusal = self._submit(pending)
                if refusal is None:
                    return pending
                self._drop(pending.nonce)
                self._next = None  # somebody else may send from this account: ask the chain again
                if "nonce" not in refusal and "replacement" not in refusal:
                    raise LedgerError(f"the chain node refused the transaction: {refusal}")
            raise LedgerError(f"no nonce of {self.account} is free: is the account used elsewhere as well?")

    def waiting(self, to: str | None, data: bytes) -> bool:
        """Whether this very call is in the outbox."""
        with self._turn():
            self._prune()
            return self._same(to, "0x" + data.hex()) is not None

    def wait(self, pending: Pending, timeout: float) -> dict[str, Any]:
        """The receipt. Raises Unconfirmed after `timeout` seconds, LedgerError if its nonce went to another."""
        deadline = time.monotonic() + timeout
        resend, stuck, pause = time.monotonic() + _RESEND, time.monotonic() + _STUCK, _POLL
        while True:
            try:
                pending = self._newest(pending)
                receipt = self._receipt(pending)
                if receipt is None and time.monotonic() >= resend:
                    resend = time.monotonic() + _RESEND
                    receipt = self._chase(pending, stuck=time.monotonic() >= stuck)
                if receipt is not None:
                    with self._turn():
                        self._drop(pending.nonce)
                    return receipt
            except LedgerUnavailable:
                pass  # the deadline decides
            if time.monotonic() >= deadline:
                raise Unconfirmed(f"transaction {pending.hashes[-1]} was not mined within {timeout:.0f} s")
            time.sleep(pause)
            pause = min(1.3 * pause, _SLOWEST)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Alone with the outbox, and knowing what is in it."""
        deadline = time.monotonic() + _TURN
        busy = LedgerUnavailable(
            f"earlier transactions of {self.account} still wait for the chain node: try again later"
        )
        if not self._lock.acquire(timeout=_TURN):
            raise busy
        try:
            if self._guard is None or self._folder is None:
                yield
                return
            if not self._guard.acquire(deadline):
                raise busy
            try:
                if self._guard.has_changed():
                    self._pending = {p.nonce: p for p in map(_load, sorted(self._folder.glob("*.json")))}
                    self._next = None
                    self._guard.see()
                yield
            finally:
                self._guard.release()
        finally:
            self._lock.release()

    def _chase(self, pending: Pending, stuck: bool) -> dict[str, Any] | None:
        """Sends again what the chain may have lost; the receipt if the nonce turns out to be used."""
        with self._turn():
            if self._count() > pending.nonce:
                receipt = self._receipt(pending)
                if receipt is None:
                    self._drop(pending.nonce)
                    raise LedgerError(f"another transaction of {self.account} took nonce {pending.nonce}")
                return receipt
            if stuck:
                self._offer_more(pending)
            self._resubmit()
            if stuck and self._count() < min(self._pending, default=0):
                self._pending, lost = {}, list(self._pending)
                for nonce in lost:
                    self._drop(nonce)
                self._next = None
                raise LedgerError(f"the chain took earlier transactions of {self.account} back: try again")
        return None

    def _offer_more(self, pending: Pending) -> None:
        """Signs a version with a higher fee where the present one no longer pays the base fee."""
        max_fee, tip = self._fees()
        if self._rpc.head().base_fee > pending.max_fee:
            more = replace(pending, max_fee=max(max_fee, pending.max_fee * 9 // 8), tip=max(tip, pending.tip * 9 // 8))
            self._keep(self._sign(more))

    def _resubmit(self) -> None:
        """Submits again what waits, in case the chain lost it."""
        self._prune()
        for nonce in sorted(self._pending):
            self._submit(self._pending[nonce])

    def _prune(self) -> None:
        """Forgets the transactions whose nonces are used."""
        if self._pending:
            used = self._count()
            for nonce in [n for n in self._pending if n < used]:
                self._drop(nonce)

    def _free_nonce(self) -> int:
        nonce = self._count()
        while nonce in self._pending:
            nonce += 1
        for unreachable in [n for n in self._pending if n > nonce]:
            self._drop(unreachable)  # behind a gap that nobody fills: the chain was reset
        return nonce

    def _same(self, to: str | None, data: str) -> Pending | None:
        return next((p for p in self._pending.values() if (p.to, p.data) == (to, data)), None)

    def _newest(self, pending: Pending) -> Pending:
        with self._turn():
            newest = self._pending.get(pending.nonce, pending)
        return newest if (newest.to, newest.data) == (pending.to, pending.data) else pending

    def _submit(self, pending: Pending) -> str | None:
        """None if the node has the transaction now, else why it refused."""
        try:
            self._rpc.call("eth_sendRawTransaction", pending.raw)
        except RpcError as error:
            message = error.message.lower()
            if any(words in message for words in _HELD):
                return None
            if "nonce too low" in message and self._receipt(pending) is not None:
                return None  # an earlier try arrived and is mined
            return message
        return None

    def _receipt(self, pending: Pending) -> dict[str, Any] | None:
        for known in reversed(pending.hashes):
            receipt = self._rpc.call("eth_getTransactionReceipt", known, patience=_PATIENCE)
            if receipt is not None:
                return receipt
        return None

    def _count(self) -> int:
        """How many nonces are used. What is pending is in the outbox: chain nodes that are asked for it may be late."""
        return self._rpc.number("eth_getTransactionCount", self.account, "latest")

    def _fees(self) -> tuple[int, int]:
        tip = self._rpc.number("eth_maxPriorityFeePerGas")
        return 2 * self._rpc.head().base_fee + tip, tip

    def _sign(self, pending: Pending) -> Pending:
        """Adds a signed EIP-1559 transaction with these fields."""
        fields = {"chainId": self._chain_id, "nonce": pending.nonce, "to": pending.to, "value": 0, "data": pending.data}
        fees = {"gas": pending.gas, "maxFeePerGas": pending.max_fee, "maxPriorityFeePerGas": pending.tip}
        signed = self._signer.sign_transaction(fields | fees)
        raw, name = signed.raw_transaction.to_0x_hex(), signed.hash.to_0x_hex()
        return replace(pending, raw=raw, hashes=(*pending.hashes, name))

    def _keep(self, pending: Pending) -> None:
        """Raises OSError where it cannot be written; then nobody knows of it."""
        if self._guard is not None and self._folder is not None:
            self._guard.change()
            entry = {"format": _FORMAT, **asdict(pending)}
            durable.write_bytes(self._folder / f"{pending.nonce:012d}.json", json.dumps(entry).encode())
        self._pending[pending.nonce] = pending

    def _drop(self, nonce: int) -> None:
        self._pending.pop(nonce, None)
        if self._guard is not None and self._folder is not None:
            self._guard.change()
            (self._folder / f"{nonce:012d}.json").unlink(missing_ok=True)


class _Guard:
    """A lock between processes, which the kernel frees when its holder dies. The file counts the changes of what it
    guards: the count goes up before a change, so that whoever comes after a crash reads everything anew."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        weakref.finalize(self, os.close, self._file)
        self._known = -1

    def acquire(self, deadline: float) -> bool:
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_POLL)

    def release(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def has_changed(self) -> bool:
        """Whether others have changed anything since we last saw it."""
        return self._count() != self._known

    def see(self) -> None:
        self._known = self._count()

    def change(self) -> None:
        self._known = self._count() + 1
        os.pwrite(self._file, self._known.to_bytes(8, "big"), 0)

    def _count(self) -> int:
        return int.from_bytes(os.pread(self._file, 8, 0), "big")


def _load(path: Path) -> Pending:
    try:
        fields = json.loads(path.read_text())
        found = fields.pop("format", _FORMAT)  # the first releases wrote none
        if found > _FORMAT:
            raise LedgerError(f"{path} was written by a newer dlx-node (format {found}): use that one")
        return Pending(**{**fields, "hashes": tuple(fields["hashes"])})
    except (AttributeError, ValueError, TypeError, KeyError) as error:
        raise LedgerError(f"{path} is damaged ({error}): remove it") from None
