"""The chain's time, carried on between its blocks by this machine's monotonic clock; its wall clock is never asked.

Timeouts count from block times. A wall clock that is wrong by minutes would make a node accuse members who did nothing.
"""

import time
from collections import deque
from collections.abc import Callable

_HEADS = 16  # looked back on: a reorganised chain may have gone back in time
_SKEW_SECONDS = 5.0  # between the wall clock and the chain's time that are worth a warning


class ChainClock:
    """Unix seconds as the chain counts them. Never goes backwards, and goes on while the chain is silent."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
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
        # Blocks come late by as long as they travel, so the one that came soonest is the best witness.
        self._latest = max(self._latest, self._monotonic() + max(self._offsets))
        return self._latest

    @property
    def skew(self) -> float:
        """Seconds by which this machine's wall clock is ahead of the chain's time. Nothing depends on it."""
        return self._wall() - self.now()

    @property
    def is_skewed(self) -> bool:
        """Whether the skew is more than blocks and their way here explain."""
        return abs(self.skew) > _SKEW_SECONDS
