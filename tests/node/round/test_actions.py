"""What actions make of what the session's hands come to."""

from typing import Any

import trio

from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.faults import Differs


class Hands:
    """Whose book holds a signature for another result of the same inputs."""

    async def sign(self, seal: Any) -> bytes:
        raise Differs("another next version was signed for the same contributions")


def test_a_machine_whose_arithmetic_contradicts_what_it_signed_stops_contributing() -> None:
    seal: Any = type("Seal", (), {"round": 4})()
    hands: Any = Hands()
    outcome = trio.run(a.SignSeal(seal, b"digest").run, hands)
    assert outcome == e.VersionDiffers(5, "another next version was signed for the same contributions")
