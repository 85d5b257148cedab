"""When a node calls itself ready."""

from types import SimpleNamespace
from typing import Any

import pytest

from dlx.ledger.events import EventPosition, Joined, RunCreated
from dlx.ledger.typed import RunConfig
from dlx.ledger.view import RunView
from dlx.node.daemon.metrics import Metrics
from dlx.node.daemon.overview import Overview

RUN = b"\x01" * 32
ACCOUNTS = [f"0x{index:040x}" for index in (1, 2)]


def not_ready(stages: int, min_replicas: int, members: int, peers: int) -> tuple[str, ...]:
    """What keeps the first member's node from being ready, though it holds a slot and trains."""
    view, at = RunView(RUN), EventPosition(1, bytes(32), 0, bytes(32), 1_700_000_000)
    config = RunConfig(b"\x03" * 32, 10, stages, min_replicas, 4, 2, 3, 60, 60, 64)
    view.apply(RunCreated(RUN, ACCOUNTS[0], config, "a-run", (bytes(32),) * stages, at))
    for slot, account in enumerate(ACCOUNTS[:members]):
        view.apply(Joined(RUN, account, slot // stages, slot % stages, at))
    machine = SimpleNamespace(waiting_for=lambda now: None, diverged=None, training=0)
    progress = SimpleNamespace(round=0, step=1, steps=10, loss=None, tokens_per_second=None)
    startup = SimpleNamespace(account=SimpleNamespace(address=ACCOUNTS[0]), run=RUN)
    startup.settings = SimpleNamespace(rpc_url="http://127.0.0.1:8545")
    host = SimpleNamespace(
        peer_id="16U", addresses=(), agreed=lambda: ("peer",) * peers, bytes_sent=0, bytes_received=0
    )
    node: Any = SimpleNamespace(
        startup=startup, view=view, host=host, session=SimpleNamespace(machine=machine, progress=progress),
        ledger_reachable=True, head=None, counted=None, last_seal=None, metrics=Metrics(), stopping=False,
        finished=False,
    )  # fmt: skip
    return Overview(node).status().not_ready


@pytest.mark.parametrize(
    ("stages", "min_replicas", "members", "needs_peers"),
    [(1, 1, 1, False), (1, 1, 2, True), (1, 2, 1, True), (2, 1, 1, True)],
)
def test_only_a_node_that_is_the_whole_run_is_ready_without_a_peer(
    stages: int, min_replicas: int, members: int, needs_peers: bool
) -> None:
    assert not_ready(stages, min_replicas, members, 0) == (("no peer is connected",) if needs_peers else ())
    assert not_ready(stages, min_replicas, members, 1) == ()
