"""How far something is: bars for a person at a terminal; a log gets plain lines, of what lasts one now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dlx.ground.untrusted import printable
from dlx.node.home.formatting import color_system

_LOG_SECONDS = 10.0  # between two lines in a log of how far it is


class Progress:
    """One line on a terminal's stderr that keeps changing; in a log what `say` says and, of what lasts, a line now and
    then; with `json` only what `say` says."""

    def __init__(self, json: bool = False) -> None:
        terminal = sys.stderr.isatty()
        self._live, self._logs, self._logged = terminal and not json, not terminal and not json, time.monotonic()

    def show(self, line: str) -> None:
        if self._logs and time.monotonic() >= self._logged + _LOG_SECONDS:
            self._logged = time.monotonic()
            self.say(line[:100].strip())
        if self._live:
            sys.stderr.write(f"\r\x1b[2K{printable(line[:100])}")
            sys.stderr.flush()

    def step(self, line: str) -> None:
        """What takes a while begins: a log gets this line, too."""
        self.say(line) if self._logs else self.show(line)

    def say(self, line: str) -> None:
        self.clear()
        sys.stderr.write(f"dlx-node: {printable(line)}\n")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Before something else is printed."""
        if self._live:
            sys.stderr.write("\r\x1b[2K")


@contextmanager
def of_bytes(what: str, json: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar with speed and time left, for who is told the bytes done and those in all."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    hidden = json or not sys.stderr.isatty()
    console = Console(stderr=True, color_system=color_system())
    with Bar(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
