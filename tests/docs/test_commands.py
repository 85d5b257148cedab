"""Commands that documents show are there, with the options that they are shown with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from dlx.node.cli.app import app
from tests.docs.sentences import ROOT, documents

BEFORE = "CHANGELOG.md"  # names what was

# In a code span, in a line that is indented as code, or in a fence.
_CODE = re.compile(r"^```\w*$(.*?)^```$|^ {4}((?:[^\n\\]|\\.|\\\n)*)$|`([^`]+)`", re.MULTILINE | re.DOTALL)
_SHOWN = re.compile(r"(?:^|[\s(\"])dlx-node ((?:[^\n\\]|\\.|\\\n)*)", re.MULTILINE)
_END = re.compile(r"\s(?:[|;&#>]|\|\||&&|\.\.\.)(?:\s|$)|[|;)>]|\s{2,}")
_PROGRAM = typer.main.get_command(app)


def test_what_documents_show_can_be_called() -> None:
    wrong = {f"{page}: dlx-node {shown}: {what}" for page, shown in _shown() for what in _wrong(shown)}
    assert wrong == set()


def _shown() -> Iterator[tuple[Path, str]]:
    for page in documents():
        if page.name != BEFORE and page.suffix == ".md":
            for code in _CODE.finditer(page.read_text(encoding="utf-8")):
                for shown in _SHOWN.findall(next(filter(None, code.groups()), "")):
                    yield page.relative_to(ROOT), _END.split(re.sub(r"\s*\\\n\s*", " ", shown), maxsplit=1)[0].strip()


def _wrong(shown: str) -> Iterator[str]:
    command: Any = _PROGRAM
    try:
        words = shlex.split(shown)
    except ValueError:
        words = shown.split()
    for word in words:
        group = getattr(command, "commands", None)
        if group is not None and not word.startswith("-"):
            if word not in group:
                if word.islower() and word.isalpha():
                    yield f"there is no {word}"
                return
            command = group[word]
        elif re.match("--[a-z]", word):
            known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
            if (name := word.partition("=")[0].rstrip(".,:")) not in known:
                yield f"it has no {name}"
