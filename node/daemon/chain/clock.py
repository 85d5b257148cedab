"""The chain's time, carried on between its blocks by this machine's monotonic clock; its wall clock is never asked.

Timeouts count from block times. A wall clock that is wrong by minutes would make a node accuse members who did nothing.
"""

import time
from collections import deque
from collections.abc import Callable
from statistics import median_high

_HEADS = 16  # looked back on
_WRONG_SECONDS = 60.0  # by which the clock has to be ahead before it is set back
_SKEW_SECONDS = 5.0  # between the wall clock and the chain's time that are worth a warning


def since_boot() -> float:
    """Seconds that pass also while the machine sleeps: the chain's do."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class ChainClock:
    """Unix seconds as the chain counts them, which go on while the chain is silent.

    They rest on the median of the newest blocks, so that one block with a wrong time changes nothing. They never go
    back, but where they were wrong by more than a minute.
    """

    def __init__(self, monotonic: Callable[[], float] = since_boot, wall: Callable[[], float] = time.time) -> None:
        self._monotonic, self._wall = monotonic, wall
        self._offsets: deque[float] = deque(maxlen=_HEADS)  # of block times to the monotonic clock, when first seen
        self._latest = 0.0

    def see(self, block_time: int) -> None:
        """A block that was not seen before is the head now."""
        self._offsets.append(block_time - self._monotonic())

    def now(self) -> float:
        """The wall clock's time until the first block is seen."""
        if not self._offsets:
            return self._wall()
        reckoned = self._monotonic() + median_high(self._offsets)
        if not self._latest - _WRONG_SECONDS <= reckoned <= self._latest:
            self._latest = reckoned
        return self._latest

    @property
    def skew(self) -> float:
        """Seconds by which this machine's wall clock is ahead of the chain's time. Nothing depends on it."""
        return self._wall() - self.now()

    @property
    def is_skewed(self) -> bool:
        """Whether the skew is more than blocks and their way explain. The first head tells nothing: it may be old."""
        return len(self._offsets) > 1 and abs(self.skew) > _SKEW_SECONDS
