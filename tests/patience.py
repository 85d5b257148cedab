"""Waiting in tests: a deadline counts from the last sign of progress, so that a busy machine takes longer, no more."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

PATIENCE = 120.0  # seconds without any progress, of what takes a few on an idle machine
LOOK_SECONDS = 0.05
_LOOKS = 20  # between two looks at the progress

T = TypeVar("T")


def until(
    what: str,
    condition: Callable[[], T | None],
    progress: Callable[[], object] = lambda: None,
    seconds: float = PATIENCE,
    explain: Callable[[], str] = lambda: "",
    look: float = LOOK_SECONDS,
) -> T:
    """Looks every `look` seconds until `condition` gives something true, and returns that.

    Fails, with `explain()`, once `progress()` has given the same value for so many seconds.
    """
    last, since, looked = progress(), time.monotonic(), time.monotonic()
    while not (found := condition()):
        now = time.monotonic()
        if now > looked + _LOOKS * look:
            current, looked = progress(), now
            if current != last:
                last, since = current, now
            elif now > since + seconds:
                pytest.fail(f"{what}: no progress for {seconds:.0f} s\n{explain()}")
        time.sleep(look)
    return found
