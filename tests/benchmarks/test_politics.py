import json
import random
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks import players
from benchmarks.players import (
    SLOTS,
    Act,
    birth,
    contest,
    convictors,
    entered,
    evenness,
    grown,
    invents,
    outage,
    part,
    there,
)
from benchmarks.politics import INVENTORS, OF_ACCOUNTS, OVERSTATERS, SHARES, WORKERS, without
from benchmarks.tables import RESULTS
from benchmarks.weight import BY_SEALS, Rules, Stage, joined, left, seal, takes, total, weight_of
from dlx.ledger.view.weights import FULL

ROOT = Path(__file__).resolve().parents[2]
RULES = Rules()


@pytest.mark.parametrize("act", WORKERS.values(), ids=WORKERS)
@pytest.mark.parametrize("share", [1 / 10, 1 / 4, 1 / 3])
def test_up_to_a_third_slows_nobody_seals_nothing_alone_and_gains_no_weight(act: Act, share: float) -> None:
    """But who breaks others' replicas slows them by that."""
    played = contest(grown(RULES, round(share * SLOTS)), act, 200)
    slow = act is players.breaks_otherwise and share > 3 / 16  # of the slots in each of two stages
    assert (played.alone, played.exiles) == (None, None) and (played.slows != 1) == slow
    assert played.most == pytest.approx(share, abs=1e-3)


def test_who_breaks_replicas_in_six_rounds_of_eight_has_the_weight_of_two_and_makes_six_late() -> None:
    played = contest(grown(RULES, SLOTS // 4), players.breaks_otherwise, 512)
    assert played.part == pytest.approx(0.25 * 2 / 8, abs=0.005) and played.stops == 1
    assert played.slows == (2 + 6 * players.TIMEOUT / players.ROUND) / 8


@pytest.mark.parametrize("act", [players.blocks, players.censors])
def test_half_slows_a_round_to_two_and_a_half_timeouts_and_gains_nothing_by_it(act: Act) -> None:
    played = contest(grown(RULES, SLOTS // 2), act, 100)
    assert played.stops is not None and 2 < played.stops < 2.5
    assert played.part == pytest.approx(1 / 2, abs=1e-3)
    assert played.exiles is None


def test_weight_and_pay_are_the_part_of_the_work() -> None:
    played = contest(grown(RULES, SLOTS // 4), players.works_in_part, 512)
    assert played.part == pytest.approx(0.25 / (0.25 + 4 * 0.75), abs=0.02)
    assert played.pay == pytest.approx(played.work, abs=0.002)


@pytest.mark.parametrize("share", [1 / 2, 9 / 10])
@pytest.mark.parametrize("start", [birth, entered], ids=["from birth", "later"])
def test_noise_stays_below_a_third_and_is_hardly_paid_where_a_founder_judges(start: type, share: float) -> None:
    played = contest(start(RULES, round(share * 20), 20), invents(0, there), 256, there)
    assert played.most < 1 / 3 and played.alone is None and played.exiles is None
    assert played.pay < 0.03


@pytest.mark.parametrize("lasts", [180, 3600])
def test_others_absence_of_an_hour_gives_a_quarter_nothing(lasts: int) -> None:
    quarter = outage(RULES, 1 / 4, lasts)
    assert (quarter.seals, quarter.exiles) == (0, None)
    assert quarter.part == pytest.approx(1 / 4, abs=1e-3)


@pytest.mark.parametrize("share", [1 / 3, 1 / 2])
def test_others_absence_of_half_an_hour_exiles_nobody(share: float) -> None:
    assert outage(RULES, share, 1800).exiles is None


def test_the_rest_of_an_outage_goes_on() -> None:
    half, third = outage(RULES, 1 / 2, players.DAY), outage(RULES, 1 / 3, players.DAY)
    assert half.first is not None and half.first < 3 and half.on_time is not None and half.on_time < 30
    assert third.first is not None and third.first < 5 and third.on_time is not None and third.on_time < 70


@pytest.mark.parametrize("seed", range(20))
def test_no_leaving_and_coming_back_raises_a_part_of_the_weight(seed: int) -> None:
    chance = random.Random(seed)
    stage = grown(RULES, 5, 20)
    for number in range(300):
        for account in players.ours({**stage.weights, **stage.gone}):
            if chance.random() < 0.1:
                there_now = account in stage.weights
                stage = left(stage, account) if there_now else joined(stage, account)
                if there_now and chance.random() < 0.3:
                    stage = joined(stage, f"x{number}-{account}")
        working = [*players.others(stage.weights), *players.ours(stage.weights)[:5]]
        stage = replace(stage, now=stage.now + chance.choice([1, 30, 3600]))
        stage = seal(stage, dict.fromkeys(working, players.STEPS), working)
        every = {**stage.weights, **stage.gone}
        in_verdicts = weight_of(stage, players.ours(every), BY_SEALS) / total(stage, BY_SEALS)
        assert max(part(stage), in_verdicts) <= 1 / 4 + 1e-3


def test_each_rule_left_out_loses_something() -> None:
    for row in without(RULES):
        assert row["with"] != row["without"], row["rule"]
        if isinstance(row["with"], float) and row["measured"].startswith("part"):
            assert row["without"] > 1.3 * row["with"], row["rule"]


@pytest.mark.parametrize(("horizon", "slots"), [(8, 3), (8, 64), (128, 64), (256, 64), (1024, 8)])
def test_members_that_work_alike_weigh_alike_and_all_there_is(horizon: int, slots: int) -> None:
    found = evenness(replace(RULES, horizon=horizon), slots)
    assert found.sum == pytest.approx(1, abs=1e-3)
    assert found.least == pytest.approx(1, abs=2e-3) and found.most == pytest.approx(1, abs=2e-3)


def test_a_lone_member_seals_alone_and_its_weight_has_room() -> None:
    stage = birth(RULES, 0, 1)
    for number in range(2000):
        stage = replace(stage, now=stage.opened + players.ROUND)
        assert takes(stage, ["h0"], ["h0"], founder=number < 100)
        stage = seal(stage, {"h0": 1}, ["h0"])
        assert stage.weights["h0"] < FULL


@pytest.mark.parametrize("slots", [3, 4, 6])
def test_a_small_run_survives_one_member_without_a_late_round(slots: int) -> None:
    assert players.small(RULES, slots, seed=0, rounds=200).worst == players.ROUND / players.TIMEOUT


def test_one_of_two_goes_on_alone() -> None:
    found = players.small(replace(RULES, horizon=8), 2, seed=0, rounds=200)
    assert found.worst < 5 and found.after < 15


def test_two_of_three_convict_the_third_and_none_of_two_the_other() -> None:
    assert asdict(convictors(RULES, 2, range(1))) == {"some": None, "any": None}
    assert asdict(convictors(RULES, 3, range(1))) == {"some": 2, "any": 2}


@pytest.mark.parametrize("share", [1 / 3, 1 / 4])
def test_the_pages_say_when_the_rest_of_an_outage_has_the_stage(share: float) -> None:
    gone = outage(RULES, share, 24 * 3600)
    assert gone.first is not None and gone.on_time is not None and gone.exiles is not None
    first, later = f"{gone.first:.2g} T", f"{gone.on_time:.0f} T"
    assert later == f"{gone.exiles:.0f} T"
    pages = [(ROOT / name).read_text() for name in ("docs/protocol/ledger.md", "docs/threats.md")]
    assert f"seal alone after {first}, on time and convict after {later}" in pages[0]
    assert f"| {later} | {later} |" in pages[1] and f"| {first}" in pages[1]


def test_an_abandoned_stage_is_its_founders() -> None:
    assert players.newcomer(RULES, founder=True)
    assert not players.newcomer(RULES, founder=False)


def test_an_empty_seal_takes_no_weight() -> None:
    stage = grown(RULES, 0, 4)
    assert seal(replace(stage, now=players.TIMEOUT), {}, []).weights == stage.weights


def test_a_founder_frees_what_squatters_took_at_birth() -> None:
    """For longer where it seals the empty rounds itself, so that their stage stands still."""
    held, longer = players.captor(RULES), players.captor(RULES, empties=True)
    assert 0 < held.seals < held.alone < longer.seals and longer.empties > 7 * longer.seals > held.empties == 0
    assert held.timeouts == 30 * held.alone
    told = " ".join((ROOT / "docs/threats.md").read_text().split())
    assert f"it can until their {held.seals}th seal" in told and f"It can until the {longer.seals}th where" in told


def test_the_results_are_of_these_rules_and_players() -> None:
    results = json.loads((RESULTS / "politics.json").read_text())
    rules = asdict(RULES)
    assert results["rules"] == {**rules, "quorum": list(rules["quorum"])}
    known = {(row["player"], row["share"]) for row in results["players"]}
    assert {(name, share) for name in WORKERS for share in SHARES} <= known
    assert {(name, share) for name in OVERSTATERS for share in SHARES} <= known
    assert {(name, share) for name in INVENTORS for share in OF_ACCOUNTS} <= known


def test_who_leaves_takes_its_weight_along() -> None:
    stage: Stage = left(grown(RULES, 0, 4), "h0")
    assert joined(stage, "h0").weights == grown(RULES, 0, 4).weights
