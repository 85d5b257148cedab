"""Blobs on disk: `<folder>/<hex sha256>`, written whole or not at all, with a class, pins, a quota and eviction.

The files alone are the truth about what is there. Beside them an index keeps what a name cannot say: a blob's class,
and who still needs it. It is made anew where it is damaged: a blob that it does not know is public and stays.
"""

import errno
import hashlib
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from dlx.ground import durable
from dlx.ground.durable import Chunk
from dlx.ground.errors import DlxError

CHUNK = 1024 * 1024  # bytes of a download's pieces, and of what is read at once
FORGOTTEN = 7 * 24 * 3600  # s after which a download or a draft that nobody went on with is removed
_INDEX = ".index.sqlite"


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
    """Why a blob is kept. Payloads and versions that nobody pinned may be evicted; private ones are never served."""

    PUBLIC = "public"  # manifest, data, genesis
    PAYLOAD = "payload"
    VERSION = "version"  # weights and outer momentum
    PRIVATE = "private"


EVICTABLE = (Kind.PAYLOAD, Kind.VERSION)
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

    Raises Damaged when it is missing or its bytes do not match its name, BlobError when it is longer than `limit` bytes
    (which are all that is kept of it), OSError for trouble that is not the blob's.
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


def file_hash(path: Path) -> bytes:
    """The sha256 of a file's bytes, in constant memory. Raises OSError."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").digest()


class BlobStore:
    """All methods block on the disk: call them from threads. Several processes may share a folder.

    `quota`: bytes that all blobs together may take (None: any number). `floor`: bytes that stay free on the disk.
    """

    def __init__(self, folder: Path, quota: int | None = None, floor: int = 0) -> None:
        self.folder, self._quota, self._floor = Path(folder), quota, floor
        self._partials = self.folder / ".partial"
        self._partials.mkdir(parents=True, exist_ok=True)
        self._index: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        forgotten = time.time() - FORGOTTEN
        for leftover in [*self._partials.iterdir(), *self.folder.glob(".*.tmp")]:
            if leftover.stat().st_mtime < forgotten:
                leftover.unlink(missing_ok=True)

    # ---- files ------------------------------------------------------------------------------------------------------

    def path(self, hash_: bytes) -> Path:
        """Where a blob is, or would be."""
        if len(hash_) != 32:
            raise ValueError(f"a blob is named by 32 bytes, not {len(hash_)}")
        return self.folder / hash_.hex()

    def has(self, hash_: bytes) -> bool:
        return self.path(hash_).is_file()

    def sound(self, hash_: bytes) -> bool:
        """Whether it is here with the bytes that its name says; reads all of them. A damaged one is removed."""
        path = self.path(hash_)
        try:
            if file_hash(path) == hash_:
                return True
        except FileNotFoundError:
            return False
        path.unlink(missing_ok=True)
        return False

    def hashes(self) -> set[bytes]:
        return {bytes.fromhex(entry.name) for entry in os.scandir(self.folder) if _is_name(entry.name)}

    def put(self, data: bytes, kind: Kind = Kind.PUBLIC) -> bytes:
        """Store bytes, durable on return; their sha256. Raises OSError, NoRoom where there is none."""
        hash_ = hashlib.sha256(data).digest()
        if not self.has(hash_):
            self.make_room(len(data))
            durable.write_bytes(self.path(hash_), data)
        self.note(hash_, kind)
        return hash_

    def put_file(self, source: Path, kind: Kind = Kind.PUBLIC) -> bytes:
        """Store a copy of a file, durable on return; its sha256. Raises OSError, NoRoom where there is none."""
        self.make_room(source.stat().st_size)
        copy = self._partials / f"copy-{os.urandom(8).hex()}"
        try:
            shutil.copyfile(source, copy)  # hash the copy: the source may change meanwhile
            hash_ = file_hash(copy)
            if not self.has(hash_):
                durable.move(copy, self.path(hash_))
        finally:
            copy.unlink(missing_ok=True)
        self.note(hash_, kind)
        return hash_

    def remove(self, hash_: bytes) -> None:
        """Whoever needs it; nothing happens where it is not here."""
        self.path(hash_).unlink(missing_ok=True)

    def partial(self, hash_: bytes, size: int) -> "Partial":
        """A download to begin, or to go on with where it stopped. Raises NoRoom where it would not fit."""
        partial = Partial(self, self._partials / hash_.hex(), hash_, size)
        try:
            self.make_room(size - len(partial.done) * CHUNK)
        except NoRoom:
            partial.close()
            raise
        return partial

    # ---- classes, pins, room ----------------------------------------------------------------------------------------

    def note(self, hash_: bytes, kind: Kind) -> None:
        """Say what a blob is, whether or not it is here yet. The last word counts."""
        with self._table() as table:
            table.execute("INSERT OR REPLACE INTO blob VALUES (?, ?, ?)", (hash_, kind, int(time.time())))

    def kind(self, hash_: bytes) -> Kind:
        with self._table() as table:
            row = table.execute("SELECT kind FROM blob WHERE hash = ?", (hash_,)).fetchone()
        return Kind(row[0]) if row else Kind.PUBLIC

    def pin(self, owner: str, hashes: Collection[bytes]) -> None:
        """From now on `owner` needs exactly these: they are not evicted. Pins outlive the process."""
        with self._table() as table:
            table.execute("DELETE FROM pin WHERE owner = ?", (owner,))
            table.executemany("INSERT OR IGNORE INTO pin VALUES (?, ?)", [(owner, hash_) for hash_ in hashes])

    def evict(self, kind: Kind, older_than: float = 0.0) -> int:
        """Remove the blobs of a class that nobody has pinned, said at least `older_than` seconds ago; how many."""
        return sum(self._evict(hash_) for hash_ in self._unpinned((kind,), time.time() - older_than))

    def make_room(self, size: int) -> None:
        """Have room for `size` more bytes: evict unpinned payloads and versions, oldest first. Raises NoRoom."""
        if self._lacking(size) <= 0:
            return
        for hash_ in self._unpinned(EVICTABLE, time.time()):
            self._evict(hash_)
            if self._lacking(size) <= 0:
                return
        lacking = self._lacking(size)
        if lacking > 0:
            limit = "the disk quota" if self._quota is not None and self.used() + size > self._quota else "free space"
            raise NoRoom(self.folder, f"{limit}: {lacking:,} bytes too little for {size:,} more")

    def used(self) -> int:
        """Bytes of all blobs and downloads."""
        total = 0
        for folder in (self.folder, self._partials):
            for entry in os.scandir(folder):
                try:
                    if entry.is_file():
                        total += entry.stat().st_size
                except FileNotFoundError:
                    continue
        return total

    def usage(self) -> dict[Kind, int]:
        """Bytes of the blobs of each class."""
        with self._table() as table:
            kinds = {row[0]: Kind(row[1]) for row in table.execute("SELECT hash, kind FROM blob")}
        found = dict.fromkeys(Kind, 0)
        for hash_ in self.hashes():
            try:
                found[kinds.get(hash_, Kind.PUBLIC)] += self.path(hash_).stat().st_size
            except FileNotFoundError:
                continue
        return found

    def close(self) -> None:
        with self._lock:
            if self._index is not None:
                self._index.close()
                self._index = None

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _lacking(self, size: int) -> int:
        lacking = size + self._floor - shutil.disk_usage(self.folder).free if self._floor else 0
        return lacking if self._quota is None else max(lacking, self.used() + size - self._quota)

    def _unpinned(self, kinds: Collection[Kind], before: float) -> list[bytes]:
        marks = ", ".join("?" * len(kinds))
        with self._table() as table:
            rows = table.execute(
                f"SELECT hash FROM blob WHERE kind IN ({marks}) AND noted <= ? "
                "AND hash NOT IN (SELECT hash FROM pin) ORDER BY noted",
                (*kinds, int(before)),
            ).fetchall()
        return [row[0] for row in rows]

    def _evict(self, hash_: bytes) -> bool:
        there = self.has(hash_)
        self.remove(hash_)
        with self._table() as table:
            table.execute("DELETE FROM blob WHERE hash = ?", (hash_,))
        return there

    @contextmanager
    def _table(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._index is None:
                self._index = _open_index(self.folder / _INDEX)
            with self._index:
                yield self._index


class Partial:
    """A blob on its way: a file with holes, and beside it a log of the chunks that are there."""

    def __init__(self, store: BlobStore, path: Path, hash_: bytes, size: int) -> None:
        self._store, self._path, self._hash = store, path, hash_
        self._log = path.with_name(f"{path.name}.{size}")
        self.size = size
        self.count = -(-size // CHUNK)
        for other in path.parent.glob(f"{path.name}.*"):
            if other != self._log:  # somebody claimed another size earlier
                other.unlink()
        self.done = self._read_log()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._marks = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if not self.done:
            os.truncate(self._file, 0)

    def range(self, index: int) -> tuple[int, int]:
        """Offset and length of a chunk, in bytes."""
        offset = index * CHUNK
        return offset, min(CHUNK, self.size - offset)

    def write(self, index: int, data: bytes) -> None:
        view = memoryview(data)
        offset, _ = self.range(index)
        while view:
            written = os.pwrite(self._file, view, offset)
            view, offset = view[written:], offset + written
        os.write(self._marks, index.to_bytes(4, "big"))
        self.done.add(index)

    def chunk_hash(self, index: int) -> bytes:
        offset, length = self.range(index)
        return hashlib.sha256(os.pread(self._file, length, offset)).digest()

    def finish(self) -> bool:
        """Move the file to its place if it is what its name says; otherwise False."""
        os.ftruncate(self._file, self.size)
        if file_hash(self._path) != self._hash:
            return False
        durable.move(self._path, self._store.path(self._hash))
        self._log.unlink(missing_ok=True)
        return True

    def discard(self) -> None:
        """Forget what was downloaded."""
        os.ftruncate(self._file, 0)
        os.ftruncate(self._marks, 0)
        self.done.clear()

    def close(self) -> None:
        os.close(self._file)
        os.close(self._marks)

    def _read_log(self) -> set[int]:
        if not self._log.exists() or not self._path.exists():
            self._log.unlink(missing_ok=True)
            return set()
        data = self._log.read_bytes()
        marks = {int.from_bytes(data[i : i + 4], "big") for i in range(0, len(data) - 3, 4)}
        return {index for index in marks if index < self.count}


def _open_index(path: Path) -> sqlite3.Connection:
    try:
        return _prepared(path)
    except sqlite3.DatabaseError:  # it only remembers what can be said again
        for part in path.parent.glob(f"{path.name}*"):
            part.unlink()
        return _prepared(path)


def _prepared(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30.0, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS blob (hash BLOB PRIMARY KEY, kind TEXT NOT NULL, noted INTEGER NOT NULL)"
    )
    connection.execute(
        "CREATE TABLE IF NOT EXISTS pin (owner TEXT NOT NULL, hash BLOB NOT NULL, PRIMARY KEY (owner, hash))"
    )
    return connection


def _is_name(name: str) -> bool:
    return len(name) == 64 and all(c in "0123456789abcdef" for c in name)
