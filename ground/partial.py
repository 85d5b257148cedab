"""A blob on its way: a file with holes, and beside it a log of the pieces that are there."""

import errno
import hashlib
import os
import secrets
from collections.abc import Callable, Collection
from pathlib import Path

from dlx.ground import durable, locks
from dlx.ground.durable import file_hash
from dlx.ground.merkle import LEAF_BYTES

CHUNK = 1024 * 1024  # bytes of a download's largest pieces, and of what is read at once
_MOST_PIECES = 4096  # of a blob whose pieces are smaller than that


def piece_bytes(size: int) -> int:
    """Of what size the pieces of a blob of `size` bytes are: whole leaves of its Merkle tree, a power of two."""
    piece = LEAF_BYTES
    while piece < CHUNK and piece * _MOST_PIECES < size:
        piece *= 2
    return piece


class Partial:
    """Goes on with what `path` and its log have, unless somebody else is writing there: then beside them.

    The file has its full length from the start, so that whoever measures the folder counts what is still to come.
    `place(file)` puts the finished file where it belongs.
    """

    def __init__(self, path: Path, hash_: bytes, size: int, place: Callable[[Path], None]) -> None:
        self._hash, self._place = hash_, place
        self.size = size
        self.piece = piece_bytes(size)
        self.count = -(-size // self.piece)
        self.done: set[int] = set()
        self.received: dict[int, bytes] = {}  # sha256 of the pieces that were written here, as they came
        self._file, self._path = _open_locked(path)
        try:
            self._log = self._path.with_name(f"{self._path.name}.{size}.{self.piece}")
            for other in path.parent.glob(f"{self._path.name}.*"):
                if other != self._log:  # somebody claimed another size earlier
                    other.unlink()
            self._marks = os.open(self._log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except BaseException:
            os.close(self._file)
            raise
        try:
            self.done = self._read_log()
            os.ftruncate(self._file, size)
        except BaseException:
            self.close()
            raise

    def range(self, index: int) -> tuple[int, int]:
        """Offset and length of a piece, in bytes."""
        offset = index * self.piece
        return offset, min(self.piece, self.size - offset)

    def write(self, index: int, data: bytes | memoryview) -> None:
        """Whole pieces, from number `index` on. Raises OSError."""
        rest, offset = memoryview(data), index * self.piece
        pieces = range(index, index - (-len(data) // self.piece))
        with durable.naming(self._path):
            while rest:
                written = os.pwrite(self._file, rest, offset)
                rest, offset = rest[written:], offset + written
            os.write(self._marks, b"".join(one.to_bytes(4, "big") for one in pieces))
        view = memoryview(data)
        for at, one in enumerate(pieces):
            self.received[one] = hashlib.sha256(view[at * self.piece : (at + 1) * self.piece]).digest()
        self.done.update(pieces)

    def read(self, offset: int, length: int) -> bytes:
        """What is on disk, whether it was written or not."""
        return os.pread(self._file, length, offset)

    def reader(self) -> int:
        """A descriptor to read the file by, which stays good when it is in its place or removed; to be closed."""
        return os.dup(self._file)

    def piece_hash(self, index: int) -> bytes:
        """The sha256 of a piece as it is on disk."""
        offset, length = self.range(index)
        return hashlib.sha256(self.read(offset, length)).digest()

    def drop(self, pieces: Collection[int]) -> None:
        """They are not what they should be: they are missing again."""
        self.done.difference_update(pieces)
        os.ftruncate(self._marks, 0)
        os.write(self._marks, b"".join(one.to_bytes(4, "big") for one in sorted(self.done)))

    def finish(self) -> bool:
        """Move the file to its place if it is what its name says; otherwise False.

        Raises OSError, also when the disk gives back other bytes than it took: then nobody sent wrong ones.
        """
        if file_hash(self._path) != self._hash:
            if any(self.piece_hash(index) != piece for index, piece in self.received.items()):
                self.discard()
                raise OSError(errno.EIO, "the disk gives back other bytes than were written", str(self._path))
            return False
        self._place(self._path)
        self._log.unlink(missing_ok=True)
        return True

    def discard(self) -> None:
        """Forget what was downloaded."""
        os.ftruncate(self._file, 0)
        os.ftruncate(self._file, self.size)
        os.ftruncate(self._marks, 0)
        self.received.clear()
        self.done.clear()

    def close(self) -> None:
        """What holds nothing yet is removed."""
        if not self.done:
            self._log.unlink(missing_ok=True)
            if is_at(self._file, self._path):
                self._path.unlink()
        os.close(self._marks)
        os.close(self._file)

    def _read_log(self) -> set[int]:
        data = os.pread(self._marks, 4 * self.count * 4, 0)
        if os.fstat(self._file).st_size != self.size:  # the log is of another file
            data = b""
        whole = len(data) // 4 * 4
        os.ftruncate(self._marks, whole)  # a mark that was torn would shift those after it
        marks = {int.from_bytes(data[i : i + 4], "big") for i in range(0, whole, 4)}
        return {index for index in marks if index < self.count}


def idle_size(path: Path, before: float) -> int:
    """The bytes of a file that was last written before the unix time `before`; 0 where it was not."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0
    return found.st_size if found.st_mtime < before else 0


def remove_idle(path: Path, before: float) -> int:
    """Remove a file that nobody writes, last written before the unix time `before`; the bytes freed."""
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return 0
    try:
        found = os.fstat(file)
        if locks.take(file, path) and found.st_mtime < before and is_at(file, path):
            path.unlink()
            return found.st_size
    finally:
        os.close(file)
    return 0


def is_at(file: int, path: Path) -> bool:
    """Whether the open file is what lies there, and nobody has put another in its place."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _open_locked(path: Path) -> tuple[int, Path]:
    """The file of a download, which nobody else writes: at `path`, or beside it where somebody writes that."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            alone = locks.take(file, path)
            if alone and is_at(file, path):
                return file, path
        except BaseException:
            os.close(file)
            raise
        if not alone:
            path = path.with_name(f"{path.name.partition('-')[0]}-{secrets.token_hex(4)}")
        os.close(file)  # another's, or finished or removed meanwhile
