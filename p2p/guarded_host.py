"""What keeps one bad peer from ending the process: py-libp2p 0.8.1 with its holes covered.

Subclasses where the library allows it; the private fields that they rely on are checked by `p2p.layout`.
"""

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import trio
from libp2p.abc import IMuxedConn, INetStream, IPeerStore
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import StreamHandlerFn, TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.io.abc import ReadWriteCloser
from libp2p.kad_dht.common import PROTOCOL_ID as KAD_ID
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.exceptions import SwarmException
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_ID
from libp2p.transport.upgrader import TransportUpgrader
from multiaddr import Multiaddr

from dlx.ground.meter import Meter
from dlx.p2p.admission import Place, worst
from dlx.p2p.bandwidth import Limit
from dlx.p2p.handshakes import Handshakes
from dlx.p2p.muxer import GuardedMuxers, GuardedYamux, count_on, networks_of, tcp_of
from dlx.p2p.negotiation import bound_names
from dlx.p2p.noise import LeanNoise
from dlx.p2p.stream_admission import ServedStreams
from dlx.p2p.streams import StreamBroken, let_go
from dlx.p2p.transport import MeteredStream, MeteredTCP

STREAM_LIMIT, STRANGER_STREAMS = 256, 64  # streams a peer may have open on one connection
MAX_CONNECTIONS = 256
CONNECTIONS_PER_PEER = 3  # two where both dial at once, and one that the other side lost
TOKEN_DEADLINE = 10.0  # s for an accepted connection's first bytes
_UNLIMITED = 1 << 20  # the library would refuse whoever comes last
DHT_STREAMS, DHT_STREAMS_PER_PEER = 10, 4  # served at once; below the library's 12, as who has to go goes slowly
DHT_DEADLINE = 30.0  # s for what is asked on one

log = logging.getLogger(__name__)
# the library reports every failed dial as an error; LIBP2P_DEBUG brings its log back
logging.getLogger("libp2p").addHandler(logging.NullHandler())
Reject = Callable[[str, str], None]  # (reason, peer id)


class _NoAutoConnector(AutoConnector):
    """The library dials whomever it heard of until it has half of max_connections; p2p.discovery decides here."""

    async def maybe_connect(self) -> None:
        pass


class GuardedSwarm(Swarm):
    """Noise over metered TCP only. When places are too few, the worst goes; see `p2p.admission`.

    `registered(name)`: whether the ledger names a peer id, or an IP address as one of a peer that it names.
    `dropped(reason, name)` is told of each connection that had to go, or was not let in: by its address in the
    handshake, then by its peer id.
    """

    def __init__(
        self,
        keys: KeyPair,
        meter: Meter,
        registered: Callable[[str], bool],
        dropped: Reject,
        up: Limit,
        down: Limit,
    ) -> None:
        self.registered = registered
        self._dropped = dropped
        self._handshakes = Handshakes(registered, dropped)
        self._entering: list[GuardedYamux] = []  # past the handshake, and not yet among the connections
        noise = LeanNoise(keys, noise_privkey=create_noise_key_pair().private_key)
        peer = ID.from_pubkey(keys.public_key)
        store: IPeerStore = PeerStore()
        store.add_key_pair(peer, keys)
        upgrader = TransportUpgrader({NOISE_ID: noise}, {})
        bound_names(upgrader.security_multistream._selector)
        upgrader.muxer_multistream = GuardedMuxers(registered)
        self.tcp = MeteredTCP(meter, up, down)
        self.carry: Callable[[MeteredStream, bytes], Awaitable[None]] = self._carry_nothing
        super().__init__(
            peer,
            store,
            upgrader,
            transports=[self.tcp],
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

    async def _carry_nothing(self, stream: MeteredStream, token: bytes) -> None:
        self._dropped("relay_token", stream.address)

    async def add_conn(self, muxed_conn: IMuxedConn, direction: str = "unknown") -> SwarmConn:
        muxed = cast(GuardedYamux, muxed_conn)
        if tcp_of(muxed).relay is not None and not muxed.is_registered():
            raise SwarmException("relays carry members only")
        self._entering.append(muxed)
        try:
            self._make_room(muxed)
            return await super().add_conn(muxed_conn, direction)
        finally:
            self._entering.remove(muxed)

    def _make_room(self, new: GuardedYamux) -> None:
        """Cut the connections that have to go for a new one. Raises SwarmException if it is itself the worst."""
        there = [cast(GuardedYamux, conn.muxed_conn) for conn in self.get_connections()]
        live = [muxed for muxed in dict.fromkeys([*there, *self._entering]) if not tcp_of(muxed).killed]
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
            tcp_of(gone).kill()
            self._dropped(reason, str(gone.peer_id))
            if gone is new:
                raise SwarmException("others need the connections more")

    def _place(self, muxed: GuardedYamux) -> Place:
        # first come among equals: whoever is here longest has not come to push others out
        return Place(str(muxed.peer_id), tcp_of(muxed).networks, muxed.is_registered(), muxed.in_use, -muxed.since)

    async def _handle_inbound_connection(self, read_write_closer: ReadWriteCloser, maddr: Multiaddr) -> None:
        # The library's own version keeps a slot and a task per accepted connection until the swarm ends,
        # so it goes deaf after 300 of them.
        raw = RawConnection(read_write_closer, False)
        stream = cast(MeteredStream, read_write_closer)
        try:
            if not self._handshakes.admit(stream):
                await raw.close()
                return
            token = await self._token(stream)  # who says nothing, or is to be carried, takes nobody's turn
            if token is None:
                if not await self._handshakes.turn(stream):
                    await raw.close()
                    return
                muxed = await self.upgrade_inbound_raw_conn(raw, maddr)
        except Exception as error:
            log.debug("inbound connection failed: %r", error)
            await raw.close()
            return
        finally:
            self._handshakes.end(stream)
        if token is not None:
            await self.carry(stream, token)
            return
        await muxed.event_closed.wait()  # type: ignore[attr-defined]

    @staticmethod
    async def _token(stream: MeteredStream) -> bytes | None:
        with trio.fail_after(TOKEN_DEADLINE):
            return await stream.token()


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
        bound_names(self)

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
        with self._dht.admit(str(stream.muxed_conn.peer_id), networks_of(stream)) as served:
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
