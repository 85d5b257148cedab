"""One blob on its way from several peers at once: asks, checks what comes, keeps it, and has it for those who wait.

Who is asked for what is decided in `p2p.sharing`. With the hashes of the leaves at hand every piece is checked before
it is kept, and may be passed on before the blob is whole. Without them only the whole blob shows whether it is right.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import trio
from libp2p.abc import INetStream

from dlx.ground.backoff import Backoff
from dlx.ground.blobs import CHUNK, Kind, Partial
from dlx.ground.merkle import HASH_BYTES, LEAF_BYTES, leaf_hashes, root_of
from dlx.p2p import wire
from dlx.p2p.host import Host
from dlx.p2p.muxer import lay_down, take_up
from dlx.p2p.sharing import (
    HESITATION,
    LONGEST_SILENCE,
    SHARERS,
    SILENCE,
    Asked,
    Sharing,
    Source,
    pieces_of,
)
from dlx.p2p.streams import StreamBroken, let_go, read_short, read_some, write_short

BLOB = "/dlx/blob/2"
ASK_DEADLINE = 10.0
AGAIN = Backoff(first=1.0, cap=8.0)  # until a peer that has nothing (new) is asked once more
STREAMS = 2  # per peer: one waits for the network while what the other brought goes to disk
SMALL = 256 * 1024  # bytes of a blob for which one stream is enough
FEW_HASHES = 16 * 1024  # bytes of leaves' hashes that are asked for with the first question
STREAMS_OF_A_PEER = 6  # of all transfers together: below what it serves
KEEP = 0.25  # s that bytes wait, at most, before they are checked, kept and passed on
_LOOK = 0.1  # s
_READ = 256 * 1024

log = logging.getLogger(__name__)
T = TypeVar("T")


class WrongBytes(Exception):
    """A peer sent other bytes than the blob has."""


@dataclass
class Peers:
    """What is known of peers, from transfer to transfer."""

    rates: dict[str, float] = field(default_factory=dict)  # bytes a second of one request
    idle: defaultdict[str, list[INetStream]] = field(default_factory=lambda: defaultdict(list))  # streams to use again
    places: defaultdict[str, trio.Semaphore] = field(
        default_factory=lambda: defaultdict(lambda: trio.Semaphore(STREAMS_OF_A_PEER))
    )

    def forget_all_but(self, connected: Collection[str]) -> None:
        """Strangers come and go, and a stream holds its connection."""
        for by_peer in (self.rates, self.idle, self.places):
            for peer in by_peer.keys() - set(connected):
                del by_peer[peer]


class Progress:
    """What got done of a download: the bytes that came, and the seconds of work on the disk."""

    def __init__(self) -> None:
        self.bytes = 0
        self._on_disk = 0.0  # s, of work that has ended
        self._works, self._since = 0, 0.0  # under way, and since when there is any

    @property
    def disk_seconds(self) -> float:
        under_way = trio.current_time() - self._since if self._works else 0.0
        return self._on_disk + under_way

    def came(self, count: int) -> None:
        """So many bytes did."""
        self.bytes += count

    async def on_disk(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do the work in a thread. It may take minutes where the disk is slow: hashing a large blob, or `fsync`."""
        if not self._works:
            self._since = trio.current_time()
        self._works += 1
        try:
            return await trio.to_thread.run_sync(work, *arguments)
        finally:
            self._works -= 1
            if not self._works:
                self._on_disk += trio.current_time() - self._since


class Line:
    """A stream to a peer, for one range after the other. One that was opened before and has nothing to bring any more
    is used again: opening costs more bytes than asking."""

    def __init__(self, host: Host, peers: Peers, peer: str, kind: Kind) -> None:
        self._host, self._idle, self._peer = host, peers.idle[peer], peer
        self._traffic = "payload" if kind is Kind.PAYLOAD else "blobs"
        self._owed = 0  # bytes of the answer that are still to come; -1: its head is

    async def __aenter__(self) -> Line:
        while self._idle:
            self._stream = self._idle.pop()
            if take_up(self._stream):
                break
            await let_go(self._stream)
        else:
            self._stream = await self._host.open_stream(self._peer, BLOB, ASK_DEADLINE)
        self._host.count_as(self._traffic, self._stream)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._owed or len(self._idle) >= STREAMS:
            await let_go(self._stream)
        else:
            lay_down(self._stream)
            self._idle.append(self._stream)

    async def begin(self, request: wire.BlobRequest) -> wire.BlobReply:
        """Ask for a range; then `read` as many bytes as the reply says. Raises StreamBroken, WireError."""
        self._owed = -1
        await write_short(self._stream, wire.encode(request))
        reply = wire.decode_as(wire.BlobReply, await read_short(self._stream, wire.REPLY_LIMIT))
        if reply.length > request.length:
            raise wire.WireError("oversize", "more than was asked for")
        self._owed = reply.length
        return reply

    async def read(self, limit: int) -> bytes:
        """Some of them. Raises StreamBroken."""
        data = await read_some(self._stream, limit)
        self._owed -= len(data)
        return data


class Transfer:
    """From `run` on; then see what of `partial` is done.

    `root`: of the blob's Merkle tree, if known: then peers may have the blob, a part of it or none, and each of
    `shares` passes a share of it on. Without it all peers have it.
    """

    def __init__(
        self,
        host: Host,
        peers: Peers,
        hash_: bytes,
        kind: Kind,
        partial: Partial,
        root: bytes | None = None,
        shares: Mapping[str, range] = {},
        progress: Progress | None = None,
    ) -> None:
        self.root, self.partial, self.kind = root, partial, kind
        self.leaves = b""  # hashes, one after the other, once they are known and what lies here was checked
        self.sources: dict[int, str] = {}  # who sent which piece
        self.failed = Counter[str]()
        self.wrong = set[str]()
        self.unsure = False  # somebody could not be asked, or was lost
        self.grew = trio.Event()  # replaced whenever there is more
        self.is_over = False
        self._host, self._peers, self._hash = host, peers, hash_
        self._shares, self._progress, self._random = shares, progress or Progress(), Random()
        self._came = 0  # bytes
        self._others: Sequence[str] = ()  # that were not asked yet
        self._scopes: dict[Asked, trio.CancelScope] = {}
        self._replaced = set[Source]()
        self._left = 0  # peers that may give something
        self._hashing = -math.inf  # when somebody was last asked for the leaves' hashes
        self._believing = trio.Lock()
        self._disk: OSError | None = None
        self._sharing = Sharing(partial.size, partial.piece, partial.done, shares.get(host.peer_id, range(0)))

    @property
    def is_complete(self) -> bool:
        return len(self.partial.done) == self.partial.count

    async def run(self, peers: Collection[str], others: Sequence[str] = ()) -> None:
        """Ends when all is here, or nobody has more. Of the `others` the next few are asked too when nothing came for
        HESITATION seconds, twice as long each time, or none of those asked has more. Where all are slow because all
        are busy, asking everybody would make them slower. Raises OSError of our disk."""
        if self.root is not None and self.partial.size <= LEAF_BYTES:
            await self._believe(self.root)
        self._others = others
        if not self.is_complete and (peers or others):
            async with trio.open_nursery() as self._nursery:
                for peer in peers:
                    self.join(peer)
                if not peers:
                    self._ask_more()
                self._nursery.start_soon(self._break_silence)
        for source in self._sharing.sources:
            if source.rate is not None and source.have is None:
                self._peers.rates[source.peer] = source.rate
        if self._disk is not None:
            raise self._disk

    def join(self, peer: str) -> None:
        """One more that may give something, while it runs."""
        self._left += 1
        self._nursery.start_soon(self._attend, peer)

    async def _break_silence(self) -> None:
        hesitation = HESITATION
        while self._others:
            came = self._came
            await trio.sleep(hesitation)
            if self._came == came:
                self._ask_more()
                hesitation *= 2

    def _ask_more(self) -> bool:
        """The next few, of whom one is asked for the hashes at once; whether there was anybody."""
        asked, self._others = self._others[:SHARERS], self._others[SHARERS:]
        self._hashing = -math.inf
        for peer in asked:
            self.join(peer)
        return bool(asked)

    def end(self) -> None:
        """Nothing more comes."""
        self.is_over = True
        self._grow()

    async def _attend(self, peer: str) -> None:
        """One peer, as long as it is of use."""
        asks = 0
        while await self._visit(peer, asks == 0):
            asks += 1
            await trio.sleep(AGAIN.delay(asks, self._random))
            while not self._sharing.wants(self._shares[peer]):
                await trio.sleep(AGAIN.first)

    async def _visit(self, peer: str, first: bool) -> bool:
        """Ask it, and have from it what it has. Whether it had nothing, and may later."""
        source, counted = None, first
        try:
            async with self._peers.places[peer], self._line(peer) as line:
                source = await self._meet(line, peer)
                if source is None:
                    return peer in self._shares
                if not first:
                    self._left, counted = self._left + 1, True
                if self.root is not None and not self.leaves:
                    await self._have_leaves(line)
                self._sharing.sources.append(source)
                if self.partial.size > SMALL:
                    for _ in range(STREAMS - 1):
                        self._nursery.start_soon(self._assist, source)
                await self._work(line, source)
        except (StreamBroken, trio.TooSlowError, wire.WireError, WrongBytes) as error:
            self._blame(peer, error)
        except OSError as error:
            self._disk = error
            self._nursery.cancel_scope.cancel()
        finally:
            self._part(source)
            self._left -= counted
            if not self._left and not self._ask_more():
                self._nursery.cancel_scope.cancel()
        return False

    async def _assist(self, source: Source) -> None:
        """A further stream to the same peer."""
        try:
            async with self._peers.places[source.peer], self._line(source.peer) as line:
                await self._work(line, source)
        except (StreamBroken, trio.TooSlowError, wire.WireError, WrongBytes) as error:
            self._blame(source.peer, error)
        except OSError as error:
            self._disk = error
            self._nursery.cancel_scope.cancel()

    def _line(self, peer: str) -> Line:
        return Line(self._host, self._peers, peer, self.kind)

    def _blame(self, peer: str, error: Exception) -> None:
        log.debug("fetching %s from %s: %r", self._hash.hex()[:16], peer, error)
        self.unsure = True
        self.failed[peer] += 1
        if isinstance(error, wire.WireError):
            self._host.reject("blob_malformed", peer)
        if isinstance(error, WrongBytes) and peer not in self.wrong:
            self.wrong.add(peer)
            self._host.ban(peer, "bad_blob")

    def _part(self, source: Source | None) -> None:
        if source in self._sharing.sources:
            self._sharing.sources.remove(source)
        if source is not None and source.rate is not None and source.have is None:
            self._peers.rates[source.peer] = source.rate

    async def _meet(self, line: Line, peer: str) -> Source | None:
        """What the peer has; None: nothing."""
        source = Source(peer, self._peers.rates.get(peer), share=self._shares.get(peer, range(0)))
        return source if self.root is None or await self._look(line, source) else None

    async def _look(self, line: Line, source: Source) -> bool:
        """Whether it has any of it; with the hashes of the leaves, where they are few, nobody was asked yet and it does
        not fetch them itself."""
        whole, now = self._hashes, trio.current_time()
        is_due = not self.leaves and now >= self._hashing + SILENCE
        asks = is_due and whole <= FEW_HASHES and source.peer not in self._shares
        self._hashing = now if asks else self._hashing
        found = bytearray()
        with trio.fail_after(ASK_DEADLINE + source.patience):
            reply = await self._begin(line, 0, whole if asks else 0, leaves=asks)
            while len(found) < reply.length:
                found += await line.read(reply.length - len(found))
        self._moved(len(found))
        has_it = reply.size == self.partial.size
        if asks and has_it and len(found) == whole:
            await self._take_hashes(bytes(found))
        elif asks:  # the next one is asked
            self._hashing = -math.inf
            self._grow()
        if not has_it:
            return False
        source.have = None if reply.have is None else pieces_of(reply.have) & frozenset(range(self.partial.count))
        return True

    async def _work(self, line: Line, source: Source) -> None:
        """Have of it what nobody else is asked for, until all is here, or it is replaced."""
        looks, look_at = 0, trio.current_time() + AGAIN.first
        while source not in self._replaced:
            now = trio.current_time()
            asked = self._sharing.take(source, now)
            if asked is not None:
                await self._fetch(line, source, asked)
                looks, look_at = 0, trio.current_time() + AGAIN.first
                continue
            if (other := self._sharing.replaceable(source, now)) is not None:
                self._replace(other.source)
                await trio.sleep(0)
            elif source.have is not None and now > look_at:
                looks += 1
                if not await self._look(line, source):
                    raise StreamBroken("it no longer has it")
                look_at = trio.current_time() + AGAIN.delay(looks, self._random)
            else:
                await trio.sleep(_LOOK)

    def _replace(self, source: Source) -> None:
        """Somebody else is asked for what it was asked for."""
        log.debug("%s is too slow with %s", source.peer, self._hash.hex()[:16])
        self._replaced.add(source)
        self.unsure = True
        self.failed[source.peer] += 1
        self._part(source)
        for asked in self._sharing.asked:
            if asked.source is source:
                self._scopes[asked].cancel()

    async def _fetch(self, line: Line, source: Source, asked: Asked) -> None:
        """Raises StreamBroken, WrongBytes. Whole pieces that came are kept, whatever happens to the rest."""
        partial = self.partial
        offset = asked.first * partial.piece
        length = min(asked.end * partial.piece, partial.size) - offset
        written, rest, keep_at = 0, bytearray(), trio.current_time() + KEEP  # pieces, and bytes that wait
        scope = self._scopes[asked] = trio.CancelScope()
        try:
            with scope:
                scope.deadline = trio.current_time() + LONGEST_SILENCE + source.patience
                reply = await self._begin(line, offset, length)
                if reply.size != partial.size or reply.length != length:
                    raise StreamBroken("it no longer has it")
                while asked.got < length:
                    data = await line.read(min(_READ, length - asked.got))
                    now = trio.current_time()
                    scope.deadline = now + LONGEST_SILENCE + source.patience
                    rest += data
                    self._sharing.received(asked, len(data), now)
                    self._moved(len(data))
                    if asked.got == length or (now > keep_at and len(rest) >= partial.piece):
                        written += await self._keep(source, asked.first + written, rest, asked.got == length)
                        keep_at = trio.current_time() + KEEP
        except StreamBroken:
            written += await self._keep(source, asked.first + written, rest, False)
            raise
        finally:
            del self._scopes[asked]
            if scope.cancelled_caught:
                written += await self._keep(source, asked.first + written, rest, False)
            self._sharing.over(asked, written, trio.current_time())
        if scope.cancelled_caught:
            raise StreamBroken("it was too slow")
        if self.is_complete:
            self._nursery.cancel_scope.cancel()

    async def _keep(self, source: Source, first: int, rest: bytearray, ends: bool) -> int:
        """Check and write the whole pieces at the beginning of `rest`, and take them off; how many.

        Raises WrongBytes."""
        size = len(rest) if ends else len(rest) // self.partial.piece * self.partial.piece
        if not size:
            return 0
        data = bytes(rest[:size]) if size < len(rest) else bytes(rest)
        del rest[:size]
        count = -(-size // self.partial.piece)
        await self._progress.on_disk(self._write, first, data)
        self.sources.update(dict.fromkeys(range(first, first + count), source.peer))
        self._grow()
        return count

    def _write(self, first: int, data: bytes) -> None:
        if self.root is not None and not self._matches(self.leaves, first, data):
            raise WrongBytes(f"piece {first} is not what the Merkle root says")
        self.partial.write(first, data)

    def _matches(self, leaves: bytes, first: int, data: bytes) -> bool:
        at = first * self.partial.piece // LEAF_BYTES * HASH_BYTES
        hashes = leaf_hashes(data)
        return leaves[at : at + len(hashes)] == hashes

    def _moved(self, count: int) -> None:
        self._came += count
        self._progress.came(count)

    def _grow(self) -> None:
        self.grew.set()
        self.grew = trio.Event()

    # ---- the hashes of the leaves -----------------------------------------------------------------------------------

    async def _have_leaves(self, line: Line) -> None:
        """From one peer; every SILENCE seconds from the next one too: they are few, and nothing can begin without
        them. Raises StreamBroken, WrongBytes."""
        while not self.leaves and trio.current_time() < self._hashing + SILENCE:
            with trio.move_on_at(self._hashing + SILENCE):
                await self.grew.wait()
        if self.leaves:
            return
        self._hashing = trio.current_time()
        found, whole = bytearray(), self._hashes
        with trio.CancelScope() as scope:
            while len(found) < whole and not self.leaves:
                scope.deadline = trio.current_time() + LONGEST_SILENCE
                length = min(CHUNK, whole - len(found))
                reply = await self._begin(line, len(found), length, leaves=True)
                if reply.size is None or reply.length != length:
                    raise StreamBroken("it no longer has it")
                end = len(found) + length
                while len(found) < end:
                    data = await line.read(min(_READ, end - len(found)))
                    scope.deadline = trio.current_time() + LONGEST_SILENCE
                    found += data
                    self._moved(len(data))
        if scope.cancelled_caught:
            raise StreamBroken("it did not send the hashes of the leaves")
        await self._take_hashes(bytes(found))

    @property
    def _hashes(self) -> int:
        """Bytes of all of them."""
        return -(-self.partial.size // LEAF_BYTES) * HASH_BYTES

    async def _take_hashes(self, found: bytes) -> None:
        """Raises WrongBytes."""
        if not self.leaves:
            if await trio.to_thread.run_sync(root_of, found) != self.root:
                raise WrongBytes("the hashes of the leaves are not those of the Merkle root")
            await self._believe(found)

    async def _believe(self, leaves: bytes) -> None:
        """These are the hashes. What an earlier transfer left may have come unchecked: it is checked before anybody
        goes on with it, or is given any of it."""
        partial = self.partial

        def wrong() -> list[int]:
            done = ((index, partial.read(*partial.range(index))) for index in partial.done)
            return [index for index, data in done if not self._matches(leaves, index, data)]

        async with self._believing:
            if self.leaves:
                return
            if partial.done and (bad := await self._progress.on_disk(wrong)):
                await self._progress.on_disk(partial.drop, bad)
                self._sharing = Sharing(partial.size, partial.piece, partial.done, self._sharing.own)
            self.leaves = leaves
            self._grow()

    async def _begin(self, line: Line, offset: int, length: int, *, leaves: bool = False) -> wire.BlobReply:
        return await line.begin(wire.BlobRequest(self._hash, self.root, leaves, offset, length))
