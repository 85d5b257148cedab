"""What README, overview and threats say of parts of a stage's weight, recounted by the view's rules."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from story import ACCOUNTS, TIMEOUT, Story, names

from dlx.ledger.view.seals import least
from dlx.ledger.view.weights import FULL
from dlx.training.recipe.recipe import Quorum

ROOT = Path(__file__).resolve().parents[3]
LATEST = 10 * TIMEOUT


def page(name: str) -> str:
    return " ".join((ROOT / name).read_text().split())


@pytest.fixture(scope="module")
def terms() -> Story:
    """With the quorum that a manifest has by default."""
    return Story.staffed(3, quorum_numerator=Quorum().numerator, quorum_denominator=Quorum().denominator)


def alone_after(story: Story, part: float) -> float | None:
    """In round timeouts: how long a round is open before so large a part of all weight seals it by itself."""
    config = story.view.config
    seconds = (open_for for open_for in range(LATEST) if least(config, FULL, open_for) <= part * FULL)
    return next((open_for / TIMEOUT for open_for in seconds), None)


def test_the_pages_say_who_can_seal_and_when(terms: Story) -> None:
    assert alone_after(terms, 5 / 8) == 0 and alone_after(terms, 5 / 8 - 0.001) > 1
    assert "Five eighths can seal any version" in page("README.md")
    assert alone_after(terms, 1 / 2) == pytest.approx(2.5, abs=0.05)
    assert "half can seal any version in a round that is late by one and a half" in page("README.md")
    assert "2.5 T at a half" in page("docs/threats.md")
    assert alone_after(terms, 3 / 8) == pytest.approx(4, abs=0.1), "who has the rest of it makes others wait so long"
    assert "make each round late, up to 4 T" in page("docs/threats.md")
    assert alone_after(terms, 1 / 3 - 0.001) is None
    assert "Three eighths slow it" in page("README.md")


@pytest.mark.parametrize(
    ("replicas", "needed", "told"),
    [
        (2, None, "Of two nobody can convict the other"),
        (3, 2, "Of three, two can convict the third"),
        (4, 3, "of four, three"),
        (6, 4, "of six, four"),
        (8, 5, "of seven and eight, five"),
        (31, 20, "A third of a stage's weight, which is recent work, keeps its own members from being convicted"),
    ],
)
def test_the_pages_say_how_many_equal_members_convict_one(replicas: int, needed: int | None, told: str) -> None:
    story = Story.staffed(replicas)
    story.work(80, range(replicas))
    accused, others = ACCOUNTS[0], names(range(1, replicas))

    def convict(some: Sequence[str]) -> bool:
        return story.view.may_convict(0, accused, some)

    assert next((few for few in range(replicas) if convict(others[:few])), None) == needed
    assert told in page("docs/threats.md") + page("README.md")
    assert "Of three or four equal replicas that takes all others; of two nobody" in page("docs/overview.md")
