"""Keeps the node's parts alive: one that fails is started again, later each time, and `status` says why it waits."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

import trio

from dlx.ground.backoff import Backoff
from dlx.ground.errors import DlxError, cause, in_words, leaves
from dlx.node.home import logs
from dlx.node.home.errors import Failure

log = logs.get(__name__)

ReportHealthy = Callable[[], None]  # a part calls it when its work goes well: what failed before is forgotten
Work = Callable[[ReportHealthy], Awaitable[None]]


@dataclass(frozen=True)
class Trouble:
    """Why a part is not running. `retry_at` is trio's time."""

    reason: str
    failures: int  # in a row
    retry_at: float


@dataclass
class Supervisor:
    """`on_failure(part)` hears of each failure."""

    on_failure: Callable[[str], None] = lambda part: None
    troubles: dict[str, Trouble] = field(default_factory=dict)
    now: Callable[[], float] = trio.current_time
    _random: Random = field(default_factory=Random)

    async def keep(self, part: str, work: Work, backoff: Backoff = Backoff(0.5, 30.0)) -> None:
        """Run `work` until it returns, again and again where it fails.

        Raises Failure where it does: that takes a person. Anything else, a fault of ours too, is no reason to end a
        node that trains: it is logged, counted, and tried again.
        """
        failures = 0

        def report_healthy() -> None:
            nonlocal failures
            failures = 0
            self.troubles.pop(part, None)

        try:
            while True:
                try:
                    return await work(report_healthy)
                except Exception as raised:
                    if failure := next((leaf for leaf in leaves(raised) if isinstance(leaf, Failure)), None):
                        raise failure from None
                    error = cause(raised)
                    failures += 1
                    pause = backoff.delay(failures, self._random)
                    self._note(part, error, failures, pause)
                await trio.sleep(pause)
        finally:
            self.troubles.pop(part, None)

    def reasons(self) -> tuple[str, ...]:
        """What does not work now, in words."""
        now = self.now()
        return tuple(
            f"{part}: {trouble.reason} (failed {trouble.failures} times, tried again in "
            f"{max(0.0, trouble.retry_at - now):.0f} s)"
            for part, trouble in self.troubles.items()
        )

    def _note(self, part: str, error: Exception, failures: int, pause: float) -> None:
        reason = in_words(error) or type(error).__name__
        known = self.troubles.get(part)
        self.troubles[part] = Trouble(reason, failures, self.now() + pause)
        self.on_failure(part)
        if not isinstance(error, DlxError | OSError):
            log.exception("a fault of this program", part=part, failures=failures)
        elif known is None or known.reason != reason:  # once, not with every try
            log.warning(f"{part} failed, trying again", error=reason, seconds=round(pause, 1))
