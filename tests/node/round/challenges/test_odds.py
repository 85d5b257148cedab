"""What docs/threats.md says of how soon a lie is drawn, drawn again."""

import math
import re
from pathlib import Path

import pytest

from dlx.node.round.challenges.draw import draw, seed_of

SECTION = (
    (Path(__file__).resolve().parents[4] / "docs" / "threats.md")
    .read_text()
    .partition("## The odds")[2]
    .partition("\n## ")[0]
)
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in SECTION.splitlines() if line.startswith("| ")]
LIES = [row for row in ROWS if re.match(r"\d+ segment", row[0])]
SHARES = [row for row in ROWS if row[0].startswith("1/")]
DEFAULT = 1 / 16
TRIALS = 400


@pytest.mark.parametrize("row", LIES, ids=[row[0] for row in LIES])
def test_a_lie_in_some_segments_is_drawn_at_the_odds_of_the_docs(row: list[str]) -> None:
    segments = int(row[0].split()[0])
    for rounds, cell in zip((1, 4, 16, 44), row[2:6], strict=True):
        assert _said(cell, 1 - (1 - DEFAULT) ** (segments * rounds)), (rounds, cell)
    seen = sorted(_first_drawn(trial, segments) for trial in range(TRIALS))
    assert seen[TRIALS // 2] == pytest.approx(int(row[6].split()[0]), abs=2)
    for rounds in (1, 4, 16, 44):
        part = 1 - (1 - DEFAULT) ** (segments * rounds)
        spread = math.sqrt(part * (1 - part) / TRIALS)
        assert sum(one <= rounds for one in seen) / TRIALS == pytest.approx(part, abs=3 * spread + 1e-9), rounds


@pytest.mark.parametrize("row", SHARES, ids=[row[0] for row in SHARES])
def test_the_odds_of_other_shares_are_those_of_the_formula(row: list[str]) -> None:
    missed = 1 - 1 / int(re.match(r"1/(\d+)", row[0]).group(1))  # type: ignore[union-attr]
    for rounds, cell in zip((1, 16, 44), row[1:4], strict=True):
        assert _said(cell, 1 - missed**rounds)
    for part, cell in zip((0.5, 0.95), row[4:6], strict=True):
        assert cell == f"{math.ceil(math.log(1 - part) / math.log(missed))} rounds"


def _first_drawn(trial: int, segments: int) -> int:
    """How many rounds a lie in the last so many of 32 segments goes on until one of them is drawn."""
    round = 0
    while True:
        seed = seed_of(trial.to_bytes(32, "big"), bytes(32), round, [bytes(32)])
        round += 1
        if any(one.segment >= 32 - segments for one in draw(seed, round, {3: 32}, DEFAULT)):
            return round


def _said(cell: str, part: float) -> bool:
    """Whether the cell is the number, rounded as it says; `all`: more than 99.99%."""
    if cell == "all":
        return part > 0.9999
    digits = cell.rstrip("%")
    return round(100 * part, len(digits.partition(".")[2])) == float(digits)
