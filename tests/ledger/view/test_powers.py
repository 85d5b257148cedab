"""What README, overview and threats say of parts of a stage's weight, recounted by the view's rules."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from story import ACCOUNTS, EVICTION, FOUNDER, MIN, TIMEOUT, Story, names

from dlx.ledger.events import Accused, Evicted
from dlx.ledger.view.seals import least
from dlx.ledger.view.weights import FULL
from dlx.node.daemon.challenges.leaving import SETTLE_TIMEOUTS
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
    told = (
        "A founder alone can seal in time in the first 27, late in the first 52, and convict anybody in the first 24."
    )
    assert told in readme
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


@pytest.mark.parametrize(
    ("members", "in_time", "late", "convicts_anybody", "convicts_equal"), [(8, 31, 62, 27, 31), (2, 60, None, 52, 66)]
)
def test_the_pages_say_for_how_long_a_founder_that_trains_has_power_alone(
    members: int, in_time: int, late: int | None, convicts_anybody: int, convicts_equal: int
) -> None:
    """It is one of so many equal members, so its own weight comes to what no work has earned yet."""
    quorum = {"quorum_numerator": Quorum().numerator, "quorum_denominator": Quorum().denominator}
    story = Story(stages=1, min_replicas=members, max_replicas=members + 1, horizon=128, **quorum)
    team, idle = [*range(members - 1), FOUNDS], members
    for replica, index in enumerate(team):
        story.join(index, replica, 0)
    story.open()
    story.join(idle, members, 0)
    view, able = story.view, list[tuple[bool, ...]]()
    for _ in range(200):
        times = story.time + MIN, story.time + LATEST
        able.append(
            (
                *(view.may_seal(0, [FOUNDER], [FOUNDER], time, founder=True) for time in times),
                *(view.may_convict(0, ACCOUNTS[index], [FOUNDER]) for index in (idle, team[0])),
            )
        )
        story.work(1, team)
    first = [next((at for at, can in enumerate(one) if not can), None) for one in zip(*able, strict=True)]
    assert first == [in_time, late, convicts_anybody, convicts_equal] and not view.vacuum(0, story.time)
    told = (
        "One that trains as one of eight equal members can in the first 31, 62 and 27. As one of two it seals in time"
    )
    assert f"{told} in the first 60 and late always, and convicts the other in the first 66." in page("README.md")
    assert "| first 31, first 62 | the same of one that trains as one of the eight |" in page("docs/overview.md")
    assert "of which one is its own it can convict the other in the first 66" in page("docs/threats.md")


@pytest.mark.parametrize(("gone", "hours"), [(8, 2), (6, 3)])
def test_the_overview_says_when_founders_have_votes_again(gone: int, hours: int) -> None:
    story, timeout = Story.staffed(8, horizon=128), Timing().round_timeout
    story.work(400, range(8))
    assert not story.view.vacuum(0, story.time)
    for index in range(gone):
        story.leave(index)
    waits = (part for part in range(400) if story.view.vacuum(0, story.time + part * TIMEOUT))
    assert next(waits) * timeout / 3600 == pytest.approx(hours, abs=0.15)
    story.time += 400 * TIMEOUT
    for index in range(gone):
        story.join(index, index, 0)
    assert not story.view.vacuum(0, story.time), "they have none where the members came back"
    told = (
        "while most of the weight is without slots: from two hours on if all members left, from three if three quarters"
    )
    assert told in page("docs/overview.md")


def test_the_pages_say_how_long_a_node_may_be_silent() -> None:
    by, silent = ACCOUNTS[0], ACCOUNTS[1]
    view = Story.staffed(3).view
    opened = view.opened_at or 0
    assert not view.may_accuse(by, silent, opened + TIMEOUT) and view.may_accuse(by, silent, opened + TIMEOUT + 1)
    story = Story.staffed(3)
    uncounted = 0
    while not story.view.may_accuse(by, silent, story.time):
        story.work(1, [0, 2])
        uncounted += 1
    assert uncounted == 3
    story.tell(Accused, silent, by, False)
    asked = story.time
    assert not story.view.may_evict(silent, asked + EVICTION - 1) and story.view.may_evict(silent, asked + EVICTION)
    assert (Timing().round_timeout, Timing().eviction_time, SETTLE_TIMEOUTS * Timing().round_timeout) == (120, 60, 960)
    asks = "asked on the ledger once a round is open for two minutes, or three rounds did not count it"
    assert f"{asks}, and has one minute to answer" in page("README.md")
    assert f"{asks}. If it does not answer within a minute it loses its slot" in page("docs/overview.md")
    assert "mostly for a round or two and at most 16 minutes" in page("README.md")
    assert "`round_timeout` plus `eviction_time`: two minutes and one, by default" in page("docs/operator.md")


def test_the_pages_say_for_how_long_an_evicted_members_slot_waits() -> None:
    story = Story.staffed(3)
    story.work(1, range(3))
    story.work(3, [0, 2])
    story.tell(Accused, ACCOUNTS[1], ACCOUNTS[0], False)
    story.time += EVICTION
    story.tell(Evicted, ACCOUNTS[1], 1, 0, story.time + EVICTION)  # refused unless it waits for so long
    assert story.view.returns[1, 0].until == story.time + EVICTION
    assert "For a minute more the slot waits for it, if it was counted lately." in page("docs/overview.md")
