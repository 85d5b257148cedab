"""Blobs from peers: ranges of at most 1 MiB, from several peers at once, checked before use."""

import hashlib
import itertools
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import trio
from libp2p.abc import INetStream

from dlx.ground.backoff import Backoff
from dlx.ground.blobs import BlobStore, Kind, NoRoom, Partial
from dlx.ground.errors import DlxError
from dlx.p2p import wire
from dlx.p2p.host import Host
from dlx.p2p.serving import BLOB, CHUNK_DEADLINE, BlobServer, traffic
from dlx.p2p.streams import StreamBroken, let_go, read_exact, read_short, write_short

ASK_DEADLINE = 10.0
PATIENCE = 0.5  # s for the other answers once there is one
RETRY = Backoff(first=0.5, cap=5.0)
PROVIDERS = 4  # at once
EMPTY = hashlib.sha256().digest()
STREAMS = 2  # per provider: one waits for the network while the other's chunk goes to disk

log = logging.getLogger(__name__)


class BlobError(DlxError):
    """A blob could not be fetched."""


class BlobNotFound(BlobError):
    """Nobody who was asked has it."""


class BlobTooLarge(BlobError):
    """It is here, and larger than allowed."""


class BlobTimeout(BlobError):
    """The deadline passed before it was here."""


@dataclass
class _Download:
    max_size: int  # the largest that any caller allows
    providers: set[str] | None  # None: whoever is connected
    kind: Kind
    callers: int = 0  # so far
    waiting: int = 0
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    over: trio.Event = field(default_factory=trio.Event)
    error: Exception | None = None
    bad: set[str] = field(default_factory=set)
    failures: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    suspects: list[tuple[int, str, bytes]] = field(default_factory=list)  # chunk, peer, hash of what it sent


class BlobExchange:
    """Make it before the host runs. Serves what the store holds, members first; fetches what it lacks.

    Peers that served wrong bytes are disconnected for a while.
    """

    def __init__(self, host: Host, store: BlobStore) -> None:
        self._host = host
        self._store = store
        self._random = Random()
        self._downloads: dict[bytes, _Download] = {}
        self._server = BlobServer(host, store)
        host.add_service(self._run)

    async def fetch(
        self,
        hash_: bytes,
        max_size: int,
        providers: Sequence[str] | None = None,
        deadline_s: float = 600.0,
        kind: Kind = Kind.PUBLIC,
    ) -> Path:
        """The blob's file, fetched from `providers` (peer ids; None: all agreed peers) unless it is here.

        Goes on where an earlier fetch stopped; calls for the same hash share one download. What was fetched is
        stored as `kind`.
        Raises BlobNotFound, BlobTimeout, BlobTooLarge (also where it is on disk already), OSError (disk).
        """
        path = self._store.path(hash_)
        if not await trio.to_thread.run_sync(self._store.has, hash_):
            await self._share(hash_, max_size, providers, deadline_s, kind)
        size = (await trio.to_thread.run_sync(path.stat)).st_size
        if size > max_size:
            raise BlobTooLarge(f"blob {hash_.hex()[:16]} has {size} bytes, allowed were {max_size}")
        return path

    async def _share(
        self, hash_: bytes, max_size: int, providers: Sequence[str] | None, deadline_s: float, kind: Kind
    ) -> None:
        """Begin the download, or join the one under way."""
        download = self._downloads.get(hash_)
        if download is None:
            download = self._downloads[hash_] = _Download(max_size, None if providers is None else set(providers), kind)
            self._nursery.start_soon(self._download, hash_, download)
        else:
            download.max_size = max(download.max_size, max_size)
            if providers is None:
                download.providers = None
            elif download.providers is not None:
                download.providers |= set(providers)
        download.callers += 1
        download.waiting += 1
        try:
            with trio.move_on_after(deadline_s):
                await download.over.wait()
        finally:
            download.waiting -= 1
            if not download.waiting:
                download.scope.cancel()
        if not download.over.is_set():
            raise BlobTimeout(f"blob {hash_.hex()[:16]} did not come within {deadline_s:.0f} s")
        if download.error is not None:
            raise download.error

    async def _run(self, task_status: Any) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def _download(self, hash_: bytes, download: _Download) -> None:
        try:
            with download.scope:
                await self._until_here(hash_, download)
        except Exception as error:
            download.error = error
        finally:
            del self._downloads[hash_]
            if not download.scope.cancelled_caught:
                download.over.set()

    async def _until_here(self, hash_: bytes, download: _Download) -> None:
        for attempt in itertools.count(1):
            callers = download.callers
            sizes, unsure = await self._ask(hash_, download)
            no_room: NoRoom | None = None
            for size, peers in sorted(sizes.items(), key=lambda item: -len(item[1])):
                try:
                    if await self._fetch_from(hash_, size, peers, download):
                        return
                except NoRoom as error:  # the size may be a lie
                    no_room = error
            if no_room is not None:
                raise no_room
            if not sizes and not unsure and callers == download.callers:  # a new one may allow more, or name others
                raise BlobNotFound(f"blob {hash_.hex()[:16]}: nobody has it")
            await trio.sleep(RETRY.delay(attempt, self._random))

    async def _ask(self, hash_: bytes, download: _Download) -> tuple[dict[int, list[str]], bool]:
        """Who has it, by the size they claim; and whether somebody could not be asked."""
        sizes: dict[int, list[str]] = defaultdict(list)
        unsure = False

        async def ask(peer: str) -> None:
            nonlocal unsure
            try:
                with trio.fail_after(ASK_DEADLINE):
                    stream = await self._host.open_stream(peer, BLOB, ASK_DEADLINE)
                    try:
                        reply, _ = await _request(stream, hash_, 0, 0)
                    finally:
                        await let_go(stream)
            except wire.WireError:
                self._host.reject("blob_malformed", peer)
            except (StreamBroken, trio.TooSlowError):
                unsure = True
            else:
                if reply.size is None:
                    return
                if reply.size > download.max_size or (reply.size == 0 and hash_ != EMPTY):
                    self._host.reject("blob_size", peer)
                else:
                    sizes[reply.size].append(peer)
                    # whoever hangs must not hold up the rest
                    nursery.cancel_scope.deadline = min(nursery.cancel_scope.deadline, trio.current_time() + PATIENCE)

        async with trio.open_nursery() as nursery:
            peers = self._host.agreed() if download.providers is None else download.providers
            for peer in set(peers) - download.bad - {self._host.peer_id}:
                nursery.start_soon(ask, peer)
        return sizes, unsure or nursery.cancel_scope.cancelled_caught

    async def _fetch_from(self, hash_: bytes, size: int, peers: list[str], download: _Download) -> bool:
        """True when the blob is here. After wrong bytes of unknown origin, one peer at a time."""
        partial = await trio.to_thread.run_sync(self._store.partial, hash_, size, download.kind)
        try:
            # those that failed least, in no fixed order
            peers.sort(key=lambda peer: (download.failures[peer], self._random.random()))
            best = [peer for peer in peers if download.failures[peer] == download.failures[peers[0]]]
            for attempt in [best[:PROVIDERS], *([peer] for peer in peers)]:
                willing = [peer for peer in attempt if peer not in download.bad]
                sources = await self._fetch_chunks(partial, willing, hash_, download)
                if len(partial.done) < partial.count:
                    if not download.suspects:
                        return False  # the rest may come later, or from others
                    continue
                if await trio.to_thread.run_sync(partial.finish):
                    await self._convict(partial, download)
                    return True
                if len(set(sources.values())) == 1 and len(sources) == partial.count:
                    self._bad(next(iter(sources.values())), download)
                else:
                    download.suspects += [(index, peer, partial.received[index]) for index, peer in sources.items()]
                await trio.to_thread.run_sync(partial.discard)
            return False
        finally:
            await trio.to_thread.run_sync(partial.close)

    async def _fetch_chunks(
        self, partial: Partial, peers: list[str], hash_: bytes, download: _Download
    ) -> dict[int, str]:
        """Fetch what is missing; which peer sent which chunk. Ends early when all peers failed."""
        missing = [index for index in reversed(range(partial.count)) if index not in partial.done]
        under_way: dict[int, list[float]] = {}  # since when, by each worker
        sources: dict[int, str] = {}
        disk: list[OSError] = []

        def take() -> int | None:
            """The next chunk; at the end one that a single peer has been busy with for long, as it may never answer."""
            if missing:
                return missing.pop()
            late = trio.current_time() - 4 * PATIENCE
            return next((index for index, since in under_way.items() if len(since) == 1 and since[0] < late), None)

        async def work(peer: str) -> None:
            stream: INetStream | None = None
            try:
                while True:
                    index = take()
                    if index is None:  # others have the rest; stay, should they fail
                        await trio.sleep(PATIENCE / 4)
                        continue
                    since = trio.current_time()
                    under_way.setdefault(index, []).append(since)
                    try:
                        if stream is None:
                            stream = await self._host.open_stream(peer, BLOB, ASK_DEADLINE)
                            self._host.count_as(traffic(download.kind), stream)
                        data = await self._chunk(stream, hash_, partial, index)
                        if index not in sources:
                            sources[index] = peer
                            await trio.to_thread.run_sync(partial.write, index, data)
                    finally:
                        under_way[index].remove(since)
                        if not under_way[index]:
                            del under_way[index]
                            if index not in sources:
                                missing.append(index)
                    if len(partial.done) == partial.count:
                        nursery.cancel_scope.cancel()
            except wire.WireError:
                self._host.reject("blob_malformed", peer)
                download.failures[peer] += 1
            except (StreamBroken, trio.TooSlowError) as error:
                log.debug("fetching %s from %s: %r", hash_.hex()[:16], peer, error)
                download.failures[peer] += 1
            except OSError as error:
                disk.append(error)
                nursery.cancel_scope.cancel()
            finally:
                if stream is not None:
                    await let_go(stream)

        if missing:
            async with trio.open_nursery() as nursery:
                for peer in peers * STREAMS:
                    nursery.start_soon(work, peer)
        if disk:
            raise disk[0]
        return sources

    @staticmethod
    async def _chunk(stream: INetStream, hash_: bytes, partial: Partial, index: int) -> bytes:
        offset, length = partial.range(index)
        with trio.fail_after(CHUNK_DEADLINE):
            reply, data = await _request(stream, hash_, offset, length)
        if reply.size != partial.size or len(data) != length:
            raise StreamBroken("the peer no longer has it")
        return data

    async def _convict(self, partial: Partial, download: _Download) -> None:
        """With the right bytes at hand, whose were wrong?"""
        for index, peer, chunk in download.suspects:
            if peer not in download.bad and await trio.to_thread.run_sync(partial.chunk_hash, index) != chunk:
                self._bad(peer, download)

    def _bad(self, peer: str, download: _Download) -> None:
        download.bad.add(peer)
        self._host.ban(peer, "bad_blob")


async def _request(stream: INetStream, hash_: bytes, offset: int, length: int) -> tuple[wire.BlobReply, bytes]:
    await write_short(stream, wire.encode(wire.BlobRequest(hash_, offset, length)))
    reply = wire.decode_as(wire.BlobReply, await read_short(stream, 256))
    if reply.length > length:
        raise wire.WireError("oversize", "more than was asked for")
    return reply, await read_exact(stream, reply.length)
