"""Where an auditor's blobs come from: folders first, then peers; never a byte that does not hash to its name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CHUNK = 1 << 20


class BlobMissing(Exception):
    """No source has the blob."""


class BlobWrong(Exception):
    """Some source has bytes under this name, but nobody has the right ones. `reason` names those sources."""

    def __init__(self, name: str, where: Sequence[str]) -> None:
        self.reason = f"wrong bytes from {', '.join(where)}, and no good copy anywhere"
        super().__init__(f"{name}: {self.reason}")


@dataclass(frozen=True)
class Attempt:
    """One source's answer about one blob: `path` holds the checked copy, or `wrong` names who gave wrong bytes."""

    path: Path | None
    wrong: tuple[str, ...] = ()


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
            reader = source.open("rb")
        except FileNotFoundError:
            return Attempt(None)
        except OSError:
            return Attempt(None, (str(source),))
        target = into / digest.hex()
        partial = into / f"{digest.hex()}.partial"
        hasher, size = hashlib.sha256(), 0
        with reader, partial.open("wb") as writer:
            while size <= limit and (chunk := reader.read(CHUNK)):
                hasher.update(chunk)
                writer.write(chunk)
                size += len(chunk)
        if size > limit or hasher.digest() != digest:
            partial.unlink()
            return Attempt(None, (str(source),))
        os.replace(partial, target)
        return Attempt(target)


class Blobs:
    """Checked blobs from several sources, kept in `work` until `drop`ped.

    `on_wrong(digest, where, own)` hears of every wrong copy, also when a good one is found elsewhere.
    """

    def __init__(
        self, sources: Sequence[Source], work: Path, on_wrong: Callable[[bytes, str, bool], None] = lambda *_: None
    ) -> None:
        self._sources = sorted(sources, key=lambda source: not source.own)  # every own folder is looked into
        self.work = work
        self._on_wrong = on_wrong

    def get(self, digest: bytes, limit: int) -> Path:
        """Path of the checked copy of at most `limit` bytes. Raises BlobMissing or BlobWrong."""
        kept = self.work / digest.hex()
        if kept.exists():
            return kept
        wrong: list[str] = []
        found: Path | None = None
        for source in self._sources:
            if found is not None and not source.own:
                break
            attempt = source.fetch(digest, limit, self.work)
            for where in attempt.wrong:
                wrong.append(where)
                self._on_wrong(digest, where, source.own)
            found = attempt.path or found
        if found is not None:
            return found
        if wrong:
            raise BlobWrong(digest.hex(), wrong)
        raise BlobMissing(f"{digest.hex()}: nobody has it")

    def drop(self, digest: bytes) -> None:
        """Forget the working copy (disk stays bounded); the sources keep theirs."""
        (self.work / digest.hex()).unlink(missing_ok=True)
