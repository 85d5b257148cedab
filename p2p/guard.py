"""What keeps one bad peer from ending the process: py-libp2p 0.8.1 with its holes covered.

Subclasses where the library allows it; the private fields that they rely on are checked by `check_layout`.
"""

import importlib.metadata
import inspect
import logging
import struct
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, cast

import trio
from libp2p.abc import IMuxedConn, IMuxedStream, INetStream, IPeerStore
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import StreamHandlerFn, TProtocol
from libp2p.exceptions import ParseError
from libp2p.host.basic_host import BasicHost
from libp2p.io.abc import Reader, ReadWriteCloser
from libp2p.kad_dht.common import PROTOCOL_ID as KAD_ID
from libp2p.kad_dht.kad_dht import KadDHT
from libp2p.kad_dht.provider_store import ProviderStore
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.exceptions import SwarmException
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from libp2p.protocol_muxer import multiselect_communicator
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.mcache import MessageCache
from libp2p.pubsub.pubsub import Pubsub
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_ID
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.exceptions import MuxedStreamError
from libp2p.stream_muxer.yamux.yamux import (
    HEADER_SIZE,
    MAX_MESSAGE_SIZE,
    TYPE_DATA,
    YAMUX_HEADER_FORMAT,
    Yamux,
    YamuxStream,
)
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_ID
from libp2p.transport.upgrader import TransportUpgrader
from libp2p.utils.varint import read_varint_prefixed_bytes_limited
from multiaddr import Multiaddr

from dlx.ground.errors import DlxError
from dlx.ground.meter import Meter
from dlx.p2p.buckets import Buckets
from dlx.p2p.places import Place, is_loopback, prefix, worst
from dlx.p2p.served import ServedStreams
from dlx.p2p.streams import StreamBroken, let_go
from dlx.p2p.transport import MeteredStream, MeteredTCP

LIBP2P_VERSION = "0.8.1"
BUFFER_LIMIT = 64 * 1024 * 1024  # bytes a peer may have waiting unread on one connection
STRANGER_BUFFER = 16 * 1024 * 1024
WINDOW = 1024 * 1024  # bytes a peer may send on one stream before it must wait for us
WINDOW_DEADLINE = 30.0  # s a writer waits for a peer that does not read
FRAME_LIMIT = 1024 * 1024  # bytes of one Yamux frame
MOST_FRAME = MAX_MESSAGE_SIZE - HEADER_SIZE  # bytes of ours
STREAM_LIMIT, STRANGER_STREAMS = 256, 64  # streams a peer may have open on one connection
MAX_CONNECTIONS = 256
CONNECTIONS_PER_PEER = 3  # two where both dial at once, and one that the other side lost
PENDING_LIMIT = 64  # accepted connections in the handshake
HANDSHAKE_RATE, HANDSHAKE_BURST = 8.0, 64.0  # accepted connections a second of one prefix
_UNLIMITED = 1 << 20  # the library would refuse whoever comes last
DHT_STREAMS, DHT_STREAMS_PER_PEER = 10, 4  # served at once; below the library's 12, as who has to go goes slowly
DHT_DEADLINE = 30.0  # s for what is asked on one
NEGOTIATION_LIMIT = 1024  # bytes of a protocol name

log = logging.getLogger(__name__)
# the library reports every failed dial as an error; LIBP2P_DEBUG brings its log back
logging.getLogger("libp2p").addHandler(logging.NullHandler())
Reject = Callable[[str, str], None]  # (reason, peer id)


class GuardError(DlxError):
    """The installed libp2p is not the one that the guards were written for."""


async def _read_delim(reader: Reader) -> bytes:
    """The library's own takes a message of any length, from anybody, before anything is encrypted."""
    message = await read_varint_prefixed_bytes_limited(reader, NEGOTIATION_LIMIT)
    if not message.endswith(b"\n"):
        raise ParseError("a protocol name without its end")
    return message[:-1]


multiselect_communicator.read_delim = _read_delim


class _TooMuchBuffered(trio.TooSlowError):
    """Derived from what makes the muxer close its connection."""


def check_layout() -> None:
    """Raises GuardError when the private parts of libp2p that the guards use have changed."""
    version = importlib.metadata.version("libp2p")
    if version != LIBP2P_VERSION:
        raise GuardError(f"libp2p {version} is installed, this node needs exactly {LIBP2P_VERSION}")
    wanted: list[tuple[Any, str, tuple[str, ...]]] = [
        (BasicHost, "_swarm_stream_handler", ("self", "net_stream")),
        (BasicHost, "set_stream_handler", ("self", "protocol_id", "stream_handler")),
        (Swarm, "_handle_inbound_connection", ("self", "read_write_closer", "maddr")),
        (Swarm, "add_conn", ("self", "muxed_conn", "direction")),
        (Swarm, "dial_addr", ("self", "addr", "peer_id", "source")),
        (Swarm, "unblock_peer", ("self", "peer_id")),
        (AutoConnector, "maybe_connect", ("self",)),
        (Yamux, "start", ("self",)),
        (Yamux, "open_stream", ("self",)),
        (Yamux, "accept_stream", ("self",)),
        (Yamux, "_write_frame", ("self", "data")),
        (YamuxStream, "write", ("self", "data")),
        (YamuxStream, "_auto_tune_and_send_window_update", ("self", "bytes_read")),
        (YamuxStream, "send_window_update", ("self", "increment", "skip_lock")),
        (Yamux, "_read_data_body", ("self", "length")),
        (Yamux, "_cleanup_on_error", ("self",)),
        (Pubsub, "push_msg", ("self", "msg_forwarder", "msg")),
        (Pubsub, "write_msg", ("self", "stream", "rpc_msg")),
        (Pubsub, "continuously_read_stream", ("self", "stream")),
        (Pubsub, "_handle_dead_peer", ("self", "peer_id")),
        (GossipSub, "_get_peers_to_send", ("self", "topic_ids", "msg_forwarder", "origin", "msg_id")),
        (GossipSub, "publish", ("self", "msg_forwarder", "pubsub_msg")),
        (GossipSub, "emit_ihave", ("self", "topic", "msg_ids", "to_peer")),
        (GossipSub, "handle_rpc", ("self", "rpc", "sender_peer_id")),
        (GossipSub, "flush_pending_messages", ("self", "peer_id")),
        (GossipSub, "on_peer_subscribed", ("self", "peer_id", "topic")),
        (MessageCache, "put", ("self", "msg")),
        (KadDHT, "refresh_routing_table", ("self",)),
        (ProviderStore, "_get_providers_from_peer_with_closers", ("self", "peer_id", "key")),
    ]
    for owner, name, parameters in wanted:
        function = getattr(owner, name, None)
        if function is None or tuple(inspect.signature(function).parameters) != parameters:
            where = f"{owner.__name__}.{name}({', '.join(parameters)})"
            raise GuardError(f"libp2p {version}: {where} has changed; install {LIBP2P_VERSION}")
    if inspect.getmodule(MultiselectCommunicator.read) is not multiselect_communicator or "read_delim" not in (
        MultiselectCommunicator.read.__code__.co_names
    ):
        raise GuardError(f"libp2p {version}: protocol negotiation reads elsewhere; install {LIBP2P_VERSION}")
    yamux = Yamux(_Nothing(), ID(b"\x00"), is_initiator=True)  # type: ignore[arg-type]
    if not isinstance(yamux.stream_buffers, dict) or not isinstance(yamux.streams, dict):
        raise GuardError(f"libp2p {version}: the muxer keeps its buffers elsewhere; install {LIBP2P_VERSION}")


class _Nothing:
    is_initiator = True


def stream_of(conn: Any) -> MeteredStream:
    """The TCP stream under a swarm connection. Raises GuardError if it cannot be reached."""
    return _tcp(conn.muxed_conn)


def _tcp(muxed: Any) -> MeteredStream:
    try:
        stream = muxed.secured_conn.conn.read_writer.read_write_closer.stream
    except AttributeError as error:
        raise GuardError(f"libp2p's layers have changed: {error}; install {LIBP2P_VERSION}") from error
    if not isinstance(stream, MeteredStream):
        raise GuardError(f"libp2p's layers have changed: {type(stream).__name__} carries the connection")
    return stream


def address_of(stream: INetStream) -> str:
    """The IP address of the other side. Raises GuardError."""
    return _tcp(stream.muxed_conn).address


def count_on(stream: INetStream, meter: Meter) -> None:
    """From now on `meter` counts the bytes that the stream carries, both ways."""
    muxed = stream.muxed_stream  # type: ignore[attr-defined]
    if not isinstance(muxed, _LeanStream):
        raise GuardError(f"libp2p's layers have changed: {type(muxed).__name__} carries the stream")
    muxed.meter = meter


def hold(stream: INetStream) -> None:
    """The stream's connection is in use until the stream is closed."""
    stream.muxed_stream.held = True  # type: ignore[attr-defined]


def in_bulk(stream: INetStream, bulk: bool) -> None:
    """Whether what is written on it from now on lets everything else on its connection go first."""
    stream.muxed_stream.bulk = bulk  # type: ignore[attr-defined]


def lay_down(stream: INetStream) -> None:
    """Nobody uses the stream for now; its connection may go."""
    stream.muxed_stream.held = False  # type: ignore[attr-defined]


def take_up(stream: INetStream) -> bool:
    """As `hold`, of a stream that was laid down; False where it has ended since."""
    muxed = stream.muxed_stream  # type: ignore[attr-defined]
    muxed.held = not (muxed.closed or muxed.send_closed or muxed.recv_closed or muxed.reset_received)
    return bool(muxed.held)


def hard_close(network: Swarm, peer: ID) -> None:
    """Cut all connections to a peer from below; closing politely hangs when the peer has stopped reading."""
    for conn in network.get_connections(peer):
        stream_of(conn).kill()


class _LeanStream(YamuxStream):
    """The library's stream with a third of its task switches and packets.

    It gives window back in large steps instead of after every read, and a writer waits longer than 5 s for it.
    """

    held = False  # by us: a transfer or a pipe that we opened
    bulk = False  # what is written on it now lets everything else on the connection go first
    meter: Meter | None = None  # counts what the stream carries, without the headers of Yamux and Noise

    async def read(self, n: int | None = -1) -> bytes:
        data = await super().read(n)
        if self.meter is not None:
            self.meter.add(received=len(data))
        return data

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self.send_closed or self.closed:
                raise MuxedStreamError("stream is closed for sending")
            if self.send_window <= 0:
                await self._wait_for_window()
                continue
            piece = view[: min(self.send_window, self.conn.frame)]  # type: ignore[attr-defined]
            self.send_window -= len(piece)  # nothing else runs between the check and this
            frame = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_DATA, 0, self.stream_id, len(piece)) + piece
            if self.bulk:
                async with self.conn.bulk:  # type: ignore[attr-defined]
                    await _tcp(self.conn).have_room()
                    await self.conn._write_frame(frame)
            else:
                await self.conn._write_frame(frame)
            if self.meter is not None:
                self.meter.add(sent=len(piece))
            view = view[len(piece) :]

    async def _wait_for_window(self) -> None:
        deadline = trio.current_time() + WINDOW_DEADLINE
        while self.send_window <= 0 and not self.closed:
            if trio.current_time() > deadline:
                raise MuxedStreamError(f"the peer read nothing for {WINDOW_DEADLINE:.0f} s")
            await trio.sleep(0.002)

    async def _auto_tune_and_send_window_update(self, *, bytes_read: int = 0) -> None:
        self._pending_recv_release += bytes_read
        grow = WINDOW - self.target_recv_window
        if grow or self._pending_recv_release >= WINDOW // 4:
            credit, self._pending_recv_release = grow + self._pending_recv_release, 0
            self.target_recv_window = WINDOW
            self.recv_window += credit
            await self.send_window_update(credit)


class GuardedYamux(Yamux):
    """Bounds what a peer can make us keep, and dies alone."""

    overflow: Callable[[], None] = staticmethod(lambda: None)  # told when a peer went too far
    is_registered: Callable[[], bool] = staticmethod(lambda: False)  # whether it comes before strangers
    since = 0.0  # when it was made
    bulk: trio.Lock  # of what is written in bulk one frame at a time waits for its turn among all others

    @property
    def frame(self) -> int:
        """Bytes of ours: others wait for it, and its reader has nothing until all of it is there."""
        return min(MOST_FRAME, _tcp(self).backlog.frame)

    @property
    def in_use(self) -> bool:
        """Whether a stream that `hold` was called for is open."""
        return any(stream.held and not stream.closed for stream in self.streams.values())  # type: ignore[attr-defined]

    async def open_stream(self) -> YamuxStream:
        stream = await super().open_stream()
        stream.__class__ = _LeanStream  # before the first read
        return stream

    async def accept_stream(self) -> IMuxedStream:
        stream = await super().accept_stream()
        stream.__class__ = _LeanStream
        return stream

    async def start(self) -> None:
        try:
            await super().start()
        except Exception as error:  # would end the swarm
            log.warning("muxer of %s failed: %r", self.peer_id, error)
            await self._cleanup_on_error()

    async def _write_frame(self, data: bytes) -> None:
        async with self._write_lock:
            await self.secured_conn.write(data)

    async def _read_data_body(self, length: int) -> bytes:
        waiting = sum(len(buffer) for buffer in self.stream_buffers.values())
        limit = BUFFER_LIMIT if waiting + length <= STRANGER_BUFFER or self.is_registered() else STRANGER_BUFFER
        if length > FRAME_LIMIT or waiting + length > limit:
            self.overflow()
            raise _TooMuchBuffered(f"{waiting} bytes unread and {length} more")
        return await super()._read_data_body(length)


class _NoAutoConnector(AutoConnector):
    """The library dials whomever it heard of until it has half of max_connections; p2p.discovery decides here."""

    async def maybe_connect(self) -> None:
        pass


class GuardedSwarm(Swarm):
    """Noise over metered TCP only. When places are too few, the worst goes; see `p2p.places`.

    `registered(name)`: whether the ledger names a peer id, or an IP address as one of a peer that it names.
    `dropped(reason, name)` is told of each connection that had to go, or was not let in: by its address in the
    handshake, then by its peer id.
    """

    def __init__(self, keys: KeyPair, meter: Meter, registered: Callable[[str], bool], dropped: Reject) -> None:
        self.registered = registered
        self._dropped = dropped
        self._handshakes: dict[MeteredStream, Place] = {}
        self._rate = Buckets(HANDSHAKE_RATE, HANDSHAKE_BURST)
        self._entering: list[GuardedYamux] = []  # past the handshake, and not yet among the connections
        noise = NoiseTransport(keys, noise_privkey=create_noise_key_pair().private_key)
        peer = ID.from_pubkey(keys.public_key)
        store: IPeerStore = PeerStore()
        store.add_key_pair(peer, keys)
        super().__init__(
            peer,
            store,
            TransportUpgrader(
                secure_transports_by_protocol={NOISE_ID: noise},
                muxer_transports_by_protocol={TProtocol(YAMUX_ID): Yamux},
            ),
            transports=[MeteredTCP(meter)],
            retry_config=RetryConfig(max_retries=0),
            connection_config=ConnectionConfig(
                max_connections=_UNLIMITED,
                high_watermark=_UNLIMITED,
                max_connections_per_peer=_UNLIMITED,
                low_watermark=0,
                min_connections=0,
            ),
        )
        self.auto_connector = _NoAutoConnector(self)

    async def add_conn(self, muxed_conn: IMuxedConn, direction: str = "unknown") -> SwarmConn:
        muxed_conn.__class__ = GuardedYamux  # the library makes its own, whatever class it is given
        muxed = cast(GuardedYamux, muxed_conn)
        muxed.since, muxed.bulk = trio.current_time(), trio.Lock()
        muxed.is_registered = partial(self.registered, str(muxed.peer_id))
        self._entering.append(muxed)
        try:
            self._make_room(muxed)
            return await super().add_conn(muxed_conn, direction)
        finally:
            self._entering.remove(muxed)

    def _make_room(self, new: GuardedYamux) -> None:
        """Cut the connections that have to go for a new one. Raises SwarmException if it is itself the worst."""
        there = [cast(GuardedYamux, conn.muxed_conn) for conn in self.get_connections()]
        live = [muxed for muxed in dict.fromkeys([*there, *self._entering]) if not _tcp(muxed).killed]
        while True:
            own = [muxed for muxed in live if muxed.peer_id == new.peer_id]
            if len(own) > CONNECTIONS_PER_PEER:
                group, reason = own, "duplicate"
            elif len(live) > MAX_CONNECTIONS:
                group, reason = live, "connections"
            else:
                return
            gone = group[worst([self._place(muxed) for muxed in group])]
            live.remove(gone)
            _tcp(gone).kill()
            self._dropped(reason, str(gone.peer_id))
            if gone is new:
                raise SwarmException("others need the connections more")

    def _place(self, muxed: GuardedYamux) -> Place:
        # first come among equals: whoever is here longest has not come to push others out
        network = prefix(_tcp(muxed).address)
        return Place(str(muxed.peer_id), network, muxed.is_registered(), muxed.in_use, -muxed.since)

    async def _handle_inbound_connection(self, read_write_closer: ReadWriteCloser, maddr: Multiaddr) -> None:
        # The library's own version keeps a slot and a task per accepted connection until the swarm ends,
        # so it goes deaf after 300 of them.
        raw = RawConnection(read_write_closer, False)
        stream = cast(MeteredStream, read_write_closer)
        if not self._begin_handshake(stream):
            await raw.close()
            return
        try:
            muxed = await self.upgrade_inbound_raw_conn(raw, maddr)
        except Exception as error:
            log.debug("inbound connection failed: %r", error)
            await raw.close()
            return
        finally:
            self._handshakes.pop(stream, None)
        await muxed.event_closed.wait()  # type: ignore[attr-defined]

    def _begin_handshake(self, stream: MeteredStream) -> bool:
        """Whether there is time and a place for it; another may have to go."""
        address = stream.address
        # of those that are alike the oldest goes: a handshake takes a second, unless nothing is said
        place = Place(address, prefix(address), self.registered(address), False, trio.current_time())
        if not place.registered and not is_loopback(address) and not self._rate.take(place.prefix):
            self._dropped("handshakes", address)
            return False
        self._handshakes[stream] = place
        if len(self._handshakes) > PENDING_LIMIT:
            gone = list(self._handshakes)[worst([*self._handshakes.values()])]
            self._dropped("handshakes", self._handshakes.pop(gone).peer)
            gone.kill()
        return not stream.killed


class GuardedHost(BasicHost):
    """A failing handler costs its stream, not the process; strangers reach no protocol but `open_protocols`."""

    def __init__(
        self,
        network: GuardedSwarm,
        admit: Callable[[ID], Awaitable[bool]],
        open_protocols: frozenset[str],
        reject: Reject,
    ) -> None:
        self._admit = admit
        self._open_protocols = open_protocols
        self._reject = reject
        self._registered = network.registered
        self._active: dict[int, int] = {}
        self._dht = ServedStreams(
            DHT_STREAMS, DHT_STREAMS_PER_PEER, network.registered, lambda peer: reject("dht_busy", peer)
        )
        self._announced: list[Multiaddr] = []
        self.meters = defaultdict[str, Meter](Meter)  # by protocol: what its streams carry
        super().__init__(network, disable_identify_address_discovery=True)

    def announce(self, addresses: list[Multiaddr]) -> None:
        """From now on tell others these addresses."""
        self._announced = [address.encapsulate(Multiaddr(f"/p2p/{self.get_id()}")) for address in addresses]

    def get_addrs(self) -> list[Multiaddr]:
        return list(self._announced)  # the library's own makes them anew with every message

    async def new_stream(self, peer_id: ID, protocol_ids: Sequence[TProtocol]) -> INetStream:
        stream = await super().new_stream(peer_id, protocol_ids)
        count_on(stream, self.meters[str(stream.get_protocol())])
        return stream

    def set_stream_handler(self, protocol_id: TProtocol, stream_handler: StreamHandlerFn) -> None:
        meter = self.meters[protocol_id]

        async def handle(stream: INetStream) -> None:
            count_on(stream, meter)
            if protocol_id in self._open_protocols:
                await stream_handler(stream)
            elif await self._admit(stream.muxed_conn.peer_id):
                if protocol_id == KAD_ID:
                    await self._serve_dht(stream, stream_handler)
                else:
                    await stream_handler(stream)

        super().set_stream_handler(protocol_id, handle)

    async def _serve_dht(self, stream: INetStream, handler: StreamHandlerFn) -> None:
        """The library serves 12 streams at once, whoever comes first, and waits for ever on each."""
        with self._dht.admit(str(stream.muxed_conn.peer_id), address_of(stream)) as served:
            if served is not None:
                served.busy = False
                with trio.move_on_after(DHT_DEADLINE):
                    await handler(stream)

    async def _swarm_stream_handler(self, net_stream: INetStream) -> None:
        peer = str(net_stream.muxed_conn.peer_id)
        key = id(net_stream.muxed_conn)
        self._active[key] = self._active.get(key, 0) + 1
        try:
            if self._active[key] > (STREAM_LIMIT if self._registered(peer) else STRANGER_STREAMS):
                self._reject("streams", peer)
            else:
                await super()._swarm_stream_handler(net_stream)
        except StreamBroken as error:
            log.debug("stream of %s ended: %s", peer, error)
        except Exception as error:
            log.warning("stream handler for %s failed: %r", peer, error)
            self._reject("handler", peer)
        finally:
            self._active[key] -= 1
            if not self._active[key]:
                del self._active[key]
            if not net_stream.is_closed:  # type: ignore[attr-defined]
                await let_go(net_stream)
