"""Durable files: a reader sees the old bytes or the new ones, also after a power cut."""

import hashlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Chunk = Any  # bytes, memoryview or a contiguous uint8 array: whatever offers the buffer protocol


class BlobError(ValueError):
    """A blob is missing, too large, or does not match its name."""


def write_bytes(path: Path, data: Chunk) -> None:
    """Replace `path` by `data` atomically; the bytes and the name are on disk when this returns."""
    write_chunks(path, [data])


def write_chunks(path: Path, chunks: Iterable[Chunk]) -> None:
    """`write_bytes` for data that comes in pieces, without joining them."""
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_blob(folder: Path, chunks: Iterable[Chunk]) -> bytes:
    """Write the blob to `folder/<lowercase hex of its sha256>` and return the sha256 (32 bytes)."""
    pieces = list(chunks)
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    write_chunks(folder / digest.hexdigest(), pieces)
    return digest.digest()


def read_blob(path: Path, limit: int) -> bytes:
    """The bytes of the blob at `path`, whose name is the hex of its sha256; at most `limit` bytes are read.

    Raises BlobError when it is missing, longer than `limit`, or its bytes do not match its name.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise BlobError(f"blob {path.name}: {error.strerror}") from error
    if len(data) > limit:
        raise BlobError(f"blob {path.name}: more than {limit} bytes")
    if hashlib.sha256(data).hexdigest() != path.name:
        raise BlobError(f"blob {path.name}: its bytes do not match its name")
    return data


def sync_directory(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
