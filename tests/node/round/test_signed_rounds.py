"""A member that comes back with what it signed and without its training state: moved, or in another stage meanwhile."""

import pytest

from dlx.node.round import actions as a
from dlx.node.round.machine import RoundMachine
from tests.node.round.simulation import Member, Simulation, make_rules


def contributed(delay: int, held: bool) -> tuple[Simulation, Member]:
    """A run of four single-stage replicas, one of which has contributed to the open round and comes back without its
    training state; `held`: a mate has its payload, which it has lost itself."""
    sim = Simulation(make_rules(rounds=5, stages=1, delay=delay), replicas=4, seed=2)
    member = next(iter(sim.members.values()))
    assert sim.run(lambda: sim.view.next_round(0) == 1 and 1 in member.machine.own, 60)
    lost = member.machine.own[1].contribution.payload
    if held:
        assert sim.run(lambda: any(lost in other.payloads for other in sim.alive() if other is not member), 60)
    assert sim.view.next_round(0) == 1, "the round is still open"
    sim.kill(member.account)
    member.payloads.discard(lost)
    old = member.machine
    member.machine = RoundMachine(
        sim.rules, member.account, 0, sim.view.copy(), old.version, old.oldest, last_trained=-1, own=dict(old.own)
    )
    member.alive = True
    sim.connect(member.account)
    return sim, member


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("held", [True, False])
def test_it_trains_no_round_twice_and_nobody_sees_two_statements(delay: int, held: bool) -> None:
    sim, member = contributed(delay, held)
    signed = member.machine.own[1]
    assert sim.run(lambda: sim.view.finished, 300)
    assert member.trained.count(1) == 1 and member.machine.own[1] == signed
    assert sorted(set(member.trained)) == sorted(member.trained), "no other round twice either"
    for other in sim.members.values():
        assert not other.evidence and "equivocation" not in other.rejected
    assert sim.view.last_round_counted(member.account) == 4, "it goes on with the later rounds"


def test_a_payload_that_is_not_here_is_fetched_before_it_is_listed() -> None:
    sim, member = contributed(delay=0, held=True)
    asked: list[a.Action] = []
    act = sim.act
    sim.act = lambda who, action: (asked.append(action) if who is member else None, act(who, action))[1]  # type: ignore[method-assign,func-returns-value]
    assert member.machine.known_round(1)[0] == 0, "its own payload is not taken for held"
    assert sim.run(lambda: sim.view.next_round(0) > 1, 60)
    lost = member.machine.own[1].contribution.payload
    assert lost in [one.signed.contribution.payload for one in asked if isinstance(one, a.FetchPayload)]
    assert lost in member.payloads
