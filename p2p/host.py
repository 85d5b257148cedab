"""The node's place in the network: connections to peers of the same run, which last until a peer is silent."""

import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
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
from dlx.p2p.addresses import AddressError, check_free, expand, ip_addresses, parse_address, parse_peer_id, usable
from dlx.p2p.bandwidth import Limit
from dlx.p2p.discovery import Dialer, Discovery
from dlx.p2p.guarded_host import GuardedHost, GuardedSwarm, Reject
from dlx.p2p.layout import check_layout
from dlx.p2p.muxer import count_on, hard_close, hold, stream_of
from dlx.p2p.peerstore import PeerStore
from dlx.p2p.ping import PING, answer_pings, until_silent
from dlx.p2p.streams import StreamBroken, let_go, read_short, write_short

HELLO = TProtocol("/dlx/hello/2")
MESSAGES, VERDICTS = "/dlx/records/1", "/dlx/verdicts/1"
GOSSIP = (PROTOCOL_ID_V11, MESSAGES, VERDICTS)  # what carries what members say
OPEN_PROTOCOLS = frozenset({HELLO, "/ipfs/id/1.0.0", "/ipfs/id/push/1.0.0"})  # before the hello is agreed

HELLO_DEADLINE = 10.0  # s from the connection to an agreed hello
SAVE_INTERVAL, SAVE_PAUSE = 300.0, 5.0  # s between two savings of the peers, at most and at least
CROWDED = 60.0  # s before a peer is dialled again whose connection had to go
BAN = 60.0  # s that a peer that misbehaved stays out

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
    bytes_sent: int  # on the connections open now
    bytes_received: int


@dataclass
class _Peer:
    id: ID
    since: float = field(default_factory=time.time)
    settled: trio.Event = field(default_factory=trio.Event)  # hello agreed or refused
    gone: trio.CancelScope = field(default_factory=trio.CancelScope)  # cancels its tasks
    hello: wire.Hello | None = None
    rtt: float | None = None


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
        self._hello = hello
        self._on_reject = on_reject
        self._meter = Meter()
        self._meters = {kind: Meter() for kind in ("payload", "pipe", "blobs")}
        self._member_hosts: frozenset[str] = frozenset()  # IP addresses that the ledger has of them
        self._network = GuardedSwarm(
            create_new_key_pair(secret),
            self._meter,
            self.is_registered,
            self._dropped,
            Limit(up_limit),
            Limit(down_limit),
        )
        self._network.register_notifee(_Notifee(self._connected, self._disconnected))
        self.libp2p = GuardedHost(self._network, self._admit, OPEN_PROTOCOLS, self.reject)
        self.peer_id = str(self.libp2p.get_id())
        self.members: frozenset[str] = frozenset()  # peer ids that the ledger names, ours too; see `meet`
        self._wanted: set[str] = set()  # peers to keep connected, whatever the ledger says
        self._peers: dict[ID, _Peer] = {}
        self._banned: dict[ID, float] = {}
        self._services: list[Service] = []
        self._dialer = Dialer(self._network, self.peer_id, self._await_agreement)
        self._discovery = Discovery(self.libp2p, hello.run, self._dialer.found)
        self.libp2p.set_stream_handler(HELLO, self._answer_hello)
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
        for address in self._listen:
            check_free(address)
        async with self.libp2p.run(self._listen), trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                bound = self.libp2p.get_transport_addrs()
                if len(self._network.listeners) < len(set(map(str, self._listen))):
                    raise AddressError(f"cannot listen on all of {', '.join(map(str, self._listen))}: see --listen")
                self.libp2p.announce(self._announce or [address for each in bound for address in expand(each)])
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
    def bytes_sent(self) -> int:
        """Of all connections so far, as TCP sees them (below Noise)."""
        return self._meter.sent

    @property
    def bytes_received(self) -> int:
        return self._meter.received

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Bytes (sent, received) so far as payload, pipe, blobs, gossip and signalling; together they are `bytes_sent`
        and `bytes_received`.

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
        for peer, addresses in members.items():
            self._know(peer, addresses)

    def is_registered(self, name: str) -> bool:
        """Whether the ledger names a peer id, or an IP address as one of a peer that it names.

        Before anything is known of the ledger, whom it named when the node last ran.
        """
        return name in self.members or name in self._member_hosts or name in self._met_before

    def known(self, peer_id: str, addresses: Sequence[str]) -> None:
        """A peer to keep connected. Addresses that cannot be used are left out.

        Raises AddressError when `peer_id` is none.
        """
        self._wanted.add(peer_id)
        self._know(peer_id, addresses)

    def peers(self) -> tuple[PeerStatus, ...]:
        return tuple(self._status(peer) for peer in self._peers.values() if self._network.get_connections(peer.id))

    def agreed(self) -> tuple[str, ...]:
        """Peer ids of those that are connected and said the same hello."""
        live = self._network.connections
        return tuple(str(peer.id) for peer in self._peers.values() if peer.hello is not None and peer.id in live)

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
        peer = parse_peer_id(peer_id)
        self.reject(reason, peer_id)
        self._banned = {id_: until for id_, until in self._banned.items() if until > time.monotonic()}
        self._banned[peer] = time.monotonic() + BAN
        self._dialer.refused(peer, BAN)
        self._forget(peer)  # at once: it may be back before the old connection is cleared away
        hard_close(self._network, peer)

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

    def _dropped(self, reason: str, name: str) -> None:
        self.reject(reason, name)
        if reason == "connections":
            self._dialer.refused(parse_peer_id(name), CROWDED)

    def _status(self, peer: _Peer) -> PeerStatus:
        conns = self._network.get_connections(peer.id)
        streams = [stream_of(conn) for conn in conns]
        return PeerStatus(
            str(peer.id),
            tuple(str(address) for conn in conns for address in conn.get_transport_addresses()),
            peer.since,
            None if peer.rtt is None else peer.rtt * 1e3,
            peer.hello is not None,
            peer.hello.software if peer.hello else None,
            self._hello.common_version(peer.hello) if peer.hello else None,
            tuple(sorted({*self._hello.features} & {*peer.hello.features})) if peer.hello else (),
            sum(stream.sent for stream in streams),
            sum(stream.received for stream in streams),
        )

    async def _connected(self, conn: Any) -> None:
        peer = self._peers.setdefault(conn.muxed_conn.peer_id, _Peer(conn.muxed_conn.peer_id))
        conn.muxed_conn.overflow = lambda: self.reject("buffer", str(peer.id))
        self._nursery.start_soon(self._greet, peer, conn)

    async def _disconnected(self, conn: Any) -> None:
        peer = conn.muxed_conn.peer_id
        if not self._network.get_connections(peer):
            self._forget(peer)
            self._dialer.lost(peer)

    def _forget(self, peer: ID) -> None:
        gone = self._peers.pop(peer, None)
        if gone is not None:
            gone.hello = None
            gone.settled.set()
            gone.gone.cancel()

    async def _greet(self, peer: _Peer, conn: Any) -> None:
        """The dialler speaks first; whoever has not agreed in time is cut off."""
        tcp = stream_of(conn)  # here a changed layout ends the host
        with trio.move_on_after(HELLO_DEADLINE):
            if conn.direction == Direction.OUTBOUND:  # even if agreed before: the other side may have forgotten
                try:
                    stream = await self.libp2p.new_stream(peer.id, [HELLO])
                    try:
                        await write_short(stream, wire.encode(self._hello))
                        self._settle(peer, await read_short(stream, 1024))
                    finally:
                        await let_go(stream)
                except Exception as error:
                    log.debug("hello to %s failed: %r", peer.id, error)
            await peer.settled.wait()
        if peer.hello is not None:
            tcp.allowance = math.inf
        elif self._peers.get(peer.id) is peer:
            if not peer.settled.is_set():
                self.reject("no_hello", str(peer.id))
            hard_close(self._network, peer.id)

    async def _answer_hello(self, stream: INetStream) -> None:
        peer = self._peers.setdefault(stream.muxed_conn.peer_id, _Peer(stream.muxed_conn.peer_id))
        if self._is_banned(peer.id):
            self.reject("banned", str(peer.id))
            hard_close(self._network, peer.id)
            return
        with trio.fail_after(HELLO_DEADLINE):
            theirs = await read_short(stream, 1024)
            await write_short(stream, wire.encode(self._hello))  # first, so that both sides know why they part
            await stream.close()
            self._settle(peer, theirs)

    def _settle(self, peer: _Peer, data: bytes) -> None:
        if peer.settled.is_set():
            return
        try:
            hello = wire.decode_as(wire.Hello, data)
            reason = self._disagreement(hello)
        except wire.WireError:
            reason = "hello_malformed"
        if self._is_banned(peer.id):
            reason = "banned"
        if reason is not None:
            self.reject(reason, str(peer.id))
            self._dialer.refused(peer.id)
            if reason == "hello_versions":  # somebody has to upgrade
                ours, theirs = ("{} to {}".format(*each.versions) for each in (self._hello, hello))
                log.warning("%s speaks protocol versions %s, this node %s: no peer of ours", peer.id, theirs, ours)
        else:
            peer.hello = hello
            self._discovery.nudge()
            self._met.set()
            self._nursery.start_soon(self._until_silent, peer)
        peer.settled.set()

    def _is_banned(self, peer: ID) -> bool:
        return self._banned.get(peer, 0.0) > time.monotonic()

    def _disagreement(self, hello: wire.Hello) -> str | None:
        for name in ("chain_id", "ledger", "run"):
            if getattr(hello, name) != getattr(self._hello, name):
                return f"hello_{name}"
        return None if self._hello.common_version(hello) else "hello_versions"

    async def _admit(self, peer: ID) -> bool:
        """Wait until a peer's hello is settled; streams of the refused are reset."""
        entry = self._peers.setdefault(peer, _Peer(peer))
        with trio.move_on_after(HELLO_DEADLINE):
            await entry.settled.wait()
        if entry.hello is None and not self._network.get_connections(peer):  # it went meanwhile
            self._forget(peer)
        return entry.hello is not None

    async def _await_agreement(self, peer: ID) -> bool:
        return bool(self._network.get_connections(peer)) and await self._admit(peer)

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

    # -- ping

    async def _until_silent(self, peer: _Peer) -> None:
        """For as long as the peer is connected."""

        def answered(seconds: float) -> None:
            peer.rtt = seconds

        def received() -> int:
            return sum(stream_of(conn).received for conn in self._network.get_connections(peer.id))

        with peer.gone:
            await until_silent(partial(self.libp2p.new_stream, peer.id, [PING]), received, answered)
            self.reject("silent", str(peer.id))
            hard_close(self._network, peer.id)


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
