"""Blobs to peers: what the store holds, in ranges of at most 1 MiB; members first, and strangers have a budget."""

import logging
import math
import os
import time
from dataclasses import dataclass, field

import trio
from libp2p.abc import INetStream

from dlx.ground.blobs import CHUNK, BlobStore, Kind
from dlx.p2p import wire
from dlx.p2p.buckets import Buckets
from dlx.p2p.guard import address_of
from dlx.p2p.host import Host
from dlx.p2p.places import Leftover, owner
from dlx.p2p.served import ServedStreams
from dlx.p2p.streams import StreamBroken, read_short, write_short

BLOB = "/dlx/blob/1"
STREAMS = 32
STREAMS_PER_PEER = 8
IDLE = 30.0  # s that a client may leave a stream unused
CHUNK_DEADLINE = 30.0  # s for one range; the rate this asks for is 35 kB/s
LONGEST_WAIT = 20.0  # s that a stranger's request waits for its turn
STRANGERS_AT_ONCE, SLOW = 4, 5.0  # ranges on their way to strangers; those of more than so many seconds do not count
STRANGER_BYTES = 1024 * 1024 * 1024  # a minute, for the strangers of one network together
REQUEST_COST = 16 * 1024  # bytes that every request counts besides those that it asks for
RECHECK = 60.0  # s that a look at a blob counts: as long as a ban for a damaged one

log = logging.getLogger(__name__)


@dataclass
class _Look:
    """At the bytes of a blob."""

    until: float = -math.inf  # it counts
    lock: trio.Lock = field(default_factory=trio.Lock)


class BlobServer:
    """Make it before the host runs."""

    def __init__(self, host: Host, store: BlobStore) -> None:
        self._host = host
        self._store = store
        self._streams = ServedStreams(
            STREAMS, STREAMS_PER_PEER, host.is_registered, lambda peer: host.reject("blob_busy", peer)
        )
        self._budget = Buckets(STRANGER_BYTES / 60, STRANGER_BYTES)
        self._leftover, self._line = Leftover(time.monotonic), trio.Lock()
        self._answers: list[float] = []  # to strangers, under way: since when
        self._looks: dict[bytes, _Look] = {}
        host.serve(BLOB, self._serve)

    async def _serve(self, stream: INetStream, peer: str) -> None:
        address = address_of(stream)
        try:
            with self._streams.admit(peer, address) as served:
                while served is not None:
                    served.busy = False
                    with trio.fail_after(IDLE):
                        request = wire.decode_as(wire.BlobRequest, await read_short(stream, 256))
                    served.since, served.busy = trio.current_time(), True
                    if request.length > CHUNK:
                        self._host.reject("blob_request", peer)
                        return
                    if self._host.is_registered(peer):
                        await self._answer_member(stream, request)
                    elif not await self._answer_stranger(stream, request, owner(peer, address)):
                        self._host.reject("blob_wait", peer)
                        return
        except wire.WireError as error:
            self._host.reject(f"blob_{error.reason}", peer)
        except (StreamBroken, trio.TooSlowError):
            pass  # the client is done, or gone

    async def _answer_member(self, stream: INetStream, request: wire.BlobRequest) -> None:
        self._leftover.begin()
        size = 0
        try:
            size = await self._answer(stream, request)
        finally:
            self._leftover.end(size)

    async def _answer_stranger(self, stream: INetStream, request: wire.BlobRequest, name: str) -> bool:
        """False where its turn did not come in time."""
        if not await self._await_turn(name, request.length):
            return False
        started = trio.current_time()
        self._answers.append(started)
        try:
            await self._answer(stream, request)
        finally:
            self._answers.remove(started)
        return True

    async def _await_turn(self, name: str, length: int) -> bool:
        """Whether a stranger's turn came in time: it has a budget, and members come first."""
        cost = length + REQUEST_COST
        with trio.move_on_after(LONGEST_WAIT) as scope:
            await trio.sleep(self._budget.owe(name, cost))
            if length:
                async with self._line:
                    while self._is_busy_with_strangers() or not self._leftover.take(cost):
                        await trio.sleep(0.01)
        return not scope.cancelled_caught

    def _is_busy_with_strangers(self) -> bool:
        """A member that comes now waits for what is on its way to them. Who reads slowly holds up nobody for long."""
        return sum(started > trio.current_time() - SLOW for started in self._answers) >= STRANGERS_AT_ONCE

    async def _answer(self, stream: INetStream, request: wire.BlobRequest) -> int:
        """The bytes that were sent."""
        if request.length and not await self._is_sound(request.hash):
            kind, size, data = Kind.PUBLIC, None, b""
        else:
            kind, size, data = await trio.to_thread.run_sync(_read_range, self._store, request)
        self._host.count_as(traffic(kind), stream)
        with trio.fail_after(CHUNK_DEADLINE):
            await write_short(stream, wire.encode(wire.BlobReply(size, len(data))), data)
        return len(data)

    async def _is_sound(self, hash_: bytes) -> bool:
        """Whether a blob may be served: a damaged one, which would get us banned, is removed. Looks once in RECHECK."""
        now = trio.current_time()
        if hash_ not in self._looks:
            self._looks = {key: look for key, look in self._looks.items() if look.until > now or look.lock.locked()}
        look = self._looks.setdefault(hash_, _Look())
        async with look.lock:
            if look.until <= trio.current_time():
                if not await trio.to_thread.run_sync(_sound, self._store, hash_):
                    return False
                look.until = trio.current_time() + RECHECK
        return True


def traffic(kind: Kind) -> str:
    """What the bytes of such a blob are counted as."""
    return "payload" if kind is Kind.PAYLOAD else "blobs"


def _sound(store: BlobStore, hash_: bytes) -> bool:
    try:
        return store.sound(hash_)
    except OSError as error:
        log.warning("blob %s cannot be read: %s", hash_.hex()[:16], error)
        return False


def _read_range(store: BlobStore, request: wire.BlobRequest) -> tuple[Kind, int | None, bytes]:
    """What is served: nothing of what is private, or cannot be read."""
    try:
        kind = store.kind(request.hash)
    except OSError:  # private ones are known without the index
        kind = Kind.PUBLIC
    if kind is Kind.PRIVATE:
        return kind, None, b""
    try:
        with open(store.path(request.hash), "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            length = min(request.length, max(0, size - request.offset))
            return kind, size, os.pread(file.fileno(), length, request.offset)
    except OSError:
        return kind, None, b""
