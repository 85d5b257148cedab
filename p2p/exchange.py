"""Blobs from peers, from several at once, checked before use."""

import functools
import hashlib
import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

import trio

from dlx.ground.backoff import Backoff
from dlx.ground.blobs import BlobStore, Kind, NoRoom, Partial, piece_bytes
from dlx.ground.errors import DlxError
from dlx.ground.merkle import file_root
from dlx.p2p import wire
from dlx.p2p.host import Host
from dlx.p2p.serving import BlobServer
from dlx.p2p.sharing import HESITATION, LEAST_RATE, SHARERS, shares_of
from dlx.p2p.streams import StreamBroken
from dlx.p2p.transfer import ASK_DEADLINE, Line, Peers, Progress, Transfer

MAILBOXES_AFTER = 3.0  # s without a byte from peers after which mailboxes are asked too
MAILBOXES_AGAIN = Backoff(first=2.0, cap=10.0)
PATIENCE = 0.5  # s for the other answers once there is one
RETRY = Backoff(first=0.5, cap=5.0)
PROVIDERS, LATE = 4, 8  # at once; with those that answer late
SIZES = 4  # that peers claim, tried at once
SHARED = 16 * 1024  # bytes of a blob that is worth passing on in parts
EMPTY = hashlib.sha256().digest()

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sought:
    """A blob that mailboxes are asked for."""

    hash: bytes
    sizes: range  # bytes that it may have
    makers: Collection[str]  # peer ids: whose mailboxes are asked first
    draft: Callable[[bool], Path]  # where to write it; True: another file of it is being written. Raises NoRoom
    came: Callable[[int], None]  # is told the bytes as they come


class Mailboxes(Protocol):
    """Places where members publish blobs for those who cannot connect to them. Nothing there is believed."""

    async def fetch(self, sought: Sought) -> tuple[Path | None, bool]:
        """A file of that sha256, if one of them has it; else whether one did not answer that may have it. Raises
        OSError of our disk."""
        ...


@dataclass(frozen=True)
class Tree:
    """What is known of a blob besides its name: its bytes, and the root of its Merkle tree (`ground.merkle`)."""

    size: int
    root: bytes


class BlobError(DlxError):
    """A blob could not be fetched."""


class BlobNotFound(BlobError):
    """Nobody who was asked has it."""


class BlobTooLarge(BlobError):
    """It is here, and larger than allowed."""


class BlobTimeout(BlobError):
    """Too little of it came for too long."""


class BlobContradiction(BlobError):
    """Its name and its Merkle root are of two files: whoever stated both is wrong, not who served it."""


@dataclass
class _Download:
    max_size: int  # the largest that any caller allows
    providers: set[str] | None  # None: whoever is connected
    kind: Kind
    tree: Tree | None = None
    sharers: tuple[str, ...] = ()
    progress: Progress = field(default_factory=Progress)
    unproven: int = 0  # bytes of mailboxes that counted as progress
    transfer: Transfer | None = None  # under way
    callers: int = 0  # so far
    waiting: int = 0
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    over: trio.Event = field(default_factory=trio.Event)
    error: Exception | None = None
    bad: set[str] = field(default_factory=set)
    failures: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    suspects: list[tuple[int, str, bytes]] = field(default_factory=list)  # piece, peer, hash of what it sent


@dataclass
class _Claims:
    """What those say who are asked for a blob by its name alone."""

    asked: set[str]  # still
    sizes: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))  # whoever has it, by the size
    transfers: dict[int, Transfer] = field(default_factory=dict)  # of such a size, under way
    unsure: bool = False  # somebody could not be asked
    changed: trio.Event = field(default_factory=trio.Event)  # replaced whenever something has

    def change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


@dataclass
class _Look:
    """Into mailboxes, while peers are asked."""

    peers_asked: trio.Event = field(default_factory=trio.Event)  # all of them, and nothing more comes
    found: Path | None = None
    unsure: bool = False
    error: Exception | None = None


class BlobExchange:
    """Make it before the host runs. Serves what the store holds, members first; fetches what it lacks, of `mailboxes`
    too where nothing comes of peers.

    Peers that served wrong bytes are disconnected for a while.
    """

    def __init__(self, host: Host, store: BlobStore, mailboxes: Mailboxes | None = None) -> None:
        self._host = host
        self._store = store
        self._mailboxes = mailboxes
        self._random = Random()
        self._downloads: dict[tuple[bytes, Tree | None], _Download] = {}  # whoever states another tree spoils none
        self._peers = Peers()
        self._server = BlobServer(host, store, self._coming)
        host.add_service(self._run)

    async def fetch(
        self,
        hash_: bytes,
        max_size: int,
        providers: Sequence[str] | None = None,
        patience_s: float = 600.0,
        kind: Kind = Kind.PUBLIC,
        tree: Tree | None = None,
        sharers: Sequence[str] = (),
    ) -> Path:
        """The blob's file, fetched from `providers` (peer ids; None: all agreed peers) unless it is here. Where nothing
        comes of them for a second other members are asked too; where none of them is connected, all agreed peers at
        once.

        Goes on where an earlier fetch stopped; calls for the same hash and tree share one download. What was fetched is
        stored as `kind`. It is waited for as long as it comes: until fewer than LEAST_RATE bytes a second came for
        `patience_s`. That is `patience_s` and a second for every LEAST_RATE bytes at most, besides what our disk takes.
        With its `tree`, whoever has a part of it may give that. Of `sharers` (peer ids, our own among them), who fetch
        it at the same time, each has a part of it from the providers and the rest from each other. Without providers
        and sharers these are all connected members.
        Raises BlobNotFound, BlobTimeout, BlobTooLarge (also where it is on disk already), BlobContradiction, OSError
        (disk).
        """
        path = self._store.path(hash_)
        if not await self._is_here(hash_, tree):
            new = _Download(max_size, None if providers is None else set(providers), kind, tree, tuple(sharers))
            await self._share(hash_, new, patience_s)
        size = (await trio.to_thread.run_sync(path.stat)).st_size
        if size > max_size:
            raise BlobTooLarge(f"blob {hash_.hex()[:16]} has {size} bytes, allowed were {max_size}")
        return path

    async def _is_here(self, hash_: bytes, tree: Tree | None) -> bool:
        """A download that all its callers left comes to its end first: it may end with the blob. Only our disk can make
        that long, so it has no deadline."""
        while True:
            here = await trio.to_thread.run_sync(self._store.has, hash_)
            download = self._downloads.get((hash_, tree))
            if here or download is None or not download.scope.cancel_called:
                return here
            await download.over.wait()

    async def _share(self, hash_: bytes, new: _Download, patience_s: float) -> None:
        """Begin the download, or join the one under way."""
        download = self._downloads.get((hash_, new.tree))
        if download is None:
            download = self._downloads[hash_, new.tree] = new
            self._nursery.start_soon(self._download, hash_, download)
        else:
            download.max_size = max(download.max_size, new.max_size)
            if new.providers is None:
                download.providers = None
            elif download.providers is not None:
                download.providers |= new.providers
        download.callers += 1
        download.waiting += 1
        try:
            await self._until_over(hash_, download, patience_s)
        finally:
            download.waiting -= 1
            if not download.waiting:
                download.scope.cancel()
        if download.error is not None:
            raise download.error

    @staticmethod
    async def _until_over(hash_: bytes, download: _Download, patience_s: float) -> None:
        """Patience counts the seconds in which our disk does not work."""
        progress = download.progress
        while True:
            before, disk, began, left = progress.bytes, progress.disk_seconds, trio.current_time(), patience_s
            while True:
                with trio.move_on_after(max(left, patience_s / 10)):
                    await download.over.wait()
                if download.over.is_set():
                    return
                left = patience_s - (trio.current_time() - began) + (progress.disk_seconds - disk)
                if left <= 0:
                    break
            if (came := progress.bytes - before) <= LEAST_RATE * patience_s:
                raise BlobTimeout(f"blob {hash_.hex()[:16]}: only {came} bytes came within {patience_s:.0f} s")

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
            del self._downloads[hash_, download.tree]
            self._peers.forget_all_but(self._host.agreed())
            download.over.set()

    async def _until_here(self, hash_: bytes, download: _Download) -> None:
        for attempt in itertools.count(1):
            callers = download.callers
            here, unsure = await self._fetch(hash_, download)
            if here:
                return
            if not unsure and callers == download.callers:  # a new one may allow more, or name others
                raise BlobNotFound(f"blob {hash_.hex()[:16]}: nobody has it")
            await trio.sleep(RETRY.delay(attempt, self._random))

    async def _fetch(self, hash_: bytes, download: _Download) -> tuple[bool, bool]:
        """Whether it is here; else whether somebody who was not asked may have it."""
        of_peers = self._fetch_anyhow if download.tree is None else self._fetch_shared
        is_too_large = download.tree is not None and download.tree.size > download.max_size
        if self._mailboxes is None or is_too_large:
            return await of_peers(hash_, download)
        look, here, unsure = _Look(), False, False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look, self._mailboxes, hash_, download, look, nursery.cancel_scope)
            try:
                here, unsure = await of_peers(hash_, download)
            except Exception as error:  # outside, so that it comes alone and in no group
                look.error = error
            if here or look.error is not None:
                nursery.cancel_scope.cancel()
            look.peers_asked.set()
        if look.found is not None:
            await download.progress.on_disk(self._take, look.found, hash_, download)
            return True, False
        if look.error is not None:
            raise look.error
        return here, unsure or look.unsure

    async def _look(
        self, mailboxes: Mailboxes, hash_: bytes, download: _Download, look: _Look, peers: trio.CancelScope
    ) -> None:
        """In the mailboxes, as long as peers are asked and once more."""
        await self._until_nothing_comes(download, look)
        exactly = 0 if download.tree is None else download.tree.size
        sought = Sought(
            hash_, range(exactly, (exactly or download.max_size) + 1), download.providers or (),
            functools.partial(self._store.draft, hash_, exactly),
            functools.partial(self._came, download, exactly or download.max_size),
        )  # fmt: skip
        for tries in itertools.count(1):
            is_last = look.peers_asked.is_set()
            try:
                look.found, look.unsure = await mailboxes.fetch(sought)
            except NoRoom:  # perhaps for the peers' copy there is
                look.unsure = True
            except OSError as error:
                look.error = error
            if look.found is not None or look.error is not None:
                return peers.cancel()
            if is_last:
                return
            with trio.move_on_after(MAILBOXES_AGAIN.delay(tries, self._random)):
                await look.peers_asked.wait()

    @staticmethod
    def _came(download: _Download, size: int, count: int) -> None:
        """Bytes of mailboxes: no hash has confirmed them, so that no more of them are progress than the blob has."""
        new = min(count, size - download.unproven)
        download.unproven += new
        download.progress.came(new)

    async def _until_nothing_comes(self, download: _Download, look: _Look) -> None:
        """Of those peers that are asked first; at once where none of them is connected."""
        agreed, came = set(self._host.agreed()), -1
        if not (agreed if download.providers is None else agreed & download.providers):
            return
        while not look.peers_asked.is_set() and came != download.progress.bytes:
            came = download.progress.bytes
            with trio.move_on_after(MAILBOXES_AFTER):
                await look.peers_asked.wait()

    def _take(self, draft: Path, hash_: bytes, download: _Download) -> None:
        if download.tree is not None and file_root(draft) != download.tree.root:
            draft.unlink()
            raise BlobContradiction(f"blob {hash_.hex()[:16]}: its name and its Merkle root are of two files")
        self._store.take(draft, hash_, download.kind)

    def _asked(self, download: _Download) -> tuple[list[str], list[str]]:
        """Whom to ask, and which members once nothing comes of those; of both the most useful first."""
        away = self._away(download)
        connected = sorted(set(self._host.agreed()) - away, key=lambda peer: self._trust([peer]))
        if download.providers is None:
            return connected, []
        named = sorted(download.providers - away, key=lambda peer: (peer not in connected, self._trust([peer])))
        others = [peer for peer in connected if peer not in download.providers]
        if len(others) == len(connected):  # none of them is connected
            return named + others, []
        return named, list(filter(self._host.is_registered, others))

    def _sharers(self, download: _Download) -> Sequence[str]:
        """Who passes on parts: of a blob that anybody may have, members that are connected may fetch it too."""
        if download.sharers or download.providers is not None:
            return download.sharers
        return [self._host.peer_id, *filter(self._host.is_registered, self._host.agreed())]

    def _away(self, download: _Download) -> set[str]:
        """Who is not asked."""
        return download.bad | {self._host.peer_id}

    # ---- with its Merkle root ---------------------------------------------------------------------------------------

    async def _fetch_shared(self, hash_: bytes, download: _Download) -> tuple[bool, bool]:
        """Whether it is here; else whether somebody who was not asked may have it."""
        tree = download.tree
        assert tree is not None
        if tree.size > download.max_size:
            return False, False
        sharers = self._sharers(download) if tree.size >= SHARED else ()
        shares = shares_of(hash_, sharers, -(-tree.size // piece_bytes(tree.size)))
        peers, others = self._asked(download)
        asked = dict.fromkeys([*peers[:SHARERS], *(shares.keys() - self._away(download))])
        partial = await download.progress.on_disk(self._store.partial, hash_, tree.size, download.kind)
        try:
            transfer = self._transfer(hash_, download, partial, tree.root, shares)
            download.transfer = transfer
            await transfer.run(asked, [peer for peer in [*peers[SHARERS:], *others] if peer not in asked])
            download.bad |= transfer.wrong
            if not transfer.is_complete:
                return False, transfer.unsure
            if await download.progress.on_disk(partial.finish):
                if transfer.leaves:
                    self._server.knows(hash_, tree.root)
                return True, False
            await download.progress.on_disk(partial.discard)
            if transfer.leaves:
                raise BlobContradiction(f"blob {hash_.hex()[:16]}: its name and its Merkle root are of two files")
            return False, True  # what lay here was never checked
        finally:
            if download.transfer is not None:
                download.transfer.end()
            download.transfer = None
            with trio.CancelScope(shield=True):  # else whoever goes on finds it locked
                await trio.to_thread.run_sync(partial.close)

    def _transfer(
        self, hash_: bytes, download: _Download, partial: Partial, root: bytes | None, shares: dict[str, range]
    ) -> Transfer:
        return Transfer(self._host, self._peers, hash_, download.kind, partial, root, shares, download.progress)

    def _coming(self, hash_: bytes, root: bytes) -> Transfer | None:
        """What may be passed on of a blob that is not here yet."""
        for (name, _), download in self._downloads.items():
            transfer = download.transfer
            if name == hash_ and transfer is not None and transfer.root == root and transfer.leaves:
                return transfer
        return None

    # ---- by its name alone ------------------------------------------------------------------------------------------

    async def _fetch_anyhow(self, hash_: bytes, download: _Download) -> tuple[bool, bool]:
        """As `_fetch_shared`. The sizes that peers claim are tried side by side, and who answers later joins in: so who
        lies about the size, or is the first to say anything and then drips, holds up nobody. Raises OSError."""
        peers, others = self._asked(download)
        claims = _Claims(asked=set())
        errors, here, busy, tried = list[OSError](), False, set[int](), set[int]()

        async def fetch(size: int) -> None:
            nonlocal here
            try:
                here = here or await self._fetch_from(hash_, size, claims, download)
            except OSError as error:
                errors.append(error)
                if not isinstance(error, NoRoom):  # the size may be a lie
                    nursery.cancel_scope.cancel()
            busy.remove(size)
            claims.change()

        async with trio.open_nursery() as nursery:
            for batch in (peers, others):
                claims.asked |= {*batch}
                for peer in batch:
                    nursery.start_soon(self._ask, peer, hash_, claims, download)
                with trio.move_on_after(HESITATION):
                    while claims.asked and not claims.sizes:
                        await claims.changed.wait()
                if claims.sizes:
                    break
            while claims.asked and not claims.sizes:
                await claims.changed.wait()
            with trio.move_on_after(PATIENCE):
                while claims.asked:
                    await claims.changed.wait()
            while not here and (busy or claims.asked or claims.sizes.keys() - tried):
                changed = claims.changed
                for size in sorted(claims.sizes.keys() - tried, key=lambda size: self._trust(claims.sizes[size])):
                    if len(busy) < SIZES:
                        busy.add(size)
                        tried.add(size)
                        nursery.start_soon(fetch, size)
                await changed.wait()
            nursery.cancel_scope.cancel()
        if not here and errors:
            raise errors[-1]
        return here, bool(claims.sizes) or claims.unsure

    async def _ask(self, peer: str, hash_: bytes, claims: _Claims, download: _Download) -> None:
        """Which size it says that the blob has."""
        try:
            with trio.fail_after(ASK_DEADLINE):
                async with Line(self._host, self._peers, peer, download.kind) as line:
                    size = (await line.begin(wire.BlobRequest(hash_, None, False, 0, 0))).size
        except wire.WireError:
            self._host.reject("blob_malformed", peer)
        except (StreamBroken, trio.TooSlowError):
            claims.unsure = True
        else:
            if size is not None and (size > download.max_size or (size == 0 and hash_ != EMPTY)):
                self._host.reject("blob_size", peer)
            elif size is not None:
                claims.sizes[size].append(peer)
                if size in claims.transfers and len(claims.sizes[size]) <= LATE:
                    claims.transfers[size].join(peer)
        claims.asked.remove(peer)
        claims.change()

    def _trust(self, peers: list[str]) -> tuple[int, int, float]:
        """Whom to believe first: members, then many. Strangers come in any number."""
        return -sum(map(self._host.is_registered, peers)), -len(peers), self._random.random()

    async def _fetch_from(self, hash_: bytes, size: int, claims: _Claims, download: _Download) -> bool:
        """True when the blob is here. After wrong bytes of unknown origin, one peer at a time."""
        peers = claims.sizes[size]
        partial = await download.progress.on_disk(self._store.partial, hash_, size, download.kind)
        try:
            # those that failed least, members first, else in no fixed order
            peers.sort(key=lambda peer: (download.failures[peer], *self._trust([peer])))
            best = [peer for peer in peers if download.failures[peer] == download.failures[peers[0]]]
            for number, attempt in enumerate([best[:PROVIDERS], *([peer] for peer in peers)]):
                willing = [peer for peer in attempt if peer not in download.bad]
                transfer = self._transfer(hash_, download, partial, None, {})
                if number == 0:
                    claims.transfers[size] = transfer
                await transfer.run(willing)
                claims.transfers.pop(size, None)
                for peer, failures in transfer.failed.items():
                    download.failures[peer] += failures
                if not transfer.is_complete:
                    if not download.suspects:
                        return False  # the rest may come later, or from others
                    continue
                if await download.progress.on_disk(partial.finish):
                    await self._convict(partial, download)
                    return True
                sources = transfer.sources
                if len(set(sources.values())) == 1 and len(sources) == partial.count:
                    self._bad(next(iter(sources.values())), download)
                else:
                    download.suspects += [(index, peer, partial.received[index]) for index, peer in sources.items()]
                await download.progress.on_disk(partial.discard)
            return False
        finally:
            with trio.CancelScope(shield=True):  # else whoever goes on finds it locked
                await trio.to_thread.run_sync(partial.close)

    async def _convict(self, partial: Partial, download: _Download) -> None:
        """With the right bytes at hand, whose were wrong?"""
        for index, peer, piece in download.suspects:
            if peer not in download.bad and await download.progress.on_disk(partial.piece_hash, index) != piece:
                self._bad(peer, download)

    def _bad(self, peer: str, download: _Download) -> None:
        download.bad.add(peer)
        self._host.ban(peer, "bad_blob")
