"""What an account's transactions cost in the last 24 hours, on disk, and whether one more may be signed."""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from dlx.ground import durable
from dlx.ledger.errors import LedgerError
from dlx.ledger.transactions.fees import eth

_HOUR, _DAY = 3600, 24  # seconds, hours
_RESERVE = 10  # a tenth of the budget is for what keeps the slot
_log = logging.getLogger("dlx.ledger")


class BudgetSpent(LedgerError):
    """The operator's budget of the day does not cover the transaction."""


class Budget:
    """`limit` in wei for any 24 hours, None for no limit. Time is this machine's own: a chain node could lie about it.

    Not thread-safe: whoever holds the outbox uses it, and calls `read` when another process has changed the file.
    """

    def __init__(self, path: Path | None, limit: int | None, now: Callable[[], float] = time.time) -> None:
        self._path, self._limit, self._now = path, limit, now
        self._hours: dict[int, int] = {}  # hour since 1970 -> wei paid in it
        self._counted: dict[str, int] = {}  # transactions that are in there and may be seen mined again -> wei
        self.read()

    def read(self) -> None:
        """What the file says; one that is damaged is set aside."""
        if self._path is None or not self._path.exists():
            return
        try:
            found = json.loads(self._path.read_text())
            self._hours = {int(hour): int(wei) for hour, wei in found["hours"].items()}
            self._counted = {str(name): int(wei) for name, wei in found["counted"].items()}
        except (AttributeError, ValueError, TypeError, KeyError) as error:
            aside = self._path.with_suffix(".damaged")
            self._path.replace(aside)
            _log.warning("%s was damaged (%s) and is now %s: the budget begins anew", self._path, error, aside.name)

    def pay(self, name: str, wei: int, may_return: set[str]) -> None:
        """A transaction was mined. It counts once, however often it is seen, for what it cost the last time: a
        reorg may give it another block. `may_return`: those that may be seen again."""
        more = wei - self._counted.get(name, 0)
        if not more and name in self._counted:
            return
        hour = int(self._now()) // _HOUR
        self._hours = {at: paid for at, paid in self._hours.items() if at >= hour - _DAY}
        self._hours[hour] = self._hours.get(hour, 0) + more
        self._counted = {other: paid for other, paid in self._counted.items() if other in may_return} | {name: wei}
        if self._path is not None:
            found = {"hours": self._hours, "counted": self._counted}
            durable.write_bytes(self._path, json.dumps(found).encode())

    def check(self, waiting: int, more: int, keeps_slot: bool) -> None:
        """Raises BudgetSpent unless `more` wei fit, beside what was paid and what `waiting` transactions may cost.

        A tenth is left for transactions that keep the slot.
        """
        if self._limit is None:
            return
        limit = self._limit if keeps_slot else self._limit * (_RESERVE - 1) // _RESERVE
        hour = int(self._now()) // _HOUR
        paid = {at: wei for at, wei in self._hours.items() if at >= hour - _DAY}
        if sum(paid.values()) + waiting + more > limit:
            raise BudgetSpent(
                f"the daily budget of {eth(self._limit)} ETH is used up: {eth(sum(paid.values()))} paid, "
                f"{eth(waiting)} on its way, {eth(more)} asked for{'' if keeps_slot else ', a tenth kept back'}; "
                f"{_when(paid, waiting + more, limit)}"
            )


def _when(paid: dict[int, int], wanted: int, limit: int) -> str:
    """When it goes on: as soon as enough of what was paid is a day old."""
    left = sum(paid.values())
    for hour in sorted(paid):
        left -= paid[hour]
        if left + wanted <= limit:
            at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime((hour + _DAY + 1) * _HOUR))
            return f"it goes on at {at}, or raise daily_budget"
    return "no day's budget covers this: raise daily_budget"
