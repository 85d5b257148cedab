"""JSON as Python's `json` writes it and others refuse it: with NaN and infinities, and with half an emoji.

What is made of it follows from its bytes alone, so it is the same on every machine.
"""

import re
import sys
from typing import Any

import msgspec

WRONG = (msgspec.MsgspecError, UnicodeError, RecursionError)  # what decoding may raise

_STRING_OR_CONSTANT = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?\bInfinity\b|\bNaN\b', re.DOTALL)
# A first half without a second behind it, or a second without a first before it. Backslashes that are escaped
# themselves are not told apart here, so it may find what is none.
_HALF = re.compile(
    r"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|[c-fC-F](?<!(?<!\\)\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]))"
)
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL
)


def mended(json: str) -> str:
    """The same with null for NaN and infinities, and with U+FFFD for each half of a pair of surrogates that is alone.

    Examples:
        >>> print(mended(r'{"text": "a \\ud83d b", "NaN": NaN, "note": "\\\\ud83d \\ud83d\\ude00"}'))
        {"text": "a \\ufffd b", "NaN": null, "note": "\\\\ud83d \\ud83d\\ude00"}
    """
    return _STRING_OR_CONSTANT.sub(_mended, json)


def may_have_halves(json: str, start: int = 0, end: int = sys.maxsize) -> bool:
    """Whether to mend a part of JSON whose halves Python's `json` has taken as they are."""
    return _HALF.search(json, start, end) is not None


def decode(data: str) -> Any:
    """The value of JSON, mended where it has to be. Raises one of WRONG."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return msgspec.json.decode(mended(data))


def _mended(found: re.Match[str]) -> str:
    if not found[0].startswith('"'):
        return "null"
    if not may_have_halves(found[0]):
        return found[0]
    return _ESCAPE.sub(lambda one: r"\ufffd" if one[1] else one[0], found[0])
