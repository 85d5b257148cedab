"""Waiting in tests: deadlines know how slow the machine is, and count from the last sign of progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

LOOK_SECONDS = 0.05
_LOOKS = 20  # between two looks at the progress
_WORK = 2_000_000  # additions
_IDLE_SECONDS = 0.11  # for which they take an idle core of 2.5 GHz
_MOST = 8.0

T = TypeVar("T")


def slowness(seconds: float) -> float:
    """By which factor a machine is slower than an idle one, which took so long for the fixed piece of work."""
    return min(max(seconds / _IDLE_SECONDS, 1.0), _MOST)


def _measured() -> float:
    begun, total = time.perf_counter(), 0
    for number in range(_WORK):
        total += number
    return time.perf_counter() - begun


SLOWNESS = slowness(_measured())


def patient(seconds: float) -> float:
    """How long to wait here for what takes at most so long on an idle machine."""
    return seconds * SLOWNESS


PATIENCE = patient(120.0)  # seconds without any progress, of what takes a few on an idle machine


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
