"""Documents become shards of token ids, the same bits from the same input wherever and however often it is done.

The data manifest is written last: whatever interrupts this leaves shards that nothing names, and no data; in a folder
of its own also how far it was.
"""

import hashlib
import os
import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from msgspec.structs import replace

from dlx.ground import durable, locks
from dlx.ground.blobs import write_blob
from dlx.ground.errors import Unsuited
from dlx.ground.merkle import tree_root
from dlx.training.data import shards, unfinished
from dlx.training.data.conversations import ConversationError
from dlx.training.data.formats import Found, find
from dlx.training.data.reading import Document
from dlx.training.data.shards import (
    PREPARED,
    Counted,
    DataError,
    DataManifest,
    PreparationError,
    Shard,
    Split,
    TextError,
)
from dlx.training.data.survey import Portion, Progress, Section, Survey, survey
from dlx.training.data.template_check import TemplateCheck
from dlx.training.data.tokenising import (
    BATCH,
    Chat,
    Counts,
    Encoded,
    Part,
    conversation_batches,
    raw_batches,
    text_batches,
    tokenised,
)
from dlx.training.data.unfinished import Making, Unfinished
from dlx.training.data.vocabulary import Vocabulary
from dlx.training.recipe.huggingface import read_text
from dlx.training.recipe.recipe import BlobRef
from dlx.training.recipe.strict import ManifestError
from dlx.training.recipe.usage import read_usage

_Batch = TypeVar("_Batch")

_OURS = re.compile(r"[0-9a-f]{64}|\..*\.tmp|" + re.escape(unfinished.NAME))


@dataclass(frozen=True)
class Preparation:
    """What the data is made of. Without a tokenizer every byte is a token."""

    sources: Sequence[Path | Portion]  # those without a portion of their own are one together
    heldout: float = 0.05  # fraction of the bytes
    tokenizer: Path | None = None
    separator: str | int | None = None  # token between documents, by text or id; see `Vocabulary.read`
    field: str = "text"  # of entries: key or column, but for portions and in `held_set`
    raw: bool = False  # whether files that are no text are taken as their bytes; text and entries are the same with it
    chat: bool = False  # the entries are conversations, packed into rows
    sequence_length: int = 0  # tokens of a sample: so long are the rows
    template: Path | None = None  # a chat template; None: the one of the tokenizer's folder
    workers: int = 1  # processes that tokenise; the result is the same
    held_set: Sequence[Path] = ()  # held out in place of a fraction
    drop_copies: bool = False  # whether a document with the bytes of one before it is left out
    looked: Progress = lambda done, total: None  # hears of files that were surveyed

    @cached_property
    def portions(self) -> list[Portion]:
        """Raises PreparationError."""
        plain = [one for one in self.sources if isinstance(one, Path)]
        given = [one for one in self.sources if isinstance(one, Portion)]
        found = [*given, Portion(plain, field=self.field)] if plain or not given else given
        if any(one.weight for one in found) and not all(one.weight for one in found):
            raise PreparationError("the sources of a mixture have a weight each, or none has one")
        return found

    @property
    def paths(self) -> list[Path]:
        """Of everything that is read."""
        return [*(path for portion in self.portions for path in portion.paths), *self.held_set]

    @cached_property
    def packing(self) -> Chat | None:
        """How conversations are packed. Raises DataError where there is no template."""
        if not self.chat:
            return None
        if self.tokenizer is None:
            raise PreparationError("conversations need a tokenizer, and a chat template (in its folder, or named)")
        try:
            usage, _ = read_usage(self.tokenizer.parent)
            template = usage.chat_templates.get("default")
            if self.template is not None:
                template = read_text(self.template, shards.MAX_TEMPLATE_BYTES)
        except ManifestError as error:
            raise PreparationError(str(error)) from None
        folder, special = self.tokenizer.parent, usage.tokens.texts
        if not template:
            raise PreparationError(f"{folder}: has no chat template: name one (data.template, --template)")
        if "eos_token" in template and "eos_token" not in special:  # a template writes nothing in its place
            raise PreparationError(f"{folder}: its tokenizer_config.json does not say the chat template's eos_token")
        return Chat(template, special, self.sequence_length + 1)

    @cached_property
    def survey(self) -> Survey:
        """Reads everything, so mistakes show before any shard is written. Raises DataError."""
        with self._check() as check:
            return survey(
                [(portion, self._find(portion.paths, portion.field)) for portion in self.portions],
                self.heldout,
                self._find(self.held_set, self.field) if self.held_set else None,
                self.drop_copies,
                self.chat,
                check,
                self.looked,
            )

    def _check(self) -> AbstractContextManager[TemplateCheck | None]:
        if self.packing is None:
            return nullcontext()
        try:
            return TemplateCheck(self.packing.text, self.packing.special)
        except ConversationError as error:
            raise DataError(str(error)) from None

    def _find(self, paths: Sequence[Path], field: str) -> Found:
        return find(paths, field, self.raw, of_bytes=self.tokenizer is None, chat=self.chat)

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


def prepare_blobs(
    preparation: Preparation,
    blobs: Path,
    progress: Progress = lambda done, total: None,
    kept: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> BlobRef:
    """Write the data as blobs to `blobs` and return the data manifest's. Where the file `kept` says how far an
    interrupted call for the same data came, this one goes on there, and says so; it keeps there how far it is.

    The documents come in the order of their files' paths below the sources' common folder, which with their bytes and
    the tokenizer decides every bit of the result. Portions alternate, each as fast as it takes to end with the others.
    A document with the bytes of a held-out one is left out of the training data. Raises DataError.
    """
    blobs.mkdir(parents=True, exist_ok=True)
    state = begun = _begun(preparation)
    if kept is not None:
        with suppress(PreparationError):  # other data, which it gives up
            state = unfinished.load(kept, blobs, begun)
        if state != begun:
            say(f"going on after {len(state.train) + len(state.heldout):,} shards that an interrupted call wrote")
    return _put_manifest(_write(preparation, blobs, progress, state, kept), blobs)


def prepare_folder(
    preparation: Preparation, folder: Path, progress: Progress = lambda done, total: None
) -> DataManifest:
    """The same data as a folder that can be carried around: the blobs, and the data manifest in `data.json`.

    `folder` is new, empty, or what an interrupted call for the same data left, which then goes on where it was; it is
    in none of the sources. Raises DataError for what the same call would find again, and leaves nothing of it there.
    """
    check_folder(preparation, folder)
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


def check_folder(preparation: Preparation, folder: Path) -> None:
    """Raises PreparationError where the folder takes no data of these sources, or none at all."""
    for source in preparation.paths:
        if source.is_dir() and source.resolve() in (folder.resolve(), *folder.resolve().parents):
            raise PreparationError(f"{folder}: lies in {source}, of which its shards would be documents next time")
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if PREPARED in names:
        raise PreparationError(f"{folder}: holds prepared data already; name another folder")
    foreign = [name for name in names if unfinished.NAME not in names or not _OURS.fullmatch(name)]
    if foreign:
        raise PreparationError(f"{folder}: is not empty (it holds {foreign[0]}); name a new folder")


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
    check_folder(preparation, folder)  # again: it may have been prepared meanwhile
    kept = folder / unfinished.NAME
    try:
        state = unfinished.load(kept, folder, _begun(preparation))
        unfinished.save(kept, state)
        manifest = _write(preparation, folder, progress, state, kept)
    except TextError:  # it will not go on: mended files are others
        for path in folder.iterdir():
            path.unlink()
        raise
    made = {blob.sha256 for blob in manifest.blobs()}
    for path in folder.iterdir():
        if path != kept and path.name not in made:
            path.unlink()
    durable.write_bytes(folder / PREPARED, shards.canonical_bytes(manifest))
    kept.unlink()
    return manifest


def _begun(preparation: Preparation) -> Unfinished:
    """With nothing made yet."""
    return Unfinished(_making(preparation), sources=[0] * len(preparation.survey.sections))


def _write(
    preparation: Preparation, blobs: Path, progress: Progress, state: Unfinished, kept: Path | None
) -> DataManifest:
    """Every blob but the data manifest, from `state` on; the file `kept` says how far it is."""
    vocabulary, chat, found = preparation.vocabulary, preparation.packing, preparation.survey
    dtype = shards.token_dtype(vocabulary.size) if vocabulary else "uint8"
    unit = np.dtype(dtype).itemsize
    if chat is not None:
        dtype, unit = "uint32", 4 * chat.row
    width = np.dtype(dtype).itemsize
    train, heldout = (
        _ShardWriter(blobs, width, unit, done, left)
        for done, left in zip((state.train, state.heldout), state.left, strict=True)
    )
    owners, sources, counts = deque[int](), list(state.sources), Counts(*state.counts)
    batches: Generator[Encoded, None, None]
    if vocabulary is None:
        batches = _noting(_turns(found, raw_batches, BATCH, progress), state.batches, owners)
    else:
        cut: Callable[[Iterable[Part]], Iterator[Any]] = text_batches if chat is None else conversation_batches
        turn = BATCH if chat is None else chat.batch
        workers = max(1, min(preparation.workers, found.total // turn))
        texts = _noting(_turns(found, cut, turn, progress), state.batches, owners)
        batches = tokenised(texts, vocabulary, dtype, chat, workers)
    with closing(batches):
        for number, batch in enumerate(batches, state.batches + 1):
            sources[owners.popleft()] += sum(len(ids) for split, ids in batch.tokens if split == "train") // width
            written = [(train if split == "train" else heldout).add(ids) for split, ids in batch.tokens]
            counts += batch.counts
            if kept is not None and any(written):
                left = train.left, heldout.left
                made = Unfinished(state.making, number, train.shards, heldout.shards, left, counts, list(sources))
                unfinished.save(kept, made)
    manifest = DataManifest(
        train=train.finish(),
        heldout=heldout.finish(),
        rows=_rows(chat, counts, blobs),
        sources=_counted(found, sources),
    )
    if vocabulary is None:
        return manifest
    return replace(
        manifest,
        tokenizer=BlobRef(write_blob(blobs, [vocabulary.content]).hex(), len(vocabulary.content)),
        vocab_size=vocabulary.size,
        separator=vocabulary.separator,
        dtype=dtype,
    )


def _rows(chat: Chat | None, counts: Counts, blobs: Path) -> shards.Rows | None:
    """With the template as a blob. Raises DataError where no conversation has a place."""
    if chat is None:
        return None
    if not counts.packed:
        raise DataError(f"in none of {counts.left_out:,} conversations an assistant speaks before token {chat.row}")
    content = chat.text.encode()
    return shards.Rows(chat.row, BlobRef(write_blob(blobs, [content]).hex(), len(content)), *counts)


def _counted(found: Survey, counts: Sequence[int]) -> list[Counted]:
    """Of a mixture."""
    of = [
        Counted(section.portion.name, tokens)
        for section, tokens in zip(found.sections, counts, strict=True)
        if section.portion.paths
    ]
    return of if len(of) > 1 else []


def _making(preparation: Preparation) -> Making:
    vocabulary, digest, found = preparation.vocabulary, hashlib.sha256(), preparation.survey
    for number, section in enumerate(found.sections):
        for source in section.found.sources:
            for path in sorted(source.path.iterdir()) if source.path.is_dir() else [source.path]:
                stat = path.stat()
                line = f"{number} {source.name}/{path.name} {stat.st_size} {stat.st_mtime_ns}\n"
                digest.update(line.encode("utf-8", "replace"))
    return Making(
        format=unfinished.FORMAT,
        sources=digest.hexdigest(),
        tokenizer="bytes" if vocabulary is None else hashlib.sha256(vocabulary.content).hexdigest(),
        separator=0 if vocabulary is None else vocabulary.separator,
        field=", ".join(portion.field for portion in preparation.portions),
        packing=hashlib.sha256(repr(preparation.packing).encode()).hexdigest() if preparation.chat else "",
        heldout=0.0 if preparation.held_set else preparation.heldout,
        mixture=found.epochs,
        drop_copies=preparation.drop_copies,
    )


def _noting(turns: Iterator[tuple[int, _Batch]], done: int, owners: deque[int]) -> Generator[_Batch, None, None]:
    """The batches from number `done` on; whose each is goes to `owners`."""
    for section, batch in islice(turns, done, None):
        owners.append(section)
        yield batch


def _turns(
    found: Survey, batches: Callable[[Iterable[Part]], Iterator[_Batch]], turn: int, progress: Progress
) -> Iterator[tuple[int, _Batch]]:
    """Batches with their section's number: about `turn` bytes of whole documents of the section that is furthest
    behind, and so on, so that all end together."""
    totals = [_bytes(found, section, epochs) for section, epochs in zip(found.sections, found.epochs, strict=True)]
    streams = {number: _parts(found, section, found.epochs[number]) for number, section in enumerate(found.sections)}
    done = [0] * len(totals)

    def some(number: int) -> Iterator[Part]:
        size = 0
        for part in streams[number]:
            yield part
            size += len(part.content or b"")
            done[number] += len(part.content or b"")
            progress(sum(done), sum(totals))
            if part.content is None and size >= turn:
                return
        del streams[number]

    while streams:
        number = min(streams, key=lambda one: (done[one] / max(1, totals[one]), one))
        for batch in batches(some(number)):
            if batch:
                yield number, batch


def _bytes(found: Survey, section: Section, epochs: float) -> int:
    """About how many of it go into the data."""
    place = slice(section.first, section.end)
    size, held = found.sizes[place], found.held_from[place]
    trained = np.where(found.left_out[place], 0, held).sum()
    return int(trained * epochs + (size - held)[~found.left_out[place]].sum())


def _parts(found: Survey, section: Section, epochs: float) -> Iterator[Part]:
    """A section's documents in order, as often as they are trained on; what is held out of them in the first turn."""
    for turn in range(max(1, ceil(epochs))):
        place = section.first
        for source in section.found.sources:
            for document in source.documents():
                splits = {
                    *(["train"] if found.is_taken(place, turn, epochs) else []),
                    *(["heldout"] if not turn and not found.left_out[place] else []),
                }
                at, parts = 0, _split(document, int(found.held_from[place])) if splits else ()
                for split, content in parts:
                    if split in splits:
                        yield Part(split, content, source.where(document), at)
                    at += len(content or b"")
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
    """Cuts a stream of tokens into shard blobs, of whole units of so many bytes."""

    def __init__(self, blobs: Path, token_bytes: int, unit: int, done: Sequence[Shard], left: bytes) -> None:
        self.shards = list(done)
        self._blobs, self._token_bytes, self._buffer = blobs, token_bytes, bytearray(left)
        self._largest = shards.SHARD_BYTES // unit * unit

    @property
    def left(self) -> bytes:
        """Tokens behind the last shard."""
        return bytes(self._buffer)

    def add(self, tokens: bytes) -> bool:
        """Whether a shard became full, and was written."""
        self._buffer += tokens
        before = len(self.shards)
        while len(self._buffer) >= self._largest:
            self._flush(self._largest)
        return len(self.shards) > before

    def finish(self) -> list[Shard]:
        if self._buffer:
            self._flush(len(self._buffer))
        return self.shards

    def _flush(self, size: int) -> None:
        content = bytes(self._buffer[:size])
        del self._buffer[:size]
        name = write_blob(self._blobs, [content]).hex()
        root = tree_root([content]).hex()
        self.shards.append(Shard(sha256=name, size=size, tokens=size // self._token_bytes, root=root))
