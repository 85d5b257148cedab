"""Plain data as a typed struct, or one line that says which key is wrong and why."""

import json
import re
from typing import Any, TypeVar

import msgspec

from dlx.ground.errors import DlxError


class ManifestError(DlxError, ValueError):
    """The manifest or draft is not valid; the message names the key and the reason in one line."""


_T = TypeVar("_T")


def convert(raw: Any, kind: type[_T], prefix: str = "") -> _T:
    """`raw` as `kind`. Raises ManifestError, which names the key behind `prefix`."""
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise ManifestError(_one_line(str(error), raw, prefix)) from None


def fail(key: str, reason: str, value: object) -> None:
    """Raises ManifestError."""
    raise ManifestError(f"{key}: {reason}, got {shown(value)}")


def refuse_absent(raw: Any, full: Any, path: str) -> None:
    """Raises ManifestError for the first key that `full` has and `raw` leaves to a default."""
    pairs = full.items() if isinstance(full, dict) else enumerate(full) if isinstance(full, list) else ()
    for key, value in pairs:
        where = f"{path}[{key}]" if isinstance(full, list) else f"{path}.{key}" if path else str(key)
        if isinstance(full, dict) and key not in raw:
            raise ManifestError(f"{where}: missing")
        refuse_absent(raw[key], value, where)


def _one_line(message: str, raw: Any, prefix: str) -> str:
    """msgspec's "Expected `float` > 0.0 - at `$.inner.lr`" as "inner.lr: expected a number > 0.0, got -1"."""
    reason, _, where = message.partition(" - at ")
    found = re.fullmatch(r"(?:`key` in )?`\$\.?(.*)`", where)
    path = found.group(1) if found else ""
    missing = re.fullmatch(r"Object missing required field `(.*)`", reason, re.DOTALL)
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", reason, re.DOTALL)
    if missing or unknown:
        key = (missing or unknown).group(1)  # type: ignore[union-attr]
        return f"{prefix}{path}{'.' if path else ''}{_safe(key)}: {'missing' if missing else 'unknown key'}"
    if reason.startswith(("Invalid enum value", "Invalid value")):
        reason = "not a supported value"
    for technical, plain in _PLAIN:
        reason = reason.replace(technical, plain)
    value = _at(raw, path)
    if ", got" not in reason and not isinstance(value, (dict, list)):
        reason += f", got {shown(value)}"
    return f"{prefix}{path or 'manifest'}: {reason[0].lower()}{reason[1:]}"


_PLAIN = (
    ("`str` matching regex '^[0-9a-f]{64}\\\\Z'", "64 lowercase hex digits"),
    ("`str` matching regex '^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\\\\Z'", "1 to 64 letters, digits, '.', '_' or '-'"),
    ("`str` matching regex '^[A-Za-z0-9_-]{1,64}\\\\Z'", "1 to 64 letters, digits, '_' or '-'"),
    ("`str` matching regex '^[ -~]*\\\\Z'", "printable ASCII text"),
    ("`float`", "a number"),
    ("`int`", "a whole number"),
    ("`str`", "text"),
    ("`bool`", "true or false"),
    ("`array`", "a list"),
    ("`object`", "a table"),
    ("`null`", "nothing"),
    ("`float | null`", "a number"),
    ("`int | null`", "a whole number"),
    ("`str | null`", "text"),
    ("`bool | null`", "true or false"),
    ("`int | array | null`", "a whole number or a list of them"),
    ("`object | null`", "a table"),
)


def _safe(key: str) -> str:
    """A stranger's key, fit for one line of a terminal."""
    return shown(key)[1:-1]


def shown(value: object) -> str:
    """A stranger's value, fit for one line of a terminal."""
    return json.dumps(value, ensure_ascii=True, default=str)[:80]


def _at(raw: Any, path: str) -> Any:
    for part in re.findall(r"[^.\[\]]+", path):
        try:
            raw = raw[int(part)] if isinstance(raw, list) else raw[part]
        except (KeyError, IndexError, ValueError, TypeError):
            return {}
    return raw
