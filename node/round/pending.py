"""What the round machine has asked for: one action at a time for each key, and its own wait after a failure."""

from collections.abc import Hashable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from dlx.ground.backoff import Backoff
from dlx.node.round.actions import Retried

UNWANTED = 2.0  # s after its wait in which what is still wanted is asked for again


class Failing(NamedTuple):
    """An action that has failed `failures` times in a row; `next_try` in seconds from now (0: under way)."""

    action: str
    reason: str
    failures: int
    next_try: float


@dataclass(slots=True)
class _Attempts:
    name: str
    retry: Backoff
    busy: bool = False
    failures: int = 0
    reason: str = ""
    local: bool = False
    not_before: float = 0.0  # Unix seconds
    not_before_block: int = 0


class Pending:
    """Times are Unix seconds; `random` is for the jitter, so that the same one gives the same waits."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._attempts: dict[Hashable, _Attempts] = {}
        self._due_at: dict[Hashable, float] = {}
        self._block = 0

    def start(self, action: Retried, now: float) -> bool:
        """Whether the action may begin; if so, it is under way until it is `done` or has `failed`."""
        key = action.key()
        if not self.may_start(key, now):
            return False
        known = self._attempts.setdefault(key, _Attempts(action.name, action.retry))
        known.name, known.retry, known.busy = action.name, action.retry, True
        return True

    def may_start(self, key: Hashable, now: float) -> bool:
        known = self._attempts.get(key)
        return known is None or not (known.busy or now < known.not_before or self._block < known.not_before_block)

    def done(self, action: Retried, not_before_block: int = 0) -> None:
        """It succeeded: the next failure is the first again. Not to be asked for before that block is seen."""
        if not_before_block > self._block:
            self._attempts[action.key()] = _Attempts(action.name, action.retry, not_before_block=not_before_block)
        else:
            self._attempts.pop(action.key(), None)

    def failed(self, action: Retried, reason: str, now: float, local: bool = False) -> None:
        """`local`: by a fault of this machine, whatever was asked."""
        known = self._attempts.setdefault(action.key(), _Attempts(action.name, action.retry))
        known.busy, known.reason, known.local = False, reason, local
        known.failures += 1
        known.not_before = now + known.retry.delay(known.failures, self._random)

    def failing(self, now: float) -> list[Failing]:
        """Every action whose last attempt failed and that is still wanted, the longest series first."""
        found = [
            Failing(one.name, one.reason, one.failures, 0.0 if one.busy else max(0.0, one.not_before - now))
            for one in self._attempts.values()
            if one.failures and (one.busy or now < one.not_before + UNWANTED)
        ]
        return sorted(found, key=lambda one: -one.failures)

    def trouble(self, *but: Hashable) -> str | None:
        """Why this machine itself cannot do what was asked, as far as other actions than those with these keys say."""
        local = (one for key, one in self._attempts.items() if one.failures and one.local and key not in but)
        return next((one.reason for one in local), None)

    def due(self, key: Hashable, now: float, every: float) -> bool:
        """True at most once in `every` seconds: for what is said again and again."""
        if now < self._due_at.get(key, 0.0):
            return False
        self._due_at[key] = now + every
        return True

    def see(self, block: int, now: float) -> None:
        """The newest block that the view of the ledger contains; forgets what nobody asks for any more."""
        self._block = block
        self._due_at = {key: at for key, at in self._due_at.items() if at > now}
        self._attempts = {key: one for key, one in self._attempts.items() if one.busy or self._matters(one, now)}

    def _matters(self, attempts: _Attempts, now: float) -> bool:
        """What is still wanted is asked for again as soon as its wait is over."""
        return self._block < attempts.not_before_block or now < attempts.not_before + attempts.retry.cap
