"""What `top` draws, of a status that a node gave."""

import io

from msgspec.structs import replace
from rich.console import Console

from dlx.node.cli.top import picture, spark
from dlx.node.daemon.status import Bytes, PeerView
from tests.node.daemon.test_http import STATUS


def drawn(*given: object, width: int = 160) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(picture(*given))  # type: ignore[arg-type]
    return out.getvalue()


def test_losses_are_drawn_from_the_lowest_to_the_highest() -> None:
    assert spark([]) == "" and spark([2.0]) == "▁" and spark([1.0, 2.0, 3.0]) == "▁▅█"


def test_round_losses_traffic_peers_and_warnings_are_there() -> None:
    traffic = replace(STATUS.traffic, payload=Bytes(sent=0, received=1))
    peer = PeerView(peer_id="16Uiu2", addresses=("/ip4/10.0.0.1/tcp/1",), connected_seconds=1, rtt_ms=2.0, agreed=True)
    status = replace(STATUS, notices=("accused by a member",), resting="paused; keeps its seat")
    found = drawn(status, replace(STATUS, traffic=traffic), 2.0, [3.0, 2.5], [peer] * 20)
    for said in (
        "round 3",
        "step 4 of 10",
        "loss 2.5000  █▁",
        "450.0 kB/s",
        "accused",
        "paused",
        "16Uiu2",
        "and 4 more",
    ):
        assert said in found, found
    assert "training" in drawn(replace(STATUS, loss=None, round=None), None, 1.0, [], [], width=60)
