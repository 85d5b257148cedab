"""Payloads of the open round leave first: what checks and newcomers ask for waits for them, but not for ever."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import trio

LINGER = 1.0  # s at most, for as long as a payload's range took, the next one may be asked for: short on a fast link
HELD = 3.0  # s that a piece waits at most; less than what makes its reader look for another peer
LONGEST = 30.0  # s for which one range of a payload holds others up: it is its reader that is slow then, not our link
SLOW = 60.0  # s for which the ranges of such a reader hold up nobody
PIECE = 16 * 1024  # bytes
_LOOK = 0.05  # s


class Precedence:
    """Of one node's answers."""

    def __init__(self) -> None:
        self._under_way: dict[object, float] = {}  # ranges of payloads: since when
        self._slow: dict[str, float] = {}  # readers: until when
        self._until = -math.inf  # nothing else leaves

    @contextmanager
    def payload(self, reader: str) -> Iterator[None]:
        """A range of one is on its way while this lasts."""
        began, range = trio.current_time(), object()
        holds = began >= self._slow.get(reader, -math.inf)
        if holds:
            self._under_way[range] = began
        try:
            yield
        finally:
            self._under_way.pop(range, None)
            now = trio.current_time()
            if now - began > LONGEST:
                self._slow = {one: until for one, until in self._slow.items() if until > now} | {reader: now + SLOW}
            elif holds:
                self._until = max(self._until, now + min(LINGER, now - began))

    async def turn(self) -> None:
        """Of a piece of anything else."""
        with trio.move_on_after(HELD):
            while self._is_held_up(trio.current_time()):
                await trio.sleep(_LOOK)

    def _is_held_up(self, now: float) -> bool:
        return now < self._until or any(now < began + LONGEST for began in self._under_way.values())
