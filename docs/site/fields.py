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
            text = "" if cls.docstring is None else cls.docstring.value
            cls.docstring = griffe.Docstring("\n".join([text, "", "Attributes:", *rows]), parent=cls, parser="google")


def _fields(cls: griffe.Class) -> Iterator[str]:
    for name, member in cls.members.items():
        if isinstance(member, griffe.Attribute) and member.annotation is not None and not name.startswith("_"):
            comment = _COMMENT.search(member.source.splitlines()[-1])
            parts = [comment[1].strip()] if comment else []
            parts += [] if member.value is None else [f"(default: `{member.value}`)"]
            yield f"    {name} ({member.annotation}): {' '.join(parts) or chr(160)}"
