"""How far something is: bars for a person at a terminal; a log gets plain lines, and only those that were said."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dlx.ground.printable import printable


class Progress:
    """One line on a terminal's stderr that keeps changing, or, with `json` and in a log, only what `say` says."""

    def __init__(self, json: bool = False) -> None:
        self._live = sys.stderr.isatty() and not json

    def show(self, line: str) -> None:
        if self._live:
            sys.stderr.write(f"\r\x1b[2K{printable(line[:100])}")
            sys.stderr.flush()

    def say(self, line: str) -> None:
        self._clear()
        sys.stderr.write(f"dlx-node: {printable(line)}\n")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def _clear(self) -> None:
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
    with Bar(*columns, console=Console(stderr=True), transient=True, disable=hidden) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
