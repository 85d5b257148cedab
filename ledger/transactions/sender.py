"""One account's transactions: signed here, numbered here, on disk before they are sent and until they are confirmed.

A transaction that was accepted can still vanish (a restarted node, a full pool, a reorg), and one that seems refused
may have arrived. So the raw bytes stay in the outbox and are sent again; sending the same bytes twice is harmless. A
call that is already waiting is not signed a second time. Several processes may share an outbox.

An entry is sent again only while its purpose is: until it expires, unless it was asked for again, and only where the
contract would not refuse it now. One that is over leaves its nonce to the next call, or to a transfer of nothing where
later nonces wait behind it.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from eth_account import Account

from dlx.ledger.abi import TypedError
from dlx.ledger.errors import LedgerError, LedgerUnavailable, RpcError
from dlx.ledger.events import parse_log
from dlx.ledger.rpc.failover import LAG
from dlx.ledger.rpc.headers import Header
from dlx.ledger.rpc.json_rpc import STORED, Request, as_number, quantity
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.ledger.transactions.budget import Budget, BudgetSpent
from dlx.ledger.transactions.fees import TIP, FeeTooHigh, Limits, Price, cost, eth, price, raised
from dlx.ledger.transactions.outbox import TURN, Outbox, Pending

CONFIRMED = 24  # blocks above a transaction after which it is forgotten, at least
_POLL, _SLOWEST = 0.05, 1.0  # seconds between looks for a receipt, where nobody tells of blocks: at first, at last
_RESEND, _STUCK = 3.0, 20.0  # seconds between resubmissions, and until something must be done about it
_STUCK_BLOCKS = 2  # that went by without it
_WANTED = 120.0  # seconds after which nobody wants a transaction any more who does not ask again
_REFUSED = 0.0  # `expires` of what a chain node refused
_GIVEN_UP = 3600.0  # seconds for the receipt of what took a used nonce
_TRANSFER = 21_000  # gas
_GAS_MORE = 20_000  # beside a quarter, above an estimate: others change the state until a transaction is mined
_LOW = ("nonce too low", "oldnonce")  # the latter Nethermind's
_HELD = ("already known", "known transaction", "already imported", "already exists", "alreadyknown")

_log = logging.getLogger("dlx.ledger")


class Unconfirmed(LedgerError):
    """The transaction was not mined in time; it stays in the outbox, and goes out again when it is asked for again."""


class WouldRevert(LedgerError):
    """The contract would refuse the waiting transaction by now, so it is not sent again. `error`: its answer."""

    def __init__(self, error: RpcError) -> None:
        super().__init__(f"the transaction has no purpose any more: {error}")
        self.error = error


class Sender:
    """Sends for one account on one chain. Thread-safe; other processes may send from the same outbox meanwhile, but
    without a common outbox two senders would give the same nonce twice."""

    def __init__(
        self, rpc: RpcClient, chain_id: int, key: bytes, outbox: Path | None, limits: Limits | None = None
    ) -> None:
        """Reads the outbox (a directory, made if absent; None keeps nothing) and sends again what is in it."""
        self._rpc, self._chain_id, self._signer = rpc, chain_id, Account.from_key(key)
        self._limits = limits or Limits()
        self.account: str = self._signer.address
        self.confirmed = CONFIRMED
        folder = None if outbox is None else outbox / f"{chain_id}-{self.account}"
        self._outbox = Outbox(folder, self.account)
        self._budget = Budget(None if folder is None else folder / "spent.json", self._limits.budget)
        self._mined: dict[int, int] = {}  # nonce -> block, of entries that were seen mined
        self._awaited: list[int] = []  # nonces, one for each thread that waits
        # By the first version's hash: since when the contract would refuse it.
        self._refused: dict[str, tuple[float, RpcError]] = {}
        self._price_seen: dict[int, int] = {}  # nonce -> block in which its price was last looked at
        self._unknown: dict[int, float] = {}  # used nonce -> since when its receipt is missing
        self._head: Header | None = None  # as last seen
        self._top = 0  # the highest head seen
        self._highest = 0  # nonces used
        self._low_since: float | None = None  # when a chain node began to say fewer
        with contextlib.suppress(LedgerUnavailable, RpcError):
            self.tend()

    def send(
        self,
        to: str | None,
        data: bytes,
        gas: int,
        keeps_slot: bool = False,
        check: Callable[[int | str], object] | None = None,
        value: int = 0,
    ) -> Pending:
        """Signs and submits a call (a creation where `to` is None) and returns without waiting for a block: two
        exchanges with the chain node, and one for `check`.

        `gas`: at most; with `check` what the chain node estimates and some more. `check` raises where the call would
        fail at the block it is given. It is called where there is no estimate, and where a block had the same call not
        long ago: then at none before that one, from where it would seem to be wanted. It must not send, because the
        outbox is locked. `keeps_slot`: the call may use the last tenth of the budget. `value`: the wei that it pays the
        contract, which are no part of the budget.

        Raises LedgerUnavailable when the node is silent: a transaction that was signed by then is kept and goes out
        later. Raises FeeTooHigh and BudgetSpent before anything is signed, LedgerError where the node refuses it (no
        funds, say).
        """
        text = "0x" + data.hex()
        call = {"from": self.account, "data": text, "gas": hex(gas)} | ({} if to is None else {"to": to})
        call |= {"value": hex(value)} if value else {}
        estimate: list[Request] = [] if check is None else [("eth_estimateGas", (call, "latest"))]
        with self._turn():
            used, head, (tip, *estimated) = self._settle(TIP, *estimate)
            if (same := self._same(to, text, value)) is not None:
                return self._ask_again(same)
            estimates = [as_number(found) for found in estimated if not isinstance(found, RpcError)]
            mined = max((self._mined.get(entry.nonce, -1) for entry in self._alike(to, text, value)), default=-1)
            # Decided by the same look as above: what waited before it may be mined, and the next may be at a late node.
            if check is not None and (mined >= 0 or not estimates):
                check(self._not_before(mined, head))
            gas = min([gas, *(found * 5 // 4 + _GAS_MORE for found in estimates)])
            least = used
            for _ in range(5):
                nonce, former = self._free_nonce(used, least)
                pending = _with_price(
                    _following(former, nonce, to, text, value, gas), self._next_price(head, former, tip)
                )
                self._check_budget(pending, keeps_slot)
                signed = self._sign(pending)
                self._outbox.keep(signed)
                self._price_seen[nonce] = head.number
                refusal = self._submit(signed)
                if refusal is None or (_is_low(refusal) and not self._is_taken(signed, head)):
                    return signed  # or an earlier try arrived: `wait` finds out
                if "nonce" not in refusal and "replacement" not in refusal and "insufficient funds" not in refusal:
                    # Another chain node may have it all the same: what is signed next takes its place.
                    self._outbox.keep(replace(signed, expires=_REFUSED))
                    raise LedgerError(f"the chain node refused the transaction: {refusal}")
                self._take_back(signed, former)
                if "insufficient funds" in refusal:
                    raise LedgerError(self._lacks(signed))
                used, least = self._count(), nonce + 1  # somebody else sends from this account
            raise LedgerError(f"no nonce of {self.account} is free: is the account used elsewhere as well?")

    def wait(self, pending: Pending, timeout: float) -> dict[str, Any]:
        """The receipt. Raises Unconfirmed after `timeout` seconds, WouldRevert where the contract would refuse it by
        now, LedgerError if its nonce went to another."""
        deadline = time.monotonic() + timeout
        resend, stuck, pause = time.monotonic() + _RESEND, time.monotonic() + _STUCK, _POLL
        nonce, head = pending.nonce, self._head
        self._awaited.append(nonce)
        try:
            while True:
                try:
                    pending = self._newest(pending, deadline - time.monotonic())
                    receipt = self._receipt(pending)
                    if receipt is None and time.monotonic() >= resend:
                        resend = time.monotonic() + _RESEND
                        self._chase(pending, stuck=time.monotonic() >= stuck)
                    if receipt is not None:
                        with self._turn():
                            self._see_mined(pending, receipt, told=True)
                        return receipt
                except (LedgerUnavailable, RpcError):  # geth has no receipts while it indexes, say
                    pass  # the deadline decides
                if time.monotonic() >= deadline:
                    what = "has no receipt, though its nonce is used," if nonce < self._highest else "was not mined"
                    raise Unconfirmed(f"transaction {pending.hashes[-1]} {what} within {timeout:.0f} s")
                head = self._await_block(head, pause, min(resend, deadline))
                pause = min(1.5 * pause, _SLOWEST)
        finally:
            self._awaited.remove(nonce)

    def tend(self, patience: float = TURN) -> None:
        """Sends again what the chain may have lost, as after a reorg. Raises LedgerUnavailable, also after `patience`
        seconds where others are at it."""
        with self._turn(patience):
            if self._outbox.entries:
                used, _, _ = self._settle()
                self._resubmit(used)

    @contextlib.contextmanager
    def _turn(self, patience: float = TURN) -> Iterator[None]:
        with self._outbox.turn(patience) as changed:
            if changed:
                self._budget.read()
                self._mined.clear()
            yield

    # What the chain says of the entries.

    def _settle(self, *more: Request) -> tuple[int, Header, list[Any]]:
        """Counts what was paid, forgets what is confirmed; how many nonces are used, the head, and the answers to
        `more`, which are asked for in the same exchange."""
        head, (count, *answers) = self._rpc.head_and(("eth_getTransactionCount", (self.account, "latest")), *more)
        if isinstance(count, RpcError):
            raise count
        self._head, used = head, self._plausible(as_number(count), head)
        for entry in list(self._outbox.entries.values()):
            if entry.nonce >= used:
                self._mined.pop(entry.nonce, None)  # a reorg, or a late chain node
            elif not -LAG <= head.number - self._mined.get(entry.nonce, -self.confirmed) < self.confirmed:
                self._settle_used(entry, head)  # what is confirmed; and what a chain node placed where no block is
        return used, head, answers

    def _plausible(self, used: int, head: Header) -> int:
        """How many nonces are used, though a late chain node says fewer; one that has long said so and is not late is
        believed: then the chain was reset."""
        late, self._top = self._top - LAG <= head.number < self._top, max(self._top, head.number)
        least = min(self._outbox.entries, default=self._highest)
        if used >= least:
            self._highest, self._low_since = used, None
            return used
        self._low_since = self._low_since or time.monotonic()
        if late or time.monotonic() < self._low_since + _STUCK:
            return least
        self._highest = used
        return used

    def _not_before(self, mined: int, head: Header) -> int | str:
        """Where to try a call that this block had a moment ago (-1: none had it). Raises LedgerUnavailable where it is
        not known."""
        if mined < 0 or head.number >= mined + LAG:
            return "latest"
        if head.number < mined:
            raise LedgerUnavailable(f"the chain node at {self._rpc.name} is at block {head.number}, we saw {mined}")
        return head.number

    def _settle_used(self, entry: Pending, head: Header) -> None:
        receipt = self._receipt(entry)
        if receipt is not None:
            self._see_mined(entry, receipt)
            over = entry.told or time.time() > entry.expires  # else whoever asks again would pay for it again
            if over and head.number - self._mined[entry.nonce] >= self.confirmed:
                self._forget(entry.nonce)
        elif (other := self._receipt(replace(entry, hashes=entry.former))) is not None:
            self._budget.pay(str(other.get("transactionHash")), cost(other, entry.cap), self._names())
            self._forget(entry.nonce)
        elif (taker := self._taker(entry.nonce, head)) is not None and taker not in entry.hashes + entry.former:
            self._forget(entry.nonce)
        elif time.monotonic() >= self._unknown.setdefault(entry.nonce, time.monotonic()) + _GIVEN_UP:
            _log.warning(
                "no chain node gives a receipt for nonce %d of %s: it counts as paid", entry.nonce, self.account
            )
            self._budget.pay(entry.hashes[-1], entry.cap, self._names())
            self._forget(entry.nonce)

    def _see_mined(self, pending: Pending, receipt: dict[str, Any], told: bool = False) -> None:
        here = self._outbox.entries.get(pending.nonce)
        if here is None or here.hashes[0] != pending.hashes[0]:
            return  # it was counted when it was forgotten
        self._budget.pay(str(receipt.get("transactionHash")), cost(receipt, pending.cap), self._names())
        self._mined[pending.nonce] = quantity(receipt["blockNumber"], STORED)
        if not here.mined or told > here.told:
            self._outbox.keep(replace(here, mined=True, told=told or here.told))

    def _names(self) -> set[str]:
        """Of all that may be seen mined again."""
        return {name for entry in self._outbox.entries.values() for name in entry.hashes}

    def _await_block(self, head: Header | None, pause: float, until: float) -> Header | None:
        """Until a block may have it: one above `head`, where the chain node tells of blocks, else for so long."""
        left = until - time.monotonic()
        if head is None or not self._rpc.tells or left <= 0:
            time.sleep(pause)
            return head
        began = time.monotonic()
        try:
            newest = self._rpc.newer(head, left)
        except LedgerError:
            newest = head
        if newest == head:  # it may be too busy to wait with us
            time.sleep(max(0.0, pause - (time.monotonic() - began)))
        return newest

    def _receipt(self, pending: Pending) -> dict[str, Any] | None:
        """Of whichever version was mined; from any URL, once the nonce is used and the first has none."""
        patience = self._rpc.timeout / 2  # for one look at one URL, or at all the others
        found = _receipt_from(self._rpc, pending, patience)
        if found is None and pending.nonce < self._highest:
            others = self._rpc.each()
            for rpc in others:
                with contextlib.suppress(LedgerError):
                    found = found or _receipt_from(rpc, pending, patience / len(others))
        return found

    def _count(self) -> int:
        """How many nonces are used. What is pending is in the outbox: chain nodes that are asked for it may be late."""
        return self._rpc.number("eth_getTransactionCount", self.account, "latest")

    def _is_taken(self, refused: Pending, head: Header) -> bool:
        """Whether its nonce was used before it was sent, by what it was to replace or by another."""
        before = self._receipt(replace(refused, hashes=refused.former))
        return before is not None or self._was_used(refused.nonce, head.number)

    def _was_used(self, nonce: int, block: int) -> bool:
        """Whether the nonce was used by this block; False where the chain node does not say."""
        try:
            return self._uses(nonce, block)
        except RpcError:
            return False

    def _uses(self, nonce: int, block: int) -> bool:
        """Whether the nonce was used by this block. Raises LedgerError."""
        return self._rpc.number("eth_getTransactionCount", self.account, hex(block)) > nonce

    def _taker(self, nonce: int, head: Header) -> str | None:
        """The transaction that has the nonce, by its block, and not just now; None where the chain node does not say.

        That no receipt comes says nothing: a late chain node has none of what was mined.
        """
        low, high, step = 0, head.number - LAG, 1  # the count of nonces rises above it in a block from `low` to `high`
        try:
            if high < low or not self._uses(nonce, high):
                return None
            while low < high:  # from the head down: old states are soon gone
                middle = max(low, high - step) if step else (low + high) // 2
                if self._uses(nonce, middle):
                    high, step = middle, 2 * step
                else:
                    low, step = middle + 1, 0
            block = self._rpc.call("eth_getBlockByNumber", hex(high), True)
            own = (sent for sent in block["transactions"] if sent["from"].lower() == self.account.lower())
            return next((str(sent["hash"]) for sent in own if quantity(sent["nonce"]) == nonce), None)
        except (LedgerError, KeyError, TypeError, ValueError, AttributeError):
            return None

    # What waits.

    def _chase(self, pending: Pending, stuck: bool) -> None:
        """Sends again what the chain may have lost. Raises LedgerError where that cannot help."""
        with self._turn():
            used, head, _ = self._settle()
            here = self._outbox.entries.get(pending.nonce)
            waits = used <= pending.nonce
            if here is None or here.call != pending.call:
                if self._receipt(pending) is None:
                    if waits:
                        raise LedgerError(
                            f"transaction {pending.hashes[-1]} is not sent again: it was given up before a block had "
                            f"it, and nonce {pending.nonce} of {self.account} left to another"
                        )
                    taker = self._taker(pending.nonce, head)
                    if taker is not None and taker not in pending.hashes:
                        raise LedgerError(f"another transaction of {self.account} took nonce {pending.nonce}")
                return
            if stuck and waits:
                with contextlib.suppress(FeeTooHigh, BudgetSpent):  # then it waits at its present price
                    self._offer_more(here, head)
            self._resubmit(used)
            if stuck and waits:
                self._spread(self._outbox.entries.get(here.nonce, here))
            since, error = self._refused.get(here.hashes[0], (time.monotonic(), None))
            if error is not None and waits and time.monotonic() >= since + _STUCK:
                raise WouldRevert(error)
            if stuck and used < min(self._outbox.entries, default=0):
                for nonce in list(self._outbox.entries):
                    self._forget(nonce)
                raise LedgerError(f"the chain took earlier transactions of {self.account} back: try again")

    def _resubmit(self, used: int) -> None:
        """Submits again what waits and still has a purpose, in case the chain lost it; not where the nonce is used."""
        waiting = [pending for pending in self._waiting() if pending.nonce >= used]
        for pending in waiting:
            wanted = self._is_wanted(pending)
            if wanted:
                self._submit(pending)
            elif wanted is False and pending is not waiting[-1] and self._is_surely_over(pending):
                with contextlib.suppress(FeeTooHigh):
                    self._cancel(pending)

    def _spread(self, pending: Pending) -> None:
        """Submits it to every chain node: the first may keep it to itself."""
        if self._is_wanted(pending):
            for rpc in self._rpc.each():
                with contextlib.suppress(LedgerError):
                    rpc.impatient().call("eth_sendRawTransaction", pending.raw)

    def _is_wanted(self, pending: Pending) -> bool | None:
        """Whether it still has a purpose; None where the chain node does not say. Whatever a block once had was wanted
        then, so it does not expire."""
        if pending.to is None or _is_transfer(pending):
            return True
        if time.time() > pending.expires and not pending.mined and pending.nonce not in self._awaited:
            return False
        call = {"from": self.account, "to": pending.to, "data": pending.data, "gas": hex(pending.gas)}
        call["value"] = hex(pending.value)
        try:
            self._rpc.call("eth_call", call, "latest")
        except RpcError as error:
            if error.revert is None:
                return None
            self._refused.setdefault(pending.hashes[0], (time.monotonic(), error))
            return False
        self._refused.pop(pending.hashes[0], None)
        return True

    def _is_surely_over(self, pending: Pending) -> bool:
        """Not only for a chain node that is late, and not while somebody here waits for it."""
        since, _ = self._refused.get(pending.hashes[0], (-_STUCK, None))
        return time.monotonic() > since + _STUCK and pending.nonce not in self._awaited

    def _cancel(self, pending: Pending) -> None:
        """A transfer of nothing takes its nonce, so that later ones are not stuck behind it."""
        head = self._rpc.head()
        transfer = replace(pending, to=self.account, data="0x", value=0, gas=_TRANSFER, hashes=(), mined=False,
                           former=pending.former + pending.hashes)  # fmt: skip
        signed = self._sign(_with_price(transfer, self._next_price(head, pending)))
        self._outbox.keep(signed)
        self._refused.pop(pending.hashes[0], None)
        self._submit(signed)

    def _offer_more(self, pending: Pending, head: Header) -> None:
        """Signs a version with a higher fee and tip where blocks went by without the present one, or will."""
        before = self._price_seen.setdefault(pending.nonce, head.number)
        if head.number < before + _STUCK_BLOCKS and (head.base_fee or 0) <= pending.max_fee:
            return
        self._price_seen[pending.nonce] = head.number
        now = price(self._rpc, head, self._limits)
        more = raised(Price(pending.max_fee, pending.tip), now, self._limits)
        if more is not None:
            offer = _with_price(pending, more)
            self._budget.check(self._on_its_way(without=pending.nonce), offer.cap, keeps_slot=True)
            self._outbox.keep(self._sign(offer))

    def _waiting(self) -> list[Pending]:
        """In the order of their nonces."""
        entries = self._outbox.entries
        return [entries[nonce] for nonce in sorted(entries) if nonce not in self._mined]

    def _on_its_way(self, without: int | None = None) -> int:
        """What the waiting transactions cost at most, in wei."""
        return sum(pending.cap for pending in self._waiting() if pending.nonce != without)

    def _alike(self, to: str | None, data: str, value: int) -> list[Pending]:
        return [entry for entry in self._outbox.entries.values() if entry.call == (to, data, value)]

    def _same(self, to: str | None, data: str, value: int) -> Pending | None:
        """The entry that asking for this call asks for again: one that waits, or of whose end nobody was told."""
        alike = (
            entry
            for entry in self._alike(to, data, value)
            if (not entry.told if entry.nonce in self._mined else entry.mined or self._may_come(entry))
        )
        return max(alike, key=lambda entry: entry.nonce, default=None)

    def _may_come(self, pending: Pending) -> bool:
        """Not what a chain node refused; but where its nonce is used, it may have come all the same."""
        return pending.expires != _REFUSED or pending.nonce < self._highest

    def _ask_again(self, pending: Pending) -> Pending:
        if pending.nonce in self._mined:
            return pending
        again = pending
        if pending.expires < time.time() + _WANTED / 2:
            again = replace(pending, expires=time.time() + _WANTED)
            self._outbox.keep(again)
        self._refused.pop(pending.hashes[0], None)
        self._submit(again)
        return again

    def _newest(self, pending: Pending, patience: float) -> Pending:
        with self._turn(max(0.0, patience)):
            newest = self._outbox.entries.get(pending.nonce, pending)
        return newest if newest.call == pending.call else pending

    def _take_back(self, refused: Pending, former: Pending | None) -> None:
        """The chain node refused it: the nonce is again whose it was."""
        self._forget(refused.nonce)
        if former is not None:
            self._outbox.keep(former)

    def _forget(self, nonce: int) -> None:
        if (gone := self._outbox.entries.get(nonce)) is not None:
            self._refused.pop(gone.hashes[0], None)
        self._outbox.drop(nonce)
        for by_nonce in (self._mined, self._price_seen, self._unknown):
            by_nonce.pop(nonce, None)

    # A new one.

    def _free_nonce(self, used: int, least: int) -> tuple[int, Pending | None]:
        """The first nonce from `least` on that is free, and the entry that it is taken from: one that is over."""
        nonce, entries = max(used, least), self._outbox.entries
        while nonce in entries:
            if nonce == max(entries) and self._may_be_replaced(entries[nonce]):
                return nonce, entries[nonce]
            nonce += 1
        reached = nonce + 1
        while reached in entries:
            reached += 1
        for unreachable in [n for n in entries if n > reached]:
            self._forget(unreachable)  # behind a gap that nobody fills: the chain was reset
        return nonce, None

    def _may_be_replaced(self, pending: Pending) -> bool:
        if pending.nonce in self._mined or pending.mined or pending.nonce in self._awaited:
            return False
        # Others may have asked for it again since it was refused: the chain node is asked once more.
        return time.time() > pending.expires or (
            pending.hashes[0] in self._refused and self._is_wanted(pending) is False
        )

    def _next_price(self, head: Header, former: Pending | None, tip: Any = None) -> Price:
        """What replaces `former`, as far as the limits allow; `tip` as in `price`."""
        now = price(self._rpc, head, self._limits, tip)
        if former is None:
            return now
        return raised(Price(former.max_fee, former.tip), now, self._limits) or now

    def _check_budget(self, pending: Pending, keeps_slot: bool) -> None:
        self._budget.check(self._on_its_way(without=pending.nonce), pending.cap, keeps_slot)

    def _lacks(self, pending: Pending) -> str:
        balance, needed = self._rpc.number("eth_getBalance", self.account, "latest"), self._on_its_way() + pending.cap
        needed += pending.value
        return f"account {self.account} has {eth(balance)} ETH, needs {eth(needed)} ETH: send it funds"

    def _submit(self, pending: Pending) -> str | None:
        """None if the node has the transaction now, else why it refused."""
        try:
            self._rpc.call("eth_sendRawTransaction", pending.raw)
        except RpcError as error:
            message = error.message.lower()
            if any(words in message for words in _HELD):
                return None
            if _is_low(message) and self._receipt(pending) is not None:
                return None  # an earlier try arrived and is mined
            return message
        return None

    def _sign(self, pending: Pending) -> Pending:
        """Adds a signed EIP-1559 transaction with these fields."""
        fields = {"chainId": self._chain_id, "nonce": pending.nonce, "to": pending.to, "data": pending.data}
        fees = {"gas": pending.gas, "maxFeePerGas": pending.max_fee, "maxPriorityFeePerGas": pending.tip}
        signed = self._signer.sign_transaction(fields | fees | {"value": pending.value})
        raw, name = signed.raw_transaction.to_0x_hex(), signed.hash.to_0x_hex()
        return replace(pending, raw=raw, hashes=(*pending.hashes, name), expires=time.time() + _WANTED)


def _receipt_from(rpc: RpcClient, pending: Pending, patience: float) -> dict[str, Any] | None:
    """The newest version's first, all in one exchange where the chain node takes batches; none is asked for after so
    many seconds. Raises LedgerError, LedgerUnavailable."""
    until, versions = time.monotonic() + patience, pending.hashes[::-1]
    receipts = rpc.batch("eth_getTransactionReceipt", [(name,) for name in versions], patience=patience)
    for name, receipt in zip(versions, receipts, strict=False):
        if receipt is not None:
            return _checked(receipt, name)
        if time.monotonic() >= until:
            break
    return None


def _checked(receipt: Any, name: str) -> dict[str, Any]:
    """The receipt, if it is of this transaction and says all that is read of one. Raises LedgerUnavailable."""
    try:
        for number in ("blockNumber", "gasUsed", "status"):
            quantity(receipt[number], STORED)
        if receipt["transactionHash"].lower() == name and len(bytes.fromhex(receipt["blockHash"][2:])) == 32:
            for log in receipt["logs"]:
                parse_log(log)
            return receipt
    except (KeyError, TypeError, ValueError, AttributeError, TypedError):
        pass
    raise LedgerUnavailable(f"the chain node gave something else than the receipt of {name}")


def _is_low(refusal: str) -> bool:
    return any(words in refusal for words in _LOW)


def _following(former: Pending | None, nonce: int, to: str | None, data: str, value: int, gas: int) -> Pending:
    """A call that is signed next with this nonce, in place of `former`: another version of it, if that is the same."""
    new = Pending(nonce, to, data, gas, 0, 0, "", (), value=value)
    if former is None:
        return new
    if former.call == new.call:
        return replace(new, hashes=former.hashes, former=former.former)
    return replace(new, former=former.former + former.hashes)


def _with_price(pending: Pending, price: Price) -> Pending:
    return replace(pending, max_fee=price.max_fee, tip=price.tip)


def _is_transfer(pending: Pending) -> bool:
    return pending.data == "0x" and pending.to is not None
