"""Files that only say where others are: Git LFS and git-annex leave them where bytes were not fetched."""

import os
import re
from pathlib import Path

_MOST_BYTES = 1024  # of a pointer
_KINDS = (
    (re.compile(rb"version https://git-lfs\.github\.com/spec/"), "Git LFS", "git lfs pull"),
    (re.compile(rb"((\.\./)*\.git)?/annex/objects/\S+\s*\Z"), "git-annex", "git annex get"),
)


def pointer(path: Path) -> str | None:
    """What is said of a file that is a pointer, and what fetches the bytes; None of all others, and of one that cannot
    be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return pointer_of(file.fileno())
    except OSError:
        return None


def pointer_of(descriptor: int) -> str | None:
    """The same of an open file, which stays where it is. Raises OSError."""
    start = os.pread(descriptor, _MOST_BYTES, 0)
    if len(start) == _MOST_BYTES:
        return None
    for begins, kind, fetch in _KINDS:
        if begins.match(start):
            return f"is a pointer of {kind} to bytes that were not fetched: run `{fetch}` where it lies"
    return None
