"""Who connects says a hello (`/dlx/hello/2`): of the same run and ledger, or it is cut off. Then it is a peer, for as
long as something comes of it."""

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.rcmgr import Direction

from dlx.p2p import wire
from dlx.p2p.discovery import REFUSED
from dlx.p2p.guarded_host import GuardedSwarm, Reject
from dlx.p2p.muxer import hard_close, stream_of, tcp_of
from dlx.p2p.ping import HEARD, PING, until_silent
from dlx.p2p.streams import let_go, read_short, write_short
from dlx.p2p.transport import MeteredStream

HELLO = TProtocol("/dlx/hello/2")
HELLO_DEADLINE = 10.0  # s from the connection to an agreed hello
HELLO_LIMIT = 1024  # bytes
BAN = 60.0  # s that a peer that misbehaved stays out
TAKEN = 5.0  # s before a peer is tried again that is connected to another node with our peer id
PARTING = 1.0  # s for who is refused to read why

log = logging.getLogger(__name__)


@dataclass
class Peer:
    """Somebody with a connection, or about to have one."""

    id: ID
    since: float = field(default_factory=time.time)
    settled: trio.Event = field(default_factory=trio.Event)  # hello agreed or refused
    gone: trio.CancelScope = field(default_factory=trio.CancelScope)  # cancels its tasks
    is_met_half_way: bool = False
    hello: wire.Hello | None = None  # once it agreed
    rtt: float | None = None  # s


@dataclass(frozen=True)
class Told:
    """What a host does about peers."""

    agreed: Callable[[Peer], None]
    agreed_by: Callable[[Peer, MeteredStream], None]  # each connection of one that agreed
    refused: Callable[[ID, float], None]  # not to be dialled for so many seconds
    silent: Callable[[ID], None]  # nothing comes of it, and it is about to be cut off
    reject: Reject


class Hellos:
    """Says ours on every connection, and judges theirs. `spawn` starts what lasts as long as the host."""

    def __init__(self, network: GuardedSwarm, ours: wire.Hello, told: Told, spawn: Callable[..., None]) -> None:
        self._ours = ours
        self.peers: dict[ID, Peer] = {}
        self._network, self._told, self._spawn = network, told, spawn
        self._banned: dict[ID, float] = {}

    def serve(self, host: IHost) -> None:
        """Once, before it runs."""
        self._host = host
        host.set_stream_handler(HELLO, self._answer)

    def connected(self, conn: Any) -> Peer:
        """The dialler of a new connection speaks first."""
        peer = self._peer(conn.muxed_conn.peer_id)
        self._spawn(self._greet, peer, conn)
        return peer

    async def admit(self, id_: ID) -> bool:
        """Wait until a peer's hello is settled: whether it agreed."""
        peer = self._peer(id_)
        with trio.move_on_after(HELLO_DEADLINE):
            await peer.settled.wait()
        if peer.hello is None and not self._network.get_connections(id_):  # it went meanwhile
            self.forget(id_)
        return peer.hello is not None

    def ban(self, id_: ID) -> None:
        """Cut a peer off and keep it out for BAN seconds."""
        self._banned = {one: until for one, until in self._banned.items() if until > time.monotonic()}
        self._banned[id_] = time.monotonic() + BAN
        self._told.refused(id_, BAN)
        self.forget(id_)  # at once: it may be back before the old connection is cleared away
        hard_close(self._network, id_)

    def forget(self, id_: ID) -> None:
        """It has no connection any more."""
        gone = self.peers.pop(id_, None)
        if gone is not None:
            gone.hello = None
            gone.settled.set()
            gone.gone.cancel()

    def _peer(self, id_: ID) -> Peer:
        return self.peers.setdefault(id_, Peer(id_))

    async def _greet(self, peer: Peer, conn: Any) -> None:
        """Whoever has not agreed in time is cut off."""
        tcp = stream_of(conn)  # here a changed layout ends the host
        with trio.move_on_after(HELLO_DEADLINE):
            if conn.direction == Direction.OUTBOUND:  # even if agreed before: the other side may have forgotten
                try:
                    stream = await self._host.new_stream(peer.id, [HELLO])
                    try:
                        await write_short(stream, wire.encode(self._ours))
                        self._settle(peer, await read_short(stream, HELLO_LIMIT))
                    finally:
                        await let_go(stream)
                except Exception as error:
                    log.debug("hello to %s failed: %r", peer.id, error)
            await peer.settled.wait()
        if peer.hello is not None:
            tcp.allowance = math.inf
            self._told.agreed_by(peer, tcp)
        elif self.peers.get(peer.id) is peer:
            if not peer.settled.is_set():
                self._told.reject("no_hello", str(peer.id))
                self._told.silent(peer.id)
            hard_close(self._network, peer.id)

    async def _answer(self, stream: INetStream) -> None:
        peer = self._peer(stream.muxed_conn.peer_id)
        if self._is_banned(peer.id):
            self._told.reject("banned", str(peer.id))
            hard_close(self._network, peer.id)
            return
        with trio.fail_after(HELLO_DEADLINE):
            theirs = await read_short(stream, HELLO_LIMIT)
            if self._is_taken(peer, theirs, tcp_of(stream.muxed_conn)):
                self._told.reject("hello_taken", str(peer.id))
                await _refuse(stream)
                return
            await write_short(stream, wire.encode(self._ours))  # first, so that both sides know why they part
            await stream.close()
            self._settle(peer, theirs)

    def _is_taken(self, peer: Peer, data: bytes, tcp: MeteredStream) -> bool:
        """Whether the hello on a new connection is that of another node than the one that is here with its peer id.
        The latter's connections are cut where nothing has come by them lately."""
        try:
            instance = wire.decode_as(wire.Hello, data).instance
        except wire.WireError:
            return False
        if peer.hello is None or peer.hello.instance == instance:
            return False
        others = [one for conn in self._network.get_connections(peer.id) if (one := stream_of(conn)) is not tcp]
        if any(one.heard_at > trio.current_time() - HEARD for one in others if not one.killed):
            return True
        for one in others:
            one.kill()
        peer.gone.cancel()
        peer.hello, peer.settled, peer.gone = None, trio.Event(), trio.CancelScope()
        return False

    def _settle(self, peer: Peer, data: bytes) -> None:
        if peer.settled.is_set():
            return
        said: wire.Message | None = None
        reason: str | None = "hello_malformed"
        with suppress(wire.WireError):
            said = wire.decode(data)
        if self._is_banned(peer.id):
            reason = "banned"
        elif isinstance(said, wire.Taken):
            reason = "hello_taken"  # anybody may say that, so nothing else follows: see `twin`
            log.info("%s says that it is connected to another node with our peer id", peer.id)
        elif isinstance(said, wire.Hello):
            reason = self._disagreement(said)
        if reason is not None:
            self._told.reject(reason, str(peer.id))
            self._told.refused(peer.id, TAKEN if reason == "hello_taken" else REFUSED)
            if reason == "hello_versions" and isinstance(said, wire.Hello):  # somebody has to upgrade
                ours, theirs = ("{} to {}".format(*each.versions) for each in (self._ours, said))
                log.warning("%s speaks protocol versions %s, this node %s: no peer of ours", peer.id, theirs, ours)
        elif isinstance(said, wire.Hello):
            peer.hello = said
            self._spawn(self._until_silent, peer)
            self._told.agreed(peer)
        peer.settled.set()

    def _is_banned(self, id_: ID) -> bool:
        return self._banned.get(id_, 0.0) > time.monotonic()

    def _disagreement(self, hello: wire.Hello) -> str | None:
        for name in ("chain_id", "ledger", "run"):
            if getattr(hello, name) != getattr(self._ours, name):
                return f"hello_{name}"
        return None if self._ours.common_version(hello) else "hello_versions"

    async def _until_silent(self, peer: Peer) -> None:
        """For as long as the peer is connected."""

        def answered(seconds: float) -> None:
            peer.rtt = seconds

        def received() -> int:
            return sum(stream_of(conn).received for conn in self._network.get_connections(peer.id))

        with peer.gone:
            await until_silent(partial(self._host.new_stream, peer.id, [PING]), received, answered)
            self._told.reject("silent", str(peer.id))
            self._told.silent(peer.id)
            hard_close(self._network, peer.id)


async def _refuse(stream: INetStream) -> None:
    """Tell who is on this connection that its peer id is taken, and cut it."""
    tcp = tcp_of(stream.muxed_conn)
    try:
        await write_short(stream, wire.encode(wire.Taken()))
        with trio.move_on_after(PARTING):
            await read_short(stream, 0)  # until it lets go
    finally:
        tcp.kill()
