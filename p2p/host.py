"""The node's place in the network: connections to peers of the same run, which last until a peer is silent."""

import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio
from libp2p.abc import INetStream, INotifee
from libp2p.crypto.secp256k1 import create_new_key_pair
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStoreError
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11
from libp2p.rcmgr import Direction
from multiaddr import Multiaddr

from dlx.ground.meter import Meter
from dlx.p2p import wire
from dlx.p2p.addresses import (
    CIRCUIT,
    AddressError,
    expand,
    ip_addresses,
    is_own,
    is_public,
    listenable,
    parse_address,
    parse_peer_id,
    relay_of,
    source,
    usable,
)
from dlx.p2p.bandwidth import Limit
from dlx.p2p.calls import Calls
from dlx.p2p.discovery import Dialer, Discovery
from dlx.p2p.guarded_host import GuardedHost, GuardedSwarm, Reject
from dlx.p2p.hello import HELLO, Hellos, Peer, Told
from dlx.p2p.layout import check_layout
from dlx.p2p.muxer import count_on, hard_close, hold, stream_of
from dlx.p2p.peerstore import PeerStore
from dlx.p2p.ping import PING, answer_pings
from dlx.p2p.streams import StreamBroken
from dlx.p2p.transport import MeteredStream

MESSAGES, VERDICTS = "/dlx/records/1", "/dlx/verdicts/1"
GOSSIP = (PROTOCOL_ID_V11, MESSAGES, VERDICTS)  # what carries what members say
OPEN_PROTOCOLS = frozenset({HELLO, "/ipfs/id/1.0.0", "/ipfs/id/push/1.0.0"})  # before the hello is agreed

SAVE_INTERVAL, SAVE_PAUSE = 300.0, 5.0  # s between two savings of the peers, at most and at least
CROWDED = 60.0  # s before a peer is dialled again whose connection had to go
ORIGINS = 4  # of a member's connections that are remembered

log = logging.getLogger(__name__)
Service = Callable[..., Awaitable[None]]  # async, takes task_status, runs until cancelled


@dataclass(frozen=True, slots=True)
class PeerStatus:
    peer_id: str
    addresses: tuple[str, ...]
    connected_since: float  # unix time
    rtt_ms: float | None
    agreed: bool
    version: str | None  # of its software
    protocol: int | None  # the version agreed on
    features: tuple[str, ...]  # that both name
    relay: str | None  # peer id of who carries the connection
    is_met_half_way: bool  # or was tried so: our router lets it in, whether or not others can reach us
    bytes_sent: int  # on the connections open now
    bytes_received: int


class Host:
    """One libp2p identity. Make the services (Gossip, BlobExchange, PipeService), then `async with host.run()`.

    `secret`: 32 bytes, secp256k1. `listen`, `announce`, `bootstrap`: multiaddrs; bootstrap ones end in /p2p/<peer id>.
    `peer_store`: file of the peers that agreed before; they are dialled as well.
    `on_reject(reason, peer id)` is told of everything refused; reasons are short metric labels.
    `up_limit`, `down_limit`: bytes/s beyond this machine's own networks, 0 for any number.
    Raises AddressError for addresses that cannot be used.
    """

    def __init__(
        self,
        secret: bytes,
        listen: Sequence[str],
        announce: Sequence[str],
        hello: wire.Hello,
        bootstrap: Sequence[str] = (),
        on_reject: Reject = lambda reason, peer: None,
        peer_store: Path | None = None,
        up_limit: float = 0,
        down_limit: float = 0,
    ) -> None:
        self._listen = [parse_address(text)[0] for text in listen]
        self._announce = [parse_address(text)[0] for text in announce]
        self.bound: tuple[Multiaddr, ...] = ()  # where it listens, wildcards as they are
        self.hello = hello  # what it says first, to everybody
        self._on_reject = on_reject
        self._meter = Meter()
        self._meters = {kind: Meter() for kind in ("payload", "pipe", "blobs", "relayed")}
        self.relayed = self._meters["relayed"]  # what others' connections brought that this node carries
        self._member_hosts: frozenset[str] = frozenset()  # IP addresses that the ledger has of them
        self._came_from: dict[str, str] = {}  # IP address -> who of them agreed from there, the latest last
        self._network = GuardedSwarm(
            create_new_key_pair(secret),
            self._meter,
            self.is_registered,
            self._dropped,
            Limit(up_limit),
            Limit(down_limit),
        )
        self._network.register_notifee(_Notifee(self._connected, self._disconnected))
        self.peer_id = str(self._network.get_peer_id())
        self.members: frozenset[str] = frozenset()  # peer ids that the ledger names, ours too; see `meet`
        self._wanted: set[str] = set()  # peers to keep connected, whatever the ledger says
        self._services: list[Service] = []
        self._dialer = Dialer(
            self._network,
            self.peer_id,
            self._await_agreement,
            lambda address: is_own(address, self.bound),
            lambda relay, peer: self._network.tcp.calls.missed(str(relay), str(peer)),
        )
        told = Told(self._agreed, self._remember_origin, self._dialer.refused, self._silent, self.reject)
        self._hellos = Hellos(self._network, hello, told, lambda *task: self._nursery.start_soon(*task))
        self.libp2p = GuardedHost(self._network, self._hellos.admit, OPEN_PROTOCOLS, self.reject)
        self._hellos.serve(self.libp2p)
        self._discovery = Discovery(self.libp2p, hello.run, self._dialer.found)
        self.serve(PING, answer_pings)
        for text in bootstrap:
            address, peer = parse_address(text)
            if peer is None:
                raise AddressError(f"bootstrap address {text!r} must end in /p2p/<peer id>")
            self._wanted.add(str(peer))
            self._dialer.known(peer, [address], patient=False)
        self._met_before: frozenset[str] = frozenset()  # whom the ledger named
        self._store = PeerStore(peer_store) if peer_store is not None else None
        self._met = trio.Event()  # somebody who agreed is to be saved
        if self._store is not None:
            self._met_before = self._store.named()
            for peer, addresses in self._store.peers():
                self._dialer.met(peer, addresses)
            self.add_service(self._remember)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Listen, connect, serve; ends cleanly when cancelled. Raises GuardError, AddressError."""
        check_layout()
        listen = listenable(self._listen)
        async with self.libp2p.run(listen), trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                self.bound = tuple(self.libp2p.get_transport_addrs())
                if len(self._network.listeners) < len(set(map(str, listen))):
                    raise AddressError(f"cannot listen on all of {', '.join(map(str, listen))}: see --listen")
                self.announce(self.announced or self.listening())
                for service in (*self._services, self._dialer.run, self._discovery.run):
                    await nursery.start(service)
                yield
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 3):
                    await self._save_peers()
                    for listener in list(self._network.listeners.values()):
                        await listener.close()  # cancelling the library leaves them open
                # polite closing waits for peers that may no longer read
                for peer in list(self._network.connections):
                    hard_close(self._network, peer)
                nursery.cancel_scope.cancel()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where others can dial this host, with /p2p/; known once it runs."""
        return tuple(str(address) for address in self.libp2p.get_addrs())

    @property
    def announced(self) -> tuple[str, ...]:
        """What the operator says that others should dial."""
        return tuple(map(str, self._announce))

    def listening(self) -> tuple[str, ...]:
        """Multiaddrs of this machine, as it is now, at which this host listens: the most useful first."""
        return tuple(map(str, expand(self.bound)))

    def announce(self, addresses: Sequence[str]) -> None:
        """From now on tell others these multiaddrs. Raises AddressError."""
        self.libp2p.announce([parse_address(text)[0] for text in addresses])

    def unreached(self, peer_id: str) -> str | None:
        """Why a peer that is not connected cannot be dialled, in words; None where that is not known, or it can."""
        return self._dialer.unreached(parse_peer_id(peer_id))

    @property
    def bytes_sent(self) -> int:
        """Of all connections so far, as TCP sees them (below Noise)."""
        return self._meter.sent

    @property
    def bytes_received(self) -> int:
        return self._meter.received

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Bytes (sent, received) so far as payload, pipe, blobs, relayed, gossip and signalling; together they are
        `bytes_sent` and `bytes_received`.

        What streams of the other kinds carry is theirs, gossip with the messages and verdicts that are asked for; all
        else is signalling: hello, identify, DHT, ping, handshakes, and the headers of Yamux and Noise.
        """
        found = {kind: (meter.sent, meter.received) for kind, meter in self._meters.items()}
        said = [self.libp2p.meters[name] for name in GOSSIP]
        found["gossip"] = sum(one.sent for one in said), sum(one.received for one in said)
        sent, received = map(sum, zip(*found.values(), strict=True))
        return found | {"signalling": (self._meter.sent - sent, self._meter.received - received)}

    def protocols(self) -> dict[str, tuple[int, int]]:
        """Bytes (sent, received) so far of the streams of each protocol, but those that `count_as` counts."""
        return {name: (meter.sent, meter.received) for name, meter in sorted(self.libp2p.meters.items())}

    def count_as(self, kind: str, stream: INetStream) -> None:
        """From now on the stream's bytes are counted as `kind`: payload, pipe or blobs."""
        count_on(stream, self._meters[kind])

    def meet(self, members: Mapping[str, Sequence[str]]) -> None:
        """All whom the ledger names now, and their addresses: they are kept connected, and come before strangers.

        Addresses that cannot be used are left out. Raises AddressError when a peer id is none.
        """
        for peer in self.members - members.keys() - self._wanted:
            self._dialer.unnamed(parse_peer_id(peer))
        self.members, self._met_before = frozenset(members), frozenset()
        self._member_hosts = frozenset(ip for texts in members.values() for ip in ip_addresses(texts))
        self._came_from = {ip: peer for ip, peer in self._came_from.items() if peer in members}
        for known in self._hellos.peers.values():
            for conn in self._network.get_connections(known.id) if known.hello is not None else ():
                self._remember_origin(known, stream_of(conn))
        for peer, addresses in members.items():
            self._know(peer, addresses)

    def is_registered(self, name: str) -> bool:
        """Whether the ledger names a peer id, or an IP address as one of a peer that it names, or such a peer agreed
        from there lately.

        Before anything is known of the ledger, whom it named when the node last ran.
        """
        named = name in self.members or name in self._member_hosts or name in self._met_before
        return named or name in self._came_from

    def known(self, peer_id: str, addresses: Sequence[str]) -> None:
        """A peer to keep connected. Addresses that cannot be used are left out.

        Raises AddressError when `peer_id` is none.
        """
        self._wanted.add(peer_id)
        self._know(peer_id, addresses)

    def peers(self) -> tuple[PeerStatus, ...]:
        known = self._hellos.peers.values()
        return tuple(self._status(peer) for peer in known if self._network.get_connections(peer.id))

    def agreed(self) -> tuple[str, ...]:
        """Peer ids of those that are connected and said the same hello."""
        live = self._network.connections
        known = self._hellos.peers.values()
        return tuple(str(peer.id) for peer in known if peer.hello is not None and peer.id in live)

    def is_agreed(self, peer_id: str) -> bool:
        return peer_id in self.agreed()

    async def connect(self, peer_id: str, deadline_s: float = 10.0) -> None:
        """Make sure that a known peer is connected and agreed. Raises StreamBroken."""
        with trio.move_on_after(deadline_s):
            if await self._dialer.dial(parse_peer_id(peer_id)):
                return
            raise StreamBroken(f"{peer_id} cannot be reached at any address we know")
        raise StreamBroken(f"no connection to {peer_id} within {deadline_s:.0f} s")

    async def disconnect(self, peer_id: str) -> None:
        """Cut the connection; the maintenance loop may make a new one."""
        peer = parse_peer_id(peer_id)
        hard_close(self._network, peer)
        with trio.move_on_after(2):
            while self._network.get_connections(peer):
                await trio.sleep(0.02)

    def ban(self, peer_id: str, reason: str) -> None:
        """Disconnect a peer that misbehaved and keep it out for BAN seconds; counts `reason`."""
        self.reject(reason, peer_id)
        self._hellos.ban(parse_peer_id(peer_id))

    def reject(self, reason: str, peer_id: str) -> None:
        """Count something refused."""
        log.debug("refused %s of %s", reason, peer_id)
        self._on_reject(reason, peer_id)

    def serve(self, protocol: str, handler: Callable[[INetStream, str], Awaitable[None]]) -> None:
        """`handler(stream, peer id)` for every stream of an agreed peer; what it leaves open is reset."""

        async def handle(stream: INetStream) -> None:
            await handler(stream, str(stream.muxed_conn.peer_id))

        self.libp2p.set_stream_handler(TProtocol(protocol), handle)

    def add_service(self, service: Service) -> None:
        """`service(task_status=...)` starts with the host and is cancelled with it."""
        self._services.append(service)

    def carry_with(self, carry: Callable[[MeteredStream, bytes], Awaitable[None]]) -> None:
        """Accepted connections that begin with a token are `carry`'s, for as long as it runs."""
        self._network.carry = carry

    def call_with(self, calls: Calls) -> None:
        """From now on peers are dialled through relays by `calls`, which hears what comes of it."""
        self._network.tcp.calls = calls

    async def dial_relay(self, relay: str, ip: str, port: int, token: bytes, caller: str) -> MeteredStream:
        """This end of a call through a relay. `caller`: the IP address of the other end, as the relay tells.
        Raises OSError, trio.BrokenResourceError."""
        return await self._network.tcp.dial_relay(ip, port, token, relay, caller)

    async def accept(self, stream: MeteredStream) -> None:
        """As if somebody had connected to this host by it, for as long as it lasts."""
        try:
            await self._network._handle_inbound_connection(stream, Multiaddr("/ip4/0.0.0.0/tcp/0"))
        finally:
            await trio.aclose_forcefully(stream.stream)

    def connections(self, peer_id: str) -> list[MeteredStream]:
        """The TCP streams of all connections to a peer, whether or not it agreed."""
        return [stream_of(conn) for conn in self._network.get_connections(parse_peer_id(peer_id))]

    def mark_half_way(self, peer_id: str) -> bool:
        """From now on a peer counts as met half way, for as long as it is connected. False where it is not."""
        known = self._hellos.peers.get(parse_peer_id(peer_id))
        if known is not None:
            known.is_met_half_way = True
        return known is not None

    async def dial(
        self,
        peer_id: str,
        address: str,
        deadline_s: float,
        source: tuple[str, int] | None = None,
        begins: bool = True,
    ) -> MeteredStream:
        """Open one more connection to a peer, at a multiaddr without its id. `source`: the IP address and port to open
        it from. Where the peer opens it at the same moment, one of the two `begins`. Raises StreamBroken."""
        peer = parse_peer_id(peer_id)
        dial = self._network.dial_addr if begins else self._network.dial_addr_as_responder
        try:
            with trio.fail_after(deadline_s):
                return stream_of(await dial(Multiaddr(f"{address}/p2p/{peer}"), peer, source))
        except Exception as error:  # the library's exceptions have no common base
            raise StreamBroken(f"{peer} is not at {address}: {error!r}") from error

    def dialled(self) -> dict[str, tuple[str, int]]:
        """Of members that agreed: who was reached by a connection that this host opened, without a relay, and that did
        not meet it half way; at which IP address and port."""
        found = {}
        for peer in self.members.intersection(self.agreed()):
            id_ = parse_peer_id(peer)
            for conn in () if self._hellos.peers[id_].is_met_half_way else self._network.get_connections(id_):
                stream = stream_of(conn)
                is_ours = getattr(conn, "direction", None) == Direction.OUTBOUND
                if is_ours and stream.relay is None:
                    with suppress(OSError):
                        found[peer] = stream.stream.socket.getpeername()[:2]
        return found

    async def reach(self, peer_id: str, deadline_s: float) -> bool:
        """Open a connection of our own to a peer that opened one to us, at a public address of its. Whether it did; not
        to one that was met half way, whose router may let in us alone."""
        known = self._hellos.peers.get(parse_peer_id(peer_id))
        if known is None or known.is_met_half_way:
            return False
        for family in ("ip4", "ip6"):
            address = self.public_at(peer_id, family) if source(family) else None
            if address is None:
                continue
            try:
                await self.dial(peer_id, address, deadline_s)
                return True
            except StreamBroken as error:
                log.debug("not reached: %s", error)
        return False

    def public_at(self, peer_id: str, family: str) -> str | None:
        """A multiaddr (`family`: ip4 or ip6) at which a known peer can be dialled from anywhere, without a relay; None
        where none is known."""
        addresses, _ = self._dialer.entry(parse_peer_id(peer_id))
        found = (one for one in addresses if one.protocols()[0].name == family and is_public(one))
        return next((str(one) for one in found if relay_of(one) is None), None)

    def rtt(self, peer_id: str) -> float:
        """Seconds, of the last ping; infinite where there was none."""
        peer = self._hellos.peers.get(parse_peer_id(peer_id))
        return math.inf if peer is None or peer.rtt is None else peer.rtt

    async def open_stream(self, peer_id: str, protocol: str, deadline_s: float) -> INetStream:
        """A stream to an agreed peer, connecting first if need be; the caller closes it. Raises StreamBroken."""
        started = trio.current_time()
        try:
            if not self.is_agreed(peer_id):
                await self.connect(peer_id, deadline_s)
            with trio.fail_after(max(0.0, started + deadline_s - trio.current_time())):
                stream = await self.libp2p.new_stream(parse_peer_id(peer_id), [TProtocol(protocol)])
                hold(stream)
                return stream
        except StreamBroken:
            raise
        except Exception as error:  # the library's exceptions have no common base
            raise StreamBroken(f"no {protocol} stream to {peer_id}: {error!r}") from error

    # -- connections

    def _know(self, peer_id: str, addresses: Sequence[str]) -> None:
        peer = parse_peer_id(peer_id)
        if peer != self.libp2p.get_id():
            self._dialer.known(peer, usable(addresses, peer))

    def _remember_origin(self, peer: Peer, tcp: MeteredStream) -> None:
        """Where a member's next connection may come from; it may have others there than the ledger has."""
        name = str(peer.id)
        if self.is_registered(name) and tcp.relay is None:
            self._came_from.pop(tcp.address, None)
            self._came_from[tcp.address] = name
            own = [ip for ip, other in self._came_from.items() if other == name]
            for ip in own[:-ORIGINS]:
                del self._came_from[ip]

    def _dropped(self, reason: str, name: str) -> None:
        self.reject(reason, name)
        if reason == "connections":
            self._dialer.refused(parse_peer_id(name), CROWDED)

    def _status(self, peer: Peer) -> PeerStatus:
        conns = self._network.get_connections(peer.id)
        streams = [stream_of(conn) for conn in conns]
        return PeerStatus(
            str(peer.id),
            tuple(text for conn in conns for text in _addresses(conn)),
            peer.since,
            None if peer.rtt is None else peer.rtt * 1e3,
            peer.hello is not None,
            peer.hello.software if peer.hello else None,
            self.hello.common_version(peer.hello) if peer.hello else None,
            tuple(sorted({*self.hello.features} & {*peer.hello.features})) if peer.hello else (),
            next((stream.relay for stream in streams if stream.relay), None),
            peer.is_met_half_way,
            sum(stream.sent for stream in streams),
            sum(stream.received for stream in streams),
        )

    async def _connected(self, conn: Any) -> None:
        peer = self._hellos.connected(conn)
        conn.muxed_conn.overflow = lambda: self.reject("buffer", str(peer.id))

    async def _disconnected(self, conn: Any) -> None:
        peer = conn.muxed_conn.peer_id
        if not self._network.get_connections(peer):
            self._hellos.forget(peer)
            self._dialer.lost(peer)
            if (tcp := stream_of(conn)).relay is not None and not tcp.killed:
                self._network.tcp.calls.broken(tcp.relay, str(peer))

    def _agreed(self, peer: Peer) -> None:
        self._discovery.nudge()
        self._met.set()
        self._network.tcp.calls.agreed(str(peer.id))

    def _silent(self, peer: ID) -> None:
        self._network.tcp.calls.silent(str(peer))

    async def _await_agreement(self, peer: ID) -> bool:
        return bool(self._network.get_connections(peer)) and await self._hellos.admit(peer)

    # -- peer store

    async def _remember(self, task_status: Any) -> None:
        task_status.started()
        while True:
            with trio.move_on_after(SAVE_INTERVAL):
                await self._met.wait()
            self._met = trio.Event()
            await self._save_peers()
            await trio.sleep(SAVE_PAUSE)  # several may come at once

    async def _save_peers(self) -> None:
        if self._store is None:
            return
        for peer in map(parse_peer_id, self.agreed()):
            addresses, named = self._dialer.entry(peer)
            addresses += [address for address in self._announced_by(peer) if address not in addresses]
            if addresses:
                self._store.agreed(peer, addresses, named, time.time())
        try:
            await trio.to_thread.run_sync(self._store.save)
        except OSError as error:
            log.warning("the known peers could not be saved: %s", error)

    def _announced_by(self, peer: ID) -> list[Multiaddr]:
        """What a peer says its addresses are; of one who dialled us we may know no other."""
        try:
            return usable(map(str, self.libp2p.get_peerstore().addrs(peer)), peer)
        except PeerStoreError:
            return []


def _addresses(conn: Any) -> list[str]:
    relay = stream_of(conn).relay
    found = [str(address) for address in conn.get_transport_addresses()]
    return found if relay is None else [f"/p2p/{relay}/{CIRCUIT}"]


class _Notifee(INotifee):
    def __init__(self, connected: Callable[[Any], Awaitable[None]], lost: Callable[[Any], Awaitable[None]]) -> None:
        self._connected, self._lost = connected, lost

    async def connected(self, network: Any, conn: Any) -> None:
        await self._connected(conn)

    async def disconnected(self, network: Any, conn: Any) -> None:
        await self._lost(conn)

    async def opened_stream(self, network: Any, stream: Any) -> None: ...

    async def closed_stream(self, network: Any, stream: Any) -> None: ...

    async def listen(self, network: Any, multiaddr: Any) -> None: ...

    async def listen_close(self, network: Any, multiaddr: Any) -> None: ...
