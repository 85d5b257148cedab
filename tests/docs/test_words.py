"""One word a thing: no synonym of a term of docs/glossary.md is in code, commands, documents or on the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ["node", "training", "p2p", "ledger", "ground", "src", "tests", "benchmarks", "deploy", "docs"]
SUFFIXES = {".py", ".md", ".ipynb", ".toml", ".yml", ".html", ".css", ".js", ".svg", ".sh", ".service"}
GLOSSARY = ROOT / "docs" / "glossary.md"
ITALIC = re.compile(r"(?<![*\w])\*([A-Za-z][A-Za-z -]*)\*(?![*\w])")
NO_TERM = {"italics"}  # stressed for another reason


class Synonym(NamedTuple):
    """A word that is refused (a pattern of whole words), what to say instead, and uses that are names of others."""

    refused: str
    instead: str
    exempt: str = r"(?!)"


# A machine's own seat is logind's.
SYNONYMS = (
    Synonym(r"\w*seat\w*", "slot", r"show-seat|seat0|\w*first.seat"),
    Synonym(r"holders?", "member", r"COPYRIGHT HOLDERS"),
    Synonym(r"pseudo ?gradients?|outer gradients?", "pseudo-gradient"),
    Synonym(r"(?:rpc|full|archive|blockchain) nodes?", "chain node"),
    Synonym(r"volunteers?", "contributor"),
    Synonym(r"(?:coordinator|aggregator)s?", "proposer"),
    Synonym(r"shel(?:f|ves)", "message pool"),
    Synonym(r"sealed files?", "encrypted file"),
    Synonym(r"gossip\s+records?|records?\s+on\s+request|requests?\s+for\s+records", "message on request"),
    Synonym(r"record's\s+text|records\s+of\s+(?:a|the)\s+file", "entry"),
    Synonym(r"book\s+of\s+what", "slashing protection"),
    Synonym(r"custody", "drawn", r"custody(?=/)"),  # a prefix of owners in the blob store
    Synonym(r"(?:validator|juror)s?", "member", r"validators"),  # gossipsub calls its own checks so
)

# Made from what is looked at here (the man pages), copied from others, or this list itself.
EXEMPT = ("docs/man", "docs/vectors", "tests/docs/test_words.py")


def files() -> Iterator[Path]:
    for path in [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]:
        if path.suffix in SUFFIXES and not path.relative_to(ROOT).as_posix().startswith(EXEMPT):
            yield path


def found(synonym: Synonym, text: str) -> Iterator[int]:
    """The lines that say it."""
    allowed = {match.span() for match in re.finditer(rf"\b(?:{synonym.exempt})\b", text)}
    for match in re.finditer(rf"\b(?:{synonym.refused})\b", text, re.IGNORECASE):
        if not any(start <= match.start() and match.end() <= end for start, end in allowed):
            yield text.count("\n", 0, match.start()) + 1


@pytest.mark.parametrize("synonym", SYNONYMS, ids=lambda synonym: synonym.instead)
def test_a_thing_has_one_word(synonym: Synonym) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in files()
        for line in found(synonym, path.read_text(encoding="utf-8"))
    ]
    assert wrong == [], f'say "{synonym.instead}"'


def test_synonyms_are_found_and_the_contracts_names_are_not() -> None:
    seat, holder = SYNONYMS[0], SYNONYMS[1]
    assert list(found(seat, "a slot\nits Seat\n`loginctl show-seat`")) == [2]
    assert list(found(holder, "placeholder\nholderOf(run)\nthe holder of it")) == [3]


def terms() -> list[str]:
    """Of the glossary: those with a row of their own, and those in italics in a row."""
    text = GLOSSARY.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!term)(\w[^|]*) \|", text, re.MULTILINE)
    return [word.lower() for word in (*rows, *ITALIC.findall(text))]


TERMS = terms()


def test_a_term_is_defined_once() -> None:
    assert {term for term in TERMS if TERMS.count(term) > 1} == set()


@pytest.mark.parametrize("term", TERMS)
def test_a_term_is_in_use_and_nobodys_synonym(term: str) -> None:
    word = re.compile(r"\b" + "s?[ _]?".join(map(re.escape, term.split())), re.IGNORECASE)
    assert any(word.search(path.read_text(encoding="utf-8")) for path in files() if path != GLOSSARY)
    assert not [one.instead for one in SYNONYMS if list(found(one, term))]


@pytest.mark.parametrize("synonym", SYNONYMS, ids=lambda synonym: synonym.refused)
def test_what_is_said_in_place_of_a_synonym_is_a_term(synonym: Synonym) -> None:
    assert synonym.instead in TERMS


def test_the_glossary_says_what_the_overview_introduces() -> None:
    introduced = {word.lower() for word in ITALIC.findall((ROOT / "docs" / "overview.md").read_text(encoding="utf-8"))}
    assert introduced - set(TERMS) - {f"{word}s" for word in TERMS} <= NO_TERM


@pytest.mark.parametrize(
    "term", ["verdict", "proposal", "site", "segment", "trace", "window", "rank", "forfeit", "residual"]
)
def test_a_term_of_the_protocol_has_an_entry_of_its_own(term: str) -> None:
    assert f"\n| {term} |" in GLOSSARY.read_text()
