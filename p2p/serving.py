"""Blobs to peers: what the store holds, in ranges of at most 1 MiB; members first, and strangers have a budget.

Members also get what has come so far of a blob that this node is fetching itself, where its Merkle tree shows that it
is right; they wait for what is to come.
"""

import logging
import math
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec
import trio
from libp2p.abc import INetStream

from dlx.ground.blobs import CHUNK, BlobStore, Kind
from dlx.ground.merkle import file_leaves, root_of
from dlx.p2p import wire
from dlx.p2p.admission import Leftover, owner
from dlx.p2p.host import Host
from dlx.p2p.muxer import address_of, in_bulk, networks_of
from dlx.p2p.precedence import PIECE, Precedence
from dlx.p2p.sharing import LEAST_RATE, bitmap
from dlx.p2p.stream_admission import ServedStreams
from dlx.p2p.streams import StreamBroken, read_short, write_all, write_short
from dlx.p2p.token_buckets import TokenBuckets
from dlx.p2p.transfer import BLOB, Transfer

STREAMS = 64
STREAMS_PER_PEER = 8
IDLE = 60.0  # s that a stranger may leave a stream unused, and that anybody waits for more of what is coming
IDLE_MEMBER = 900.0  # s that a member may leave one unused: for the next round's payload
REQUEST_LIMIT = 256  # bytes
LEAVES_KEPT = 32 * 1024 * 1024  # bytes of hashes of leaves, of blobs asked for lately
ROOTS_KEPT = 4096  # blobs whose root is known
LONGEST_WAIT = 20.0  # s that a stranger's request waits for its turn
STRANGERS_AT_ONCE, SLOW = 4, 5.0  # ranges on their way to strangers; those of more than so many seconds do not count
STRANGER_BYTES = 1024 * 1024 * 1024  # a minute, for the strangers of one network together
REQUEST_COST = 16 * 1024  # bytes that every request counts besides those that it asks for
SMALL = 8 * 1024  # bytes of an answer that does not let everything else go first: a statement, a trace, a verdict
RECHECK = 60.0  # s that a look at a blob counts: as long as a ban for a damaged one

log = logging.getLogger(__name__)


@dataclass
class _Look:
    """At the bytes of a blob."""

    until: float = -math.inf  # it counts
    lock: trio.Lock = field(default_factory=trio.Lock)


class BlobServer:
    """Make it before the host runs. `coming(hash, root)`: the transfer that has a part of a blob to pass on, if any."""

    def __init__(self, host: Host, store: BlobStore, coming: Callable[[bytes, bytes], Transfer | None]) -> None:
        self._host = host
        self._store = store
        self._coming = coming
        self._leaves: dict[bytes, tuple[bytes, bytes]] = {}  # blob -> its root, hashes of leaves; used last at the end
        self._roots: dict[bytes, bytes] = {}  # blob -> root of its Merkle tree; learnt last at the end
        self._hashing = trio.Lock()  # one at a time: who asks for the same needs it once
        self._streams = ServedStreams(
            STREAMS, STREAMS_PER_PEER, host.is_registered, lambda peer: host.reject("blob_busy", peer)
        )
        self._budget = TokenBuckets(STRANGER_BYTES / 60, STRANGER_BYTES)
        self._leftover, self._line = Leftover(time.monotonic), trio.Lock()
        self._answers: list[float] = []  # to strangers, under way: since when
        self._looks: dict[bytes, _Look] = {}
        self._precedence = Precedence()
        host.serve(BLOB, self._serve)

    async def _serve(self, stream: INetStream, peer: str) -> None:
        try:
            with self._streams.admit(peer, networks_of(stream)) as served:
                while served is not None:
                    served.busy = False
                    with trio.fail_after(IDLE_MEMBER if self._host.is_registered(peer) else IDLE):
                        request = wire.decode_as(wire.BlobRequest, await read_short(stream, REQUEST_LIMIT))
                    served.since, served.busy = trio.current_time(), True
                    if request.length > CHUNK:
                        self._host.reject("blob_request", peer)
                        return
                    if self._host.is_registered(peer):
                        await self._answer_member(stream, request, peer)
                    elif not await self._answer_stranger(stream, request, owner(peer, address_of(stream))):
                        self._host.reject("blob_wait", peer)
                        return
        except wire.WireError as error:
            self._host.reject(f"blob_{error.reason}", peer)
        except (StreamBroken, trio.TooSlowError):
            pass  # the client is done, or gone

    async def _answer_member(self, stream: INetStream, request: wire.BlobRequest, peer: str) -> None:
        coming = self._coming(request.hash, request.root) if request.root else None
        if coming is not None:
            self._host.count_as(traffic(coming.kind), stream)
            in_bulk(stream, request.length > SMALL)
            return await self._pass_on(stream, request, coming, peer)
        self._leftover.begin()
        size = 0
        try:
            size = await self._answer(stream, request, peer)
        finally:
            self._leftover.end(size)

    async def _answer_stranger(self, stream: INetStream, request: wire.BlobRequest, name: str) -> bool:
        """False where its turn did not come in time."""
        if not await self._await_turn(name, request.length):
            return False
        started = trio.current_time()
        self._answers.append(started)
        root = None if request.leaves or request.hash not in self._roots else request.root
        try:  # hashes of leaves take all of a file, however few are asked for: they are for members
            await self._answer(stream, msgspec.structs.replace(request, root=root), name)
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

    async def _answer(self, stream: INetStream, request: wire.BlobRequest, peer: str) -> int:
        """The bytes that were sent."""
        kind, size, data = Kind.PUBLIC, None, b""
        if not request.length or await self._is_sound(request.hash):
            kind, size, data = await trio.to_thread.run_sync(_read_range, self._store, request)
        if request.leaves and size is not None:
            leaves = await self._leaves_of(request)
            size, data = (size, _part(leaves, request)) if leaves is not None else (None, b"")
        elif size is not None and not await self._has_root(request):
            size, data = None, b""
        self._host.count_as(traffic(kind), stream)
        in_bulk(stream, len(data) > SMALL)
        reply = wire.encode(wire.BlobReply(size, None, len(data)))
        with trio.fail_after(_seconds(len(data))):
            if len(data) <= SMALL:
                await write_short(stream, reply, data)
            elif kind is Kind.PAYLOAD:
                with self._precedence.payload(peer):
                    await write_short(stream, reply, data)
            else:
                await write_short(stream, reply)
                await self._give_way(stream, data)
        return len(data)

    async def _pass_on(self, stream: INetStream, request: wire.BlobRequest, coming: Transfer, peer: str) -> None:
        """Raises StreamBroken where no more comes."""
        if coming.kind is not Kind.PAYLOAD:
            return await _pass_on(stream, request, coming, self._give_way)

        async def first(stream: INetStream, data: memoryview | bytes) -> None:
            with self._precedence.payload(peer):
                await write_all(stream, data)

        await _pass_on(stream, request, coming, first)

    async def _give_way(self, stream: INetStream, data: memoryview | bytes) -> None:
        """What is no payload, in pieces that others may go before."""
        for at in range(0, len(data), PIECE):
            await self._precedence.turn()
            await write_all(stream, memoryview(data)[at : at + PIECE])

    def knows(self, hash_: bytes, root: bytes) -> None:
        """The root of the Merkle tree of a blob that is here."""
        self._roots.pop(hash_, None)
        self._roots[hash_] = root
        if len(self._roots) > ROOTS_KEPT:
            self._roots.pop(next(iter(self._roots)))

    async def _has_root(self, request: wire.BlobRequest) -> bool:
        """Whether the blob's tree has the root that was named, if one was: else whoever asks would blame us. A file is
        not read only to say that it is here."""
        if request.root is not None and request.length and request.hash not in self._roots:
            return await self._leaves_of(request) is not None
        return request.root is None or self._roots.get(request.hash, request.root) == request.root

    async def _leaves_of(self, request: wire.BlobRequest) -> bytes | None:
        """The hashes of its leaves, if they have the root that was named: else whoever asks would blame us."""
        if request.root is None:
            return None
        async with self._hashing:
            root, found = self._leaves.pop(request.hash, (b"", b""))
            if not found:
                try:
                    found = await trio.to_thread.run_sync(file_leaves, self._store.path(request.hash))
                except OSError:
                    return None
                root = await trio.to_thread.run_sync(root_of, found)
                self.knows(request.hash, root)
            self._leaves[request.hash] = root, found
        while sum(len(leaves) for _, leaves in self._leaves.values()) > max(LEAVES_KEPT, len(found)):
            self._leaves.pop(next(iter(self._leaves)))
        return found if root == request.root else None

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


async def _pass_on(
    stream: INetStream,
    request: wire.BlobRequest,
    coming: Transfer,
    write: Callable[[INetStream, memoryview | bytes], Awaitable[None]],
) -> None:
    """A range of a blob as it comes. Raises StreamBroken where it does not."""
    partial = coming.partial
    if request.leaves or not request.length:
        data = _part(coming.leaves, request) if request.leaves else b""
        have = bitmap(partial.done.copy())
        with trio.fail_after(_seconds(len(data))):
            await write_short(stream, wire.encode(wire.BlobReply(partial.size, have, len(data))), data)
        return
    file = partial.reader()
    try:
        at, end = request.offset, min(request.offset + request.length, partial.size)
        reply = wire.encode(wire.BlobReply(partial.size, None, max(0, end - at)))
        with trio.fail_after(IDLE):
            await write_short(stream, reply)
        while at < end:
            there = await _until_there(coming, at, end)
            data = await trio.to_thread.run_sync(os.pread, file, there - at, at)
            if len(data) < there - at:
                raise StreamBroken("the file is gone")
            with trio.fail_after(_seconds(len(data))):
                await write(stream, data)
            at = there
    finally:
        os.close(file)


async def _until_there(coming: Transfer, at: int, end: int) -> int:
    """Up to where the bytes from `at` on are there; waits for the first one. Raises StreamBroken, TooSlowError."""
    piece = coming.partial.piece
    while (first := at // piece) not in coming.partial.done:
        if coming.is_over:
            raise StreamBroken("it does not come any more")
        with trio.fail_after(IDLE):
            await coming.grew.wait()
    last = first
    while last * piece < end and last in coming.partial.done:
        last += 1
    return min(end, last * piece)


def _part(leaves: bytes, request: wire.BlobRequest) -> bytes:
    return leaves[request.offset : request.offset + request.length]


def _seconds(length: int) -> float:
    """For so many bytes, to a peer that takes them slowly."""
    return IDLE + length / LEAST_RATE


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
    """What is served: nothing of what cannot be read."""
    try:
        kind = store.kind(request.hash)
    except OSError:  # of the index: it says only what the bytes count as
        kind = Kind.PUBLIC
    try:
        with open(store.path(request.hash), "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            length = min(request.length, max(0, size - request.offset))
            return kind, size, os.pread(file.fileno(), length, request.offset)
    except OSError:
        return kind, None, b""
