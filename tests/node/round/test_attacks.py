"""Members and outsiders that use the protocol's own statements against it: the run goes on all the same."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest
from coincurve import PrivateKey

from dlx.ledger.typed import Plan, SignedContribution, sign
from dlx.ledger.view.run_view import RunView
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.rules.plans import deciding_seals
from dlx.node.round.rules.round_rules import OuterResult, build_seal, proposers, unit_multipliers
from tests.node.round.simulation import DOMAIN, FACTS, Member, Simulation, digest, make_rules
from tests.node.round.test_adaptive import adaptive_rules


def in_turn(sim: Simulation) -> Member:
    """Stage 0's first proposer of round 0."""
    return sim.members[proposers(sim.rules, sim.view, 0, 0, 0)[0]]


def proposal(sim: Simulation, liar: Member, listed: tuple[SignedContribution, ...]) -> e.Event:
    """A correct seal of round 0 that lists these."""
    multipliers = unit_multipliers(len(listed))
    made = sim.outer(0, tuple(signed.contribution.hash() for signed in listed), multipliers)
    result = OuterResult(made, bytes(32), digest("root", made), bytes(32))
    seal = build_seal(sim.rules, sim.view, liar.machine.stage, 0, listed, multipliers, sim.rules.plan, result)
    return e.ProposalSeen(seal, 0, sign(seal.digest(DOMAIN), liar.key), liar.account)


def in_order(sim: Simulation, accounts: Iterable[str]) -> tuple[SignedContribution, ...]:
    """Their own contributions to round 0, as a seal lists them."""
    own = [sim.members[account].machine.own[0] for account in accounts]
    return tuple(sorted(own, key=lambda signed: signed.contribution.replica))


def test_a_member_that_proposes_what_nobody_has_takes_no_room_from_others() -> None:
    sim = Simulation(make_rules(rounds=6), replicas=3, seed=1)
    sim.run(lambda: False, 0.3)
    liar = in_turn(sim)
    sim.kill(liar.account)  # it does nothing else from now on
    for member in sim.alive():
        for n in range(40):
            sim.feed(member, proposal(sim, liar, (sim.contribution(liar, 0, loss=n),)))
    grace, turn = sim.rules.straggler_grace, sim.rules.proposal_timeout
    assert sim.run(lambda: sim.view.next_round(0) > 0, grace + turn + 2), "the next one's turn is enough"


@pytest.mark.parametrize(
    ("reason", "lie"), [("payload_size", {"payload_size": 1}), ("payload_root", {"payload_root": bytes(32)})]
)
def test_a_payload_of_another_size_or_root_than_stated_is_never_counted(reason: str, lie: dict[str, object]) -> None:
    """Nor does whoever states another member's payload keep that one from being counted."""
    sim = Simulation(make_rules(rounds=3), replicas=3, seed=3)
    honest, liar = (sim.members[sim.view.member_at(replica, 0)] for replica in (0, 1))
    true = sim.contribution(honest, 0)
    sim.kill(liar.account)
    false = sim.contribution(liar, 0, payload=true.contribution.payload, **lie)
    for member in sim.alive():
        sim.feed(member, e.ContributionSeen(false, liar.account, "peer"))
    assert sim.run(lambda: sim.view.finished, 300)
    for sealed in sim.view.sealed.values():
        assert all(record.statement != false.contribution.hash() for record in sealed.records)
    assert honest.account in sim.view.sealed[0, 0].accounts
    for member in sim.alive():
        counted = member.rejected.count(reason)
        assert counted == (member.machine.stage == 0), "the false statement is counted, once"


def test_a_payload_that_another_round_refuses_still_counts_in_its_own() -> None:
    """Another round may have another plan: whoever states an honest payload there must not spoil it."""
    sim = Simulation(make_rules(rounds=3), replicas=2, seed=3)
    sim.run(lambda: False, 0.3)
    victim, honest = (sim.members[sim.view.member_at(replica, 0)] for replica in (0, 1))
    true = sim.contribution(honest, 0).contribution
    mate = sim.members[sim.view.member_at(1, 1)]
    sim.feed(victim, e.ContributionSeen(sim.contribution(mate, 0), mate.account, "peer"))
    sim.feed(victim, e.ContributionSeen(sim.contribution(honest, 0), honest.account, "peer"))
    sim.feed(victim, e.PayloadReady(1, true.payload, FACTS))
    assert victim.machine.known_round(0)[0] == 0, "checked under another plan"
    sim.feed(victim, e.PayloadRefused(1, true.payload, "bad_payload"))
    sim.feed(victim, e.PayloadReady(0, true.payload, FACTS))
    sim.feed(victim, e.StatementSound(0, true.hash()))
    assert victim.machine.known_round(0)[0] == 1


def test_a_statement_that_does_not_follow_spoils_no_other_with_its_payload() -> None:
    """Whoever states another's payload as its own, with junk about its start, is alone refused."""
    sim = Simulation(make_rules(rounds=3), replicas=3, seed=3)
    sim.run(lambda: False, 0.3)
    victim, honest, liar = (sim.members[sim.view.member_at(replica, 0)] for replica in range(3))
    for replica in (1, 2):
        mate = sim.members[sim.view.member_at(replica, 1)]
        sim.feed(victim, e.ContributionSeen(sim.contribution(mate, 0), mate.account, "peer"))
    true = sim.contribution(honest, 0)
    copy = sim.contribution(liar, 0, payload=true.contribution.payload)
    for signed in (copy, true):
        sim.feed(victim, e.ContributionSeen(signed, signed.contribution.account, "peer"))
    sim.feed(victim, e.PayloadReady(0, true.contribution.payload, FACTS))
    sim.feed(victim, e.StatementRefused(0, copy.contribution.hash(), "wrong_previous"))
    sim.feed(victim, e.StatementSound(0, true.contribution.hash()))
    assert victim.machine.known_round(0)[0] == 1 and victim.rejected == ["wrong_previous"]


def test_who_states_anothers_payload_under_a_false_root_keeps_nobody_from_fetching_it() -> None:
    """The fetch for the false statement may never end, or end in a contradiction: the true one has its own."""
    sim = Simulation(make_rules(rounds=3), replicas=3, seed=3)
    sim.run(lambda: False, 0.3)
    victim, honest, liar = (sim.members[sim.view.member_at(replica, 0)] for replica in range(3))
    true = sim.contribution(honest, 0)
    copy = sim.contribution(liar, 0, payload=true.contribution.payload, payload_root=b"r" * 32)
    asked: list[a.FetchPayload] = []
    for signed in (copy, true):
        event = e.ContributionSeen(signed, signed.contribution.account, "peer")
        asked += [one for one in victim.machine.handle(event, sim.now) if isinstance(one, a.FetchPayload)]
    assert [one.signed for one in asked] == [copy, true]
    refused = e.Done(asked[0], e.StatementRefused(0, copy.contribution.hash(), "payload_root"))
    for event in (refused, e.Done(asked[1], e.PayloadReady(0, true.contribution.payload, FACTS))):
        victim.machine.handle(event, sim.now)
    sim.feed(victim, e.StatementSound(0, true.contribution.hash()))
    mate = sim.members[sim.view.member_at(1, 1)]
    sim.feed(victim, e.ContributionSeen(sim.contribution(mate, 0), mate.account, "peer"))
    assert victim.machine.known_round(0)[0] == 1


def test_made_up_work_of_one_stage_of_a_replica_is_not_counted() -> None:
    """Else one member of each replica, each in another stage, would be alone in the first seals and have all votes."""
    sim = Simulation(make_rules(rounds=3), replicas=2, seed=3)
    sim.run(lambda: False, 0.3)
    fakers = [sim.members[sim.view.member_at(replica, stage)] for replica, stage in ((0, 0), (1, 1))]
    for faker in fakers:
        sim.kill(faker.account)  # it trains nothing, so its mates cannot either
    made_up = [sim.contribution(faker, 0) for faker in fakers]

    def heard() -> bool:
        for signed in made_up:
            for member in sim.alive():
                sim.feed(member, e.ContributionSeen(signed, signed.contribution.account, "peer"))
                sim.feed(member, e.PayloadReady(0, signed.contribution.payload, FACTS))
        return sim.view.open_round != 0

    sim.run(heard, 200)
    names = {signed.contribution.hash() for signed in made_up}
    assert not names & {record.statement for sealed in sim.view.sealed.values() for record in sealed.records}
    assert sim.alive()[0].machine.known_round(0)[0] == 0


@pytest.mark.parametrize("victim", range(4))
def test_replayed_statements_of_a_dead_member_do_not_keep_it_in_its_slot(victim: int) -> None:
    """Whoever heard them can repeat them: nothing in them says when they were made."""
    sim = Simulation(make_rules(rounds=12), replicas=2, seed=victim)
    account, heard = list(sim.members)[victim], []
    gossip = sim.gossip

    def overhear(sender: Member, event: e.Event) -> None:
        if sender.account == account:
            heard.append(event)
        gossip(sender, event)

    sim.gossip = overhear  # type: ignore[method-assign]
    assert sim.run(lambda: (sim.view.open_round or 0) >= 2, 60)
    sim.kill(account)
    ends = sim.now + 120
    while sim.now < ends and sim.view.slot_of(account) is not None:
        for event in heard:
            for member in sim.alive():
                sim.feed(member, event)
        sim.run(lambda: False, 1)
    assert sim.view.slot_of(account) is None


def test_many_correct_proposals_are_all_signed_once() -> None:
    sim = Simulation(make_rules(rounds=2, stages=1, delay=0), replicas=4, seed=2)
    signed: dict[tuple[str, bytes], int] = {}
    act = sim.act

    def count(member: Member, action: a.Action) -> None:
        if isinstance(action, a.SignSeal):
            key = member.account, action.seal.digest(DOMAIN)
            signed[key] = signed.get(key, 0) + 1
        act(member, action)

    sim.act = count  # type: ignore[method-assign]
    sim.run(lambda: False, 0.3)
    sim.ledger_up = False  # long enough for the straggler grace to end, after which a proposal may leave somebody out
    sim.run(lambda: False, 10)
    liar = in_turn(sim)
    for size in range(1, 5):
        for accounts in combinations(sim.members, size):
            event = proposal(sim, liar, in_order(sim, accounts))
            for member in sim.alive():
                sim.feed(member, event)
    sim.run(lambda: False, 5)
    assert set(signed.values()) == {1}
    sim.ledger_up = True
    assert sim.run(lambda: sim.view.finished, 120)


def test_a_proposal_whose_records_are_not_those_of_the_statements_is_refused() -> None:
    sim = Simulation(make_rules(rounds=3, stages=1, delay=0, straggler_grace=1), replicas=2, seed=4)
    sim.run(lambda: all(member.machine.own for member in sim.alive()), 10)
    sim.ledger_up = False
    sim.run(lambda: False, 2)
    proposer = in_turn(sim)
    victim = next(member for member in sim.alive() if member is not proposer)
    true = proposal(sim, proposer, in_order(sim, sim.members))
    assert isinstance(true, e.ProposalSeen)
    record, other = true.seal.records
    for changed in (replace(record, loss=1), replace(record, exchange=9), replace(record, multiplier=1)):
        seal = replace(true.seal, records=(changed, other))
        signature = sign(seal.digest(DOMAIN), proposer.key)
        victim.rejected.clear()
        sim.feed(victim, replace(true, seal=seal, signature=signature))
        sim.run(lambda: False, 1)
        assert victim.rejected == ["wrong_seal"]
    sim.ledger_up = True
    assert sim.run(lambda: sim.view.finished, 60)


def test_a_neighbour_that_names_a_far_round_holds_nobody_up_when_it_is_gone() -> None:
    sim = Simulation(make_rules(rounds=12), replicas=2, seed=5)
    sim.run(lambda: False, 0.3)
    victim = sim.members[sim.view.member_at(0, 0)]
    sim.feed(victim, e.NeighbourWants("next", 2**32 - 1, True))
    assert victim.machine.next_round() <= sim.rules.delay + 2
    assert sim.run(lambda: sim.view.finished, 400)
    assert any(victim.account in sealed.accounts for sealed in sim.view.sealed.values())


def signed_again(key: bytes, digest: bytes) -> bytes:
    """Another valid, low-s signature over the digest: ECDSA with a nonce of our own."""
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    nonce = 0x1234567
    x, y = PrivateKey(nonce.to_bytes(32, "big")).public_key.point()
    s = pow(nonce, -1, order) * (int.from_bytes(digest, "big") + x * int.from_bytes(key, "big")) % order
    high = s > order // 2
    return x.to_bytes(32, "big") + (order - s if high else s).to_bytes(32, "big") + bytes([27 + ((y & 1) ^ high)])


def test_a_member_that_signs_one_contribution_in_two_ways_stops_nobody() -> None:
    sim = Simulation(make_rules(rounds=3), replicas=3, seed=4)
    sim.run(lambda: False, 0.3)
    liar = sim.members[sim.view.member_at(1, 0)]
    one = sim.contribution(liar, 0)
    other = SignedContribution(one.contribution, signed_again(liar.key, one.contribution.digest(DOMAIN)))
    other.verify(DOMAIN)
    assert one.signature != other.signature
    for index, member in enumerate(sim.alive()):
        sim.feed(member, e.ContributionSeen(other if index % 2 else one, liar.account, "peer"))
    assert sim.run(lambda: sim.view.finished, 60)
    assert sim.view.sealed[0, 0].count == 3


def test_a_reorg_that_puts_another_seal_in_place_takes_the_version_back() -> None:
    sim = Simulation(make_rules(rounds=4), replicas=2, seed=1)
    before = sim.view.copy()
    assert sim.run(lambda: sim.view.next_round(0) >= 1 and all(m.machine.version for m in sim.alive()), 60)
    victim = sim.members[sim.view.member_at(0, 0)]
    sealed = sim.view.sealed[0, 0]
    other = before.copy()
    other.apply(replace(sealed, outcome=replace(sealed.outcome, weights=digest("another"))))
    version = victim.machine.version
    assert version is not None and version >= 1
    actions = victim.machine.handle(e.LedgerSeen(other, sim.block), sim.now)
    assert victim.machine.version == 0 and a.AdoptVersion(1) in actions


def finished(sim: Simulation, account: str, round: int) -> Any:
    """What a slot says of a round that it has trained."""
    replica, stage = sim.view.slot_of(account) or (0, 0)
    inputs = SimpleNamespace(replica=replica, seals=deciding_seals(sim.rules, sim.view, stage, round))
    return SimpleNamespace(round=round, inputs=inputs)


def resealed(sim: Simulation, before: RunView, stage: int, **outcome: Any) -> RunView:
    """The ledger with another seal of round 0 in place of the stage's."""
    view = before.copy()
    for one in range(sim.rules.stages):
        seal = sim.view.sealed[one, 0]
        if one == stage:
            seal = replace(seal, outcome=replace(seal.outcome, **outcome), digest=digest("another"))
        view.apply(seal)
    return view


@pytest.mark.parametrize(
    ("stage", "outcome"),
    [(0, {"weights": digest("another")}), (0, {"plan": Plan(4, 16, 3)}), (1, {"plan": Plan(4, 11, 5)})],
)
def test_a_round_is_trained_again_where_the_seals_that_it_follows_from_were_taken_back(
    stage: int, outcome: dict[str, Any]
) -> None:
    """Its start, samples, steps or codec are others now: its statement would be refused, or its replay convict it."""
    sim = Simulation(adaptive_rules(delay=0), replicas=2, seed=1)
    before = sim.view.copy()
    assert sim.run(lambda: all(m.machine.training == 1 for m in sim.alive()), 60)
    machine = sim.members[str(sim.view.member_at(0, stage if "weights" in outcome else 1))].machine
    trained, other = finished(sim, machine.account, 1), resealed(sim, before, stage, **outcome)
    machine.handle(e.LedgerSeen(other, sim.block), sim.now)
    actions = machine.handle(e.RoundFinished(trained), sim.now)
    assert not any(isinstance(action, a.Contribute) for action in actions)
    assert (machine.last_trained, machine.next_round()) == (0, 1)
    trained.inputs.seals = deciding_seals(sim.rules, other, machine.stage, 1)
    actions = machine.handle(e.RoundFinished(trained), sim.now)
    assert any(isinstance(action, a.Contribute) for action in actions) and machine.last_trained == 1


def test_a_round_that_another_replica_trained_is_not_stated_for_this_one() -> None:
    """A member that was dealt around before it signed: the samples were another replica's."""
    sim = Simulation(make_rules(rounds=4, delay=0), replicas=2, seed=1)
    sim.run(lambda: False, 0.1)
    machine = sim.members[str(sim.view.member_at(1, 0))].machine
    trained = finished(sim, machine.account, 0)
    trained.inputs.replica = 0
    assert not any(isinstance(one, a.Contribute) for one in machine.handle(e.RoundFinished(trained), sim.now))
    assert machine.next_round() == 0


def test_a_round_that_a_full_disk_kept_from_being_signed_is_judged_anew_before_it_is() -> None:
    sim = Simulation(make_rules(rounds=4, delay=0), replicas=2, seed=1)
    before = sim.view.copy()
    assert sim.run(lambda: all(m.machine.training == 1 for m in sim.alive()), 60)
    machine = sim.members[str(sim.view.member_at(0, 0))].machine
    actions = machine.handle(e.RoundFinished(finished(sim, machine.account, 1)), sim.now)
    (sign,) = (action for action in actions if isinstance(action, a.Contribute))
    machine.handle(e.LedgerSeen(resealed(sim, before, 0, weights=digest("another")), sim.block), sim.now)
    for seconds in range(60):
        failed: e.Event = e.Failed(sign, "the disk is full", local=True) if seconds == 0 else e.Tick()
        actions = machine.handle(failed, sim.now + seconds)
        assert not any(isinstance(action, a.Contribute) for action in actions)
    assert machine.next_round() == 1
