"""What README, overview and threats say of parts of a stage's weight, recounted by the view's rules."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from story import ACCOUNTS, FOUNDER, MIN, TIMEOUT, Story, names

from dlx.ledger.view.seals import least
from dlx.ledger.view.weights import FULL
from dlx.node.runs.find import horizon_of
from dlx.training.recipe.recipe import Audit, Quorum, Timing

ROOT = Path(__file__).resolve().parents[3]
LATEST = 10 * TIMEOUT
FOUNDS = ACCOUNTS.index(FOUNDER)


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
    assert "by default with five eighths of its votes" in page("README.md")
    assert "by default five eighths of the votes" in page("docs/overview.md")
    assert alone_after(terms, 1 / 2) == pytest.approx(2.5, abs=0.05)
    assert Timing().round_timeout == 120
    told = "open for 2.5 timeouts (of two minutes) half of them suffice, after 4.5 a third"
    assert told in page("README.md")
    assert "2.5 T at a half" in page("docs/threats.md")
    assert alone_after(terms, 3 / 8) == pytest.approx(4, abs=0.1), "who has the rest of it makes others wait so long"
    assert "make each round late, up to 4 T" in page("docs/threats.md")
    assert alone_after(terms, 1 / 3 + 0.0001) == pytest.approx(4.5, abs=0.05)
    assert alone_after(terms, 1 / 3 - 0.001) is None
    assert "So half can seal any version, by making the round late, and five eighths at once" in page("README.md")
    assert "More than three eighths can make every round late, by four timeouts at most" in page("README.md")


@pytest.mark.parametrize(
    ("replicas", "needed", "told"),
    [
        (2, None, "Of two nobody can convict the other"),
        (3, 2, "Of three, two can convict the third"),
        (4, 3, "of four, three"),
        (6, 4, "of six, four"),
        (8, 5, "of seven and eight, five"),
        (31, 20, "keep those of its own from being convicted that are a small part of it (from 2/5 on all)"),
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
    few = "Of three or four equal replicas that takes all others; of two equal ones neither convicts the other."
    assert few in page("docs/overview.md")


@pytest.mark.parametrize("replicas", [5, 8, 31])
def test_the_pages_say_from_when_on_members_keep_each_other_from_being_convicted(replicas: int) -> None:
    story = Story.staffed(replicas)
    story.work(80, range(replicas))
    together = next(few for few in range(replicas) if 5 * few > 2 * replicas)
    assert not story.view.may_convict(0, ACCOUNTS[0], names(range(together, replicas)))
    assert "So members with more than two fifths together keep each other from being convicted" in page("README.md")


@pytest.mark.parametrize(("members", "share", "timeouts"), [(8, 0.0, 101), (10, 0.1, 92)])
def test_a_founder_seals_alone_once_the_weight_of_the_absent_has_faded(
    members: int, share: float, timeouts: int
) -> None:
    story = Story.staffed(members, horizon=128, quorum_numerator=5, quorum_denominator=8)
    story.work(900, range(members))
    own = range(round(members * share))
    for index in range(len(own), members):
        story.leave(index)

    def may_seal(time: int) -> bool:
        return story.view.may_seal(0, [], names(own), story.time + time, founder=True)

    assert may_seal((timeouts + 1) * TIMEOUT) and not may_seal((timeouts - 1) * TIMEOUT)
    told = f"without any weight it seals alone after {timeouts} T" if not own else f"with a tenth after {timeouts} T"
    assert told in page("docs/threats.md")


def test_the_pages_say_how_long_founders_are_needed() -> None:
    """With all members there: so many seals take a founder, and after so many work has earned half of all weight."""
    horizon = horizon_of(Audit().share, 8)
    story = Story.staffed(8, horizon=horizon, quorum_numerator=5, quorum_denominator=8)
    everybody = names(range(8))
    alone, late, convicts, dismisses = [False], [False], [True], [True]
    seals, seals_late = [True], [True]  # a founder alone
    view = story.view
    while view.vacuum(0, story.time):
        story.work(1, range(8))
        times = story.time + MIN, story.time + LATEST
        alone.append(view.may_seal(0, everybody, everybody, times[0], founder=False))
        late.append(view.may_seal(0, everybody, everybody, times[1], founder=False))
        seals.append(view.may_seal(0, everybody, [], times[0], founder=True))
        seals_late.append(view.may_seal(0, everybody, [], times[1], founder=True))
        convicts.append(view.may_convict(0, ACCOUNTS[0], [FOUNDER]))
        dismisses.append(view.may_dismiss(FOUNDER, ACCOUNTS[0], story.time))
    assert late.index(True) == 24 and dismisses.index(False) == 24
    assert horizon == 128 and alone.index(True) == 48 and len(alone) - 1 == 89
    assert (seals.index(False), seals_late.index(False)) == (27, 52)
    assert convicts.index(False) == 26
    readme, overview, threats = page("README.md"), page("docs/overview.md"), page("docs/threats.md")
    assert "a stage's first 48 seals need one to be in time, and the first 24 to be made at all" in readme
    assert "A founder alone can seal late in the first 52, and convict anybody in the first 24" in readme
    assert "A founder can take it in the stage's first 24 seals" in readme
    assert "| first 24 | no seal is made without one. One alone can convict anybody, and take any slot |" in overview
    assert "| first 48 | no seal is in time without one |" in overview
    assert "| first 27, first 52 | one alone can seal in time, or late." in overview
    assert "| from 89 on | they have no votes |" in overview
    assert "(89 seals at a horizon of 128)" in threats
    assert "can convict anybody in the first 24 seals, and one of eight equal members in the first 26" in threats


def test_the_readme_says_what_few_can_do_where_all_others_are_cut_off() -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "politics.json").read_text())["outages"]
    found = {round(1 / row["share"]): row for row in rows if row["others gone for"] == "1 day"}
    timeout, readme = Timing().round_timeout / 60, page("README.md")
    alone, convicts = ([found[part][what] for part in (2, 3, 4)] for what in ("first", "exiles"))
    assert [round(one * timeout) for one in alone] == [5, 9, 78]
    assert [round(int(one) * timeout) for one in convicts] == [54, 130, 190]
    assert found[10]["first"] is None
    told = (
        "Half seals alone after 5 minutes, and can convict them after 54. A third takes 9 minutes and 2 h 10, a quarter"
    )
    assert f"{told} 78 minutes and 3 h 10. A tenth never can" in readme


def test_the_pages_say_how_long_a_founder_that_trains_convicts_the_other() -> None:
    story = Story(stages=1, min_replicas=2, max_replicas=2, horizon=128)
    story.join(0, 0, 0)
    story.join(FOUNDS, 1, 0)
    story.open()
    convicts = [True]
    while convicts[-1]:
        story.work(1, [0, FOUNDS])
        convicts.append(story.view.may_convict(0, ACCOUNTS[0], [FOUNDER]))
    assert convicts.index(False) == 66
    assert "of two equal replicas of which one is its own, the other in the first 66" in page("README.md")
