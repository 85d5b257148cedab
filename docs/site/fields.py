"""For mkdocstrings: a class's fields as a table, with each one's comment, which gives its unit, as its meaning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

_COMMENT = re.compile(r"\s#\s+(.+)$")


class Fields(griffe.Extension):
    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        rows = list(_fields(cls))
        if rows:
            said = "" if cls.docstring is None else cls.docstring.value
            cls.docstring = griffe.Docstring("\n".join([said, "", "Attributes:", *rows]), parent=cls, parser="google")


def _fields(cls: griffe.Class) -> Iterator[str]:
    for name, member in cls.members.items():
        if isinstance(member, griffe.Attribute) and member.annotation is not None and not name.startswith("_"):
            comment = _COMMENT.search(member.source.splitlines()[-1])
            said = [comment[1].strip()] if comment else []
            said += [] if member.value is None else [f"(default: `{member.value}`)"]
            yield f"    {name} ({member.annotation}): {' '.join(said) or chr(160)}"
