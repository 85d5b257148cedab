"""Text and JSON of unknown origin: text that cannot steer a terminal, JSON that cannot end the process.

Who reads such text (from the chain, peers, blobs, a chain node) makes it printable there; who writes to a terminal
does so once more, since errors carry text of everywhere.
"""

import re
import sys
from itertools import accumulate
from typing import Any

import msgspec

_PLAIN = re.compile("[ -~]*")

# Nested deeper, JSON overflows the C stack of a thread and ends the process, where a program that we are imported into
# has raised the recursion limit so far (web3 alone does, to 100,000).
DEEPEST = 12_288

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def printable(hostile: str, length: int | None = None) -> str:
    """One line of it, with U+FFFD for every character that cannot be seen; at most so many characters of it."""
    if length is not None and len(hostile) > length:
        return printable(hostile[:length]) + "..."
    return hostile if hostile.isprintable() else "".join(one if one.isprintable() else "\ufffd" for one in hostile)


def printable_ascii(hostile: str, length: int) -> str:
    """The same for fields that take ASCII only, with ? for all other characters; `length` characters at most."""
    plain = hostile if _PLAIN.fullmatch(hostile) else "".join(one if " " <= one <= "~" else "?" for one in hostile)
    return plain if len(plain) <= length else plain[: length - 3] + "..."


def escaped(json: str) -> str:
    """JSON with what cannot be seen of its strings as escapes: the same value."""
    return json if json.isprintable() else "".join(one if one.isprintable() else _escape(one) for one in json)


def _escape(character: str) -> str:
    both = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{both[at : at + 4]}" for at in range(0, len(both), 4))


def decode_json(data: bytes | bytearray | str, type: Any = Any) -> Any:
    """The value of JSON of any shape, or whose `type` has parts of any shape; what has a known shape is decoded by its
    type instead.

    Raises msgspec.DecodeError, UnicodeDecodeError, and RecursionError for what is nested too deeply,
    whatever the process's recursion limit."""
    if sys.getrecursionlimit() > DEEPEST:
        _check_depth(data.encode() if isinstance(data, str) else data)
    return msgspec.json.decode(data, type=type)


def _check_depth(data: bytes | bytearray) -> None:
    if data.count(b"[") + data.count(b"{") <= DEEPEST:
        return
    brackets = _STRING.sub(b"", data).translate(None, _NO_BRACKETS)
    if max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > DEEPEST:
        raise RecursionError("JSON that is nested too deeply")
