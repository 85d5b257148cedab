"""The library's gossipsub with its holes covered; `p2p.gossip` is the public face."""

import hashlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from weakref import WeakKeyDictionary

import trio
from libp2p.abc import INetStream
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, GossipSub
from libp2p.pubsub.mcache import CacheEntry, MessageCache
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.utils import maybe_consume_signed_record

from dlx.p2p.guarded_host import GuardedHost, Reject
from dlx.p2p.streams import StreamBroken, read_some
from dlx.p2p.token_buckets import TokenBuckets

PATIENCE = 4  # calls of `tend` that the library has to get a stream by itself
RPC_LIMIT = 1024 * 1024  # bytes; what the library itself sends at most
MAX_SUBSCRIPTIONS = 256  # of one RPC that are looked at
CONTROL_RATE = 2000.0  # a second of one neighbour: a message that IHAVE names is one
WANTED = 4  # so much is a message that IWANT names
ENTRY = 20  # and a control message, of whatever kind
NAMED = 2  # neighbours to whom is named what another neighbour said

log = logging.getLogger(__name__)


def message_id(message: rpc_pb2.Message) -> bytes:
    """sha256 of topic and data, so that a message is known whoever sends it, and however often; besides, sequence
    numbers start again with the process and would pass for seen."""
    return topic_id(message.topicIDs[0], message.data)


def topic_id(topic: str, data: bytes) -> bytes:
    return hashlib.sha256(topic.encode() + b"\0" + data).digest()


class GuardedGossipSub(GossipSub):
    """Gossipsub 1.1, degree 6 (4 to 12), heartbeat 1 s. Own rate limits stand in for its spam protection."""

    def __init__(self, reject: Reject) -> None:
        super().__init__(
            protocols=[PROTOCOL_ID_V11],
            degree=6,
            degree_low=4,
            degree_high=12,
            heartbeat_interval=1,
            adaptive_gossip_enabled=False,
            spam_protection_enabled=False,
            eclipse_protection_enabled=False,
            pending_messages_ttl=0,  # it would keep every message for every peer that does not take its topic
        )
        self.mcache = _ContentCache(self.mcache.window_size, self.mcache.history_size)
        self._reject = reject
        self._heard: dict[str, dict[bytes, ID]] = {}  # topic -> message -> its origin, a neighbour; to be named

    # what a peer sets off: an exception in any of these would end the service

    async def handle_rpc(self, rpc: rpc_pb2.RPC, sender_peer_id: ID) -> None:
        await self._survive(super().handle_rpc(rpc, sender_peer_id), sender_peer_id)

    async def flush_pending_messages(self, peer_id: ID) -> None:
        await self._survive(super().flush_pending_messages(peer_id), peer_id)

    async def on_peer_subscribed(self, peer_id: ID, topic: str) -> None:
        await self._survive(super().on_peer_subscribed(peer_id, topic), peer_id)

    async def _survive(self, work: Awaitable[None], peer: ID) -> None:
        try:
            await work
        except Exception as error:
            log.warning("gossip with %s failed: %r", peer, error)
            self._reject("malformed", str(peer))

    def _get_peers_to_send(
        self, topic_ids: Iterable[str], msg_forwarder: ID, origin: ID, msg_id: bytes | None = None
    ) -> Iterable[ID]:
        """Own messages go to every neighbour, others' to the whole mesh; and a mesh that is still thin is helped out.
        A neighbour's are only named (`name_heard`): it has sent them to all of its own.

        The library sends to the mesh only, which is empty until the heartbeat after a connection; what was sent
        before is in no IHAVE to the peers that join the mesh then.
        """
        assert self.pubsub is not None
        subscribed = set[ID]().union(*(self.pubsub.peer_topics.get(topic, ()) for topic in topic_ids))
        if origin == self.pubsub.my_id:
            return subscribed - {origin}
        if origin in subscribed:
            return ()
        chosen = set(super()._get_peers_to_send(topic_ids, msg_forwarder, origin, msg_id))
        if len(chosen) < self.degree_low:
            chosen |= set(islice(subscribed, self.degree))
        return chosen - {msg_forwarder, origin}

    async def publish(self, msg_forwarder: ID, pubsub_msg: rpc_pb2.Message) -> None:
        assert self.pubsub is not None
        await super().publish(msg_forwarder, pubsub_msg)
        origin, (topic,) = ID(pubsub_msg.from_id), pubsub_msg.topicIDs
        if origin != self.pubsub.my_id and origin in self.pubsub.peer_topics.get(topic, ()):
            self._heard.setdefault(topic, {})[message_id(pubsub_msg)] = origin

    async def name_heard(self) -> None:
        """Names what neighbours said since the last call to a few others, for those whom they do not reach: these ask
        for it. Not at once, or those would whose copy is on its way."""
        assert self.pubsub is not None
        heard, self._heard = self._heard, {}
        for topic, origins in heard.items():
            others = set(self.pubsub.peer_topics.get(topic, ())) - {self.pubsub.my_id}
            for peer in random.sample(list(others), min(NAMED, len(others))):
                names = [name for name, origin in origins.items() if origin != peer]
                if names:
                    await self.emit_ihave(topic, names, peer)

    async def heartbeat(self) -> None:
        while True:
            try:
                with trio.move_on_after(60):
                    await super().heartbeat()
            except Exception as error:
                log.warning("gossip heartbeat failed: %r", error)
            # the library notes every delivery for a feature that is off, and never forgets
            self.recent_message_deliveries.clear()


class _ContentCache(MessageCache):
    """Keyed like the seen messages; the library's own keys make peers ask for what they have."""

    def put(self, msg: rpc_pb2.Message) -> None:
        mid = message_id(msg)
        if mid not in self.msgs:
            self.msgs[mid] = msg
            self.history[0].append(CacheEntry(mid, msg.topicIDs))


class GuardedPubsub(Pubsub):
    """Refuses an RPC at its length, validates before it forwards, survives whatever is inside.

    `refusal(forwarder, message)` returns why an unseen message is refused, or None. `deliver(forwarder, message)`
    takes the good ones and must not block.
    """

    def __init__(
        self,
        host: GuardedHost,
        router: GuardedGossipSub,
        topics: frozenset[str],
        refusal: Callable[[ID, rpc_pb2.Message], str | None],
        deliver: Callable[[ID, rpc_pb2.Message], None],
        abuse: Callable[[str, ID], None],
    ) -> None:
        super().__init__(host, router, msg_id_constructor=message_id, allowed_topics=topics)
        self._topics = topics
        self._checked: dict[ID, bytes] = {}  # signed addresses, as last checked
        self._told = WeakKeyDictionary[INetStream, bytes]()  # the signed addresses that we said on a stream
        self._absent: dict[ID, int] = {}  # how many times in a row `tend` found no stream
        self._refusal = refusal
        self._deliver = deliver
        self._abuse = abuse
        self._control = TokenBuckets(CONTROL_RATE)
        self.traffic = {"new": (0, 0), "repeated": (0, 0)}  # messages that came, and their bytes
        self.counter = time.time_ns()  # repeated sequence numbers after a restart pass for equivocation

    async def continuously_read_stream(self, stream: INetStream) -> None:
        peer = stream.muxed_conn.peer_id
        buffer = bytearray()
        try:
            while self.manager.is_running:
                while (head := _parse_length(buffer)) is None:
                    buffer += await read_some(stream, RPC_LIMIT)
                length, start = head
                if length > RPC_LIMIT:
                    self._abuse("oversize_rpc", peer)
                    break
                while len(buffer) < start + length:
                    buffer += await read_some(stream, RPC_LIMIT)
                rpc = rpc_pb2.RPC()
                rpc.ParseFromString(bytes(buffer[start : start + length]))
                del buffer[: start + length]
                await self._handle(rpc, peer)
        except StreamBroken as error:
            log.debug("gossip stream of %s ended: %s", peer, error)
        except Exception as error:
            log.debug("gossip stream of %s: %r", peer, error)
            self._abuse("malformed", peer)

    async def write_msg(self, stream: INetStream, rpc_msg: rpc_pb2.RPC) -> bool:
        """The library puts our signed addresses into each RPC; once on a stream is enough, until they change."""
        addresses = rpc_msg.senderRecord
        if addresses and self._told.get(stream) == addresses:
            rpc_msg.ClearField("senderRecord")
        sent = await super().write_msg(stream, rpc_msg)
        if sent and addresses:
            self._told[stream] = addresses
        return sent

    async def push_msg(self, msg_forwarder: ID, msg: rpc_pb2.Message) -> None:
        """Also the way of own messages, which skip the checks."""
        seen = self._is_msg_seen(msg)
        if msg_forwarder != self.my_id:
            kind = "repeated" if seen else "new"
            messages, size = self.traffic[kind]
            self.traffic[kind] = messages + 1, size + msg.ByteSize()
        if seen:
            return
        if msg_forwarder != self.my_id:
            reason = self._refusal(msg_forwarder, msg)
            if reason is not None:
                self._abuse(reason, msg_forwarder)
                return
        self._mark_msg_seen(msg)
        if msg_forwarder != self.my_id:
            self._deliver(msg_forwarder, msg)
        await self.router.publish(msg_forwarder, msg)

    async def tend(self, peers: tuple[str, ...]) -> None:
        """Renew streams of connected peers that broke or never came to be; the library gives up in silence."""
        for name in peers:
            peer = ID.from_base58(name)
            stream = self.peers.get(peer)
            if stream is not None and (stream.is_closed or stream.swarm_conn.is_closed):  # type: ignore[attr-defined]
                self._handle_dead_peer(peer)
                stream = None
            self._absent[peer] = self._absent.get(peer, 0) + 1 if stream is None else 0
            if self._absent[peer] and self._absent[peer] % PATIENCE == 0:
                self.manager.run_task(self.ensure_peer_stream, peer, PATIENCE - 1)
        self._absent = {peer: self._absent[peer] for peer in map(ID.from_base58, peers)}
        self._checked = {peer: addresses for peer, addresses in self._checked.items() if peer in self._absent}

    async def _handle(self, rpc: rpc_pb2.RPC, peer: ID) -> None:
        if rpc.senderRecord and rpc.senderRecord != self._checked.get(peer):  # mostly the same
            if not maybe_consume_signed_record(rpc, self.host, peer):
                self._abuse("malformed", peer)
                return
            self._checked[peer] = rpc.senderRecord
        rpc.ClearField("senderRecord")  # checked; the router would check again
        for message in rpc.publish:
            if len(message.topicIDs) != 1 or message.topicIDs[0] not in self._topics:
                self._abuse("topic", peer)
            elif message.topicIDs[0] in self.topic_ids:  # we may just have left one
                await self.push_msg(peer, message)
        for subscription in rpc.subscriptions[:MAX_SUBSCRIPTIONS]:  # a newer version may have topics that we lack
            self.handle_subscription(peer, subscription)
        if rpc.HasField("control"):
            if self._control.take(str(peer), _cost(rpc.control)):
                await self.router.handle_rpc(rpc, peer)
            else:
                self._abuse("control", peer)


def _cost(control: rpc_pb2.ControlMessage) -> int:
    """Of what CONTROL_RATE limits."""
    named = sum(len(one.messageIDs) for one in control.ihave)
    named += sum(len(one.messageIDs) for one in control.idontwant)
    wanted = sum(len(one.messageIDs) for one in control.iwant)
    asked = len(control.ihave) + len(control.iwant) + len(control.idontwant)
    return named + WANTED * wanted + ENTRY * (asked + len(control.graft) + len(control.prune))


def _parse_length(buffer: bytearray) -> tuple[int, int] | None:
    """A varint and where it ends, None if it is not all there. Raises ValueError."""
    value = 0
    for index, byte in enumerate(buffer[:9]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, index + 1
    if len(buffer) >= 9:
        raise ValueError("a length of more than 63 bits")
    return None
