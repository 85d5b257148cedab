"""Text of unknown origin, so that it cannot steer a terminal nor pass for another line.

Who reads such text (from the chain, peers, blobs, a chain node) makes it printable there; who writes to a terminal
does so once more, since errors carry text of everywhere.
"""

import re

_PLAIN = re.compile("[ -~]*")


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
