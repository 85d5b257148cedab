"""Real peers that gossip and ask: whatever is lost on the way, all have every message of the open round in the end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from dlx.ledger.typed import sign
from dlx.node.daemon.messages import MAX_STAGES, Heard, contributions_topic, event_of, message_of, seals_topic
from dlx.node.daemon.stage import missed_messages
from dlx.node.daemon.stage.message_pool import MessagePool
from dlx.node.daemon.stage.missed_messages import MissedMessages
from dlx.node.round import actions as a
from dlx.p2p import wire
from dlx.p2p.gossip import Gossip
from dlx.p2p.host import Host
from dlx.p2p.message_sync import MessageSync
from tests.node.round.simulation import DOMAIN, RUN, Member, Simulation, digest, make_rules
from tests.p2p.network import HELLO, meet, running, until

REPLICAS, STAGES = 4, 2
MESSAGES = {
    stage: 4 + 4 + 4 for stage in range(STAGES)
}  # own stage's contributions and votes, the other's contributions


class Peer:
    """A member's host, gossip and pool, without the rest of a node."""

    def __init__(self, index: int, sim: Simulation, member: Member, bootstrap: tuple[str, ...]) -> None:
        self.rejected: list[str] = []
        self.host = Host(
            index.to_bytes(32, "big"), ["/ip4/127.0.0.1/tcp/0"], [], HELLO, bootstrap,
            on_reject=lambda reason, peer: self.rejected.append(reason),
        )  # fmt: skip
        self.id = self.host.peer_id
        self.sim, self.member, self.stage = sim, member, member.machine.stage
        self.pool = MessagePool(self.stage)
        choice = [seals_topic(RUN, stage) for stage in range(MAX_STAGES)]
        self.gossip = Gossip(self.host, (contributions_topic(RUN),), choice)
        sync = MessageSync(self.host, self.pool.beyond)
        self.missed = MissedMessages(self.gossip, sync, self.pool, lambda: sim.view, self.hear, 0.4)
        self.deaf = False

    def hear(self, data: bytes, peer: str) -> Heard:
        event = event_of(data, peer, RUN, DOMAIN)
        assert event is not None
        self.pool.put(event, data, self.sim.view, self.sim.now)
        return Heard.NEWS

    async def live(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await self.gossip.follow("slot", {seals_topic(RUN, self.stage)})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.missed.run)
            task_status.started()
            async for item in self.gossip.messages:
                if not self.deaf:
                    self.hear(item.data, item.origin)

    async def speak(self) -> None:
        """Its contribution to round 0, and its vote for a seal of it."""
        seal = digest("seal", self.stage)
        said: list[a.Statement] = [
            a.GossipContribution(self.sim.contribution(self.member, 0)),
            a.GossipAttestation(0, seal, sign(seal, self.member.key)),
        ]
        for statement in said:
            data = wire.encode(message_of(statement, RUN, self.stage, 0, self.member.sign_report))
            self.hear(data, "")
            contributes = isinstance(statement, a.GossipContribution)
            await self.gossip.publish(contributions_topic(RUN) if contributes else seals_topic(RUN, self.stage), data)

    def has_all(self) -> bool:
        held = sum(len(self.pool.ids(stage, 0, True)) for stage in range(STAGES))
        return held == MESSAGES[self.stage]


@asynccontextmanager
async def members(late: int = 0) -> AsyncIterator[tuple[list[Peer], trio.Nursery]]:
    """A member for each slot, the last `late` ones not running yet."""
    sim = Simulation(make_rules(), replicas=REPLICAS, seed=0)
    made = list(sim.members.values())
    first = Peer(1, sim, made[0], ())
    async with first.host.run(), trio.open_nursery() as nursery:
        others = [Peer(index + 2, sim, member, first.host.addresses) for index, member in enumerate(made[1:])]
        peers = [first, *others]
        meet(*peers)
        async with running(*others[: len(others) - late]):
            for peer in peers[: len(peers) - late]:
                await nursery.start(peer.live)
            awake = peers[: len(peers) - late]
            await until(
                lambda: all(len(peer.gossip.neighbours(contributions_topic(RUN))) == len(awake) - 1 for peer in awake)
            )
            yield peers, nursery
            nursery.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missed_messages, "ASK_SECONDS", 0.2)


def test_what_gossip_loses_comes_on_request() -> None:
    """Of eight one hears no gossip, and one drops all that it should pass on."""

    async def main() -> None:
        async with members() as (peers, _):
            peers[3].deaf = True

            async def nowhere(*_: object) -> None:
                pass

            peers[5].gossip._router.publish = nowhere  # type: ignore[method-assign]
            for peer in peers:
                await peer.speak()
            await until(lambda: all(peer.has_all() for peer in peers))
            assert not any(peer.rejected for peer in peers)

    trio.run(main)


def test_who_comes_late_gets_all_messages_of_the_open_round() -> None:
    async def main() -> None:
        async with members(late=1) as (peers, nursery):
            *early, late = peers
            for peer in early:
                await peer.speak()
            await until(lambda: all(len(peer.pool.ids(peer.stage, 0, False)) >= 3 for peer in early))
            async with late.host.run():
                await nursery.start(late.live)
                await late.speak()
                await until(lambda: all(peer.has_all() for peer in peers))

    trio.run(main)


def test_where_nothing_changes_there_are_few_questions_and_news_is_asked_after_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(missed_messages, "ASK_SECONDS", 2.0)
    asked: list[float] = []

    class Elsewhere:
        def neighbours(self, topic: str) -> tuple[str, ...]:
            return ("peer",)

        async def ask(self, *place: object) -> list[bytes]:
            asked.append(trio.current_time())
            return []

    class Held(MessagePool):
        held: list[bytes] = []  # noqa: RUF012

        def ids(self, stage: int, round: int, seals: bool) -> list[bytes]:
            return self.held

    sim, pool, others = Simulation(make_rules(), replicas=2, seed=0), Held(0), Elsewhere()
    one = MissedMessages(others, others, pool, lambda: sim.view, lambda *_: True, 10.0)  # type: ignore[arg-type]

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run)
            await trio.sleep(100)
            quiet = len(asked)
            assert 9 <= quiet <= 16, "not every two seconds"
            pool.held = [b"news"]
            await trio.sleep(3)
            assert len(asked) > quiet
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
