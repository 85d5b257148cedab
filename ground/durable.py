"""Durable files: a reader sees the old bytes or the new ones, also after a power cut."""

import errno
import hashlib
import os
import re
import secrets
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from dlx.ground.errors import Unsuited

Chunk = Any  # bytes, memoryview or a contiguous uint8 array: whatever offers the buffer protocol


class Flushable(Protocol):
    def flush(self) -> None: ...
    def fileno(self) -> int: ...


_DRAFT = re.compile(r"\.([0-9]{1,9})-[0-9a-f]{16}\.tmp")  # of the process with this id

PUBLIC, SECRET = 0o644, 0o600  # modes of files
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)  # what file systems without hard links say, such as FAT


def write_bytes(path: Path, data: Chunk, mode: int = PUBLIC) -> None:
    """Replace `path` by `data` atomically; the bytes and the name are on disk when this returns. Raises OSError."""
    write_chunks(path, [data], mode)


def write_chunks(path: Path, chunks: Iterable[Chunk], mode: int = PUBLIC) -> None:
    """`write_bytes` for data that comes in pieces, without joining them."""
    with draft(path.parent, mode) as (file, name):
        for chunk in chunks:
            file.write(chunk)
        place(file, name, path)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """A full disk is told with this path: a write itself does not say where."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in _FULL:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


@contextmanager
def naming_database(path: Path) -> Iterator[None]:
    """What SQLite says of a file becomes an OSError with this path."""
    try:
        yield
    except sqlite3.Error as error:
        raise OSError(f"{path}: {error}") from error


@contextmanager
def draft(folder: Path, mode: int = PUBLIC) -> Iterator[tuple[BinaryIO, Path]]:
    """A file to be written in `folder`, and its name until `place` gives it another; it is gone after that.

    Raises Unsuited for a secret where everybody could read it, OSError."""
    name = folder / f".{os.getpid()}-{secrets.token_hex(8)}.tmp"
    try:
        with naming(folder), open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            if mode == SECRET and os.fstat(file.fileno()).st_mode & 0o077:
                raise Unsuited(folder, "without modes, on which everybody could read a secret")
            yield file, name
    finally:
        name.unlink(missing_ok=True)


def place(file: Flushable, draft: Path, path: Path) -> None:
    """Make a finished draft the file `path`, in the same folder, durably. Raises OSError."""
    file.flush()
    os.fsync(file.fileno())
    os.replace(draft, path)
    sync_directory(path.parent)


def point(link: Path, target: str) -> None:
    """Make `link` a symbolic link to `target`, in place of one that is there. Raises OSError."""
    name = link.with_name(f".{os.getpid()}-{secrets.token_hex(8)}.tmp")
    os.symlink(target, name)
    os.replace(name, link)


def create(path: Path, data: Chunk, mode: int = SECRET) -> None:
    """A new file that is whole or not there. Raises FileExistsError, and leaves the file as it is, if there is one."""
    with draft(path.parent, mode) as (file, name):
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        try:
            os.link(name, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))  # the name is ours, then whole
            os.replace(name, path)
    sync_directory(path.parent)


def move(source: Path, target: Path) -> None:
    """Move a finished file or folder into place on the same file system, replacing what is there, durably."""
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            _sync(path)
    _sync(source)
    os.replace(source, target)
    sync_directory(target.parent)


def share(source: Path, target: Path) -> None:
    """Another name for a finished file, or a copy on another file system or one that knows no links; what is there
    already stays. Raises FileNotFoundError, OSError."""
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EMLINK, *_NO_LINKS):
            raise
        with open(source, "rb") as file:
            write_chunks(target, iter(lambda: file.read(1 << 20), b""))


def keeps_modes(folder: Path) -> bool:
    """Whether a file there can be its owner's alone; True also where none can be written."""
    try:
        with draft(folder, SECRET):
            return True
    except Unsuited:
        return False
    except OSError:
        return True


def sync_directory(folder: Path) -> None:
    """Make the names in `folder` durable."""
    _sync(folder)


def file_hash(path: Path) -> bytes:
    """The sha256 of a file's bytes, in constant memory. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def drop_drafts(folder: Path) -> None:
    """Remove what processes of this machine left in `folder` that died while they wrote a file."""
    for path in folder.iterdir():
        match = _DRAFT.fullmatch(path.name)
        if match and not _lives(int(match[1])):
            path.unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
