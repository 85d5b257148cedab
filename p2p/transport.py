"""TCP for the swarm: counts bytes below Noise, buffers reads, never tears a frame in two."""

import math
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

import trio
from libp2p.abc import IRawConnection
from libp2p.custom_types import THandler
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.transport.tcp.tcp import TCP, TCPListener
from multiaddr import Multiaddr

from dlx.ground.meter import Meter
from dlx.p2p.addresses import CIRCUIT
from dlx.p2p.admission import networks, plain, prefix
from dlx.p2p.backlog import LEAST_FRAME, Backlog, least_round_trip, unacknowledged
from dlx.p2p.bandwidth import Limit, is_limited, is_near
from dlx.p2p.calls import Calls
from dlx.p2p.streams import Data, drop

STRANGER_LIMIT = 1024 * 1024  # bytes a peer may send before its hello is agreed
UNSENT = 128 * 1024  # bytes that wait in the kernel, before which everything new on the connection has to wait
_ROOM = 128 * 1024  # bytes that are read at once
_MOST_WRITES = 16  # in a row, while the kernel takes all
_LENGTH = 2  # bytes before a packet
_MOST_PACKET = _LENGTH + (1 << 16) - 1
TOKEN = 16  # bytes
TOKEN_HEAD = TOKEN.to_bytes(2, "big")  # libp2p's connections begin with another byte
NO_LIMIT = Limit()


class MeteredStream(TrioTCPStream):
    """One TCP connection. `up` and `down` are shared by all that leave this machine's own networks.

    `relay`: the peer id of who carries it, if anybody; then `told` is the other side's IP address as the relay tells.
    """

    def __init__(
        self,
        stream: trio.SocketStream,
        total: Meter,
        up: Limit = NO_LIMIT,
        down: Limit = NO_LIMIT,
        relay: str | None = None,
        told: str = "",
    ) -> None:
        super().__init__(stream)
        self.sent = 0
        self.received = 0
        self.heard_at = -math.inf  # when the peer itself said something, in trio's time: who carries bytes cannot
        self.allowance: float = STRANGER_LIMIT
        self.killed = False
        remote = (self.get_remote_address() or ("", 0))[0]
        self.relay = relay
        self.address = remote if relay is None else plain(told)  # the other side's IP
        self._limited = is_limited(up, down) and not is_near(remote)  # whatever a relay tells
        self._up, self._down = up, down
        self.backlog = Backlog(up.rate if self._limited else math.inf)
        self._total = total
        self._buffer = memoryview(bytearray(_ROOM))
        self._start = self._end = 0  # of what came and nobody has taken
        self._unsent: list[Data] = []
        self._writes = 0
        self._tune()

    def get_remote_address(self) -> tuple[str, int] | None:
        """The other side's IP address and port; None where it is gone. The library knows none of IPv6."""
        if self._cached_remote_address is None:
            with suppress(OSError):
                ip, port = self.stream.socket.getpeername()[:2]
                self._cached_remote_address = plain(ip), port
        return self._cached_remote_address

    async def write(self, data: bytes) -> None:
        """`write_parts` of one."""
        await self.write_parts([data])

    async def write_parts(self, parts: Sequence[bytes]) -> None:
        """Send all of them; one caller at a time, as the muxer sees to. Raises ConnectionClosedError.

        A caller that is cancelled leaves the rest of its frames for the next one to send: half a frame would make
        every later one on the connection unreadable.
        """
        self._unsent += parts
        if sum(map(len, parts)) >= LEAST_FRAME:
            self._look()
        try:
            while self._unsent:
                sent = self._send()
                if self._limited:
                    await self._up.take(sent)
                if self._unsent:
                    await trio.lowlevel.wait_writable(self.stream.socket)
            self._writes += 1
            if self._writes % _MOST_WRITES == 0:
                await trio.lowlevel.checkpoint()  # who writes without end lets others run
        except (OSError, trio.ClosedResourceError) as error:
            raise ConnectionClosedError(f"connection lost: {error}", transport="tcp") from error

    def _send(self) -> int:
        """What the kernel takes now; how many bytes."""
        try:
            sent = os.writev(self.stream.socket.fileno(), self._unsent)
        except BlockingIOError:
            return 0
        self.sent += sent
        self._total.add(sent=sent)
        drop(self._unsent, sent)
        return sent

    @property
    def networks(self) -> tuple[str, ...]:
        """Of the other side, the widest first. What a relay tells counts among what it tells alone: its lies are at
        nobody's cost."""
        if self.relay is None:
            return networks(self.address)
        return f"by {self.relay}", f"{prefix(self.address)} by {self.relay}"

    async def token(self) -> bytes | None:
        """What a connection that is to be carried begins with: a length of 16 in two bytes, and a token. None where it
        begins as libp2p's do; nothing is taken then. Raises ConnectionClosedError, also where it ends before."""
        found = b""
        try:
            while len(found) < len(TOKEN_HEAD) + TOKEN:
                await trio.lowlevel.wait_readable(self.stream.socket)
                first = found or await self.stream.socket.recv(1, socket.MSG_PEEK)
                if first and not first.startswith(TOKEN_HEAD[:1]):
                    return None
                part = await self.stream.socket.recv(len(TOKEN_HEAD) + TOKEN - len(found))
                if not part:
                    break
                found += part
        except (OSError, trio.ClosedResourceError) as error:
            raise ConnectionClosedError(f"connection lost: {error}", transport="tcp") from error
        if not found.startswith(TOKEN_HEAD) or len(found) != len(TOKEN_HEAD) + TOKEN:
            raise ConnectionClosedError("no token", transport="tcp")
        return found[len(TOKEN_HEAD) :]

    async def carried(self, sent: int = 0, received: int = 0) -> None:
        """So many bytes of others went through: they count, and wait for the operator's limits, as any."""
        self.sent, self.received = self.sent + sent, self.received + received
        self._total.add(sent=sent, received=received)
        if self._limited:
            await (self._up.take(sent) if sent else self._down.take(received))

    async def have_room(self) -> None:
        """Before a frame of bulk is written: until little is on its way. Raises ConnectionClosedError."""
        while pause := max(self._look(), self._up.pause() if self._limited else 0.0):
            await trio.sleep(pause)

    async def read(self, n: int | None = None) -> bytes:
        """At most n bytes, b"" at the end. Raises ConnectionClosedError."""
        if self._start == self._end and not await self._fill():
            return b""
        start, self._start = self._start, self._end if n is None else min(self._end, self._start + n)
        return bytes(self._buffer[start : self._start])

    async def packet(self) -> memoryview:
        """The next bytes that came behind their length; they stand there until the next read. Raises
        ConnectionClosedError, also at the end."""
        while True:
            body, came = self._start + _LENGTH, self._end - self._start
            if came >= _LENGTH:
                end = body + int.from_bytes(self._buffer[self._start : body], "big")
                if self._end >= end:
                    self._start = end
                    return self._buffer[body:end]
            if not await self._fill():
                raise ConnectionClosedError("connection closed", transport="tcp")

    async def _fill(self) -> int:
        """Wait for more; the bytes of it, 0 at the end. Raises ConnectionClosedError."""
        if self._start == self._end or self._start > _ROOM - _MOST_PACKET:
            came = self._end - self._start
            self._buffer[:came] = self._buffer[self._start : self._end]
            self._start, self._end = 0, came
        try:
            while True:
                await trio.lowlevel.wait_readable(self.stream.socket)
                try:
                    came = os.readv(self.stream.socket.fileno(), [self._buffer[self._end :]])
                    break
                except BlockingIOError:
                    continue
        except (OSError, trio.ClosedResourceError) as error:
            raise ConnectionClosedError(f"connection lost: {error}", transport="tcp") from error
        self._end += came
        self.received += came
        self._total.add(received=came)
        if self._limited:
            await self._down.take(came)  # what is not read fills the window, and the sender waits
        if self.received > self.allowance:
            self.kill()
            raise ConnectionClosedError("a stranger sent too much", transport="tcp")
        return came

    def kill(self) -> None:
        """End the connection from below: blocked reads and writes fail at once, the library then cleans up."""
        self.killed = True
        try:
            self.stream.socket.shutdown(socket.SHUT_RDWR)
        except (OSError, trio.ClosedResourceError):
            pass

    def _look(self) -> float:
        """What is on its way: seconds for which bulk leaves the connection alone. Raises ConnectionClosedError."""
        sock = self.stream.socket
        try:
            waiting = unacknowledged(sock)
            round_trip = least_round_trip(sock) if waiting else 0.0
        except (OSError, ValueError) as error:
            raise ConnectionClosedError(f"connection lost: {error}", transport="tcp") from error
        return self.backlog.pause(self.sent, waiting, round_trip, trio.current_time())

    def _tune(self) -> None:
        options = [
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, getattr(socket, "TCP_NOTSENT_LOWAT", None), UNSENT),
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPIDLE", None), 15),
            (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPINTVL", None), 5),
            (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPCNT", None), 3),
            (socket.IPPROTO_TCP, getattr(socket, "TCP_USER_TIMEOUT", None), 30_000),
        ]
        for level, option, value in options:
            if option is not None:
                try:
                    self.stream.setsockopt(level, option, value)
                except OSError:
                    pass  # a socket that died meanwhile; the first read will tell


async def _show(stream: trio.SocketStream, token: bytes) -> None:
    try:
        await stream.send_all(TOKEN_HEAD + token)
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise


class MeteredTCP(TCP):
    """The swarm's only transport."""

    def __init__(self, total: Meter, up: Limit = NO_LIMIT, down: Limit = NO_LIMIT) -> None:
        super().__init__()
        self._shared = total, up, down
        self.calls = Calls()

    async def dial(self, maddr: Multiaddr) -> IRawConnection:
        names = [str(value) for protocol, value in maddr.items() if protocol.name == "p2p"]
        relay = names[0] if CIRCUIT in {protocol.name for protocol in maddr.protocols()} else None
        token, address = (b"", "") if relay is None else await self.calls.call(relay, names[-1])
        raw = cast(RawConnection, await super().dial(maddr))
        stream = cast(TrioTCPStream, raw.stream).stream
        if relay is not None:
            await _show(stream, token)
        raw.stream = MeteredStream(stream, *self._shared, relay, address)
        return raw

    async def dial_with_source(self, maddr: Multiaddr, source: tuple[str, int]) -> IRawConnection:
        raw = cast(RawConnection, await super().dial_with_source(maddr, source))
        raw.stream = MeteredStream(cast(TrioTCPStream, raw.stream).stream, *self._shared)
        return raw

    async def dial_relay(self, host: str, port: int, token: bytes, relay: str, caller: str) -> MeteredStream:
        """The other end of a call: a connection to a relay, which joins it to the caller's.
        Raises OSError, trio.BrokenResourceError."""
        stream = await trio.open_tcp_stream(host, port)
        await _show(stream, token)
        return MeteredStream(stream, *self._shared, relay, caller)

    def create_listener(self, handler_function: THandler) -> TCPListener:
        async def metered(stream: ReadWriteCloser) -> None:
            await handler_function(MeteredStream(cast(TrioTCPStream, stream).stream, *self._shared))

        return super().create_listener(metered)
