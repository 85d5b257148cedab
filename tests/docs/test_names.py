"""Files and folders of ours that documents and docstrings name are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.sentences import ROOT, documents

FOLDERS = "node|training|p2p|ledger|ground|contracts|tests|benchmarks|deploy|docs|requirements"
BEFORE = "CHANGELOG.md"  # names what was
NOT_OURS = {"web3.py"}


def test_what_documents_name_is_there() -> None:
    named = {
        f"{page.relative_to(ROOT)}: {name}"
        for page in documents()
        if page.name != BEFORE
        for name in re.findall(rf"`((?:{FOLDERS})/[\w./-]*)`", page.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    }
    assert named == set()


def test_what_docstrings_name_is_there() -> None:
    """From the root, or beside the file."""
    named = {
        f"{source.relative_to(ROOT)}: {name}"
        for source in sources()
        for name in re.findall(r"(?<![\w.*/-])[\w/]+\.py\b", docstrings(source))
        if name not in NOT_OURS and not (ROOT / name).exists() and not (source.parent / name).exists()
    }
    assert named == set()


def sources() -> Iterator[Path]:
    for folder in FOLDERS.split("|"):
        for path in (ROOT / folder).rglob("*.py"):
            if "node_modules" not in path.parts:
                yield path


def docstrings(source: Path) -> str:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = ast.walk(ast.parse(source.read_text(encoding="utf-8")))
    return "\n".join(ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds))
