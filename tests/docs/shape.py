"""The repository's shape in numbers, for docs/architecture.md: `python -m tests.docs.shape`."""

from __future__ import annotations

import statistics
from collections import Counter
from pathlib import Path

from tests.docs.sentences import ROOT, of_markdown

PRODUCT = ("node", "training", "p2p", "ledger", "ground")
SMALL = 50  # lines
CONCEPTS = ("README.md", "docs/overview.md", "docs/architecture.md", "docs/decisions", "docs/protocol")
LONG = 40  # words


def product_files() -> list[Path]:
    return [ROOT / "setup.py", *(path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py"))]


def largest_folder(files: list[Path]) -> tuple[str, int]:
    """With the files that lie directly inside."""
    folder, count = Counter(path.parent for path in files).most_common(1)[0]
    return folder.relative_to(ROOT).as_posix(), count


def words_a_sentence(name: str) -> list[int]:
    path = ROOT / name
    pages = sorted(path.rglob("*.md")) if path.is_dir() else [path]
    found = [sentence.words for page in pages if page.exists() for sentence in of_markdown(page.read_text())]
    return [words for words in found if words > 3]  # not the cells of tables


def main() -> None:
    files = product_files()
    lines = {path: path.read_text().count("\n") for path in files}
    names = Counter(path.name for path in files if path.name != "__init__.py")
    folder, most = largest_folder(files)
    print(f"product files: {len(files)}")
    print(f"product lines: {sum(lines.values()):,}")
    print(f"files under {SMALL} lines: {sum(1 for count in lines.values() if count < SMALL)}")
    print(f"file names used more than once: {sum(1 for count in names.values() if count > 1)}")
    print(f"most files directly in a folder: {most} in {folder}")
    for name in CONCEPTS:
        words = words_a_sentence(name)
        if words:
            long = sum(1 for count in words if count > LONG) / len(words)
            print(f"words a sentence, {name}: {statistics.median(words):.0f}, {long:.0%} over {LONG}")


if __name__ == "__main__":
    main()
