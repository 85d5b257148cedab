"""Members that keep the ledger's rules and work against the run: it goes on, and who works keeps its slot."""

from typing import Any

import pytest

from dlx.ledger import events as chain
from dlx.ledger.typed import Contribution, Outcome, Seal, entries, sign
from dlx.node.round import actions as a
from dlx.node.round.liveness import claims
from dlx.node.round.rules.round_rules import Rules
from tests.node.round.simulation import DOMAIN, RUN, START, Member, Simulation, digest, make_rules

pytestmark = pytest.mark.slow

FAST = {"round_timeout": 6, "straggler_grace": 3, "proposal_timeout": 1}
AGAIN = 12  # rounds within which a run with one breaker in each replica counts work again


def fast_rules(**changes: Any) -> Rules:
    return make_rules(**{**FAST, **changes})


@pytest.mark.parametrize(("seed", "delay"), [(0, 0), (1, 1)])
def test_one_breaker_in_each_replica_stops_a_run_for_some_rounds_only(seed: int, delay: int) -> None:
    """Each is of another stage; it says, signs and answers all that it should, starts every round and trains none."""
    sim = Simulation(fast_rules(rounds=60, stages=3, delay=delay), replicas=3, seed=seed, min_replicas=3)
    assert sim.run(lambda: (sim.view.open_round or 0) >= 3, 60)
    breakers = {str(sim.view.member_at(index, index)) for index in range(3)}
    for account in breakers:
        sim.members[account].breaks = True
    began = sim.view.next_round(0) + delay + 1  # what is under way may still be counted
    counted: list[int] = []
    done = began
    while sim.now < START + 700 and done < (counted[0] if counted else began + AGAIN) + 8:
        sim.step()
        done = min(map(sim.view.next_round, range(3)))
        counted = [round for round in range(began, done) if all(sim.view.sealed[s, round].records for s in range(3))]
    assert counted and counted[0] < began + AGAIN
    honest = sim.members.keys() - breakers
    assert honest <= sim.view.members().keys(), "nobody that trains loses its slot"


def test_a_breaker_loses_its_slot_and_the_honest_keep_theirs() -> None:
    """It is dealt from replica to replica, counted in none, and asked for work."""
    sim = Simulation(fast_rules(rounds=90, stages=2), replicas=3, seed=1)
    assert sim.run(lambda: (sim.view.open_round or 0) >= 2, 60)
    breaker = str(sim.view.member_at(1, 1))
    sim.members[breaker].breaks = True
    assert sim.run(lambda: sim.view.slot_of(breaker) is None, 800)
    assert sim.view.next_round(0) < 60
    assert sim.members.keys() - {breaker} == sim.view.members().keys()


def test_a_member_that_leaves_at_the_moment_of_the_seal_spoils_nothing() -> None:
    sim = Simulation(fast_rules(rounds=6, stages=1, delay=0, straggler_grace=5), replicas=3, seed=2)
    assert sim.run(lambda: (sim.view.open_round or 0) == 2, 60)
    leaver, sent, transact = str(sim.view.member_at(1, 0)), [], sim.transact

    def race(member: Member, action: Any) -> bool:
        seal = getattr(action, "seal", None)
        if seal is not None and seal.round == 2 and sim.view.slot_of(leaver) is not None:
            sent.append(seal)
            sim.leave(leaver)  # in the block before
        return transact(member, action)

    sim.transact = race  # type: ignore[method-assign]
    assert sim.run(lambda: sim.view.next_round(0) > 2, 30)
    sealed = sim.view.sealed[0, 2]
    assert [seal.digest(DOMAIN) for seal in sent] == [sealed.digest]
    assert leaver in sealed.accounts and sealed.count == 3
    assert sim.run(lambda: sim.finished, 60)


def test_a_crowd_that_joins_and_signs_decides_nothing() -> None:
    sim = Simulation(fast_rules(rounds=8, stages=1), replicas=3, seed=3, spare=7)
    assert sim.run(lambda: (sim.view.open_round or 0) == 1, 60)
    honest = set(sim.members)
    crowd = [sim.join(f"sybil {index}", 0) for index in range(7)]
    for account in crowd:
        sim.members[account].breaks = True
        sim.restart(account)
    assert sim.run(lambda: (sim.view.open_round or 0) >= 4, 120)
    assert set(sim.view.voters(0)) == honest
    sim.run(lambda: False, 2)
    view, plan = sim.view, sim.rules.plan
    lie = Outcome(digest("a lie"), bytes(32), digest("its root"), bytes(32), plan.inner_steps, plan)
    liar = sim.members[crowd[0]]
    statement = sim.contribution(liar, view.open_round or 0)
    seal = Seal(RUN, 0, view.open_round or 0, view.head(0), lie, (statement.contribution.record(1),))
    votes = {
        account: (sim.view.slot_of(account)[0], sign(seal.digest(DOMAIN), sim.members[account].key))  # type: ignore[index]
        for account in crowd
    }
    assert not sim.seal(seal, entries(votes, {}))
    assert sim.run(lambda: sim.finished, 120)
    assert all(honest >= set(sealed.accounts) != set() for sealed in sim.view.sealed.values())


@pytest.mark.parametrize("mute", [False, True], ids=["silent", "hostile"])
def test_a_stage_whose_members_do_not_work_is_taken_over_by_newcomers(mute: bool) -> None:
    """`mute`: they answer every accusation and say nothing else; else they are gone. Every slot was taken."""
    sim = Simulation(fast_rules(rounds=8), replicas=2, seed=4, spare=0)
    assert sim.run(lambda: (sim.view.open_round or 0) >= (1 if mute else 2), 60)
    for replica in range(2):
        account = str(sim.view.member_at(replica, 1))
        if mute:
            sim.members[account].mute = sim.members[account].breaks = True
        else:
            sim.kill(account)
    began = sim.now
    if mute:  # who answers is not silent: a founder frees the slots of a young stage
        dismiss_all(sim, 1)
    assert sim.run(lambda: not sim.view.members_in(1), 60 * sim.rules.round_timeout)
    assert sim.run(lambda: sim.view.free_slot(1, "0x" + "00" * 20, int(sim.now)) is not None, 60)
    newcomers = [sim.join(f"newcomer {index}", 1) for index in range(2)]
    for account in newcomers:
        sim.restart(account)
    assert sim.run(lambda: sim.finished, 400)
    assert set(sim.view.sealed[1, 7].accounts) <= set(newcomers)
    assert sim.now - began < 100 * sim.rules.round_timeout


def test_members_whose_slots_were_taken_in_an_outage_take_them_back() -> None:
    """Who took them answers every accusation and does nothing else."""
    sim = Simulation(fast_rules(rounds=12), replicas=2, seed=6, spare=0)
    assert sim.run(lambda: (sim.view.open_round or 0) >= 4, 60)
    away = list(sim.view.members_in(1))
    for account in away:
        sim.kill(account)
    assert sim.run(lambda: not sim.view.members_in(1), 60 * sim.rules.round_timeout)
    assert sim.run(lambda: sim.view.free_slot(1, "0x" + "00" * 20, int(sim.now)) is not None, 60)
    for index in range(2):
        taker = sim.join(f"taker {index}", 1)
        sim.members[taker].mute = sim.members[taker].breaks = True
        sim.restart(taker)
    began = sim.now
    for account in away:
        sim.restart(account)
    assert sim.run(lambda: {*sim.view.members_in(1)} == {*away}, 12 * sim.rules.round_timeout)
    assert sim.run(lambda: sim.finished, 400)
    assert sim.now - began < 30 * sim.rules.round_timeout


def test_newcomers_take_a_run_over_whose_every_slot_was_held_by_the_hostile() -> None:
    """They can claim no slot of who answers; a founder frees those of a young stage."""
    sim = Simulation(fast_rules(rounds=6, stages=1), replicas=2, seed=5, spare=0)
    assert sim.run(lambda: (sim.view.open_round or 0) >= 1, 60)
    for member in sim.alive():
        member.mute = member.breaks = True
    stranger = "0x" + "11" * 20

    def claim() -> bool:
        for action in claims(sim.view, stranger, 0, sim.now):
            assert sim.transact(Member(bytes(32), SimpleAccount(stranger)), action)  # type: ignore[arg-type]
        return not sim.view.members_in(0)

    assert not sim.run(claim, 10 * sim.rules.round_timeout)
    dismiss_all(sim, 0)
    assert sim.run(lambda: sim.view.free_slot(0, stranger, int(sim.now)) is not None, 60)
    sim.restart(sim.join("newcomer", 0))
    assert sim.run(lambda: sim.finished, 400)


def dismiss_all(sim: Simulation, stage: int) -> None:
    for account in list(sim.view.members_in(stage)):
        sim.dismiss(account)


class SimpleAccount:
    """Who has no machine."""

    def __init__(self, account: str) -> None:
        self.account = account


def test_a_deal_in_the_middle_of_a_round_spoils_nothing_that_is_under_way() -> None:
    """A contribution made before it counts where its maker was."""
    sim = Simulation(fast_rules(rounds=12, stages=1, delay=0), replicas=3, seed=12)
    idle = str(sim.view.member_at(2, 0))
    sim.members[idle].breaks = True
    made: list[tuple[Contribution, int]] = []
    apply = sim.apply

    def noted(event: chain.Event) -> None:
        if isinstance(event, chain.Dealt):
            own = sim.members[str(sim.view.member_at(event.other, 0))].machine.own.get(sim.view.open_round or 0)
            if own is not None:
                made.append((own.contribution, event.other))
        apply(event)

    def dealt() -> bool:
        """By anybody: with one stage no honest member does it."""
        slot, round = sim.view.slot_of(idle), sim.view.open_round
        if slot is not None and all(round in one.machine.own for one in sim.alive() if one.account != idle):
            sim.transact(sim.members[idle], a.Send("deal", slot[0]))
        return sim.finished

    sim.apply = noted  # type: ignore[method-assign]
    assert sim.run(dealt, 300)
    assert made and all(sealed.records for sealed in sim.view.sealed.values())
    for contribution, replica in made:
        assert contribution.replica == replica
        assert contribution.account in sim.view.sealed[0, contribution.round].accounts
