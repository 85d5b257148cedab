"""`dlx-node logs`: what the folder's node wrote to its log."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal, TextIO

import typer

from dlx.node.cli import options
from dlx.node.home.errors import NotReady

_LOOK_SECONDS = 0.25  # between looks at a log that is followed
_LEVELS = ("debug", "info", "warning", "error", "critical")
_LEVEL = re.compile(r'^\S+Z (\w+) |"level": "(\w+)"')  # of a text line, or of a JSON object


@options.of_folder()
def command(
    given: options.Given,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with new lines, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="Newest lines to begin with.")] = 50,
    level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="Only lines of this level and above.")
    ] = "debug",
) -> None:
    """Show the newest lines of the node's log, logs/node.log and the older ones beside it."""
    folder, _ = options.folder(given)
    path = folder.logs / "node.log"
    if not path.exists():
        raise NotReady(f"{path} is not there: no node has run in {folder.root} yet")
    wanted = _LEVELS[_LEVELS.index(level) :]
    with path.open(errors="replace") as file:
        kept = (line for one in chain(_older(path), [file]) for line in _chosen(one, wanted))
        sys.stdout.writelines(deque(kept, maxlen=lines))
        sys.stdout.flush()
        if follow:
            _follow(path, file, wanted)


def _older(path: Path) -> Iterator[TextIO]:
    """Logs that were rotated away, the oldest first."""
    for number in range(9, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            with older.open(errors="replace") as file:
                yield file


def _chosen(lines: TextIO, wanted: tuple[str, ...]) -> Iterator[str]:
    """Those of a wanted level, with what belongs to them: a traceback has no level of its own."""
    taken = False
    for line in lines:
        found = _LEVEL.search(line)
        if found is not None:
            taken = (found[1] or found[2]).lower() in wanted
        if taken:
            yield line


def _follow(path: Path, file: TextIO, wanted: tuple[str, ...]) -> None:
    """From where `file` ends, and on in its successor when the log is rotated."""
    while True:
        sys.stdout.writelines(_chosen(file, wanted))
        sys.stdout.flush()
        time.sleep(_LOOK_SECONDS)
        try:
            is_another = os.stat(path).st_ino != os.fstat(file.fileno()).st_ino
        except FileNotFoundError:
            continue  # between two of them
        if is_another:
            sys.stdout.writelines(_chosen(file, wanted))
            file = path.open(errors="replace")
