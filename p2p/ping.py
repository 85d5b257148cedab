"""Whether a peer is there: the library notices a dead one only when it writes."""

import logging
import math
import time
from collections.abc import Awaitable, Callable

import trio
from libp2p.abc import INetStream
from libp2p.custom_types import TProtocol

from dlx.p2p.streams import let_go, read_exact, write_all

PING = TProtocol("/dlx/ping/1")
PING_INTERVAL = 5.0
PING_DEADLINE = 3.0
PING_MISSES = 3
HEARD = PING_INTERVAL + PING_DEADLINE  # s within which something comes of a peer that is there

log = logging.getLogger(__name__)


async def until_silent(
    open_stream: Callable[[], Awaitable[INetStream]], received: Callable[[], int], answered: Callable[[float], None]
) -> None:
    """Asks again and again until nothing comes. `received()`: bytes of the peer so far. `answered(seconds)` hears how
    long an answer took."""
    misses, heard, stream = 0, 0, None
    try:
        while True:
            has_answered = False
            with trio.move_on_after(PING_DEADLINE):
                try:
                    stream = stream or await open_stream()
                    started = time.perf_counter()
                    await write_all(stream, b"dlx-ping")
                    await read_exact(stream, 8)
                    answered(time.perf_counter() - started)
                    has_answered = True
                except Exception as error:
                    log.debug("a ping failed: %r", error)
            if stream is not None and not has_answered:
                await let_go(stream)
                stream = None
            before, heard = heard, received()
            # whoever is busy sending may be late with the answer, but is there
            misses = 0 if has_answered or heard > before else misses + 1
            if misses >= PING_MISSES:
                return
            await trio.sleep(PING_INTERVAL - PING_DEADLINE if misses else PING_INTERVAL)
    finally:
        if stream is not None:
            await let_go(stream)


async def answer_pings(stream: INetStream, peer_id: str) -> None:
    with trio.move_on_after(math.inf) as scope:
        while True:
            scope.deadline = trio.current_time() + 6 * PING_INTERVAL
            await write_all(stream, await read_exact(stream, 8))
