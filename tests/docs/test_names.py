"""Files and folders of ours that the documents name are there."""

from __future__ import annotations

import re

from tests.docs.sentences import ROOT, documents

FOLDERS = "node|training|p2p|ledger|ground|contracts|tests|benchmarks|deploy|docs|requirements"
BEFORE = "CHANGELOG.md"  # names what was


def test_what_documents_name_is_there() -> None:
    named = {
        f"{page.relative_to(ROOT)}: {name}"
        for page in documents()
        if page.name != BEFORE
        for name in re.findall(rf"`((?:{FOLDERS})/[\w./-]*)`", page.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    }
    assert named == set()
