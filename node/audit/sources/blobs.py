"""Where an auditor's blobs come from: folders first, then peers; never a byte that does not hash to its name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from dlx.ground import durable
from dlx.ground.regular import opened

CHUNK = 1 << 20
_NAMED = 3  # sources of wrong bytes that a message names


class BlobMissing(Exception):
    """Nobody gives the blob. `reason` says so, and names those who gave something else."""

    def __init__(self, name: str, where: Sequence[str] = ()) -> None:
        more = f" and {len(where) - _NAMED} others" if len(where) > _NAMED else ""
        wrong = f"wrong bytes from {', '.join(where[:_NAMED])}{more}, and no good copy anywhere"
        self.reason = wrong if where else "no source has it"
        super().__init__(f"{name}: {self.reason}")


class WrongCopy(NamedTuple):
    """Something under a blob's name that is not the blob. `where` names the place, `what` continues that: a predicate.

    `differs`: these are other bytes, not just something that cannot be read.
    """

    where: str
    what: str
    differs: bool = True


@dataclass(frozen=True)
class Attempt:
    """One source's answer about one blob: `path` holds the checked copy; `wrong` is what else was found."""

    path: Path | None
    wrong: tuple[WrongCopy, ...] = ()


class Source(Protocol):
    """A place to look for blobs. `own`: the auditor vouches for it, so a wrong blob there is itself a finding."""

    own: bool

    def fetch(self, digest: bytes, limit: int, into: Path) -> Attempt:
        """Look for the blob of this sha256, at most `limit` bytes; a good copy lies in `into` afterwards."""
        ...


class Folder:
    """A blob folder: files named by the lowercase hex of their sha256."""

    def __init__(self, path: Path, own: bool) -> None:
        self.path = path
        self.own = own

    def fetch(self, digest: bytes, limit: int, into: Path) -> Attempt:
        # Hash while copying: what is used later is what was checked, whatever happens to the folder meanwhile.
        source = self.path / digest.hex()
        try:
            reader = opened(source)
        except FileNotFoundError:
            return Attempt(None)
        except OSError as error:
            return Attempt(None, (_unreadable(source, error),))
        with reader:
            size = os.fstat(reader.fileno()).st_size
            if size > limit:
                what = f"has {size} bytes, where this blob has at most {limit}: it was not read"
                return Attempt(None, (WrongCopy(str(source), what),))
            return _copy(reader, source, digest, limit, into)

    def beginning(self, prefix: bytes, limit: int) -> Iterator[bytes]:
        """The blobs of at most `limit` bytes that begin so; those that cannot be read, or have another name than their
        sha256, are passed over."""
        for name in sorted(os.listdir(self.path)):
            path = self.path / name
            try:
                with opened(path) as reader:
                    data = reader.read(len(prefix))
                    data += reader.read(limit) if data == prefix else b""
            except OSError:
                continue
            if len(data) <= limit and hashlib.sha256(data).hexdigest() == path.name:
                yield data


class Blobs:
    """Checked blobs from several sources, kept in `work` until `drop`ped.

    `on_wrong(digest, copy, own)` is told every wrong copy, also when a good one is found elsewhere.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        work: Path,
        on_wrong: Callable[[bytes, WrongCopy, bool], None] = lambda *_: None,
    ) -> None:
        self._sources = sorted(sources, key=lambda source: not source.own)  # every own folder is looked into
        self.work = work
        self._on_wrong = on_wrong

    def get(self, digest: bytes, limit: int) -> Path:
        """Path of the checked copy of at most `limit` bytes. Raises BlobMissing."""
        copy_here = self.work / digest.hex()
        if copy_here.exists() and copy_here.stat().st_size <= limit:
            return copy_here
        wrong: list[str] = []
        found: Path | None = None
        for source in self._sources:
            if found is not None and not source.own:
                break
            attempt = source.fetch(digest, limit, self.work)
            wrong += [copy.where for copy in attempt.wrong if copy.differs]
            for copy in attempt.wrong:
                self._on_wrong(digest, copy, source.own)
            found = attempt.path or found
        if found is None:
            raise BlobMissing(digest.hex(), wrong)
        return found

    def drop(self, digest: bytes) -> None:
        """Forget the working copy (disk stays bounded); the sources keep theirs."""
        (self.work / digest.hex()).unlink(missing_ok=True)


def _copy(reader: BinaryIO, source: Path, digest: bytes, limit: int, into: Path) -> Attempt:
    partial = into / f"{digest.hex()}.partial"
    hasher, size, wrong = hashlib.sha256(), 0, WrongCopy(str(source), "does not match its name")
    with durable.naming(partial), partial.open("wb") as writer:
        while size <= limit:
            try:
                chunk = reader.read(CHUNK)
            except OSError as error:
                size, wrong = limit + 1, _unreadable(source, error)
                break
            if not chunk:
                break
            hasher.update(chunk)
            writer.write(chunk)
            size += len(chunk)
    if size > limit or hasher.digest() != digest:
        partial.unlink()
        return Attempt(None, (wrong,))
    target = into / digest.hex()
    os.replace(partial, target)
    return Attempt(target)


def _unreadable(path: Path, error: OSError) -> WrongCopy:
    return WrongCopy(str(path), f"cannot be read: {error.strerror}", differs=False)
