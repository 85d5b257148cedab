"""What a file gives away by its name and first bytes: not all that is text is meant to be learnt.

Keys and passwords are not, nor documents whose bytes are ASCII by chance. Pages, JSON and tables that are named as
plain text may be.
"""

import csv
import io
import re
from itertools import islice
from pathlib import Path

from dlx.training.data.reading import bare

_LOOKED = 64 * 1024  # bytes of a file's beginning
_ROWS = 20  # of a table, looked at
_PLAIN = ("", ".txt", ".text")  # endings of plain text

_SETTINGS = re.compile(r".*\.env|\.env\..*", re.I)
_KEY = re.compile(rb"\s*(?:PuTTY-User-Key-File|(?:-----BEGIN |Bag Attributes).*?PRIVATE KEY)", re.S)
_DOCUMENTS = {re.compile(rb"%PDF-\d\.\d\s"): "a PDF document", re.compile(rb"\{\\rtf\d"): "an RTF document"}
_PAGE = re.compile(rb"\s*<(?:!doctype\s+html|html)[\s>]", re.I)
_JSON = re.compile(rb'\s*(?:\[\s*)?\{\s*"(?:[^"\\]|\\.)*"\s*:')
_COLUMN = r'"?[^\W\d][\w .-]{0,63}"?'
_COLUMNS = re.compile(rf"(?:{_COLUMN})?(?P<between>[,;\t]){_COLUMN}(?:(?P=between){_COLUMN})*\r?")


def secret(path: Path, start: bytes = b"") -> str | None:
    """What a file is that should be known to nobody, by its name or by how it begins.

    Examples:
        >>> secret(Path("prod.env")), secret(Path("id_rsa"), b"-----BEGIN OPENSSH PRIVATE KEY-----"), secret(Path("a"))
        ('a file of settings', 'a private key', None)
    """
    if _SETTINGS.fullmatch(path.name):
        return "a file of settings"
    return "a private key" if _KEY.match(start[:_LOOKED]) else None


def document(start: bytes) -> str | None:
    """What begins so and is no plain text, though every byte of it may be ASCII."""
    return next((what for begins, what in _DOCUMENTS.items() if begins.match(start)), None)


def misnamed(path: Path, start: bytes) -> str | None:
    """What a file is that is named as plain text and is not, and how it is named to be read as that.

    Examples:
        >>> misnamed(Path("a.txt"), b'[{"text": "a"}]')
        'JSON: name it .json, or .jsonl where each line is an object'
    """
    start = start[:_LOOKED]
    if bare(path).suffix.lower() not in _PLAIN:
        return None
    if _PAGE.match(start):
        return "a page of HTML, perhaps one that says an error: name it .html"
    if _JSON.match(start):
        return "JSON: name it .json, or .jsonl where each line is an object"
    return "a table: name it .csv or .tsv" if _is_table(start) else None


def _is_table(start: bytes) -> bool:
    """Whether the first line names columns, and all that follow have as many."""
    text = start.decode(errors="ignore")
    first = _COLUMNS.fullmatch(text.partition("\n")[0])
    if first is None:
        return False
    try:
        rows = list(islice(csv.reader(io.StringIO(text, newline=""), delimiter=first["between"]), _ROWS))
    except csv.Error:
        return False
    if len(rows) < _ROWS and len(start) == _LOOKED:
        rows.pop()  # it may be cut
    return len(rows) > 1 and len({len(row) for row in rows if row}) == 1
