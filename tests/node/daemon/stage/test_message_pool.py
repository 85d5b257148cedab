"""What a member keeps of open rounds for those who ask: of members, bounded for each, the latest report."""

from dataclasses import replace

import pytest

from dlx.ledger.typed import sign
from dlx.node.daemon.messages import event_of, message_of
from dlx.node.daemon.stage.message_pool import MessagePool
from dlx.node.round import actions as a
from dlx.p2p import wire
from dlx.p2p.message_sync import short_id
from tests.node.round.simulation import DOMAIN, RUN, Member, Simulation, digest, make_rules

MADE = 1_800_000_000_000


@pytest.fixture
def sim() -> Simulation:
    return Simulation(make_rules(rounds=9), replicas=2, seed=0)


def encoded(member: Member, action: a.Statement, made: int = MADE) -> bytes:
    return wire.encode(message_of(action, RUN, member.machine.stage, made, member.sign_report))


def contribution(sim: Simulation, member: Member, round: int = 0, **changes: object) -> bytes:
    return encoded(member, a.GossipContribution(sim.contribution(member, round, **changes)))


def attestation(member: Member, seal: bytes, round: int = 0) -> bytes:
    return encoded(member, a.GossipAttestation(round, seal, sign(seal, member.key)))


def member(sim: Simulation, replica: int, stage: int) -> Member:
    return sim.members[str(sim.view.member_at(replica, stage))]


def put(pool: MessagePool, sim: Simulation, *messages: bytes) -> None:
    for data in messages:
        event = event_of(data, "a peer", RUN, DOMAIN)
        assert event is not None
        pool.put(event, data, sim.view, sim.now)


def asked(
    pool: MessagePool, have: list[bytes] | None = None, stage: int = 0, round: int = 0, seals: bool = True
) -> list[bytes]:
    return list(pool.beyond(wire.RecordsRequest(stage, round, seals, have or [])))


def test_whoever_asks_gets_what_it_lacks_of_the_round_and_stage(sim: Simulation) -> None:
    pool, ours, mate, other = MessagePool(0), member(sim, 0, 0), member(sim, 1, 0), member(sim, 0, 1)
    vote = attestation(mate, digest("seal"))
    made, theirs, later = contribution(sim, ours), contribution(sim, other), contribution(sim, ours, 1)
    put(pool, sim, vote, made, theirs, later, made)
    assert asked(pool) == [made, vote], "contributions first, each once"
    assert asked(pool, seals=False) == [made]
    assert asked(pool, [short_id(made)]) == [vote]
    assert asked(pool, stage=1) == [theirs]
    assert asked(pool, round=1) == [later]
    assert pool.ids(0, 0, True) == [short_id(vote), short_id(made)]


def test_only_members_words_about_rounds_that_are_open_or_will_be_soon_are_kept(sim: Simulation) -> None:
    pool, ours, other = MessagePool(0), member(sim, 0, 0), member(sim, 0, 1)
    stranger = replace(ours, key=digest("a stranger's key"))
    put(
        pool, sim, attestation(stranger, digest("seal")), attestation(other, digest("seal")),
        contribution(sim, ours, 7), attestation(ours, digest("seal"), 7),
    )  # fmt: skip
    assert not any(asked(pool, stage=stage, round=round) for round in range(9) for stage in range(2))


def test_nobody_fills_it(sim: Simulation) -> None:
    pool, ours = MessagePool(0), member(sim, 0, 0)
    made = [contribution(sim, ours, loss=index) for index in range(5)]
    votes = [attestation(ours, digest("seal", index)) for index in range(20)]
    put(pool, sim, *made, *votes)
    assert asked(pool) == [*made[:2], *votes[-8:]]


def test_what_is_more_than_a_member_may_say_is_told_apart(sim: Simulation) -> None:
    pool, ours = MessagePool(0), member(sim, 0, 0)

    def takes(data: bytes) -> bool:
        event = event_of(data, "a peer", RUN, DOMAIN)
        assert event is not None
        return pool.put(event, data, sim.view, sim.now)

    votes = [attestation(ours, digest("seal", index)) for index in range(20)]
    assert [takes(vote) for vote in votes] == [True] * 8 + [False] * 12
    assert all(map(takes, votes[-8:])) and asked(pool) == votes[-8:], "what is kept is no more, however often it comes"
    made = [contribution(sim, ours, loss=index) for index in range(3)]
    assert [takes(one) for one in [*made, made[0]]] == [True, True, False, True]
    assert takes(encoded(ours, a.GossipReport(0, (), ()))) and takes(encoded(ours, a.GossipReport(0, (), ()), MADE + 1))


def test_what_another_stage_says_of_its_seals_is_for_others_while_its_round_is_new(sim: Simulation) -> None:
    pool, other, seal = MessagePool(0), member(sim, 0, 1), digest("seal")

    def is_for_others(data: bytes) -> bool:
        event = event_of(data, "a peer", RUN, DOMAIN)
        assert event is not None
        return pool.is_for_others(event, sim.view)

    assert [is_for_others(attestation(other, seal, round)) for round in (0, 2, 3)] == [True, True, False]
    assert not is_for_others(attestation(member(sim, 0, 0), seal)) and not is_for_others(contribution(sim, other))
    assert sim.run(lambda: sim.view.open_round == 1, 60)
    assert not is_for_others(attestation(other, seal)), "the run is through with it"


def test_of_reports_the_latest_is_kept_in_whatever_order_they_come(sim: Simulation) -> None:
    ours = member(sim, 0, 0)
    reports = [encoded(ours, a.GossipReport(0, (digest("payload"),) * index, ()), MADE + index) for index in range(3)]
    for order in (reports, reports[::-1]):
        pool = MessagePool(0)
        put(pool, sim, *order)
        assert asked(pool) == [reports[-1]]


def test_it_asks_for_its_own_round_and_for_contributions_that_the_others_lack(sim: Simulation) -> None:
    pool = MessagePool(0)
    assert pool.wanted(sim.view) == [(0, 0, True)], "nobody has trained yet"
    put(pool, sim, contribution(sim, member(sim, 1, 0)), contribution(sim, member(sim, 0, 1)))
    assert pool.wanted(sim.view) == [(0, 0, True), (1, 0, False)]
    put(pool, sim, contribution(sim, member(sim, 1, 1)))
    assert pool.wanted(sim.view) == [(0, 0, True)], "the replica's other stage has made its own"


def test_what_the_run_is_through_with_is_forgotten(sim: Simulation) -> None:
    pool = MessagePool(0)
    put(pool, sim, made := contribution(sim, member(sim, 0, 0)))
    assert sim.run(lambda: sim.view.next_round(0) == 1, 60)
    if sim.view.open_round == 0:
        pool.forget(sim.view)
        assert asked(pool) == [made], "another stage may still have to know that the replica finished it"
    assert sim.run(lambda: sim.view.open_round == 1, 60)
    pool.forget(sim.view)
    assert not asked(pool) and not pool.has(made)
