"""What the page says of its words is what the glossary says."""

import re
from pathlib import Path

import pytest

from dlx.node.web.render import render
from dlx.node.web.words import WORDS

ROOT = Path(__file__).parents[3]
GLOSSARY = re.sub(r"[*`]", "", (ROOT / "docs" / "glossary.md").read_text())
TEMPLATES = ROOT / "node" / "web" / "templates"


@pytest.mark.parametrize("term", WORDS)
def test_it_is_a_sentence_of_the_glossary(term: str) -> None:
    assert f" {WORDS[term]} " in GLOSSARY.replace("\n", " ")


def test_every_word_that_a_page_marks_is_said_below_it() -> None:
    for path in TEMPLATES.glob("*.html"):
        marked = set(re.findall(r'parts\.word\([^,]+, "([^"]+)"\)', path.read_text()))
        assert marked <= WORDS.keys(), path.name
        assert not marked or "parts.words()" in path.read_text() or 'extends "run.html"' in path.read_text(), path.name


def test_a_term_with_a_space_has_a_place_of_its_own() -> None:
    shown = render("parts.html")
    assert shown.strip() == "", "it only has macros"
