"""How a command that others may end still removes its working files."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ASKED = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ends_as_interrupted() -> Iterator[None]:
    """Meanwhile who is told to end, or loses its terminal, ends as at Ctrl-C. For the main thread."""
    asked = [number for number in _ASKED if signal.getsignal(number) is not signal.SIG_IGN]  # as under nohup
    before = {number: signal.signal(number, _interrupt) for number in asked}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
