"""Reading and writing libp2p streams: whole lengths, one kind of error, fast piece sizes."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

import trio

log = logging.getLogger(__name__)

_MOST_PARTS = 64  # that are written at once
PIECE = 65_507  # one Yamux frame = one Noise message: 1.5 to 2 times the speed of other sizes


Data = bytes | bytearray | memoryview


class StreamBroken(Exception):
    """The stream ended, was reset, or its connection is gone."""


class Stream(Protocol):
    async def read(self, n: int | None = None) -> bytes: ...
    async def write(self, data: bytes) -> None: ...
    async def close(self) -> None: ...
    async def reset(self) -> None: ...


async def let_go(stream: Stream) -> None:
    """Reset a stream, whatever happens to the caller meanwhile; a stream left open counts against its connection."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + 2):
        try:
            await stream.reset()
        except Exception as error:
            log.debug("resetting a stream: %r", error)


async def read_some(stream: Stream, n: int) -> bytes:
    """Between 1 and n bytes. Raises StreamBroken, also at the end."""
    try:
        data = await _muxed(stream).read(n)
    except Exception as error:  # the library's exceptions have no common base
        raise StreamBroken(f"read failed: {error!r}") from error
    if not data:
        raise StreamBroken("stream ended")
    return data


async def read_exact(stream: Stream, n: int) -> bytes:
    """Exactly n bytes; the library's own helper gives up after 100 partial reads."""
    if n == 0:
        return b""
    data = await read_some(stream, n)
    if len(data) == n:
        return data
    buffer = bytearray(data)
    while len(buffer) < n:
        buffer += await read_some(stream, n - len(buffer))
    return bytes(buffer)


async def write_all(stream: Stream, data: Data) -> None:
    """Raises StreamBroken."""
    try:
        await _muxed(stream).write(data)
    except Exception as error:
        raise StreamBroken(f"write failed: {error!r}") from error


async def write_pieces(stream: Stream, pieces: Sequence[Data]) -> None:
    """Of at most PIECE bytes each. Raises StreamBroken."""
    try:
        await _muxed(stream).write_pieces(pieces)
    except Exception as error:
        raise StreamBroken(f"write failed: {error!r}") from error


async def acquire(lock: trio.Lock) -> None:
    """Where nobody has it, without the round of the scheduler that the lock's own takes."""
    try:
        lock.acquire_nowait()
    except trio.WouldBlock:
        await lock.acquire()


async def read_short(stream: Stream, limit: int) -> bytes:
    """A message behind a 2-byte length. Raises StreamBroken when it claims more than `limit` bytes."""
    length = int.from_bytes(await read_exact(stream, 2), "big")
    if length > limit:
        raise StreamBroken(f"message of {length} bytes, at most {limit}")
    return await read_exact(stream, length)


async def write_short(stream: Stream, data: bytes, tail: bytes | memoryview = b"") -> None:
    """A message behind a 2-byte length, and raw bytes after it."""
    head = len(data).to_bytes(2, "big") + data
    await write_all(stream, head + bytes(tail) if tail else head)


class Coming:
    """Frames behind lengths of 4 bytes, put together from what a stream brings: each byte is copied once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._length = bytearray()  # 4 bytes, or fewer until they are there
        self._frame = bytearray()
        self._filled = 0

    def frames(self, data: bytes) -> Iterator[bytearray]:
        """Those that are whole with `data`. Raises StreamBroken."""
        view = memoryview(data)
        while True:
            if (missing := 4 - len(self._length)) > 0:
                self._length += view[:missing]
                view = view[missing:]
                if len(self._length) < 4:
                    return
                length = int.from_bytes(self._length, "big")
                if length > self._limit:
                    raise StreamBroken(f"frame of {length} bytes, at most {self._limit}")
                self._frame, self._filled = bytearray(length), 0
            part = view[: len(self._frame) - self._filled]
            self._frame[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            if self._filled < len(self._frame):
                return
            view = view[len(part) :]
            self._length.clear()
            yield self._frame


class Outgoing:
    """What is written to a socket, in order: at once while it takes it, else by `run`, once it does. An error is for
    who reads from the socket to see."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket  # trio's
        self._left: list[Data] = []
        self._blocked = trio.Event()

    def put(self, parts: Sequence[Data]) -> None:
        """Never waits."""
        is_idle = not self._left
        self._left += parts
        if is_idle:
            self._write()
            if self._left:
                self._blocked.set()

    async def run(self) -> None:
        """Until the socket is closed."""
        with suppress(trio.ClosedResourceError):
            while True:
                await self._blocked.wait()
                self._blocked = trio.Event()
                while self._left:
                    await trio.lowlevel.wait_writable(self._socket)
                    self._write()

    def _write(self) -> None:
        try:
            drop(self._left, os.writev(self._socket.fileno(), self._left[:_MOST_PARTS]))
        except BlockingIOError:
            pass
        except OSError:
            self._left.clear()


def drop(parts: list[Data], size: int) -> None:
    """The first bytes of all parts together, which were sent."""
    while parts and size >= len(parts[0]):
        size -= len(parts.pop(0))
    if size:
        parts[0] = memoryview(parts[0])[size:]


def _muxed(stream: Stream) -> Any:
    """Below the layer that takes a lock to note the stream's state; a lock is a round of the scheduler."""
    return getattr(stream, "muxed_stream", stream)
