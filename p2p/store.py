"""Blobs on disk: `<directory>/<hex sha256>`, written whole or not at all."""

import hashlib
import os
import secrets
import shutil
import time
from pathlib import Path

CHUNK = 1024 * 1024
FORGOTTEN = 7 * 24 * 3600  # s after which a download that nobody went on with is removed


class BlobStore:
    """All methods block on the disk: call them from threads. Several processes may share a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = Path(directory)
        self._partials = self._directory / ".partial"
        self._partials.mkdir(parents=True, exist_ok=True)
        for leftover in self._partials.iterdir():
            if leftover.stat().st_mtime < time.time() - FORGOTTEN:
                leftover.unlink(missing_ok=True)

    def path(self, hash_: bytes) -> Path:
        """Where a blob is, or would be."""
        if len(hash_) != 32:
            raise ValueError(f"a blob is named by 32 bytes, not {len(hash_)}")
        return self._directory / hash_.hex()

    def has(self, hash_: bytes) -> bool:
        return self.path(hash_).is_file()

    def hashes(self) -> set[bytes]:
        return {bytes.fromhex(entry.name) for entry in os.scandir(self._directory) if _is_name(entry.name)}

    def put(self, data: bytes) -> bytes:
        """Store bytes, durable on return; their sha256."""
        hash_ = hashlib.sha256(data).digest()
        if not self.has(hash_):
            temporary = self._temporary()
            try:
                temporary.write_bytes(data)
                self._adopt(temporary, hash_)
            finally:
                temporary.unlink(missing_ok=True)
        return hash_

    def put_file(self, source: Path) -> bytes:
        """Store a copy of a file, durable on return; its sha256."""
        temporary = self._temporary()
        try:
            # copy first, hash the copy: the source may change meanwhile
            shutil.copyfile(source, temporary)
            hash_ = file_hash(temporary)
            if not self.has(hash_):
                self._adopt(temporary, hash_)
            return hash_
        finally:
            temporary.unlink(missing_ok=True)

    def partial(self, hash_: bytes, size: int) -> "Partial":
        """A download to begin, or to go on with where it stopped."""
        return Partial(self, self._partials / hash_.hex(), hash_, size)

    def _temporary(self) -> Path:
        return self._partials / f"tmp-{secrets.token_hex(8)}"

    def _adopt(self, file: Path, hash_: bytes) -> None:
        with open(file, "rb") as handle:
            os.fsync(handle.fileno())
        os.rename(file, self.path(hash_))
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


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
        self._store._adopt(self._path, self._hash)
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


def file_hash(path: Path) -> bytes:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").digest()


def _is_name(name: str) -> bool:
    return len(name) == 64 and all(c in "0123456789abcdef" for c in name)
