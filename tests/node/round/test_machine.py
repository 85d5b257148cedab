"""The round machine among real machines, with the faults that networks, chains and people bring."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlx.ledger.typed import PRIVATE_DATA, sign
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.knowledge import LATE_ROUNDS
from dlx.node.round.rules import round_rules
from dlx.node.round.rules.round_rules import OuterResult
from tests.node.round import kills
from tests.node.round.simulation import (
    DOMAIN,
    MIN_ROUND_TIME,
    START,
    Member,
    Party,
    Simulation,
    digest,
    make_rules,
    round_of,
)


@pytest.mark.parametrize(("stages", "delay"), [(1, 0), (1, 1), (2, 0), (2, 1), (3, 1)])
def test_seals_every_round_with_everyone(stages: int, delay: int) -> None:
    sim = Simulation(make_rules(rounds=5, stages=stages, delay=delay), replicas=2, seed=1)
    assert sim.run(lambda: sim.view.finished, 60)
    for sealed in sim.view.sealed.values():
        assert sealed.count == 2, "a round that everyone finished counts everyone"
    assert all(not member.rejected for member in sim.members.values())


@pytest.mark.parametrize(("replicas", "stages"), [(4, 1), (3, 2)])
def test_where_nothing_is_to_choose_nobody_waits_for_a_proposal(replicas: int, stages: int) -> None:
    """Votes come one way after the last outer step; all proposals are lost, and it costs nothing."""
    sim = Simulation(make_rules(rounds=4, stages=stages, delay=0), replicas=replicas, seed=1)
    gossip, proposed = sim.gossip, list[e.ProposalSeen]()
    sim.gossip = lambda sender, event: (  # type: ignore[method-assign]
        proposed.append(event) if isinstance(event, e.ProposalSeen) else gossip(sender, event)
    )
    assert sim.run(lambda: sim.view.finished, 4 * (2 + sim.rules.proposal_timeout)), "within the first turns"
    assert len({event.seal.round for event in proposed}) == 4
    assert all(sealed.count == replicas for sealed in sim.view.sealed.values())


def test_delay_one_trains_while_the_seal_is_on_its_way() -> None:
    finished = {}
    for delay in (0, 1):
        sim = Simulation(make_rules(rounds=6, delay=delay), replicas=2, seed=3, train_seconds=2)
        assert sim.run(lambda sim=sim: sim.view.finished, 120)
        finished[delay] = sim.now
    assert finished[1] < finished[0]


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10_000), loss=st.floats(0, 0.4), delay=st.integers(0, 1))
def test_lost_repeated_and_reordered_messages_only_cost_time(seed: int, loss: float, delay: int) -> None:
    sim = Simulation(make_rules(rounds=3, delay=delay), replicas=2, seed=seed, loss=loss)
    assert sim.run(lambda: sim.view.finished, 400)
    assert sim.view.members().keys() == sim.members.keys(), "nobody is evicted for a bad network"


@pytest.mark.parametrize(("victim", "after"), [(0, 0.3), (1, 1.5), (2, 3.2), (3, 0.3), (0, 3.2), (3, 1.5)])
def test_a_killed_member_is_evicted_the_rest_goes_on_and_it_comes_back(victim: int, after: float) -> None:
    sim = Simulation(make_rules(rounds=16), replicas=2, seed=victim)
    account = list(sim.members)[victim]
    sim.run(lambda: False, after)
    sim.kill(account)
    assert sim.run(lambda: sim.view.slot_of(account) is None, 40), "the silent slot is freed"
    sealed = len(sim.view.sealed)
    assert sim.run(lambda: len(sim.view.sealed) >= sealed + 4, 40), "the other replica goes on"
    sim.restart(account)
    sim.run(lambda: sim.view.finished, 200)
    assert sim.view.finished
    assert sim.view.last_round_counted(account) is not None and sim.view.last_round_counted(account) >= 8


def test_a_chain_outage_stops_nobody_for_good_and_evicts_nobody() -> None:
    sim = Simulation(make_rules(rounds=8), replicas=2, seed=5)
    assert sim.run(lambda: (sim.view.open_round or 0) >= 2, 60)
    sim.ledger_up = False
    sim.run(lambda: False, 20)
    for member in sim.members.values():
        assert member.machine.last_trained >= (sim.view.open_round or 0), "training goes on without the chain"
        assert member.machine.training is None and member.machine.waiting_for(sim.now)
    sim.ledger_up = True
    assert sim.run(lambda: sim.view.finished, 120)
    assert len(sim.view.members()) == 4


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("replicas", "stages"), kills.SHAPES)
def test_a_run_under_dense_kills_is_finished(replicas: int, stages: int, seed: int) -> None:
    """`python -m tests.node.round.kills` does it a hundred times, for longer."""
    outcome = kills.run(seed, replicas, stages, rounds=12)
    assert outcome.finished and sum(outcome.counts.values()) == 12 * stages


def test_members_whose_clocks_lag_behind_the_chain_agree_all_the_same() -> None:
    """A member reckons the chain's time from its newest block: it may be behind by a few seconds, never ahead."""
    sim = Simulation(make_rules(rounds=8, straggler_grace=4, round_timeout=8), replicas=3, seed=11)
    for index, member in enumerate(sim.members.values()):
        member.behind = 0.5 * index
    sent, transact = [], sim.transact
    sim.transact = lambda member, action: sent.append(action) or transact(member, action)  # type: ignore[method-assign]
    assert sim.run(lambda: sim.view.finished, 120)
    assert all(sealed.count == 3 for sealed in sim.view.sealed.values())
    assert not any(isinstance(action, a.Send) and action.call in ("accuse", "evict") for action in sent)
    assert all(not member.rejected for member in sim.members.values())


def test_a_run_that_paused_wastes_no_round_when_it_goes_on() -> None:
    sim = Simulation(make_rules(rounds=8), replicas=2, seed=7, train_seconds=3)
    assert sim.run(lambda: (sim.view.open_round or 0) >= 2, 60)
    for account in sim.members:
        sim.kill(account)
    sim.mail.clear()
    sim.now += 3600
    for account in sim.members:
        sim.restart(account)
    assert sim.run(lambda: sim.view.finished, 120)
    assert all(sealed.count for sealed in sim.view.sealed.values())


def test_hostile_statements_are_refused_with_a_reason_and_harm_nothing() -> None:
    sim = Simulation(make_rules(rounds=3), replicas=2, seed=7)
    sim.run(lambda: False, 0.5)
    victim, liar = sim.members[sim.view.member_at(0, 0)], sim.members[sim.view.member_at(1, 0)]
    honest = sim.contribution(liar, 0)
    cases = {
        "wrong_segments": sim.contribution(liar, 0, segments=0),
        "wrong_slot": sim.contribution(liar, 0, replica=0),
        "wrong_plan": sim.contribution(liar, 0, plan=digest("plan")),
        "wrong_run": sim.contribution(liar, 0, run=digest("another")),
        "payload_size": sim.contribution(liar, 0, payload_size=10**9),
        "wrong_base": sim.contribution(liar, 0, base_weights=digest("base")),
        "wrong_round": sim.contribution(liar, 10**6),
        "private_data": sim.contribution(liar, 0, flags=PRIVATE_DATA),
    }
    for reason, signed in cases.items():
        sim.feed(victim, e.ContributionSeen(signed, liar.account, "peer"))
        assert victim.rejected[-1] == reason
    sim.feed(victim, e.ContributionSeen(honest, victim.account, "peer"))
    assert victim.rejected[-1] == "bad_signature"
    stranger = "0x000000000000000000000000000000000000dEaD"
    sim.feed(victim, e.AttestationSeen(0, 0, digest("seal"), bytes(65), stranger))
    assert victim.rejected[-1] == "not_a_member"
    for signer in (liar.account, *sim.view.founders):  # of a stage that the run has not
        for event in (
            e.AttestationSeen(0, 64, digest("seal"), bytes(65), signer),
            e.ReportSeen(0, 64, (), (), signer, 1),
        ):
            victim.rejected.clear()
            sim.feed(victim, event)
            assert victim.rejected == ["not_a_member"]
    assert sim.run(lambda: sim.view.finished, 60)


def test_two_contributions_to_one_round_are_kept_as_evidence_and_the_round_is_unharmed() -> None:
    sim = Simulation(make_rules(rounds=3), replicas=2, seed=8)
    sim.run(lambda: False, 0.5)
    liar = sim.members[sim.view.member_at(1, 1)]
    for member in sim.alive():
        for loss in (1, 2):
            sim.feed(member, e.ContributionSeen(sim.contribution(liar, 0, loss=loss), liar.account, "peer"))
    assert sim.run(lambda: sim.view.finished, 60)
    for member in sim.members.values():  # of whatever stage: contributions go to all members of the run
        (evidence,) = member.evidence
        assert (evidence.offender(DOMAIN), evidence.place) == (liar.account, (sim.view.run, 1, 0))


@pytest.mark.parametrize("rounds_ago", [1, LATE_ROUNDS, LATE_ROUNDS + 1])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_second_statement_that_comes_after_the_seal_is_kept(stage: int, rounds_ago: int) -> None:
    """As long as somebody remembers what was stated first: so many rounds."""
    sim = Simulation(make_rules(rounds=8, delay=0), replicas=2, seed=8)
    victim, liar = (sim.members[sim.view.member_at(*slot)] for slot in ((0, 0), (1, stage)))
    assert sim.run(lambda: victim.machine.unsealed == rounds_ago + 1, 60)
    for loss in (1, 2, 2, 3):
        sim.feed(victim, e.ContributionSeen(sim.contribution(liar, 1, loss=loss), liar.account, "peer"))
    if rounds_ago > LATE_ROUNDS:
        assert not victim.evidence and "equivocation" not in victim.rejected
        return
    assert sim.run(lambda: len(victim.evidence) == 1, 5)
    assert victim.evidence[0].place == (sim.view.run, stage, 1)
    assert victim.evidence[0].offender(DOMAIN) == liar.account
    assert sim.run(lambda: sim.view.finished, 60) and len(victim.evidence) == 1
    assert sim.view.member_at(1, stage) == liar.account, "no verdict of members: its work counts on"


@pytest.mark.parametrize("stage", [0, 1])
def test_late_statements_of_other_bases_and_plans_hide_no_two_of_the_ledgers(stage: int) -> None:
    """However many come first, of a round to which nobody has heard the account contribute."""
    sim = Simulation(make_rules(rounds=8, delay=0), replicas=3, seed=8)
    victim, liar = (sim.members[sim.view.member_at(*slot)] for slot in ((0, 0), (1, stage)))
    gossip = sim.gossip

    def but_its_second(sender: Party, event: e.Event) -> None:
        if not (isinstance(event, e.ContributionSeen) and event.signer == liar.account and round_of(event) == 1):
            gossip(sender, event)

    sim.gossip = but_its_second  # type: ignore[method-assign]
    assert sim.run(lambda: min(sim.view.next_round(0), sim.view.next_round(1)) == 2, 200)
    decoys = [{name: digest("decoy", n)} for n in range(100) for name in ("base_weights", "plan")]
    for changes in (*decoys, {"loss": 1}, *decoys, {"loss": 2}):
        sim.feed(victim, e.ContributionSeen(sim.contribution(liar, 1, **changes), liar.account, "peer"))
    assert sim.run(lambda: len(victim.evidence) == 1, 5)
    assert victim.evidence[0].place == (sim.view.run, stage, 1)
    assert victim.evidence[0].offender(DOMAIN) == liar.account


def test_a_statement_from_before_a_reorg_hides_no_two_from_after_it_and_is_not_forgotten() -> None:
    sim = Simulation(make_rules(rounds=4, delay=0), replicas=2, seed=1)
    before = sim.view.copy()
    assert sim.run(lambda: sim.view.next_round(0) == 1, 60)
    victim, liar = (sim.members[sim.view.member_at(replica, 0)] for replica in (0, 1))
    told, evidence = sim.view.weights(0, 1), list[Any]()

    def hear(base: bytes, loss: int) -> None:
        signed = sim.contribution(liar, 1, base_weights=base, loss=loss)
        actions = victim.machine.handle(e.ContributionSeen(signed, liar.account, "peer"), sim.now)
        evidence.extend(action.evidence for action in actions if isinstance(action, a.KeepEvidence))

    hear(told, 1)
    other, sealed = before.copy(), sim.view.sealed[0, 0]
    other.apply(replace(sealed, outcome=replace(sealed.outcome, weights=digest("another"))))
    victim.machine.handle(e.LedgerSeen(other, sim.block), sim.now)
    hear(digest("another"), 1)
    assert not evidence
    hear(digest("another"), 2)
    assert len(set(evidence)) == 1 and evidence[0].offender(DOMAIN) == liar.account
    hear(told, 2)
    assert len(set(evidence)) == 2 and evidence[-1].offender(DOMAIN) == liar.account


@pytest.mark.parametrize(("replicas", "delay"), [(2, 0), (3, 1)])
def test_who_is_refused_a_reset_loses_one_round(replicas: int, delay: int) -> None:
    """All others find its statement unsound, and it does not: the round is sealed without it, the next one with it."""
    sim = Simulation(make_rules(rounds=6, stages=1, delay=delay), replicas=replicas, seed=3)
    unlucky, do = next(iter(sim.members.values())), sim.do

    def refusing(member: Party, action: a.Action) -> None:
        if isinstance(action, a.CheckStatement):
            made = action.signed.contribution
            if (made.account, made.round) == (unlucky.account, 2):
                sim.done(member, action, e.StatementRefused(2, made.hash(), "too_many_resets"))
                return
        do(member, action)

    sim.do = refusing  # type: ignore[method-assign]
    assert sim.run(lambda: sim.view.finished, 200)
    counted = [unlucky.account in sim.view.sealed[0, round].accounts for round in range(6)]
    assert counted == [round != 2 for round in range(6)]
    assert all(sealed.count >= replicas - 1 for sealed in sim.view.sealed.values())


def test_another_seal_that_comes_after_the_rounds_own_is_kept() -> None:
    """By the stage's members: nobody else hears of seals that are not on the ledger."""
    sim = Simulation(make_rules(rounds=4), replicas=2, seed=8)
    victim, liar = (sim.members[sim.view.member_at(replica, 0)] for replica in (0, 1))
    assert sim.run(lambda: victim.machine.unsealed == 1, 60)
    sealed = sim.view.sealed[0, 0]
    made = sealed.seal(sim.view.genesis[0])
    assert made.digest(DOMAIN) == sealed.digest
    for weights in (sealed.outcome.weights, digest("other"), digest("third")):
        other = replace(made, outcome=replace(made.outcome, weights=weights))
        signature = sign(other.digest(DOMAIN), liar.key)
        sim.feed(victim, e.ProposalSeen(other, 0, signature, liar.account))
    assert sim.run(lambda: len(victim.evidence) == 1, 5)
    assert victim.evidence[0].offender(DOMAIN) == liar.account
    assert sim.run(lambda: sim.view.finished, 60) and len(victim.evidence) == 1


def test_a_wrong_seal_is_never_signed_and_before_there_is_weight_a_founder_decides() -> None:
    sim = Simulation(make_rules(rounds=3), replicas=2, seed=9)
    liar = sim.members[sim.view.member_at(1, 0)]
    real_act = sim.act

    def act(member, action):  # type: ignore[no-untyped-def]
        if isinstance(action, a.ComputeOuter) and member is liar:
            names = sim.names(action.listed)
            lie = OuterResult(digest("a lie"), bytes(32), digest("root"), bytes(32))
            sim.done(member, action, e.OuterComputed(action.round, names, action.multipliers, lie))
        else:
            real_act(member, action)

    sim.act = act  # type: ignore[method-assign]
    assert sim.run(lambda: sim.view.finished, 120), "the ledger double takes right seals only"
    assert "wrong_seal" in sim.members[sim.view.member_at(0, 0)].rejected + liar.rejected


def test_nobody_trains_before_the_start_time_and_no_round_is_shorter_than_the_least() -> None:
    opens = int(START) + 30
    sim = Simulation(make_rules(rounds=3), replicas=2, seed=4, train_seconds=0.1, start_time=opens)
    sim.run(lambda: False, 29)
    assert all(not member.trained and member.training is None for member in sim.members.values())
    assert "until the run starts" in str(next(iter(sim.members.values())).machine.waiting_for(sim.now))
    early, transact = [], sim.transact

    def noted(member: Member, action: a.Action) -> bool:
        if isinstance(action, a.SendSeal) and action.seal.round == sim.view.open_round:
            early.append(sim.now < (sim.view.opened_at or 0) + MIN_ROUND_TIME)
        return transact(member, action)

    sim.transact = noted  # type: ignore[method-assign]
    assert sim.run(lambda: sim.finished, 60)
    times = [opens, *(sim.view.sealed[0, round].at.time for round in range(3))]
    assert all(later - earlier >= MIN_ROUND_TIME for earlier, later in pairwise(times))
    assert early and not any(early), "nobody sends what the ledger would not take"


def test_a_partial_seal_waits_for_the_round_timeout_when_it_lists_fewer_than_a_quorum() -> None:
    sim = Simulation(make_rules(rounds=2, stages=1, delay=0), replicas=3, seed=5)
    for account in list(sim.members)[1:]:
        sim.members[account].breaks = True
    assert sim.run(lambda: (0, 0) in sim.seals, 60)
    sealed = sim.view.sealed[0, 0]
    assert sealed.count == 1 and sealed.at.time - START >= sim.rules.round_timeout


def test_with_a_delay_the_next_rounds_samples_are_asked_for_while_this_one_trains() -> None:
    sim = Simulation(make_rules(rounds=8, stages=3, delay=1), replicas=2, seed=1, train_seconds=3)
    asked, act = list[tuple[int, int | None, int]](), sim.act

    def noting(member: Member, action: a.Action) -> None:
        if isinstance(action, a.HaveSamples):
            asked.append((member.machine.stage, member.machine.training, action.round))
        act(member, action)

    sim.act = noting  # type: ignore[method-assign]
    assert sim.run(lambda: sim.view.finished, 200)
    assert {stage for stage, _, _ in asked} == {0, 2}, "the middle stage reads no data"
    assert max(round for _, _, round in asked) == 7, "of no round that the run does not have"
    early = [round for _, training, round in asked if training == round - 1]
    assert set(range(2, 8)) <= set(early)


def test_the_order_of_proposers_is_computed_once_for_the_same_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every event asks for it, and a hash for each member took most of a large stage's time."""
    sim, hashed = Simulation(make_rules(stages=1), replicas=4, seed=31), []
    keccak = round_rules.keccak
    monkeypatch.setattr(round_rules, "keccak", lambda data: hashed.append(data) or keccak(data))
    orders = [round_rules.proposers(sim.rules, sim.view, 0, 31, attempt) for attempt in (0, 1, 0, 1)]
    assert len(hashed) == 8 and orders[:2] == orders[2:] and set(orders[0]) == set(sim.members)
    sim.leave(orders[0][0])
    assert set(round_rules.proposers(sim.rules, sim.view, 0, 31, 0)) == set(orders[0][1:])
