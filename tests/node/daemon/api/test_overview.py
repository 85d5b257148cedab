"""When a node calls itself ready, and what it says that it waits for."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlx.ledger.events import EventPosition, Joined, RunCreated, RunOpened
from dlx.ledger.index.event_index import Head
from dlx.ledger.typed import Domain
from dlx.ledger.view.node_registry import NodeTable
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.api.overview import Overview
from dlx.node.daemon.chain.clock import ChainClock
from dlx.node.daemon.chain.follower import ChainSeen, Follower
from dlx.node.daemon.membership.registration import Membership
from dlx.node.daemon.membership.rest import Rest
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
    view.apply(RunCreated(RUN, ACCOUNTS[0], terms, "a-run", (bytes([4]) * 32,) * stages, at))
    for slot, account in enumerate(ACCOUNTS[:members]):
        view.apply(Joined(RUN, account, slot // stages, slot % stages, at))
        if slot + 1 == stages * min_replicas:
            view.apply(RunOpened(RUN, at.time, at))
    return ChainSeen(view, NodeTable(), Head(1, bytes(32), 1_700_000_000))


def overview(
    chain: ChainSeen | None, peers: int = 1, training: int | None = 0, failing: tuple[Failing, ...] = ()
) -> Overview:
    """Of the first member's node, whose session trains, or waits for a seal."""
    nobody: Any = None
    host: Any = SimpleNamespace(peer_id="16U", addresses=(), agreed=lambda: ("peer",) * peers)
    clock, metrics, supervisor = ChainClock(), Metrics("0x" + RUN.hex()), Supervisor(now=lambda: 0.0)
    follower = Follower(nobody, RUN, clock)
    follower.seen.value = chain
    membership = Membership(nobody, follower, host, RUN, ACCOUNTS[0], bytes(32))
    assignment = Assignment(follower, membership, supervisor, None)
    machine = SimpleNamespace(
        waiting_for=lambda now: "the seal of round 3", diverged=None, training=training,
        failing=lambda now: list(failing),
    )  # fmt: skip
    progress = SimpleNamespace(round=0, step=1, steps=10, loss=None, tokens_per_second=None)
    session: Any = SimpleNamespace(placement=None, machine=machine, progress=progress)
    assignment.session = session if chain is not None else None
    return Overview(
        run=RUN, account=ACCOUNTS[0], rpc_url=("http://key@127.0.0.1:8545/secret",), host=host, follower=follower,
        membership=membership, assignment=assignment, seal_counter=SealCounter(metrics),
        supervisor=supervisor, clock=clock, metrics=metrics,
        traffic=lambda: dict.fromkeys(("payload", "pipe", "blobs", "gossip", "signalling", "chain"), (0, 0)),
        rest=Rest(Path("/nonexistent")),
    )  # fmt: skip


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
