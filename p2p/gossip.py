"""Gossip: small signed statements from members of the run to all of them, or to those of a stage."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import trio
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.validators import signature_validator
from libp2p.tools.anyio_service import background_trio_service

from dlx.p2p import wire
from dlx.p2p.host import Host
from dlx.p2p.mesh import GuardedGossipSub, GuardedPubsub, topic_id
from dlx.p2p.token_buckets import TokenBuckets

ORIGIN_RATE = 20.0  # messages/s of one origin, through whomever they come
FORWARDER_RATE = 400.0  # messages/s of one neighbour, whoever made them
STRANGER_RATE = 10.0  # messages/s that one neighbour passes on for those whom our ledger does not name, or not yet
QUEUE = 1024  # messages waiting to be read; the oldest gives way
STRIKES = 200  # within a minute; then the peer is disconnected
_WEIGHT = {
    "oversize_rpc": STRIKES + 1,
    "oversize": 50,
    "malformed": 20,
    "schema": 20,
    "signature": 20,
    "topic": 20,
    "unregistered": 2,
    "control": 1,
    "unregistered_relayed": 0,  # who passes it on may have a newer view of the ledger
    "rate": 1,
    "rate_relayed": 0,  # the origin's own neighbours cut it off; who passes its messages on is not to blame
}


@dataclass(frozen=True, slots=True)
class Gossiped:
    topic: str
    data: bytes
    message: wire.GossipMessage
    origin: str  # peer id of who made it, proven by its signature
    forwarder: str  # peer id of who sent it to us


class Gossip:
    """Make it before the host runs. It takes `topics`, and of `choice` those that it `follow`s.

    Every message is a wire.GossipMessage of one of the host's `members`; others are neither delivered nor forwarded.
    Drops are counted through the host's `on_reject`: oversize_rpc (more than 1 MiB at once, ends the connection),
    oversize, malformed, schema, signature, topic, unregistered or unregistered_relayed. Also rate or rate_relayed (of
    an origin or a neighbour), control (beyond what a neighbour may name and ask for), queue (not read fast enough).
    """

    def __init__(self, host: Host, topics: Sequence[str], choice: Sequence[str] = ()) -> None:
        self._host = host
        self._topics, self._choice = tuple(topics), frozenset(choice)
        self._followed: dict[str, frozenset[str]] = {}  # reason -> topics
        self._following = trio.Lock()
        self._send, self.messages = trio.open_memory_channel[Gossiped](QUEUE)
        self._origins = TokenBuckets(ORIGIN_RATE)
        self._forwarders = TokenBuckets(FORWARDER_RATE)
        self._strangers = TokenBuckets(STRANGER_RATE)
        self._strikes = TokenBuckets(STRIKES / 60, burst=STRIKES)
        self._router = GuardedGossipSub(host.reject)
        self._pubsub = GuardedPubsub(
            host.libp2p, self._router, self._choice.union(topics), self._refusal, self._deliver, self._abuse
        )
        host.add_service(self._run)

    async def publish(self, topic: str, data: bytes) -> None:
        """Send `data` (an encoded wire.GossipMessage) to everybody who takes the topic; it does not come back to
        `messages`. What was published or heard within the last two minutes is not sent again.

        Raises ValueError for an unknown topic, wire.WireError for data that others would refuse.
        """
        if topic not in self._topics and topic not in self._choice:
            raise ValueError(f"topic {topic!r} was not named when Gossip was made")
        _parse(data)
        if not self._pubsub.seen_messages.has(topic_id(topic, data)):
            await self._pubsub.publish(topic, data)

    async def follow(self, reason: str, topics: Collection[str]) -> None:
        """From now on take these of the choice for this reason, and of the others those that another reason asks for.

        Raises ValueError for topics that are not of the choice."""
        if not self._choice.issuperset(topics):
            raise ValueError(f"topics {sorted(topics)} were not all among the choice when Gossip was made")
        async with self._following:
            before = frozenset[str]().union(*self._followed.values())
            self._followed[reason] = frozenset(topics)
            wanted = frozenset[str]().union(*self._followed.values())
            for topic in sorted(before - wanted):
                await self._pubsub.unsubscribe(topic)
            for topic in sorted(wanted - before):
                await self._pubsub.subscribe(topic)

    def neighbours(self, topic: str) -> tuple[str, ...]:
        """Peer ids of connected members that take the topic."""
        return tuple(sorted(self._host.members & {str(peer) for peer in self._pubsub.peer_topics.get(topic, ())}))

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Messages that came so far and their bytes: `new` ones, and `repeated` ones that had come before."""
        return dict(self._pubsub.traffic)

    async def _run(self, task_status: Any) -> None:
        async with background_trio_service(self._router), background_trio_service(self._pubsub):
            await self._pubsub.wait_until_ready()
            for topic in self._topics:
                await self._pubsub.subscribe(topic)
            task_status.started()
            while True:
                await self._pubsub.tend(self._host.agreed())
                await self._router.name_heard()
                await trio.sleep(1)

    def _refusal(self, forwarder: ID, message: rpc_pb2.Message) -> str | None:
        origin, neighbour = _name(message.from_id), str(forwarder)
        if origin not in self._host.members:
            relayed = origin != neighbour and self._strangers.take(neighbour)
            return "unregistered_relayed" if relayed else "unregistered"
        if not self._forwarders.take(neighbour):
            return "rate" if origin == neighbour else "rate_relayed"
        try:
            _parse(message.data)
        except wire.WireError as error:
            return error.reason
        if origin == self._host.peer_id or not _signed(message):
            return "signature"
        if not self._origins.take(origin):
            return "rate" if origin == neighbour else "rate_relayed"
        return None

    def _deliver(self, forwarder: ID, message: rpc_pb2.Message) -> None:
        item = Gossiped(
            message.topicIDs[0], message.data, _parse(message.data), str(ID(message.from_id)), str(forwarder)
        )
        try:
            self._send.send_nowait(item)
        except trio.WouldBlock:
            self._host.reject("queue", self.messages.receive_nowait().origin)
            self._send.send_nowait(item)

    def _abuse(self, reason: str, peer: ID) -> None:
        self._host.reject(reason, str(peer))
        if not self._strikes.take(str(peer), _WEIGHT.get(reason, 1)):
            self._host.ban(str(peer), "abuse")


def _parse(data: bytes) -> wire.GossipMessage:
    message = wire.decode(data)
    if not isinstance(message, wire.GossipMessage):
        raise wire.WireError("schema", "not a gossip message")
    return message


@lru_cache(maxsize=4096)
def _name(peer: bytes) -> str:
    return str(ID(peer))


def _signed(message: rpc_pb2.Message) -> bool:
    try:
        return bool(signature_validator(message))
    except Exception:  # keys that cannot be parsed
        return False
