"""Payloads of the open round leave first: what checks and newcomers ask for waits for them, but not for ever."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import trio

LINGER = 1.0  # s at most, for as long as a payload's range took, the next one may be asked for: short on a fast link
HELD = 3.0  # s that a piece waits at most; less than what makes its reader look for another peer
PIECE = 16 * 1024  # bytes
_LOOK = 0.05  # s


class Precedence:
    """Of one node's answers."""

    def __init__(self) -> None:
        self._payloads = 0
        self._until = -math.inf  # nothing else leaves

    @contextmanager
    def payload(self) -> Iterator[None]:
        """One is on its way while this lasts."""
        self._payloads += 1
        began = trio.current_time()
        try:
            yield
        finally:
            self._payloads -= 1
            now = trio.current_time()
            self._until = max(self._until, now + min(LINGER, now - began))

    async def turn(self) -> None:
        """Of a piece of anything else."""
        with trio.move_on_after(HELD):
            while self._payloads or trio.current_time() < self._until:
                await trio.sleep(_LOOK)
