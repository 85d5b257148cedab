"""When a node calls itself ready, and what it says that it waits for."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlx.ledger.events import EventPosition, Joined, RunCreated, RunOpened
from dlx.ledger.index.event_index import Head
from dlx.ledger.typed import Domain
from dlx.ledger.view.node_registry import NodeTable
from dlx.ledger.view.run_view import RunView
from dlx.node.cli.operate.status import status_fields
from dlx.node.daemon.api.overview import Overview
from dlx.node.daemon.chain.clock import ChainClock
from dlx.node.daemon.chain.follower import ChainSeen, Follower
from dlx.node.daemon.membership.reachability import Reachability
from dlx.node.daemon.membership.registration import Membership
from dlx.node.daemon.membership.rest import Rest
from dlx.node.daemon.membership.router import RouterPort
from dlx.node.daemon.metrics import Metrics, SealCounter
from dlx.node.daemon.slot.assignment import Assignment
from dlx.node.daemon.supervisor import Supervisor, Trouble
from dlx.node.round.pending import Failing
from dlx.node.trainer.client import Trainer
from tests.ledger.ledger_run import config
from tests.node.runs.test_history import Ledger

RUN = b"\x01" * 32
DOMAIN = Domain(31337, f"0x{9:040x}")
ACCOUNTS = [f"0x{index:040x}" for index in (1, 2)]


def seen(stages: int = 1, min_replicas: int = 1, members: int = 1) -> ChainSeen:
    view, at = RunView(RUN, DOMAIN), EventPosition(1, bytes(32), 0, bytes(32), 1_700_000_000)
    terms = config(stages=stages, min_replicas=min_replicas, max_replicas=4)
    view.apply(RunCreated(RUN, ACCOUNTS[0], terms, "a-run", (bytes([4]) * 32,) * stages, ACCOUNTS[:1], at))
    for slot, account in enumerate(ACCOUNTS[:members]):
        view.apply(Joined(RUN, account, slot // stages, slot % stages, at))
        if slot + 1 == stages * min_replicas:
            view.apply(RunOpened(RUN, at.time, at))
    return ChainSeen(view, NodeTable(), Head(1, bytes(32), 1_700_000_000))


def overview(
    chain: ChainSeen | None,
    peers: int = 1,
    training: int | None = 0,
    failing: tuple[Failing, ...] = (),
    unreached: str | None = None,
    others: Sequence[tuple[str, str, str]] = (),
) -> Overview:
    """Of the first member's node, whose session trains, or waits for a seal."""
    nobody: Any = None
    client: Any = SimpleNamespace(rpc=SimpleNamespace(late=0.0))
    relaying: Any = SimpleNamespace(addresses=(), members=0, connections=0)
    host: Any = SimpleNamespace(peer_id="16U", addresses=(), agreed=lambda: ("peer",) * peers)
    host.listening, host.unreached, host.peers = lambda: (), lambda peer: unreached, lambda: ()
    clock, metrics, supervisor = ChainClock(), Metrics("0x" + RUN.hex()), Supervisor(now=lambda: 0.0)
    follower = Follower(client, RUN, clock)
    follower.seen.value = chain
    membership = Membership(nobody, follower, host, RUN, ACCOUNTS[0], bytes(32))
    assignment = Assignment(follower, membership, supervisor, None)
    machine = SimpleNamespace(
        lacks_founder=lambda now: None,
        waiting_for=lambda now: "the seal of round 3", diverged=None, training=training,
        failing=lambda now: list(failing),
    )  # fmt: skip
    router = RouterPort("16U", False, Path("/nonexistent"))
    progress = SimpleNamespace(round=0, step=1, steps=10, loss=None, tokens_per_second=None)
    session: Any = SimpleNamespace(placement=None, machine=machine, progress=progress, stage=0)
    session.others = lambda: others
    session.member_at = lambda stage: (ACCOUNTS[1], "16V") if stage == 1 else None
    assignment.session = session if chain is not None else None
    return Overview(
        run=RUN, account=ACCOUNTS[0], rpc_url=("http://key@127.0.0.1:8545/secret",), host=host, follower=follower,
        membership=membership, assignment=assignment, seal_counter=SealCounter(metrics),
        supervisor=supervisor, clock=clock, metrics=metrics,
        traffic=lambda: dict.fromkeys(("payload", "pipe", "blobs", "relayed", "gossip", "signalling", "chain"), (0, 0)),
        rest=Rest(Path("/nonexistent")), carrier=relaying, inbox=SimpleNamespace(read=0), outbox=None,
        reachability=Reachability(host, nobody, follower, relaying, relaying, router),
    )  # fmt: skip


def test_in_a_partition_the_members_beyond_it_are_named_and_the_node_is_as_ready_as_before() -> None:
    others = [
        (f"the member of replica {replica} at stage 0", f"0x{replica}", f"16{replica}") for replica in range(1, 11)
    ]
    cut = overview(seen(), unreached="no answer at /ip4/192.0.2.1/tcp/4650", others=others)
    cut.assignment.session.member_at = lambda stage: None  # type: ignore[union-attr]
    status = cut.status()
    assert status.not_ready == () and len(status.unreached) == 9
    why = "the member of replica 1 at stage 0 (account 0x1) is not connected: no answer at /ip4/192.0.2.1/tcp/4650"
    assert status.unreached[0] == why and status.unreached[-1] == "and 2 more members of the stage"
    assert overview(seen(), others=others).status().unreached == ()


def test_where_the_chains_answers_come_late_that_is_said_before_what_others_do() -> None:
    waits = overview(seen(), training=None)
    waits.follower._client.rpc.late = 12.3  # type: ignore[misc]
    said = "the chain's answers, which take 12 s to come here; then the seal of round 3"
    assert waits.status().waiting_for == said
    waits.follower._client.rpc.late = 2.0  # type: ignore[misc]
    assert waits.status().waiting_for == "the seal of round 3"


def test_a_step_that_takes_too_long_names_the_processes_that_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    trains = overview(seen())
    session: Any = trains.assignment.session
    session.machine.waiting_for = lambda now: None
    session.progress.stalled = lambda now: "inner step 1 takes 400 s"
    assert trains.status().waiting_for == (
        "inner step 1 takes 400 s; a neighbour, a rank or the device is slow, or hangs"
    )
    monkeypatch.setattr(trains.assignment, "stuck", lambda: ["process 7, rank 1, is stopped"])
    assert trains.status().waiting_for == "inner step 1 takes 400 s; process 7, rank 1, is stopped"


@pytest.mark.parametrize(
    ("stages", "min_replicas", "members", "needs_peers"),
    [(1, 1, 1, False), (1, 1, 2, True), (1, 2, 1, True), (2, 1, 1, True)],
)
def test_only_a_node_that_is_the_whole_run_is_ready_without_a_peer(
    stages: int, min_replicas: int, members: int, needs_peers: bool
) -> None:
    chain = seen(stages, min_replicas, members)
    assert overview(chain, peers=0).status().not_ready == (("no peer is connected",) if needs_peers else ())
    assert overview(chain, peers=1).status().not_ready == ()


def test_with_the_chain_down_that_is_the_reason_and_not_what_others_do() -> None:
    waits = overview(seen(), training=None)
    assert waits.status().waiting_for == "the seal of round 3"
    waits.follower.silence = "connection refused"
    status = waits.status()
    assert status.waiting_for == "the chain, which does not answer: connection refused"
    assert status.not_ready == ("the chain does not answer: connection refused",)
    assert not status.ledger.reachable


def test_before_the_chain_has_answered_a_node_says_so() -> None:
    status = overview(None).status()
    assert status.waiting_for == "the chain's first answer" and status.phase == "starting"
    assert "the chain has not answered yet" in status.not_ready


def test_a_part_that_fails_is_named_with_its_reason() -> None:
    node = overview(seen())
    node.supervisor.troubles["following the chain"] = Trouble("round 7 does not fit", 3, 0.0)
    (reason,) = node.status().failing
    assert reason.startswith("following the chain: round 7 does not fit (failed 3 times")
    assert node.status().not_ready == (reason,)


def test_an_action_that_fails_is_named_with_its_reason() -> None:
    node = overview(seen(), failing=(Failing("SendSeal", "no funds", 3, 4.2),))
    assert node.status().failing == ("SendSeal: no funds (failed 3 times, tried again in 4 s)",)
    assert node.status().not_ready == ()


def test_a_training_process_that_does_not_start_has_a_reason_before_any_slot_is_open() -> None:
    node, trainer = overview(seen()), Trainer()
    node.assignment.session, node.assignment._trainer = None, trainer
    assert not node.status().failing
    trainer.trouble = "killed by signal 9 (3 times in a row)"
    assert node.status().failing == ("the training process: killed by signal 9 (3 times in a row)",)
    assert node.status().failing[0] in node.status().not_ready


def test_rounds_are_those_of_the_nodes_stage_with_the_loss_of_the_last() -> None:
    ledger, told = Ledger(), overview(None)
    for round, steps in ((0, 2), (1, 0)):
        ledger.seal(0, round, steps=steps)
        ledger.seal(1, round, 4_250_000, steps)
    ledger.seal(0, 2)
    assert told.rounds() == [], "the chain has not answered yet"
    told.follower.seen.value = ChainSeen(ledger.view, NodeTable(), Head(1, bytes(32), 0))
    first, last = ledger.view.members()
    for account, slot, ours in (
        (first, (0, 0), [True, False, True]),
        (last, (0, 1), [True, False]),
        (ACCOUNTS[0], None, [False, False]),
    ):
        told.account, told.membership = account, SimpleNamespace(slot=slot)  # type: ignore[assignment]
        found = told.rounds()
        assert [one.round for one in found] == [*range(len(ours))] and [one.ours for one in found] == ours
        assert [one.loss for one in found] == [4.25, None, None][: len(ours)], "an empty seal has none"
        assert [one.held_out for one in found] == [None] * len(ours)
    told.evaluating = SimpleNamespace(losses={1: 5.0, 2: 4.5})  # type: ignore[assignment]
    assert [one.held_out for one in told.rounds()] == [5.0, 4.5]


def test_the_status_has_the_newest_held_out_loss() -> None:
    told = overview(seen())
    assert (told.status().held_out, told.status().held_out_version) == (None, None)
    told.evaluating = SimpleNamespace(losses={4: 5.0, 8: 4.5})  # type: ignore[assignment]
    assert (told.status().held_out, told.status().held_out_version) == (4.5, 8)


def test_a_founders_node_without_a_slot_is_ready_and_says_for_which_stages_it_signs() -> None:
    told = overview(seen(stages=2, members=0))
    told.assignment.session = None
    assert told.status().phase == "starting" and "no slot is held" in told.status().not_ready
    sessions = {1: SimpleNamespace(waiting_for="the weights of version 3"), 0: SimpleNamespace(waiting_for=None)}
    told.vouching = SimpleNamespace(sessions=sessions)  # type: ignore[assignment]
    status = told.status()
    assert (status.phase, status.not_ready) == ("vouching", ())
    assert status.vouches == {0: None, 1: "the weights of version 3"}
    line = dict(status_fields(status))["vouches"]
    assert line == "as a founder for stages 0, 1 (waits for the weights of version 3), without a slot there"


def test_who_waits_for_a_founder_says_whose_node_has_to_run() -> None:
    told = overview(seen())
    lacks = "only a founder's signature is missing, for 12 s: the node of 0x1 has to run"
    told.assignment.session.machine.lacks_founder = lambda now: lacks  # type: ignore[union-attr]
    assert told.status().lacks_founder == lacks
    assert str(dict(status_fields(told.status()))["founder"]) == lacks


def test_a_neighbour_that_cannot_be_reached_is_named_wherever_a_person_looks() -> None:
    """Two that cannot dial each other never train: whoever looks must not read that all is well."""
    why = f"the neighbour at stage 1 (account {ACCOUNTS[1]}) is not connected: no answer at /ip4/192.168.1.2/tcp/4650"
    told = overview(seen(2), unreached="no answer at /ip4/192.168.1.2/tcp/4650")
    status, peers = told.status(), told.peers()
    assert status.not_ready == (why,) and status.unreached == peers.unreached == (why,)
    fields = {name: str(value) for name, value in status_fields(status)}
    assert fields["unreached"] == why
    assert fields["reachable"] == peers.reachable == "not known: no peer was asked yet"
    assert overview(seen(2)).status().unreached == ()
