"""JSON of unknown origin and of any shape. What has a known shape is decoded by its type instead."""

import re
import sys
from itertools import accumulate
from typing import Any

import msgspec

# Nested deeper, JSON overflows the C stack of a thread and ends the process, where a program that we are imported into
# has raised the recursion limit so far (web3 alone does, to 100,000).
DEEPEST = 12_288

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def decode(data: bytes | bytearray | str) -> Any:
    """The value. Raises msgspec.DecodeError, UnicodeDecodeError, and RecursionError for what is nested too deeply,
    whatever the process's recursion limit."""
    if sys.getrecursionlimit() > DEEPEST:
        _check_depth(data.encode() if isinstance(data, str) else data)
    return msgspec.json.decode(data)


def _check_depth(data: bytes | bytearray) -> None:
    if data.count(b"[") + data.count(b"{") <= DEEPEST:
        return
    brackets = _STRING.sub(b"", data).translate(None, _NO_BRACKETS)
    if max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > DEEPEST:
        raise RecursionError("JSON that is nested too deeply")
