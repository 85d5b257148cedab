"""Bytes from one connection to another, both ways: by the kernel where it can (Linux), which costs hardly any time of
ours; else by a buffer."""

import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from dlx.ground.meter import Meter
from dlx.p2p.bandwidth import Limit
from dlx.p2p.transport import MeteredStream

CHUNK = 64 * 1024  # bytes at a time: what a pipe holds
IDLE = 60.0  # s without a byte either way, after which nobody is there: peers ping each other every few seconds
Pay = Callable[[int], Awaitable[None]]  # so many bytes came; returns when they may go on


async def splice(one: MeteredStream, other: MeteredStream, limit: Limit, meter: Meter) -> None:
    """Until either side ends, or nothing comes for IDLE seconds. Bytes wait for `limit`. `meter` counts them, both as
    received and as sent."""
    with trio.move_on_after(IDLE) as idle, suppress(OSError, trio.ClosedResourceError):
        async with trio.open_nursery() as nursery:

            async def pump(source: MeteredStream, sink: MeteredStream) -> None:
                async def pay(size: int) -> None:
                    idle.deadline = trio.current_time() + IDLE
                    meter.add(sent=size, received=size)
                    await source.carried(received=size)
                    await sink.carried(sent=size)
                    await limit.take(size)

                with suppress(OSError, trio.ClosedResourceError):
                    await (_through_kernel if sys.platform == "linux" else _through_buffer)(source, sink, pay)
                nursery.cancel_scope.cancel()

            nursery.start_soon(pump, one, other)
            nursery.start_soon(pump, other, one)


async def _through_kernel(source: MeteredStream, sink: MeteredStream, pay: Pay) -> None:
    come, go = source.stream.socket, sink.stream.socket
    out, into = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    flags = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
    try:
        while True:
            await trio.lowlevel.wait_readable(come)
            try:
                size = os.splice(come.fileno(), into, CHUNK, flags=flags)
            except BlockingIOError:
                continue
            if not size:
                return
            await pay(size)
            while size:
                await trio.lowlevel.wait_writable(go)
                with suppress(BlockingIOError):
                    size -= os.splice(out, go.fileno(), size, flags=flags)
    finally:
        os.close(out)
        os.close(into)


async def _through_buffer(source: MeteredStream, sink: MeteredStream, pay: Pay) -> None:
    while data := await source.stream.socket.recv(CHUNK):
        await pay(len(data))
        left = memoryview(data)
        while left:
            left = left[await sink.stream.socket.send(left) :]
