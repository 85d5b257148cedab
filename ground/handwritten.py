"""Text files that a person or another program wrote, in the encodings that editors make of them."""

import codecs
import sys
from pathlib import Path

_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


def piped(most: int, one_line: bool = False) -> str:
    """Text of at most `most` characters on standard input, which its locale has decoded, without a mark before it. It
    waits for the end, or for one line."""
    return (sys.stdin.readline(most) if one_line else sys.stdin.read(most)).removeprefix("\ufeff")


def read(path: Path, most: int) -> str:
    """The text of a file of at most `most` bytes, with the line ends that it has: UTF-8, or UTF-16 behind its byte
    order mark, as Windows PowerShell and Notepad write it. A mark is no part of the text.

    Raises OSError, and ValueError in one line that names the file and says what to do.
    """
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{path}: expected at most {most:,} bytes")
    mark = next((one for one in _MARKS if data.startswith(one)), b"")
    try:
        text = data.removeprefix(mark).decode(_MARKS.get(mark, "utf-8"))
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # so begins UTF-32 behind its mark, and so is UTF-16 without one
        raise ValueError(f"{path}: is neither UTF-8, nor UTF-16 with a byte order mark: save it as UTF-8 text")
    return text
