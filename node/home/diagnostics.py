"""One answer of a check that a person reads: what was looked at, what it came to, and what mends it."""

from collections.abc import Collection
from typing import Literal

from msgspec import Struct, field

PASS: Literal["PASS"] = "PASS"
WARN: Literal["WARN"] = "WARN"
FAIL: Literal["FAIL"] = "FAIL"


class Diagnosis(Struct, frozen=True):
    check: str
    verdict: Literal["PASS", "WARN", "FAIL"]
    text: str = field(name="said")  # in JSON
    mend: str = ""  # a command, or what to change


def exit_code(verdicts: Collection[str]) -> int:
    """The exit code of a command that checks. 0: all that was asked for is established; 1: something is false; 4:
    nothing is, but what is missing, left out or odd leaves a part open, or nothing was checked."""
    if FAIL in verdicts:
        return 1
    return 0 if set(verdicts) == {PASS} else 4
