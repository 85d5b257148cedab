"""Gossip: small signed statements to every peer of the run."""

from dataclasses import dataclass
from typing import Any

import trio
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.validators import signature_validator
from libp2p.tools.anyio_service import background_trio_service

from dlx.p2p import wire
from dlx.p2p.buckets import Buckets
from dlx.p2p.host import Host
from dlx.p2p.mesh import GuardedGossipSub, GuardedPubsub

ORIGIN_RATE = 20.0  # messages/s of one origin, through whomever they come
FORWARDER_RATE = 400.0  # messages/s of one neighbour, whoever made them
QUEUE = 1024  # messages waiting to be read; the oldest gives way
STRIKES = 200  # within a minute; then the peer is disconnected
_WEIGHT = {
    "oversize_rpc": STRIKES + 1,
    "oversize": 50,
    "malformed": 20,
    "schema": 20,
    "signature": 20,
    "topic": 20,
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
    """Make it before the host runs. Every message is a wire.GossipMessage; others are neither delivered nor forwarded.

    Drops are counted through the host's `on_reject`: oversize_rpc (more than 1 MiB at once, ends the connection),
    oversize, malformed, schema, signature, topic, rate or rate_relayed (of an origin or a neighbour),
    queue (not read fast enough).
    """

    def __init__(self, host: Host, topics: tuple[str, ...]) -> None:
        self._host = host
        self._topics = topics
        self._send, self.messages = trio.open_memory_channel[Gossiped](QUEUE)
        self._origins = Buckets(ORIGIN_RATE)
        self._forwarders = Buckets(FORWARDER_RATE)
        self._strikes = Buckets(STRIKES / 60, burst=STRIKES)
        self._router = GuardedGossipSub(host.reject)
        self._pubsub = GuardedPubsub(
            host.libp2p, self._router, frozenset(topics), self._refusal, self._deliver, self._abuse
        )
        host.add_service(self._run)

    async def publish(self, topic: str, data: bytes) -> None:
        """Send `data` (an encoded wire.GossipMessage) to the mesh; it does not come back to `messages`.

        Raises ValueError for an unknown topic, wire.WireError for data that others would refuse.
        """
        if topic not in self._topics:
            raise ValueError(f"topic {topic!r} was not named when Gossip was made")
        _parse(data)
        await self._pubsub.publish(topic, data)

    def neighbours(self, topic: str) -> tuple[str, ...]:
        """Peer ids that take the topic."""
        return tuple(str(peer) for peer in self._pubsub.peer_topics.get(topic, ()))

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
                await trio.sleep(1)

    def _refusal(self, forwarder: ID, message: rpc_pb2.Message) -> str | None:
        try:
            _parse(message.data)
        except wire.WireError as error:
            return error.reason
        if ID(message.from_id) == self._host.libp2p.get_id() or not _signed(message):
            return "signature"
        origin = ID(message.from_id)
        if not self._forwarders.take(str(forwarder)) or not self._origins.take(str(origin)):
            return "rate" if origin == forwarder else "rate_relayed"
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


def _signed(message: rpc_pb2.Message) -> bool:
    try:
        return bool(signature_validator(message))
    except Exception:  # keys that cannot be parsed
        return False
