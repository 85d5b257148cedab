"""Sentences of the documents and docstrings that are too long: `python -m tests.docs.sentences` lists them.

`make check` runs it. With `--words` it prints how long the sentences of each document are.
"""

from __future__ import annotations

import ast
import json
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
MOST_WORDS = 35
CODE = ("node", "training", "p2p", "ledger", "ground", "src", "tests", "benchmarks", "docs")

# Files, and folders of them, that are not mended yet. Whoever mends one takes it out: what is listed in vain fails too.
EXEMPT: tuple[str, ...] = ()

_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE_SPAN = re.compile(r"(`+)[^`]+?\1")
_LINK = re.compile(r"!?\[((?:[^\]\[]|\[[^\]]*\])*)\]\([^)]*\)")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
_END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_]*[A-Z0-9`])")
_WORD = re.compile(r"\w")


class Sentence(NamedTuple):
    line: int
    text: str

    @property
    def words(self) -> int:
        return sum(1 for word in self.text.split() if _WORD.search(word))


def of_markdown(text: str) -> Iterator[Sentence]:
    """Of paragraphs, list items and the cells of tables; code is left out, and a span of code is one word."""
    text = _COMMENT.sub(_blank, _FENCE.sub(_blank, text))
    text = _CODE_SPAN.sub(lambda found: "`code`" + "\n" * found[0].count("\n"), _LINK.sub(_label, text))
    block, begun, is_item = list[str](), 0, False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        is_table, is_new = line.lstrip().startswith("|"), _ITEM.match(line) is not None
        if block and (not line.strip() or is_table or is_new or line.startswith("#")):
            yield from _split(begun, " ".join(block))
            block = []
        if is_table:
            for cell in line.strip().strip("|").split("|"):
                yield from _split(number, cell)
        elif line.strip() and not line.startswith("#"):
            if not block:
                # Four spaces begin code, but in a list they go on with an item.
                if line.startswith("    ") and not is_item:
                    continue
                is_item, begun = is_new or (is_item and line.startswith("  ")), number
            block.append(_ITEM.sub("", line).strip())


def of_python(text: str) -> Iterator[Sentence]:
    """Of docstrings; examples and what they print are left out."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            said = ast.get_docstring(node)
            if said is not None:
                prose = re.sub(r"^\s*>>>.*?(?:\n\s*\n|\Z)", "\n", said, flags=re.MULTILINE | re.DOTALL)
                begun = node.body[0].lineno
                yield from (Sentence(begun + sentence.line - 1, sentence.text) for sentence in of_markdown(prose))


def of_notebook(text: str) -> Iterator[Sentence]:
    """Of its cells in Markdown, each by its place among the cells."""
    for number, cell in enumerate(json.loads(text)["cells"], 1):
        if cell["cell_type"] == "markdown":
            yield from (Sentence(number, sentence.text) for sentence in of_markdown("".join(cell["source"])))


def documents() -> Iterator[Path]:
    yield from sorted(ROOT.glob("*.md"))
    yield from sorted(path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".ipynb"))


def sources() -> Iterator[Path]:
    yield from (path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py")) if "dlx" not in path.parts)


def sentences(path: Path) -> list[Sentence]:
    read = {".py": of_python, ".md": of_markdown, ".ipynb": of_notebook}[path.suffix]
    return [sentence for sentence in read(path.read_text(encoding="utf-8")) if sentence.words]


def too_long() -> dict[str, list[Sentence]]:
    """By file, those over the limit."""
    found = {path: [each for each in sentences(path) if each.words > MOST_WORDS] for path in [*documents(), *sources()]}
    return {path.relative_to(ROOT).as_posix(): long for path, long in found.items() if long}


def refused() -> tuple[dict[str, list[Sentence]], list[str]]:
    """Those of files that are not exempt, and what is exempt in vain."""
    found = too_long()
    used = {entry for entry in EXEMPT for name in found if name.startswith(entry)}
    wrong = {name: long for name, long in found.items() if not name.startswith(EXEMPT)}
    return wrong, [entry for entry in EXEMPT if entry not in used]


def _split(line: int, text: str) -> Iterator[Sentence]:
    yield from (Sentence(line, part.strip()) for part in _END.split(text) if part.strip())


def _blank(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def _label(found: re.Match[str]) -> str:
    return found[1]


def _report_words() -> None:
    for path in documents():
        lengths = [each.words for each in sentences(path)]
        if lengths:
            middle, over = statistics.median(lengths), sum(1 for words in lengths if words > MOST_WORDS)
            print(f"{path.relative_to(ROOT)}: {len(lengths)} sentences, median {middle:.0f}, {over} too long")


def _report_long() -> int:
    found, vain = refused()
    for name, long in found.items():
        for sentence in long:
            print(f"{name}:{sentence.line}: {sentence.words} words, {MOST_WORDS} at most: {sentence.text[:100]}")
    for name in vain:
        print(f"{name}: no sentence is too long any more: take it out of EXEMPT in tests/docs/sentences.py")
    return 1 if found or vain else 0


if __name__ == "__main__":
    if "--words" in sys.argv:
        _report_words()
    else:
        sys.exit(_report_long())
