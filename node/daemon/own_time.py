"""The clock of the network process: time that passed while the process was there for it.

A machine that is busy, or asleep, lets a process wait. What came meanwhile lies in the kernel's buffers, and whoever
sent it was not silent. So no deadline counts that time: what is coming is not given up, nor begun anew.

What the process computes counts. Else strangers who give it much to compute would stretch the deadlines of all.
"""

import time
from collections.abc import Callable

from trio.abc import Clock, Instrument

SLACK = 0.05  # s that a turn of the loop may take beyond what it computes, and that it may be woken late


class OwnTime(Clock, Instrument):
    """For `trio.run`, as its clock and among its instruments. `late`: seconds that do not count, so far.

    `computed`: seconds of CPU that the loop's thread has had."""

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, computed: Callable[[], float] = time.thread_time
    ) -> None:
        self._monotonic, self._computed = monotonic, computed
        self._before = computed()
        self._until = monotonic() + SLACK  # how far time may go before it is looked at again
        self.late = 0.0

    def start_clock(self) -> None:
        self._until, self._before = self._monotonic() + SLACK, self._computed()

    def current_time(self) -> float:
        return min(self._monotonic(), self._until) - self.late

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self.current_time()

    def before_io_wait(self, timeout: float) -> None:
        self._look(timeout)

    def after_io_wait(self, timeout: float) -> None:
        self._look(0.0)

    def _look(self, expected: float) -> None:
        """What was neither expected nor computed in is late; from now on so many seconds are expected."""
        now, computed = self._monotonic(), self._computed()
        self.late += max(0.0, now - self._until - (computed - self._before))
        self._until, self._before = now + expected + SLACK, computed
