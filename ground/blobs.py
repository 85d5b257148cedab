"""Blobs on disk: `<folder>/<hex sha256>`, written whole or not at all, with a class, pins, a quota and eviction.

The files alone are the truth about what is there. Beside them an index keeps what a name cannot say: a blob's class,
and who still needs it. It is made anew where it is damaged: a blob that it does not know is public and stays.
"""

import errno
import functools
import hashlib
import math
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from dlx.ground import durable
from dlx.ground.blob_index import BlobIndex
from dlx.ground.durable import Chunk, file_hash
from dlx.ground.errors import DlxError
from dlx.ground.partial import CHUNK, Partial, idle_size, is_at, piece_bytes, remove_idle
from dlx.ground.room import Room

__all__ = [
    "CHUNK",
    "BlobError",
    "BlobStore",
    "Damaged",
    "Kind",
    "NoRoom",
    "Partial",
    "file_hash",
    "piece_bytes",
    "read_blob",
    "write_blob",
]
FORGOTTEN = 7 * 24 * 3600  # s after which a download or a draft that nobody went on with is removed
GIVEN_UP = 3600  # s after which it gives way to a blob for which there is no room


class BlobError(DlxError, ValueError):
    """A blob is missing, too large, or does not match its name."""


class Damaged(BlobError):
    """A blob is missing, unreadable, or not what its name says: another copy may be good.

    `blob`: its 32-byte name.
    """

    def __init__(self, blob: bytes, reason: str) -> None:
        super().__init__(f"blob {blob.hex()}: {reason}")
        self.blob, self.reason = blob, reason


class NoRoom(OSError):
    """The quota or the free-space floor leaves no room, whatever is evicted."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(errno.ENOSPC, reason, str(folder))


class Kind(StrEnum):
    """Why a blob is kept. Shards, payloads and versions that nobody pinned may be evicted."""

    PUBLIC = "public"  # manifest, genesis, data that this node keeps for others
    SHARD = "shard"  # of the data, fetched for a round
    PAYLOAD = "payload"
    VERSION = "version"  # weights and outer momentum


EVICTABLE = (Kind.SHARD, Kind.PAYLOAD, Kind.VERSION)
LOST = (errno.ENOENT, errno.EIO)  # of reading a file: it is the file's fault, not that of a full or busy machine


def write_blob(folder: Path, chunks: Iterable[Chunk]) -> bytes:
    """Write the blob to `folder/<lowercase hex of its sha256>` and return the sha256 (32 bytes)."""
    pieces = list(chunks)
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    durable.write_chunks(folder / digest.hexdigest(), pieces)
    return digest.digest()


def read_blob(path: Path, limit: int) -> bytes:
    """The bytes of the blob at `path`, whose name is the hex of its sha256.

    Raises Damaged when it is missing or its bytes do not match its name. Raises BlobError when it is longer than
    `limit` bytes (which are all that is kept of it), OSError for trouble that is not the blob's.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        if error.errno not in LOST:
            raise
        raise Damaged(bytes.fromhex(path.name), os.strerror(error.errno or 0)) from error
    longer = len(data) > limit
    found = file_hash(path).hex() if longer else hashlib.sha256(data).hexdigest()
    if found != path.name:
        raise Damaged(bytes.fromhex(path.name), "its bytes do not match its name")
    if longer:
        raise BlobError(f"blob {path.name}: more than {limit} bytes")
    return data


class BlobStore:
    """All methods block on the disk: call them from threads. Several processes may share a folder.

    `quota`: bytes that all blobs together may take (None: any number). `floor`: bytes that stay free on the disk.
    Every method that writes raises OSError.
    """

    def __init__(self, folder: Path, quota: int | None = None, floor: int = 0) -> None:
        self.folder = Path(folder)
        self._partials = self.folder / ".partial"
        self._partials.mkdir(parents=True, exist_ok=True)
        self._index = BlobIndex(self.folder / ".index.sqlite")
        self._room = Room((self.folder, self._partials), quota, floor)
        self._drop_leftovers(time.time() - FORGOTTEN)

    # ---- files ------------------------------------------------------------------------------------------------------

    def path(self, hash_: bytes) -> Path:
        """Where a blob is, or would be."""
        return self.folder / _name(hash_)

    def has(self, hash_: bytes) -> bool:
        return self.path(hash_).is_file()

    def sound(self, hash_: bytes) -> bool:
        """Whether it is here with the bytes that its name says; reads all of them. A damaged one is removed.

        Raises OSError for trouble that is not the blob's.
        """
        path = self.path(hash_)
        try:
            file = open(path, "rb")  # noqa: SIM115 - what follows closes it
        except OSError as error:
            if error.errno not in LOST:
                raise
            return False
        with file:
            try:
                good = hashlib.file_digest(file, "sha256").digest() == hash_
            except OSError as error:
                if error.errno not in LOST:
                    raise
                good = False
            if not good and is_at(file.fileno(), path):  # else what is there by now is another's good copy
                path.unlink(missing_ok=True)
            return good

    def hashes(self) -> set[bytes]:
        return {bytes.fromhex(entry.name) for entry in os.scandir(self.folder) if _is_name(entry.name)}

    def put(self, data: bytes, kind: Kind = Kind.PUBLIC) -> bytes:
        """Store bytes, durable on return; their sha256. Raises NoRoom where there is none."""
        hash_ = hashlib.sha256(data).digest()
        if not self.sound(hash_):
            self.make_room(len(data))
            self.note(hash_, kind)
            durable.write_bytes(self.path(hash_), data)
        else:
            self.note(hash_, kind)
        return hash_

    def remove(self, hash_: bytes) -> None:
        """Whoever needs it; nothing happens where it is not here."""
        self.path(hash_).unlink(missing_ok=True)

    def partial(self, hash_: bytes, size: int, kind: Kind = Kind.PUBLIC) -> Partial:
        """A download to begin, or to go on with where it stopped. Raises NoRoom where it would not fit."""

        def place(file: Path) -> None:
            self.note(hash_, kind)
            durable.move(file, self.path(hash_))

        path = self._partials / _name(hash_)
        self.make_room(size - (path.stat().st_size if path.exists() else 0))
        return Partial(path, hash_, size, place)

    def draft(self, hash_: bytes, size: int, spare: bool = False) -> Path:
        """Where to write a file of about so many bytes, for `take`. Nothing is removed for a `spare` one. Raises
        NoRoom."""
        self.make_room(size, evicts=not spare)
        return self._partials / f"whole.{_name(hash_)}.{secrets.token_hex(4)}"

    def take(self, draft: Path, hash_: bytes, kind: Kind = Kind.PUBLIC) -> None:
        """Have a file of that sha256 in its place; what came of it otherwise so far goes."""
        self.note(hash_, kind)
        durable.move(draft, self.path(hash_))
        for left in self._partials.glob(f"{_name(hash_)}*"):
            remove_idle(left, math.inf)

    # ---- classes, pins, room ----------------------------------------------------------------------------------------

    def note(self, hash_: bytes, kind: Kind) -> None:
        """Say what a blob is, whether or not it is here yet. The last word counts."""
        self._index.note(hash_, kind)

    def kind(self, hash_: bytes) -> Kind:
        return Kind(self._index.kind(hash_) or Kind.PUBLIC)

    def pin(self, owner: str, hashes: Collection[bytes]) -> None:
        """From now on `owner` needs exactly these: they are not evicted. Pins outlive the process."""
        self._index.pin(owner, hashes)

    def owners(self, prefix: str) -> set[str]:
        """The owners that need anything and whose names begin so."""
        return self._index.owners(prefix)

    def pinned(self, prefix: str) -> set[bytes]:
        """What owners need whose names begin so."""
        return self._index.pinned(prefix)

    def release(self, owner: str) -> None:
        """`owner` needs nothing any more: what of it may be evicted and nobody else has pinned is removed."""
        for hash_ in self._index.unpin(owner):
            self.discard(hash_)

    def discard(self, hash_: bytes) -> None:
        """Remove a blob that may be evicted, unless somebody has pinned it."""
        self._evict(hash_, EVICTABLE)

    def evict(self, kind: Kind, older_than: float = 0.0) -> int:
        """Remove the blobs of a class that nobody has pinned, said at least `older_than` seconds ago; how many."""
        old = self._index.unpinned((kind,), time.time() - older_than)
        return sum(self._evict(hash_, (kind,)) > 0 for hash_ in old)

    def shrink(self, kind: Kind, limit: int) -> int:
        """Remove blobs of a class that nobody has pinned, oldest first, until all of the class take at most so many
        bytes, or none is left to remove; how many."""
        kinds = self._index.kinds()
        over = sum(self._size(hash_) for hash_, found in kinds.items() if found == kind) - limit
        removed = 0
        for hash_ in self._index.unpinned((kind,), time.time()) if over > 0 else ():
            if over <= 0:
                break
            if freed := self._evict(hash_, (kind,)):
                over, removed = over - freed, removed + 1
        return removed

    def make_room(self, size: int, beside: int = 0, evicts: bool = True) -> None:
        """Have room for `size` more bytes, and on the disk for so many `beside` that are no blobs. Where it `evicts`,
        downloads that were given up and unpinned blobs that may be evicted are removed, oldest first. Raises NoRoom.
        """
        if not self._room.take(size, beside):
            return
        self._room.measure()  # nothing is removed, and nobody refused, because of an old figure
        expendable = self._expendable() if evicts else ()
        short = self._room.take(size, beside)
        if short and sum(bytes_ for bytes_, _ in expendable) >= short:  # else all would be removed in vain
            freed = 0
            for bytes_, remove in expendable:
                if freed >= short and freed + bytes_ > short + self._room.slack:
                    break
                freed += remove()
            self._room.give(freed)
            short = self._room.take(size, beside)
        if short:
            more = (size + beside) / 1e6
            raise NoRoom(self.folder, f"{short / 1e6:,.1f} MB too little for {more:,.1f} MB more ({self._room})")

    def used(self) -> int:
        """Bytes of all blobs and downloads."""
        return self._room.measure()

    def usage(self) -> dict[Kind, int]:
        """Bytes of the blobs of each class."""
        kinds = self._index.kinds()
        found = dict.fromkeys(Kind, 0)
        for hash_ in self.hashes():
            found[Kind(kinds.get(hash_, Kind.PUBLIC))] += self._size(hash_)
        return found

    def close(self) -> None:
        self._index.close()

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _expendable(self) -> Sequence[tuple[int, Callable[[], int]]]:
        """What nobody needs, first what goes first: its bytes, and what removes it and gives the bytes freed."""
        before = time.time() - GIVEN_UP
        downloads = [(path, idle_size(path, before)) for path in self._partials.iterdir()]
        blobs = [(hash_, self._size(hash_)) for hash_ in self._index.unpinned(EVICTABLE, time.time())]
        return [(size, functools.partial(remove_idle, path, before)) for path, size in downloads if size] + [
            (size, functools.partial(self._evict, hash_, EVICTABLE)) for hash_, size in blobs if size
        ]

    def _evict(self, hash_: bytes, kinds: Collection[Kind]) -> int:
        """The bytes freed: none where it is not here yet, or somebody has pinned it meanwhile."""
        size = self._size(hash_)
        return size if size and self._index.drop(hash_, kinds, lambda: self.remove(hash_)) else 0

    def _size(self, hash_: bytes) -> int:
        try:
            return self.path(hash_).stat().st_size
        except FileNotFoundError:
            return 0

    def _drop_leftovers(self, before: float) -> None:
        for leftover in self._partials.iterdir():
            remove_idle(leftover, before)
        for draft in self.folder.glob(".*.tmp"):
            remove_idle(draft, before)
        with suppress(OSError):  # a full disk; another time
            self._index.forget(set(self._index.kinds()) - self.hashes(), before)


def _name(hash_: bytes) -> str:
    if len(hash_) != 32:
        raise ValueError(f"a blob is named by 32 bytes, not {len(hash_)}")
    return hash_.hex()


def _is_name(name: str) -> bool:
    return len(name) == 64 and all(c in "0123456789abcdef" for c in name)
