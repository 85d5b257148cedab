"""Two members of one replica that nothing connects, though each is there, and other members reach both."""

from typing import Any

import pytest

from dlx.ledger import events as chain
from dlx.node.round import actions as a
from dlx.node.round import events as e
from tests.node.round.simulation import Member, Simulation, make_rules

FAST = {"round_timeout": 6, "straggler_grace": 3, "proposal_timeout": 1}


class Apart(Simulation):
    """`apart`: pairs of accounts that no pipe joins. `cut`: accounts whose own network is gone; the chain is not."""

    apart: frozenset[frozenset[str]] = frozenset()
    cut: frozenset[str] = frozenset()
    dealt = 0

    def members_ready(self, *accounts: str) -> bool:
        reached = frozenset(accounts) not in self.apart and not self.cut.intersection(accounts)
        return reached and super().members_ready(*accounts)

    def gossip(self, sender: Any, event: e.Event) -> None:
        if sender.account not in self.cut:
            super().gossip(sender, event)

    def tell(self, member: Any, event: Any, seconds: float) -> None:
        if member.account not in self.cut:
            super().tell(member, event, seconds)

    def apply(self, event: chain.Event) -> None:
        super().apply(event)
        self.dealt += isinstance(event, chain.Dealt)

    def part(self, *pairs: frozenset[str]) -> None:
        self.apart = frozenset(pairs)
        for pair in pairs:
            self.disconnect(min(pair))


def running(replicas: int, seed: int) -> Apart:
    sim = Apart(make_rules(**FAST, rounds=80, stages=2), replicas=replicas, seed=seed)
    assert sim.run(lambda: (sim.view.open_round or 0) >= 2, 60)
    return sim


def are_parted(sim: Apart, pair: list[str]) -> bool:
    first, second = (sim.view.slot_of(account) for account in pair)
    return first is not None and second is not None and first[0] != second[0]


@pytest.mark.parametrize("seed", [1, 2])
def test_two_neighbours_that_nothing_connects_are_parted_and_both_are_counted_again(seed: int) -> None:
    """Before their slots are forfeit: none of the two is to blame, or nobody can say which."""
    sim = running(3, seed)
    pair = [str(sim.view.member_at(1, stage)) for stage in (0, 1)]
    sim.part(frozenset(pair))
    assert sim.run(lambda: are_parted(sim, pair), 400)
    assert not any(sim.view.is_forfeit(account) for account in pair)
    later = sim.view.next_round(0)
    assert sim.run(lambda: all((sim.view.last_round_counted(one) or 0) > later for one in pair), 300)
    assert {*sim.members} == {*sim.view.members()}


def test_who_refuses_one_neighbour_only_gains_nothing_by_it() -> None:
    """The other is away within a few rounds, and who refuses each neighbour loses its slot as one that breaks them."""
    sim = running(3, 3)
    refuses = str(sim.view.member_at(1, 1))
    others = [account for account in sim.members if account != refuses]
    sim.part(*(frozenset((refuses, other)) for other in others))
    assert sim.run(lambda: sim.view.slot_of(refuses) is None, 900)
    assert {*others} == {*sim.view.members()}, "nobody else does"


def test_in_an_outage_of_everybodys_network_nobody_leaves() -> None:
    sim = running(3, 4)
    slots = sim.view.members()
    sim.cut = frozenset(sim.members)
    for account in sim.members:
        sim.disconnect(account)
    sim.run(lambda: False, 200)
    assert sim.view.members() == slots and not sim.dealt
    sim.cut = frozenset()
    for account in sim.members:
        sim.connect(account)
    later = sim.view.next_round(0)
    assert sim.run(lambda: sim.view.next_round(0) > later + 2, 200)


def test_who_is_cut_off_itself_deals_nothing_and_only_it_loses_its_slot() -> None:
    """It has a chain, so it answers; and it hears of nobody."""
    sim = running(3, 5)
    cut, dealers = str(sim.view.member_at(1, 1)), set[str]()
    transact = sim.transact

    def note(member: Member, action: a.Action) -> bool:
        done = transact(member, action)
        if done and isinstance(action, a.Send) and action.call == "deal":
            dealers.add(member.account)
        return done

    sim.transact = note  # type: ignore[method-assign]
    sim.cut = frozenset((cut,))
    sim.disconnect(cut)
    assert sim.run(lambda: sim.view.slot_of(cut) is None, 900)
    assert dealers and cut not in dealers
    assert sim.members.keys() - {cut} == {*sim.view.members()}
