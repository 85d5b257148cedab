"""What actions make of what the session's hands come to."""

from typing import Any

import trio

from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.faults import Differs
from tests.node.round.simulation import Simulation, make_rules


class Hands:
    """Whose book holds a signature for another result of the same inputs."""

    async def sign(self, seal: Any) -> bytes:
        raise Differs("another next version was signed for the same contributions")


def test_a_machine_whose_arithmetic_contradicts_what_it_signed_stops_contributing() -> None:
    seal: Any = type("Seal", (), {"round": 4})()
    hands: Any = Hands()
    outcome = trio.run(a.SignSeal(seal, b"digest").run, hands)
    assert outcome == e.VersionDiffers(5, "another next version was signed for the same contributions")


def test_what_is_said_late_of_another_round_does_not_end_the_one_under_way() -> None:
    sim = Simulation(make_rules(stages=1, delay=0), replicas=1, seed=3)
    (member,) = sim.members.values()
    assert sim.run(lambda: member.machine.training == 1, 60)
    sim.feed(member, e.RoundAbandoned(0, "a blob was damaged"))
    assert member.machine.training == 1
    sim.feed(member, e.RoundAbandoned(1, "a blob was damaged"))
    assert member.machine.training is None
