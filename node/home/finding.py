"""One answer of a check that a person reads: what was looked at, what it came to, and what mends it."""

from typing import Literal

from msgspec import Struct

PASS: Literal["PASS"] = "PASS"
WARN: Literal["WARN"] = "WARN"
FAIL: Literal["FAIL"] = "FAIL"


class Finding(Struct, frozen=True):
    check: str
    verdict: Literal["PASS", "WARN", "FAIL"]
    said: str
    mend: str = ""  # a command, or what to change
