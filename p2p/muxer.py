"""Yamux with a tenth of the library's work for each frame, and bounds on what a peer can make us keep."""

import logging
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast

import trio
from libp2p.abc import IMuxedConn, IMuxedStream, INetStream, ISecureConn
from libp2p.custom_types import TProtocol
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH
from libp2p.stream_muxer.exceptions import MuxedStreamError
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.stream_muxer.yamux.yamux import (
    HEADER_SIZE,
    PROTOCOL_ID,
    TYPE_DATA,
    TYPE_WINDOW_UPDATE,
    YAMUX_HEADER_FORMAT,
    Yamux,
    YamuxStream,
)

from dlx.ground.meter import Meter
from dlx.p2p.layout import LIBP2P_VERSION, GuardError
from dlx.p2p.negotiation import bound_names
from dlx.p2p.noise import LeanChannel
from dlx.p2p.streams import Data, acquire
from dlx.p2p.transport import MeteredStream

BUFFER_LIMIT = 64 * 1024 * 1024  # bytes a peer may have waiting unread on one connection
STRANGER_BUFFER = 16 * 1024 * 1024
WINDOW = 1024 * 1024  # bytes a peer may send on one stream before it must wait for us
WINDOW_DEADLINE = 30.0  # s a writer waits for a peer that does not read
FRAME_LIMIT = 1024 * 1024  # bytes of one Yamux frame
MOST_FRAME = MAX_PLAINTEXT_LENGTH - HEADER_SIZE  # bytes of ours: one Noise message
MOST_TOGETHER = 4 * MOST_FRAME
log = logging.getLogger(__name__)


class _TooMuchBuffered(trio.TooSlowError):
    """Derived from what makes the muxer close its connection."""


def stream_of(conn: Any) -> MeteredStream:
    """The TCP stream under a swarm connection. Raises GuardError if it cannot be reached."""
    return tcp_of(conn.muxed_conn)


def tcp_of(muxed: Any) -> MeteredStream:
    """The same, under a muxer."""
    try:
        stream = muxed.secured_conn.conn.read_writer.read_write_closer.stream
    except AttributeError as error:
        raise GuardError(f"libp2p's layers have changed: {error}; install {LIBP2P_VERSION}") from error
    if not isinstance(stream, MeteredStream):
        raise GuardError(f"libp2p's layers have changed: {type(stream).__name__} carries the connection")
    return stream


def address_of(stream: INetStream) -> str:
    """The IP address of the other side. Raises GuardError."""
    return tcp_of(stream.muxed_conn).address


def networks_of(stream: INetStream) -> tuple[str, ...]:
    """The networks of the other side, in which places are counted. Raises GuardError."""
    return tcp_of(stream.muxed_conn).networks


def count_on(stream: INetStream, meter: Meter) -> None:
    """From now on `meter` counts the bytes that the stream carries, both ways."""
    muxed = stream.muxed_stream  # type: ignore[attr-defined]
    if not isinstance(muxed, LeanStream):
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


def _wakes_writers(name: str) -> Any:
    """A field that the library changes in many places: each change wakes who waits for window."""

    def get(stream: "LeanStream") -> Any:
        return stream.__dict__[name]

    def change(stream: "LeanStream", value: Any) -> None:
        stream.__dict__[name] = value
        stream.writers.unpark_all()

    return property(get, change)


class LeanStream(YamuxStream):
    """The library's stream with a third of its task switches and packets.

    It gives window back in large steps instead of after every read, and a writer waits longer than 5 s for it.
    """

    writers: trio.lowlevel.ParkingLot  # those that wait for window
    send_window = _wakes_writers("send_window")
    closed = _wakes_writers("closed")

    held = False  # by us: a transfer or a pipe that we opened
    bulk = False  # what is written on it now lets everything else on the connection go first
    meter: Meter | None = None  # counts what the stream carries, without the headers of Yamux and Noise

    async def read(self, n: int | None = -1) -> bytes:
        conn, data = self.conn, self._taken(n)
        while not data and not self._has_ended() and (event := conn.stream_events.get(self.stream_id)) is not None:
            await event.wait()
            if self.stream_id in conn.stream_events:
                conn.stream_events[self.stream_id] = trio.Event()
            data = self._taken(n)
        if data:
            await self._auto_tune_and_send_window_update(bytes_read=len(data))
        else:
            data = await super().read(n)
        if self.meter is not None:
            self.meter.add(received=len(data))
        return data

    async def write(self, data: Data) -> None:
        view = memoryview(data)
        await self.write_pieces([view[start : start + MOST_FRAME] for start in range(0, len(view), MOST_FRAME)])

    async def write_pieces(self, pieces: Iterable[Data]) -> None:
        """One after the other: those that fit go together. Raises MuxedStreamError."""
        left = deque(memoryview(piece) for piece in pieces)
        while left:
            if self.send_closed or self.closed:
                raise MuxedStreamError("stream is closed for sending")
            if self.send_window <= 0:
                await self._wait_for_window()
                continue
            frames = self._frames(left)
            if self.bulk:
                async with self.conn.bulk:  # type: ignore[attr-defined]
                    await self.conn.tcp.have_room()  # type: ignore[attr-defined]
                    await self.conn.write_frames(frames)  # type: ignore[attr-defined]
            else:
                await self.conn.write_frames(frames)  # type: ignore[attr-defined]
            if self.meter is not None:
                self.meter.add(sent=sum(map(len, frames)) - len(frames) * HEADER_SIZE)

    def _frames(self, left: "deque[memoryview]") -> list[bytes]:
        """Of what is left, as many as may go now: nothing else runs before the window knows of them."""
        frames: list[bytes] = []
        most, room = self.conn.frame, 0 if self.bulk else self.conn.room  # type: ignore[attr-defined]
        while left and self.send_window > 0 and (not frames or room >= len(left[0])):
            piece = left[0][: min(self.send_window, most)]
            self.send_window -= len(piece)
            room -= len(piece)
            header = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_DATA, 0, self.stream_id, len(piece))
            frames.append(b"".join((header, piece)))
            left[0] = left[0][len(piece) :]
            if not left[0]:
                left.popleft()
        return frames

    def _taken(self, n: int | None) -> bytes:
        """What is there already, of a stream that has not ended; the library reads the others."""
        buffer = self.conn.stream_buffers.get(self.stream_id)
        if not buffer or self._has_ended():
            return b""
        size = len(buffer) if n is None or n < 0 else n
        data = bytes(memoryview(buffer)[:size])
        del buffer[:size]
        return data

    def _has_ended(self) -> bool:
        return self.recv_closed or self.closed or self.reset_received or self.conn.event_shutting_down.is_set()

    async def _wait_for_window(self) -> None:
        with trio.move_on_after(WINDOW_DEADLINE):
            while self.send_window <= 0 and not self.closed:
                await self.writers.park()
            return
        raise MuxedStreamError(f"the peer read nothing for {WINDOW_DEADLINE:.0f} s")

    async def _auto_tune_and_send_window_update(self, *, bytes_read: int = 0) -> None:
        self._pending_recv_release += bytes_read
        grow = WINDOW - self.target_recv_window
        if grow or self._pending_recv_release >= WINDOW // 4:
            credit, self._pending_recv_release = grow + self._pending_recv_release, 0
            self.target_recv_window = WINDOW
            self.recv_window += credit
            await self.send_window_update(credit)


def lean(stream: YamuxStream) -> LeanStream:
    """A stream that nobody has read from or written to, made one of ours: the library makes its own in the midst of
    its long loops (see docs/dependencies.md)."""
    stream.__dict__["writers"] = trio.lowlevel.ParkingLot()
    stream.__class__ = LeanStream
    return cast(LeanStream, stream)


class GuardedYamux(Yamux):
    """Bounds what a peer can make us keep, and dies alone."""

    overflow: Callable[[], None] = staticmethod(lambda: None)  # told when a peer went too far

    def __init__(self, channel: LeanChannel, peer: ID, is_registered: Callable[[str], bool]) -> None:
        """`is_registered`: whether a peer id comes before strangers."""
        super().__init__(channel, peer, channel.is_initiator)
        self.since = trio.current_time()
        self.tcp = tcp_of(self)
        self.bulk = trio.Lock()  # of what is written in bulk one frame at a time waits for its turn among all others
        self.is_registered = partial(is_registered, str(peer))
        channel.begin(self.tcp, self.take)

    @property
    def frame(self) -> int:
        """Bytes of ours: others wait for it, and its reader has nothing until all of it is there."""
        return min(MOST_FRAME, self.room)

    @property
    def room(self) -> int:
        """Bytes that may go together; likewise."""
        return min(MOST_TOGETHER, self.tcp.backlog.frame)

    @property
    def in_use(self) -> bool:
        """Whether a stream that `hold` was called for is open."""
        return any(stream.held and not stream.closed for stream in self.streams.values())  # type: ignore[attr-defined]

    async def open_stream(self) -> YamuxStream:
        return lean(await super().open_stream())

    async def accept_stream(self) -> IMuxedStream:
        return lean(cast(YamuxStream, await super().accept_stream()))

    async def start(self) -> None:
        try:
            await super().start()
        except Exception as error:  # would end the swarm
            log.warning("muxer of %s failed: %r", self.peer_id, error)
            await self._cleanup_on_error()

    async def _write_frame(self, data: bytes) -> None:
        await self.write_frames([data])

    async def write_frames(self, frames: Sequence[bytes]) -> None:
        await acquire(self._write_lock)
        try:
            await cast(LeanChannel, self.secured_conn).write_frames(frames)
        finally:
            self._write_lock.release()

    def take(self, data: memoryview) -> int:
        """Do what frames at the beginning of `data` say while they are whole and of open streams; the bytes of these.

        The library does the same with each, in ten times as long, and the rest.
        """
        at = 0
        while len(data) - at >= HEADER_SIZE:
            _, kind, flags, number, length = struct.unpack_from(YAMUX_HEADER_FORMAT, data, at)
            stream, body = self.streams.get(number), at + HEADER_SIZE
            if flags or stream is None:
                break
            if kind == TYPE_WINDOW_UPDATE:
                stream.send_window += length
                at = body
            elif kind == TYPE_DATA and body + length <= len(data):
                at = body + length
                self._admit(length)
                self.stream_buffers[number] += data[body:at]
                stream.recv_window = max(0, stream.recv_window - length)
                self.stream_events[number].set()
            else:
                break
        return at

    async def _read_data_body(self, length: int) -> bytes:
        self._admit(length)
        return await super()._read_data_body(length)

    def _admit(self, length: int) -> None:
        """Raises _TooMuchBuffered for a frame that there is no room for."""
        waiting = sum(len(buffer) for buffer in self.stream_buffers.values())
        limit = BUFFER_LIMIT if waiting + length <= STRANGER_BUFFER or self.is_registered() else STRANGER_BUFFER
        if length > FRAME_LIMIT or waiting + length > limit:
            self.overflow()
            raise _TooMuchBuffered(f"{waiting} bytes unread and {length} more")


class GuardedMuxers(MuxerMultistream):
    """The library's own makes its own Yamux, whatever class it is given."""

    def __init__(self, is_registered: Callable[[str], bool]) -> None:
        super().__init__({TProtocol(PROTOCOL_ID): GuardedYamux})
        self._is_registered = is_registered
        bound_names(self._selector)

    async def new_conn(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        protocol, _ = await self._selector.select(conn, conn.is_initiator, self.negotiate_timeout)
        muxed = GuardedYamux(cast(LeanChannel, conn), peer_id, self._is_registered)
        return self._annotate_connection(muxed, conn, protocol)
