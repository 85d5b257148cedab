"""Documents become shards of token ids, the same bits from the same input wherever and however often it is done.

The data manifest is written last: whatever interrupts this leaves shards that nothing names, and no data.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dlx.ground import durable
from dlx.ground.blobs import write_blob
from dlx.training.data import shards
from dlx.training.data.formats import Document, Source, find
from dlx.training.data.shards import PREPARED, DataError, DataManifest, PreparationError, Shard, Split
from dlx.training.data.vocabulary import Vocabulary
from dlx.training.recipe.recipe import BlobRef

PIECE = 256 * 1024  # bytes of a document that the tokenizer sees at once: a longer one is cut

_BATCH = 4 * 1024 * 1024  # bytes of text tokenised in parallel
_CHUNK = 1 << 20  # bytes of a file copied at a time
_UNFINISHED = ".unfinished"  # says that the blobs beside it are an interrupted `prepare_folder`'s
_OURS = re.compile(r"[0-9a-f]{64}|\..*\.tmp|" + re.escape(_UNFINISHED))

Progress = Callable[[int, int], None]  # bytes of text done, and in all


@dataclass(frozen=True)
class Preparation:
    """What the data is made of. Without a tokenizer every byte is a token."""

    sources: Sequence[Path]
    heldout: float = 0.05  # fraction of the bytes
    tokenizer: Path | None = None
    separator: str | int | None = None  # token between documents, by text or id; see `Vocabulary.read`
    field: str = "text"  # of records: key or column

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
    return _put_manifest(_write(preparation, blobs, progress), blobs)


def prepare_folder(
    preparation: Preparation, folder: Path, progress: Progress = lambda done, total: None
) -> DataManifest:
    """The same data as a folder that can be carried around: the blobs, and the data manifest in `data.json`.

    `folder` is new, empty, or what an interrupted call left, and in none of the sources. Raises DataError.
    """
    for source in preparation.sources:
        if source.is_dir() and source.resolve() in (folder.resolve(), *folder.resolve().parents):
            raise PreparationError(f"{folder}: lies in {source}, of which its shards would be documents next time")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PreparationError(f"{folder}: cannot be made a folder ({error.strerror})") from None
    names = sorted(path.name for path in folder.iterdir())
    if PREPARED in names:
        raise PreparationError(f"{folder}: holds prepared data already; name another folder")
    foreign = [name for name in names if _UNFINISHED not in names or not _OURS.fullmatch(name)]
    if foreign:
        raise PreparationError(f"{folder}: is not empty (it holds {foreign[0]}); name a new folder")
    durable.write_bytes(folder / _UNFINISHED, b"")
    manifest = _write(preparation, folder, progress)
    kept = {_UNFINISHED, *(blob.sha256 for blob in manifest.blobs())}
    for path in folder.iterdir():
        if path.name not in kept:
            path.unlink()
    durable.write_bytes(folder / PREPARED, shards.canonical_bytes(manifest))
    (folder / _UNFINISHED).unlink()
    return manifest


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
        _link(folder / blob.sha256, blobs / blob.sha256)
    return _put_manifest(manifest, blobs)


def _put_manifest(manifest: DataManifest, blobs: Path) -> BlobRef:
    content = shards.canonical_bytes(manifest)
    return BlobRef(sha256=write_blob(blobs, [content]).hex(), size=len(content))


def _link(source: Path, target: Path) -> None:
    """One file under two names, since blobs never change; a copy where the file system cannot do that."""
    if target.exists():
        return
    try:
        os.link(source, target)
    except OSError:
        with open(source, "rb") as file:
            durable.write_chunks(target, iter(partial(file.read, _CHUNK), b""))


def _write(preparation: Preparation, blobs: Path, progress: Progress) -> DataManifest:
    """Every blob but the data manifest."""
    vocabulary = preparation.vocabulary
    sources = find(preparation.sources, preparation.field)
    held_from, total = _survey(sources, preparation.heldout)
    kind = shards.token_dtype(vocabulary.size) if vocabulary else "uint8"
    dtype = np.dtype(kind).newbyteorder("<")
    writers: dict[Split, _ShardWriter] = {
        "train": _ShardWriter(blobs, dtype.itemsize),
        "heldout": _ShardWriter(blobs, dtype.itemsize),
    }
    parts = _parts(sources, held_from, total, progress)
    if vocabulary is None:
        for part in parts:
            writers[part.split].add(b"\0" if part.content is None else part.content)
        return DataManifest(train=writers["train"].finish(), heldout=writers["heldout"].finish())
    for split, ids in _tokenised(parts, vocabulary):
        writers[split].add(np.array(ids, dtype).tobytes())
    return DataManifest(
        train=writers["train"].finish(),
        heldout=writers["heldout"].finish(),
        tokenizer=BlobRef(write_blob(blobs, [vocabulary.content]).hex(), len(vocabulary.content)),
        vocab_size=vocabulary.size,
        separator=vocabulary.separator,
        dtype=kind,
    )


def _survey(sources: Sequence[Source], fraction: float) -> tuple[dict[int, int], int]:
    """What is held out, and the bytes of all documents: for each document (by its place) that is not wholly training
    data, the offset from which on its bytes are held out. Reads every record, so most mistakes show early."""
    hashes, sizes = bytearray(), []
    for source in sources:
        for document in source.documents():
            hashes += hashlib.sha256(document.name.encode("utf-8", "surrogateescape")).digest()[:8]
            sizes.append(document.size)
    total = sum(sizes)
    if total < 2:
        raise DataError("the data sources hold no text")
    wanted = left = int(total * fraction)
    held_from = {}
    for place in np.argsort(np.frombuffer(hashes, ">u8"), kind="stable").tolist():
        if sizes[place] <= left and len(sizes) > 1:
            left -= sizes[place]
            held_from[place] = 0
    if wanted - left < left:  # too little: take the end of the largest one as well
        kept = [size if place not in held_from else 0 for place, size in enumerate(sizes)]
        largest = kept.index(max(kept))
        held_from[largest] = kept[largest] - left
    return held_from, total


class _Part(NamedTuple):
    """Some bytes of a document, or (None) its end."""

    split: Split
    content: bytes | None
    path: Path
    at: int  # where they are in the document


def _parts(sources: Sequence[Source], held_from: dict[int, int], total: int, progress: Progress) -> Iterator[_Part]:
    """All documents in order."""
    done = place = 0
    for source in sources:
        for document in source.documents():
            at = 0
            for split, content in _split(document, held_from.get(place, document.size)):
                yield _Part(split, content, source.path, at)
                at += len(content or b"")
                progress(done + at, total)
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


def _tokenised(parts: Iterator[_Part], vocabulary: Vocabulary) -> Iterator[tuple[Split, list[int]]]:
    """The ids of each piece of text, in order."""
    waiting: list[_Text] = []
    size = 0
    for text in _texts(parts):
        waiting.append(text)
        size += len(text.content)
        if size >= _BATCH:
            yield from _encoded(waiting, vocabulary)
            waiting, size = [], 0
    yield from _encoded(waiting, vocabulary)


def _encoded(texts: "list[_Text]", vocabulary: Vocabulary) -> Iterator[tuple[Split, list[int]]]:
    for text, ids in zip(texts, vocabulary.encode([text.content for text in texts]), strict=True):
        yield text.split, [*ids, vocabulary.separator] if text.ends else ids


class _Text(NamedTuple):
    split: Split
    content: str
    ends: bool  # the document ends with it


def _texts(parts: Iterator[_Part]) -> "Iterator[_Text]":
    """Pieces of at most PIECE bytes, cut after a line or before a space where there is one, whatever the parts."""
    buffer, at = bytearray(), 0
    for part in parts:
        if not buffer:
            at = part.at
        buffer += part.content or b""
        while len(buffer) > PIECE:
            cut = buffer.rfind(b"\n", 0, PIECE) + 1 or max(0, buffer.rfind(b" ", 0, PIECE)) or _character(buffer)
            yield _Text(part.split, _decoded(buffer[:cut], part.path, at), False)
            del buffer[:cut]
            at += cut
        if part.content is None:
            yield _Text(part.split, _decoded(buffer, part.path, at), True)
            buffer.clear()


def _decoded(content: bytearray, path: Path, at: int) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text at byte {at + error.start}") from None


def _character(buffer: bytearray) -> int:
    """PIECE, moved back to where a character begins."""
    return next((cut for cut in range(PIECE, PIECE - 4, -1) if buffer[cut] & 0xC0 != 0x80), PIECE)


class _ShardWriter:
    """Cuts a stream of tokens into shard blobs."""

    def __init__(self, blobs: Path, token_bytes: int) -> None:
        self._blobs, self._token_bytes = blobs, token_bytes
        self._buffer = bytearray()
        self._shards: list[Shard] = []

    def add(self, tokens: bytes) -> None:
        self._buffer += tokens
        while len(self._buffer) >= shards.SHARD_BYTES:
            self._flush(shards.SHARD_BYTES)

    def finish(self) -> list[Shard]:
        if self._buffer:
            self._flush(len(self._buffer))
        return self._shards

    def _flush(self, size: int) -> None:
        content = bytes(self._buffer[:size])
        del self._buffer[:size]
        name = write_blob(self._blobs, [content]).hex()
        self._shards.append(Shard(sha256=name, size=size, tokens=size // self._token_bytes))
