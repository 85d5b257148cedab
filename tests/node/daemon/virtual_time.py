"""Virtual time for what runs under trio: it passes where all wait, and none of it while the machine is busy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from unittest import mock

import trio
from trio.testing import MockClock

T = TypeVar("T")


async def _at_once(
    function: Callable[..., Any], *args: Any, abandon_on_cancel: bool = False, limiter: Any = None
) -> Any:
    """In place of a thread, beside whose work the time would pass."""
    await trio.lowlevel.checkpoint()
    return function(*args)


def run(main: Callable[..., Awaitable[T]], *args: Any) -> T:
    """As `trio.run`; what would be done in threads is done in turn."""
    with mock.patch.object(trio.to_thread, "run_sync", _at_once):
        return trio.run(main, *args, clock=MockClock(autojump_threshold=0))
