"""Documents become shards of token ids, the same bits from the same input wherever and however often it is done.

The data manifest is written last: whatever interrupts this leaves shards that nothing names, and no data; in a folder
of its own also how far it was.
"""

import hashlib
import os
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from dlx.ground import durable, locks
from dlx.ground.blobs import write_blob
from dlx.ground.errors import Unsuited
from dlx.training.data import shards, unfinished
from dlx.training.data.formats import Document, Found, Source, find, read_all
from dlx.training.data.shards import PREPARED, DataError, DataManifest, PreparationError, Shard, Split, TextError
from dlx.training.data.tokenising import BATCH, Part, Tokens, raw_batches, text_batches, tokenised
from dlx.training.data.unfinished import Making, Unfinished
from dlx.training.data.vocabulary import Vocabulary
from dlx.training.recipe.recipe import BlobRef

_CHUNK = 1 << 20  # bytes of a file copied at a time
_OURS = re.compile(r"[0-9a-f]{64}|\..*\.tmp|" + re.escape(unfinished.NAME))

Progress = Callable[[int, int], None]  # bytes of text done, and in all


@dataclass(frozen=True)
class Preparation:
    """What the data is made of. Without a tokenizer every byte is a token."""

    sources: Sequence[Path]
    heldout: float = 0.05  # fraction of the bytes
    tokenizer: Path | None = None
    separator: str | int | None = None  # token between documents, by text or id; see `Vocabulary.read`
    field: str = "text"  # of entries: key or column
    raw: bool = False  # whether files that are no text are taken as their bytes; text and entries are the same with it
    workers: int = 1  # processes that tokenise; the result is the same

    @cached_property
    def found(self) -> Found:
        """Raises DataError."""
        return find(self.sources, self.field, self.raw, of_bytes=self.tokenizer is None)

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """Raises DataError."""
        if self.tokenizer is not None:
            return Vocabulary.read(self.tokenizer, self.separator)
        if self.separator is not None:
            raise PreparationError("a separator is a token of a tokenizer: without, byte 0 stands between documents")
        return None


def prepare(
    sources: Sequence[Path], blobs: Path, heldout: float = 0.05, progress: Progress = lambda done, total: None
) -> BlobRef:
    """`prepare_blobs` of bytes."""
    return prepare_blobs(Preparation(sources, heldout), blobs, progress)


def prepare_blobs(preparation: Preparation, blobs: Path, progress: Progress = lambda done, total: None) -> BlobRef:
    """Write the data as blobs to `blobs` and return the data manifest's.

    The documents come in the order of their files' paths below the sources' common folder, which with their bytes and
    the tokenizer decides every bit of the result. About `heldout` of the bytes are held out: whole documents, chosen by
    a hash of their names, or the end of the largest one where they are too few or too large for that. Raises DataError.
    """
    blobs.mkdir(parents=True, exist_ok=True)
    return _put_manifest(_write(preparation, blobs, progress, resume=False), blobs)


def prepare_folder(
    preparation: Preparation, folder: Path, progress: Progress = lambda done, total: None
) -> DataManifest:
    """The same data as a folder that can be carried around: the blobs, and the data manifest in `data.json`.

    `folder` is new, empty, or what an interrupted call for the same data left, which then goes on where it was; it is
    in none of the sources. Raises DataError for what the same call would find again, and leaves nothing of it there.
    """
    for source in preparation.sources:
        if source.is_dir() and source.resolve() in (folder.resolve(), *folder.resolve().parents):
            raise PreparationError(f"{folder}: lies in {source}, of which its shards would be documents next time")
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PreparationError(f"{folder}: cannot be made a folder ({error.strerror})") from None
    try:
        with _alone(folder):
            return _prepare_here(preparation, folder, progress)
    except (DataError, Unsuited):
        if is_new and not any(folder.iterdir()):
            folder.rmdir()
        raise
    except OSError as error:
        raise DataError(
            f"{error.filename or folder}: {error.strerror or error}; the same again goes on once it can"
        ) from None


def adopt_folder(folder: Path, blobs: Path, progress: Progress = lambda done, total: None) -> BlobRef:
    """Make a prepared folder's data blobs in `blobs`, once all of it was checked. Raises DataError."""
    manifest, done = shards.read_prepared(folder), 0
    total = sum(blob.size for blob in manifest.blobs())

    def seen(size: int) -> None:
        nonlocal done
        done += size
        progress(done, total)

    for problem in shards.check(manifest, folder, seen):
        raise DataError(f"{folder}: {problem.blob}: {problem.reason}")
    for blob in manifest.blobs():
        durable.share(folder / blob.sha256, blobs / blob.sha256)
    return _put_manifest(manifest, blobs)


def _put_manifest(manifest: DataManifest, blobs: Path) -> BlobRef:
    content = shards.canonical_bytes(manifest)
    return BlobRef(sha256=write_blob(blobs, [content]).hex(), size=len(content))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Raises PreparationError while another process prepares data there."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        if not locks.take(opened, folder):
            raise PreparationError(f"{folder}: another process prepares data there; wait for it, or name another")
        yield
    finally:
        os.close(opened)


def _prepare_here(preparation: Preparation, folder: Path, progress: Progress) -> DataManifest:
    names = sorted(path.name for path in folder.iterdir())
    if PREPARED in names:
        raise PreparationError(f"{folder}: holds prepared data already; name another folder")
    foreign = [name for name in names if unfinished.NAME not in names or not _OURS.fullmatch(name)]
    if foreign:
        raise PreparationError(f"{folder}: is not empty (it holds {foreign[0]}); name a new folder")
    try:
        manifest = _write(preparation, folder, progress, resume=True)
    except TextError:  # it will not go on: mended files are others
        for path in folder.iterdir():
            path.unlink()
        raise
    kept = {unfinished.NAME, *(blob.sha256 for blob in manifest.blobs())}
    for path in folder.iterdir():
        if path.name not in kept:
            path.unlink()
    durable.write_bytes(folder / PREPARED, shards.canonical_bytes(manifest))
    (folder / unfinished.NAME).unlink()
    return manifest


def _write(preparation: Preparation, blobs: Path, progress: Progress, resume: bool) -> DataManifest:
    """Every blob but the data manifest. With `resume` the folder keeps how far it is, and goes on from there."""
    vocabulary = preparation.vocabulary
    sources = preparation.found.sources
    survey = _survey(preparation)
    state = Unfinished(_making(preparation, sources))
    if resume:
        state = unfinished.load(blobs, state.making)
        unfinished.save(blobs, state)
    dtype = shards.token_dtype(vocabulary.size) if vocabulary else "uint8"
    train, heldout = (
        _ShardWriter(blobs, np.dtype(dtype).itemsize, done, left)
        for done, left in zip((state.train, state.heldout), state.left, strict=True)
    )
    parts = _parts(sources, survey, progress)
    batches: Generator[Tokens, None, None]
    if vocabulary is None:
        batches = (tokens for tokens in islice(raw_batches(parts), state.batches, None))
    else:
        workers = max(1, min(preparation.workers, survey.total // BATCH))
        batches = tokenised(islice(text_batches(parts), state.batches, None), vocabulary, dtype, workers)
    with closing(batches):
        for number, batch in enumerate(batches, state.batches + 1):
            written = [(train if split == "train" else heldout).add(tokens) for split, tokens in batch]
            if resume and any(written):
                left = train.left, heldout.left
                unfinished.save(blobs, Unfinished(state.making, number, train.shards, heldout.shards, left))
    manifest = DataManifest(train=train.finish(), heldout=heldout.finish())
    if vocabulary is None:
        return manifest
    return replace(
        manifest,
        tokenizer=BlobRef(write_blob(blobs, [vocabulary.content]).hex(), len(vocabulary.content)),
        vocab_size=vocabulary.size,
        separator=vocabulary.separator,
        dtype=dtype,
    )


def _making(preparation: Preparation, sources: Sequence[Source]) -> Making:
    vocabulary, digest = preparation.vocabulary, hashlib.sha256()
    for source in sources:
        for path in sorted(source.path.iterdir()) if source.path.is_dir() else [source.path]:
            found = path.stat()
            digest.update(f"{source.name}/{path.name} {found.st_size} {found.st_mtime_ns}\n".encode("utf-8", "replace"))
    return Making(
        format=unfinished.FORMAT,
        sources=digest.hexdigest(),
        tokenizer="bytes" if vocabulary is None else hashlib.sha256(vocabulary.content).hexdigest(),
        separator=0 if vocabulary is None else vocabulary.separator,
        field=preparation.field,
        heldout=preparation.heldout,
    )


class _Survey(NamedTuple):
    held_from: dict[int, int]  # of each document (by its place) not wholly training data: where its held-out end begins
    total: int  # bytes of all documents


def _survey(preparation: Preparation) -> _Survey:
    """Reads everything, so mistakes show before any shard is written. Raises DataError."""
    hashes, sizes = bytearray(), list[int]()

    def read(source: Source) -> None:
        for document in source.documents():
            for _ in document.pieces:
                pass
            hashes.extend(hashlib.sha256(document.name.encode("utf-8", "surrogateescape")).digest()[:8])
            sizes.append(document.size)

    read_all(preparation.found.sources, read)
    total = sum(sizes)
    if total < 2:
        raise DataError(f"{', '.join(map(str, preparation.sources))}: there is no text in it ({preparation.found})")
    wanted = left = int(total * preparation.heldout)
    held_from = {}
    for place in np.argsort(np.frombuffer(hashes, ">u8"), kind="stable").tolist():
        if sizes[place] <= left and len(sizes) > 1:
            left -= sizes[place]
            held_from[place] = 0
    if wanted - left < left:  # too little: take the end of the largest one as well
        kept = [size if place not in held_from else 0 for place, size in enumerate(sizes)]
        largest = kept.index(max(kept))
        held_from[largest] = kept[largest] - left
    return _Survey(held_from, total)


def _parts(sources: Sequence[Source], survey: _Survey, progress: Progress) -> Iterator[Part]:
    """All documents in order."""
    done = place = 0
    for source in sources:
        for document in source.documents():
            at = 0
            for split, content in _split(document, survey.held_from.get(place, document.size)):
                yield Part(split, content, source.path, at)
                at += len(content or b"")
                progress(done + at, survey.total)
            done += at
            place += 1


def _split(document: Document, offset: int) -> Iterator[tuple[Split, bytes | None]]:
    """The document's bytes up to `offset` as training data, moved on to the next character, and the rest held out."""
    left, slack = offset, 3 if offset else 0
    began = False
    for piece in document.pieces:
        cut = min(left, len(piece))
        left -= cut
        while not left and slack and cut < len(piece) and piece[cut] & 0xC0 == 0x80:
            cut, slack = cut + 1, slack - 1
        if cut:
            yield "train", piece[:cut]
        if cut < len(piece):
            if offset and not began:
                yield "train", None
            began, slack = True, 0
            yield "heldout", piece[cut:]
    yield "heldout" if began else "train", None


class _ShardWriter:
    """Cuts a stream of tokens into shard blobs."""

    def __init__(self, blobs: Path, token_bytes: int, done: Sequence[Shard], left: bytes) -> None:
        self.shards = list(done)
        self._blobs, self._token_bytes, self._buffer = blobs, token_bytes, bytearray(left)

    @property
    def left(self) -> bytes:
        """Tokens behind the last shard."""
        return bytes(self._buffer)

    def add(self, tokens: bytes) -> bool:
        """Whether a shard became full, and was written."""
        self._buffer += tokens
        before = len(self.shards)
        while len(self._buffer) >= shards.SHARD_BYTES:
            self._flush(shards.SHARD_BYTES)
        return len(self.shards) > before

    def finish(self) -> list[Shard]:
        if self._buffer:
            self._flush(len(self._buffer))
        return self.shards

    def _flush(self, size: int) -> None:
        content = bytes(self._buffer[:size])
        del self._buffer[:size]
        name = write_blob(self._blobs, [content]).hex()
        self.shards.append(Shard(sha256=name, size=size, tokens=size // self._token_bytes))
