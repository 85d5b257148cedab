"""What a seal may leave out."""

from typing import Any

import pytest

from dlx.node.round.rules.inclusion import Deadlines, is_named, merged, trusted_names
from tests.node.round.players import Censor, Contest
from tests.node.round.simulation import Simulation, make_rules

GRACED, PATIENCE = 100.0, 3.0


@pytest.mark.parametrize(
    ("now", "proposed", "held_since", "named", "excused"),
    [
        (99, 90, 95, False, False),  # before the grace ends nothing is left out,
        (101, 90, 95, False, False),  # then reports may still be on their way;
        (103, 90, 95, False, True),
        (109, 90, 95, True, False),  # what a quorum has is never left out,
        (109, 90, 101, True, True),  # unless it came after the grace and the proposal,
        (109, 105, 104, True, False),
        (105, 104, 103, False, False),  # and what came late is given as long to be reported.
        (106, 104, 103, False, True),
    ],
)
def test_what_excuses_a_proposal(now: float, proposed: float, held_since: float, named: bool, excused: bool) -> None:
    assert Deadlines(now, GRACED, proposed, PATIENCE).excuse(held_since, named) is excused


@pytest.mark.parametrize(("reporting", "named", "trusted"), [(1, False, False), (2, False, True), (3, True, True)])
def test_a_quorum_names_and_more_than_can_be_hostile_are_trusted(reporting: int, named: bool, trusted: bool) -> None:
    sim = Simulation(make_rules(stages=1), replicas=4, seed=1)
    stranger = "0x" + "11" * 20
    reports = {account: frozenset([b"x"]) for account in [*list(sim.members)[:reporting], stranger]}
    assert is_named(sim.view, 0, reports, b"x", sim.now) is named
    assert trusted_names(sim.view, 0, reports) == ({b"x"} if trusted else set())


def test_where_members_are_too_few_for_a_quorum_a_majority_names() -> None:
    """Else nothing would be named, and an empty seal excused, until the weight of who left has faded."""
    sim = Simulation(make_rules(stages=1, rounds=20), replicas=4, seed=1)
    assert sim.run(lambda: sim.view.open_round == 12, 200)
    for account in list(sim.members)[:2]:
        sim.leave(account)
    left, now = list(sim.members)[2:], int(sim.now)
    assert sim.view.votes(0, left, now) < sim.view.needed(0, now)
    both = {account: frozenset([b"x"]) for account in left}
    assert is_named(sim.view, 0, both, b"x", sim.now)
    assert not is_named(sim.view, 0, dict(list(both.items())[:1]), b"x", sim.now)


def test_an_older_report_takes_nothing_back() -> None:
    stated: dict[bytes, Any] = {b"x": None, b"y": None}
    known = merged(frozenset(), [b"x", b"y", b"unheard"], stated)
    assert merged(known, [b"x"], stated) == {b"x", b"y"}, "and what we cannot look up is not kept for ever"


@pytest.mark.parametrize("seed", range(3))
def test_a_censor_leaves_nobody_out(seed: int) -> None:
    """It holds its contribution back until the grace ends and then lists itself with the fewest others. Where an
    attester signs any correct list after the grace, that takes a quarter of the rounds."""
    rules = make_rules(rounds=12, stages=1, delay=0, straggler_grace=4, proposal_timeout=1, round_timeout=8)
    sim = Contest(rules, replicas=4, seed=seed, min_replicas=2)
    sim.play(str(sim.view.member_at(1, 0)), Censor)
    assert sim.run(lambda: sim.finished, 200)
    assert len(sim.owed) == 12 and not sim.lost
    assert not sim.blamed()
