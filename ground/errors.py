"""The base of every error that a user can understand. All else that is raised is a fault of ours, or the machine's."""

import os
from pathlib import Path

from dlx.ground.untrusted import printable


class DlxError(Exception):
    """Something went wrong that is no fault of the program: the message says in one line what, and what to do.

    `exit_code` is what `dlx-node` ends with: 1 failed, 2 asked for wrongly, 3 something is not ready yet.
    """

    exit_code = 1


def cause(error: Exception) -> Exception:
    """What went wrong inside the task groups that wrap it: a fault of ours before what people can understand, and that
    before what came of it."""
    found = leaves(error)
    ours = (one for one in found if not isinstance(one, DlxError | OSError))
    clear = (one for one in found if isinstance(one, DlxError))
    return next(ours, None) or next(clear, None) or found[0]


def in_words(error: Exception) -> str:
    """What it says, in one line; of the operating system's the file and what is wrong with it."""
    if isinstance(error, OSError) and error.strerror:
        said = error.strerror if error.filename is None else f"{os.fsdecode(error.filename)}: {error.strerror}"
    else:
        said = str(error)
    return printable(" ".join(said.split()))


def leaves(error: Exception) -> list[Exception]:
    """The errors themselves, without the task groups that wrap them."""
    if isinstance(error, ExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


class Unsuited(DlxError):
    """A folder is on a file system that lacks what it needs; another place is to be named."""

    def __init__(self, place: Path, lacks: str) -> None:
        super().__init__(
            f"{place} is on a file system {lacks} (as a network's, FAT's or WSL's /mnt/c may be): choose a place on "
            "a disk of this machine"
        )
