"""What a file gives away by its name and first bytes: not all that is text is meant to be learnt.

Keys and passwords are not, nor documents whose bytes are ASCII by chance. Pages, JSON and tables that are named as
plain text may be.
"""

import csv
import io
import json
import re
from itertools import islice
from pathlib import Path

from dlx.training.data.reading import bare

_LOOKED = 64 * 1024  # bytes of a file's beginning
_ROWS = 20  # of a table, looked at
_PLAIN = ("", ".txt", ".text")  # endings of plain text

_SETTINGS = re.compile(r".*\.env|\.env\..*", re.I)
_PASSWORDS = re.compile(r".*\.password|[._]netrc", re.I)
_KEY = re.compile(
    rb"\s*(?:PuTTY-User-Key-File|(?:-----BEGIN |Bag Attributes).*?PRIVATE KEY|(?:0x)?[\da-fA-F]{64}\s*\Z)", re.S
)
_ENCRYPTED = b"dlx-sealed"
_SETTING = re.compile(r"\s*(?:[#;].*|\[[^]]*\]\s*|(?:export\s+)?[A-Za-z_]\w*\s*=.*)?")
_SECRET_SETTING = re.compile(
    r"(?:export\s+)?(?:[A-Z\d_]*(?:KEY|SECRET|TOKEN|PASSWORD)[A-Z\d_]*=|aws_secret_access_key\s*=\s*)\S"
)
_DOCUMENTS = {
    re.compile(rb"%PDF-\d\.\d\s"): "a PDF document",
    re.compile(rb"%!PS-Adobe-\d"): "a PostScript document",
    re.compile(rb"\{\\rtf\d"): "an RTF document",
}
_PAGE = re.compile(rb"(?:\s|<\?xml\s[^>]*>|(?><!--.*?-->))*+<(?:!doctype\s+html|html)[\s>]", re.I | re.S)
_OBJECT = re.compile(rb'\s*(?:\[\s*)?\{\s*"(?:[^"\\]|\\.)*"\s*:')
_ENTRY, _ENTRY_ENDS = re.compile(r'\s*\[\s*(?=["[])'), re.compile(r'\s*(?:,\s*["[]|\]\s*\Z)')
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
    if _PASSWORDS.fullmatch(path.name):
        return "a file of passwords"
    start = start[:_LOOKED]
    if _KEY.match(start):
        return "a private key"
    if start.startswith(_ENCRYPTED):
        return "an encrypted file of dlx-node"
    text = start.decode(errors="ignore")
    if _is_keystore(text):
        return "an account's keystore"
    if _is_netrc(text):
        return "a file of passwords"
    plain = bare(path).suffix.lower() in _PLAIN
    return "a file of settings" if plain and _are_settings(text) else None


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
    if _OBJECT.match(start) or _is_array(start.decode(errors="ignore")):
        return "JSON: name it .json, or .jsonl where each line is an object"
    return "a table: name it .csv or .tsv" if _is_table(start) else None


def _is_keystore(text: str) -> bool:
    """Whether it is JSON as wallets and clients of chains lock a key by."""
    if not text.lstrip().startswith("{"):
        return False
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    locked = found.get("crypto", found.get("Crypto"))
    return isinstance(locked, dict) and "cipher" in locked


def _is_netrc(text: str) -> bool:
    """Whether it is pairs of words and nothing else: machines, logins, passwords."""
    if not text.startswith("machine"):
        return False
    words = [word for word in text.split() if word != "default"]
    names = set(words[::2]) if len(words) % 2 == 0 else set()
    return "password" in names and names <= {"machine", "login", "password", "account"}


def _are_settings(text: str) -> bool:
    """Whether each line is a setting, a comment or a section's name, and one sets a secret."""
    lines = text.splitlines()
    return all(map(_SETTING.fullmatch, lines)) and any(map(_SECRET_SETTING.match, lines))


def _is_array(text: str) -> bool:
    """Whether it begins as an array of texts or of arrays does; what is in brackets and followed by words is prose."""
    begun = _ENTRY.match(text)
    if begun is None:
        return False
    try:
        _, end = json.JSONDecoder().raw_decode(text, begun.end())
    except (ValueError, RecursionError):
        return False
    return _ENTRY_ENDS.match(text, end) is not None


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
