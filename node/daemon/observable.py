"""A value that parts of the node watch: whoever is slow misses what came between, never the newest."""

from collections.abc import AsyncIterator
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Observable(Generic[T]):
    """Set by one part, read by any number."""

    def __init__(self, value: T) -> None:
        self.value = value
        self._changed = trio.Event()

    def set(self, value: T) -> None:
        self.value = value
        self._changed.set()
        self._changed = trio.Event()

    async def values(self) -> AsyncIterator[T]:
        """The value as it is, then each newer one as soon as it is there."""
        while True:
            changed = self._changed
            yield self.value
            await changed.wait()
