"""TCP for the swarm: counts bytes below Noise, buffers reads, never tears a frame in two."""

import socket
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
from dlx.p2p.backlog import LEAST_FRAME, Backlog, least_round_trip, unacknowledged
from dlx.p2p.places import plain

STRANGER_LIMIT = 1024 * 1024  # bytes a peer may send before its hello is agreed
UNSENT = 128 * 1024  # bytes that wait in the kernel, before which everything new on the connection has to wait
_READ_SIZE = 256 * 1024


class MeteredStream(TrioTCPStream):
    """One TCP connection."""

    def __init__(self, stream: trio.SocketStream, total: Meter) -> None:
        super().__init__(stream)
        self.sent = 0
        self.received = 0
        self.allowance: float = STRANGER_LIMIT
        self.killed = False
        self.backlog = Backlog()
        self.address = plain((self.get_remote_address() or ("", 0))[0])  # the other side's IP
        self._total = total
        self._buffer = b""
        self._position = 0
        self._unsent = b""
        self._tune()

    async def write(self, data: bytes) -> None:
        """Send all of `data`; one caller at a time, as the muxer sees to. Raises ConnectionClosedError.

        A caller that is cancelled leaves the rest of its frame for the next one to send: half a frame would make
        every later one on the connection unreadable.
        """
        self._unsent += data
        if len(data) >= LEAST_FRAME:
            self._look()
        try:
            with memoryview(self._unsent) as view:
                sent = 0
                try:
                    while sent < len(view):
                        sent += await self.stream.socket.send(view[sent:])
                finally:
                    self.sent += sent
                    self._total.add(sent=sent)
        except (OSError, trio.ClosedResourceError) as error:
            raise ConnectionClosedError(f"connection lost: {error}", transport="tcp") from error
        finally:
            self._unsent = self._unsent[sent:]

    async def have_room(self) -> None:
        """Before a frame of bulk is written: until little is on its way. Raises ConnectionClosedError."""
        while pause := self._look():
            await trio.sleep(pause)

    async def read(self, n: int | None = None) -> bytes:
        """At most n bytes, b"" at the end. Raises ConnectionClosedError."""
        if self._position == len(self._buffer):
            try:
                self._buffer = bytes(await self.stream.receive_some(_READ_SIZE))
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise ConnectionClosedError(f"connection lost: {error}", transport="tcp") from error
            self._position = 0
            self.received += len(self._buffer)
            self._total.add(received=len(self._buffer))
            if self.received > self.allowance:
                self.kill()
                raise ConnectionClosedError("a stranger sent too much", transport="tcp")
        end = len(self._buffer) if n is None else min(len(self._buffer), self._position + n)
        data = self._buffer[self._position : end]
        self._position = end
        return data

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


class MeteredTCP(TCP):
    """The swarm's only transport."""

    def __init__(self, total: Meter) -> None:
        super().__init__()
        self._total = total

    async def dial(self, maddr: Multiaddr) -> IRawConnection:
        raw = cast(RawConnection, await super().dial(maddr))
        raw.stream = MeteredStream(cast(TrioTCPStream, raw.stream).stream, self._total)
        return raw

    def create_listener(self, handler_function: THandler) -> TCPListener:
        async def metered(stream: ReadWriteCloser) -> None:
            await handler_function(MeteredStream(cast(TrioTCPStream, stream).stream, self._total))

        return super().create_listener(metered)
