"""Pipes: ordered frames between two slots of a replica, for activations and their gradients."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import trio
from libp2p.abc import INetStream

from dlx.ground.untrusted import printable_ascii
from dlx.p2p import wire
from dlx.p2p.frames import FRAME_LIMIT
from dlx.p2p.host import Host
from dlx.p2p.streams import (
    PIECE,
    Coming,
    Data,
    StreamBroken,
    acquire,
    let_go,
    read_short,
    read_some,
    write_pieces,
    write_short,
)

PIPE = "/dlx/pipe/2"
HANDSHAKE_DEADLINE = 10.0
SEND_DEADLINE = 30.0  # for each 64 KiB: a slow link is no broken one
WAITING = 16  # accepted pipes that nobody has taken yet
UNREAD = 4  # frames of the largest size that came and were not taken, or as many bytes in smaller ones
FRAME_COST = 256  # bytes that every frame counts besides its own: an empty one takes memory too
_READ = 256 * 1024
_TOGETHER = 4  # pieces

log = logging.getLogger(__name__)


class PipeClosed(Exception):
    """The pipe is of no further use; says why."""


class PipeRefused(PipeClosed):
    """The other side did not accept the hello; says its reason."""


class Pipe:
    """Frames in order, both ways, until either side closes. Every failure is PipeClosed and final."""

    def __init__(self, stream: INetStream, peer_id: str, hello: wire.PipeHello, frame_limit: int) -> None:
        self.peer_id = peer_id
        self.hello = hello  # of whoever opened the pipe
        self.came = 0  # bytes so far, of whole frames or not
        self._stream = stream
        self._frame_limit = frame_limit
        self._queue: deque[bytearray] = deque()
        self._queued = 0  # bytes
        self._arrived = trio.Event()
        self._sending = trio.Lock()
        self._hear: Callable[[bytearray], None] | None = None  # takes frames, instead of the queue
        self._refused: Exception | None = None  # what it raised
        self._closed: str | None = None
        self._over = trio.Event()

    async def send(self, frame: Data, rest: Data = b"", deadline_s: float = SEND_DEADLINE) -> None:
        """Hand a frame to the network, each piece of it within the deadline; `rest` is its end, where that lies
        elsewhere. Raises PipeClosed."""
        head, tail = memoryview(frame).cast("B"), memoryview(rest).cast("B")
        if (size := len(head) + len(tail)) > self._frame_limit:
            raise ValueError(f"frame of {size} bytes, at most {self._frame_limit}")
        await acquire(self._sending)
        try:
            self._check_open()
            for pieces in _groups(size, head, tail):
                await self._write(pieces, deadline_s)
        except StreamBroken as error:
            self._close(str(error))
            self._check_open()
        except BaseException:  # cancelled: the other side may have a part of a frame
            self._close("a frame could not be sent in time")
            raise
        finally:
            self._sending.release()

    async def _write(self, pieces: Sequence[Data], deadline_s: float) -> None:
        with trio.move_on_after(deadline_s * len(pieces)):
            return await write_pieces(self._stream, pieces)
        raise StreamBroken(f"{sum(map(len, pieces))} bytes could not be sent within {deadline_s * len(pieces):.0f} s")

    async def receive(self, deadline_s: float | None = None) -> bytearray:
        """The next frame. Raises PipeClosed, also after `deadline_s` seconds without one."""
        with trio.move_on_after(float("inf") if deadline_s is None else deadline_s):
            while not self._queue and self._closed is None:
                self._arrived = trio.Event()
                await self._arrived.wait()
        if not self._queue:
            self._close(f"no frame within {deadline_s or 0:.0f} s")
            self._check_open()
        return self._next()

    def _next(self) -> bytearray:
        frame = self._queue.popleft()
        self._queued -= len(frame) + FRAME_COST
        return frame

    async def each(self, hear: Callable[[bytearray], None]) -> None:
        """Hand over every frame as it comes. Raises PipeClosed, and whatever `hear` raises."""
        while self._queue:
            hear(self._next())
        self._hear = hear
        await self._over.wait()
        if self._refused is not None:
            raise self._refused
        self._check_open()

    async def aclose(self) -> None:
        """Frames that were sent still arrive."""
        if self._closed is None:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 2):
                try:
                    await self._stream.close()
                except Exception as error:
                    log.debug("closing a pipe: %r", error)
        self._close("closed here")
        await trio.lowlevel.checkpoint()

    def _check_open(self) -> None:
        if self._closed is not None:
            raise PipeClosed(f"pipe to {self.peer_id}: {self._closed}")

    def _close(self, reason: str) -> None:
        if self._closed is None:
            self._closed = reason
        self._arrived.set()
        self._over.set()

    async def run(self) -> None:
        """Read until the end. Always reads on, since a writer that must wait 5 s is cut off by the library."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read)
            await self._over.wait()
            nursery.cancel_scope.cancel()
        if not self._stream.is_closed:  # type: ignore[attr-defined]
            await let_go(self._stream)

    async def _read(self) -> None:
        coming = Coming(self._frame_limit)
        try:
            while True:
                data = await read_some(self._stream, _READ)
                self.came += len(data)
                for frame in coming.frames(data):
                    self._take(frame)
        except StreamBroken as error:
            self._close(str(error))
        except Exception as error:
            self._refused = error
            self._close(repr(error))

    def _take(self, frame: bytearray) -> None:
        if self._hear is not None:
            return self._hear(frame)
        self._queue.append(frame)
        self._queued += len(frame) + FRAME_COST
        self._arrived.set()
        if self._queued > UNREAD * (self._frame_limit + FRAME_COST):
            raise StreamBroken(f"{len(self._queue)} frames came that nobody read")


def _groups(size: int, head: memoryview, tail: memoryview) -> Iterator[list[Data]]:
    """Pieces of a frame with its length before it, as many at a time as go together."""
    first = b"".join((size.to_bytes(4, "big"), head[: PIECE - 4], tail[: max(0, PIECE - 4 - len(head))]))
    rest = head[PIECE - 4 :], tail[max(0, PIECE - 4 - len(head)) :]
    pieces: list[Data] = [
        first,
        *(part[start : start + PIECE] for part in rest for start in range(0, len(part), PIECE)),
    ]
    for start in range(0, len(pieces), _TOGETHER):
        yield pieces[start : start + _TOGETHER]


class PipeService:
    """Make it before the host runs. `accept(peer id, hello)` says why a pipe is refused, or None.

    Accepted pipes come out of `incoming`.
    """

    def __init__(
        self,
        host: Host,
        accept: Callable[[str, wire.PipeHello], str | None],
        frame_limit: int = FRAME_LIMIT,
    ) -> None:
        self._host = host
        self._accept = accept
        self._frame_limit = frame_limit
        self._send, self.incoming = trio.open_memory_channel[Pipe](WAITING)
        host.serve(PIPE, self._answer)
        host.add_service(self._run)

    async def open(self, peer_id: str, hello: wire.PipeHello, deadline_s: float = HANDSHAKE_DEADLINE) -> Pipe:
        """Raises PipeRefused, PipeClosed."""
        stream = None
        try:
            with trio.fail_after(deadline_s):
                stream = await self._host.open_stream(peer_id, PIPE, deadline_s)
                self._host.count_as("pipe", stream)
                await write_short(stream, wire.encode(hello))
                answer = wire.decode_as(wire.PipeAnswer, await read_short(stream, 512))
            if answer.refusal:
                raise PipeRefused(f"pipe to {peer_id} refused: {answer.refusal}")
        except BaseException as error:
            if stream is not None:
                await let_go(stream)
            if isinstance(error, (StreamBroken, trio.TooSlowError, wire.WireError)):
                raise PipeClosed(f"pipe to {peer_id}: {error or f'no answer within {deadline_s:.0f} s'}") from error
            raise
        pipe = Pipe(stream, peer_id, hello, self._frame_limit)
        self._nursery.start_soon(pipe.run)
        return pipe

    async def _run(self, task_status: Any) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def _answer(self, stream: INetStream, peer_id: str) -> None:
        self._host.count_as("pipe", stream)
        try:
            with trio.fail_after(HANDSHAKE_DEADLINE):
                hello = wire.decode_as(wire.PipeHello, await read_short(stream, 512))
                pipe = Pipe(stream, peer_id, hello, self._frame_limit)
                refusal = self._accept(peer_id, hello)
                if refusal is None and self.incoming.statistics().current_buffer_used >= WAITING:
                    refusal = "too many pipes wait to be taken"
                await write_short(stream, wire.encode(wire.PipeAnswer(printable_ascii(refusal or "", 200))))
                if refusal is not None:
                    self._host.reject("pipe_refused", peer_id)
                    await stream.close()
                    return
        except wire.WireError as error:
            self._host.reject(f"pipe_{error.reason}", peer_id)
            return
        except (StreamBroken, trio.TooSlowError):
            return
        try:
            self._send.send_nowait(pipe)
        except trio.WouldBlock:  # others came first, meanwhile
            return
        await pipe.run()
