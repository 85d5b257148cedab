"""How a shell of this machine finds `dlx-node`, for lines that somebody pastes."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from dlx.ground.machine import Homeless
from dlx.node.home.datadir import DataDir
from dlx.node.home.settings import DEFAULTS, SETTINGS

_NETWORK = SETTINGS["network"].environment


class Called(NamedTuple):
    """What a command was called with, which the lines that it prints repeat."""

    folder: Path | None = None
    ledger: tuple[str, ...] = ()  # options by which it found its ledger
    elsewhere: bool = False  # the lines are for other machines, where PATH has dlx-node


_called: ContextVar[Called] = ContextVar("_called", default=Called())  # noqa: B039  # it is frozen


def program() -> str:
    """The bare name where PATH has it and for other machines, else the quoted path of the one beside this Python, as in
    a virtual environment."""
    beside = Path(sys.executable).with_name("dlx-node")
    bare = called().elsewhere or shutil.which("dlx-node") or not beside.exists()
    return "dlx-node" if bare else shlex.quote(str(beside))


def called_with(words: Called) -> None:
    """From now on lines are of this folder, and those that read the ledger have these options."""
    _called.set(words)


def called() -> Called:
    """What this process was called with, for one that it starts: nothing tells that one but `called_with`."""
    return _called.get()


@contextmanager
def for_others(*ledger: str) -> Iterator[None]:
    """Meanwhile lines are for other machines: these options find the ledger there."""
    before = _called.set(Called(ledger=ledger, elsewhere=True))
    try:
        yield
    finally:
        _called.reset(before)


def line(*words: object, folder: Path | None = None, of_ledger: bool = False) -> str:
    """A command of these words that can be pasted as it stands: all is quoted, and --datadir names the folder where a
    command would look elsewhere. `folder`: None is that which this command was called with. `of_ledger`: the command
    reads the ledger, by the same options as this one."""
    here = called()
    place = folder or here.folder
    where = [] if place is None or _is_found(place) else ["--datadir", place]
    return f"{program()} {shlex.join(map(str, [*words, *where, *(here.ledger if of_ledger else ())]))}"


def _is_found(folder: Path) -> bool:
    """Whether a command without --datadir takes this folder: in this shell, and in one without its environment."""
    return _folder(os.environ) == folder == _folder({})


def _folder(environ: Mapping[str, str]) -> Path | None:
    try:
        return DataDir.locate(None, environ.get(_NETWORK) or DEFAULTS.network, environ).root
    except Homeless:
        return None
