"""Reading and writing libp2p streams: whole lengths, one kind of error, fast piece sizes."""

import logging
from typing import Protocol

import trio

log = logging.getLogger(__name__)

PIECE = 65_507  # one Yamux frame = one Noise message: 1.5 to 2 times the speed of other sizes


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


async def write_all(stream: Stream, data: bytes | bytearray | memoryview) -> None:
    """Write in pieces of PIECE bytes. Raises StreamBroken."""
    view, muxed = memoryview(data), _muxed(stream)
    try:
        for start in range(0, len(view), PIECE):
            await muxed.write(bytes(view[start : start + PIECE]))
    except Exception as error:
        raise StreamBroken(f"write failed: {error!r}") from error


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


def _muxed(stream: Stream) -> Stream:
    """Below the layer that takes a lock to note the stream's state; a lock is a round of the scheduler."""
    return getattr(stream, "muxed_stream", stream)
