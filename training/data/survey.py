"""What the documents are, before anything is made of them: all are read once, in memory of some 40 bytes for each."""

import hashlib
import heapq
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlx.training.data.conversations import ConversationError
from dlx.training.data.formats import Found, Source, no_text, read_all
from dlx.training.data.near import HEAD, Near, Sketches
from dlx.training.data.reading import Document
from dlx.training.data.shards import DataError, PreparationError
from dlx.training.data.template_check import TemplateCheck
from dlx.training.data.vocabulary import Vocabulary

_NAME, _CONTENT = 8, 16  # bytes of a sha256 by which documents are held out, and by which copies are found
_SAMPLED, _SAMPLE = 256, 4096  # documents whose tokens are counted to guess all, and bytes of each

Progress = Callable[[int, int], None]  # done, and in all


@dataclass(frozen=True)
class Portion:
    """Files and folders that take part in the training data together: each document so many times (`epochs`), or as
    often as gives them their part of it (`weight`, of the sum of all weights)."""

    paths: Sequence[Path]
    name: str = ""
    field: str = "text"  # of entries: key or column
    epochs: float = 1.0
    weight: float = 0.0  # 0: by epochs


class Section(NamedTuple):
    """A portion's documents: those at `first` up to `end`, exclusive."""

    portion: Portion
    found: Found
    first: int
    end: int


class Survey(NamedTuple):
    """What becomes of the documents, by their places. A held-out set of one's own comes first."""

    sections: list[Section]
    epochs: list[float]  # of each section: how many times a document is in the training data, in the mean
    sizes: NDArray[np.int64]  # bytes
    held_from: NDArray[np.int64]  # where a document's held-out end begins: at its size where it has none
    left_out: NDArray[np.bool_]  # those with the bytes of a held-out one, or (where so chosen) of any before them
    copied: NDArray[np.bool_]  # those with the bytes of one before them
    chances: NDArray[np.uint64]  # by which a part of an epoch is chosen; equal for equal bytes
    near: Near
    sample: list[bytes]  # beginnings of documents, drawn by their bytes
    seconds: float  # that reading took

    @property
    def total(self) -> int:
        """Bytes of all documents."""
        return int(self.sizes.sum())

    @property
    def found(self) -> Found:
        """All files."""
        left_out: dict[str, list[Path]] = {}
        for section in self.sections:
            for kind, paths in section.found.left_out.items():
                left_out.setdefault(kind, []).extend(paths)
        return Found([source for section in self.sections for source in section.found.sources], left_out)

    def is_taken(self, place: int, turn: int, epochs: float) -> bool:
        """Whether a document is trained on in a turn, from 0 on, through its section."""
        rest = epochs - turn
        return not self.left_out[place] and (rest >= 1 or int(self.chances[place]) < rest * 2**64)

    def tokens(self, vocabulary: Vocabulary | None) -> int:
        """About how many all documents have; without a vocabulary exactly. Raises DataError."""
        if vocabulary is None:
            return self.total + len(self.sizes)
        texts = [one.decode(errors="ignore") for one in self.sample]
        known = sum(len(text.encode()) for text in texts)
        return int(self.total * sum(map(len, vocabulary.encode(texts))) / max(1, known)) + len(self.sizes)

    def counts(self) -> dict[str, int | float]:
        """In numbers."""
        return {
            "documents": len(self.sizes),
            "bytes_of_text": self.total,
            "copies": int(self.copied.sum()),
            "near_copies": round(self.near.part, 4),  # of those that are no copies
            "left_out_documents": int(self.left_out.sum()),
            "left_out_bytes": int(self.sizes[self.left_out].sum()),
        }

    def __str__(self) -> str:
        found = self.counts()
        left = f"; copies left out: {found['left_out_documents']:,}" if found["left_out_documents"] else ""
        return (
            f"{found['documents']:,} document{'s'[: found['documents'] != 1]}; "
            f"{100 * self.copied.mean():.1f}% are copies of another, "
            f"and {100 * self.near.part:.1f}% of the rest nearly so{left}"
        )


@dataclass
class _Seen:
    check: TemplateCheck | None
    names: bytearray = field(default_factory=bytearray)
    contents: bytearray = field(default_factory=bytearray)
    sizes: "array[int]" = field(default_factory=lambda: array("q"))
    sketches: Sketches = field(default_factory=Sketches)
    sample: list[tuple[int, bytes]] = field(default_factory=list)  # a heap, the highest of the lowest first

    def read(self, source: Source) -> None:
        for document in source.documents():
            content, head = hashlib.sha256(), bytearray()
            for piece in self._taken(source, document):
                content.update(piece)
                head += piece[: HEAD - len(head)]
            digest = content.digest()[:_CONTENT]
            self.sketches.add(len(self.sizes), bytes(head))
            self.names += hashlib.sha256(document.name.encode("utf-8", "surrogateescape")).digest()[:_NAME]
            self.contents += digest
            self.sizes.append(document.size)
            one = -int.from_bytes(digest, "big"), bytes(head[:_SAMPLE])
            if len(self.sample) < _SAMPLED:
                heapq.heappush(self.sample, one)
            elif one > self.sample[0]:
                heapq.heapreplace(self.sample, one)

    def _taken(self, source: Source, document: Document) -> Iterable[bytes]:
        """The document's bytes. Raises DataError for a conversation that the template does not take."""
        if self.check is None:
            return document.pieces
        whole = b"".join(document.pieces)
        try:
            self.check.take(whole)
        except ConversationError as error:
            raise DataError(f"{source.where(document)}: {error}") from None
        return [whole]


def survey(
    portions: Sequence[tuple[Portion, Found]],
    heldout: float = 0.05,
    held_set: Found | None = None,
    drop_copies: bool = False,
    whole: bool = False,
    check: TemplateCheck | None = None,
    progress: Progress = lambda done, total: None,
) -> Survey:
    """Reads everything. `progress` hears of files. Raises DataError for what cannot be taken, also by the template of
    conversations, which `check` has.

    Held out are the documents of `held_set`. Without one it is about `heldout` of the bytes: whole documents, chosen by
    a hash of their names. Where they are too few or too large for that, it is the end of the largest one, or one of
    them (`whole`)."""
    begun, seen, sections = time.perf_counter(), _Seen(check), list[Section]()
    every = [*([(Portion([], "held out"), held_set)] if held_set else []), *portions]
    files, done = sum(len(found.sources) for _, found in every), 0

    def read(source: Source) -> None:
        nonlocal done
        seen.read(source)
        done += 1
        progress(done, files)

    for portion, found in every:
        first = len(seen.sizes)
        taken = read_all(found, read)
        sections.append(Section(portion, taken, first, len(seen.sizes)))
        if len(seen.sizes) == first or sum(seen.sizes[first:]) < 2:
            paths = ", ".join(map(str, portion.paths))
            raise DataError(f"{paths or 'the held-out set'}: {no_text(taken)}")
    sizes = np.array(seen.sizes, np.int64)
    keys = np.frombuffer(bytes(seen.contents), ">u8").reshape(-1, _CONTENT // 8)
    _, firsts, same = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    same = same.reshape(-1)
    copied = firsts[same] != np.arange(len(sizes))
    dropped = copied if drop_copies else np.zeros(len(sizes), np.bool_)
    held_from = sizes.copy()
    if held_set:
        held_from[: sections[0].end] = 0
    else:
        _hold_out(held_from, np.frombuffer(bytes(seen.names), ">u8"), dropped, heldout, whole)
    is_held = held_from < sizes
    held = np.zeros(len(firsts), np.bool_)
    held[same[is_held]] = True
    left_out = dropped | (held[same] & ~is_held)
    trained = np.where(left_out, 0, held_from)
    if not trained.any():
        paths = ", ".join(str(path) for portion, _ in portions for path in portion.paths)
        raise DataError(f"{paths}: every document has the bytes of one that is held out: nothing is left to train on")
    return Survey(
        sections,
        _epochs(sections, trained),
        sizes,
        held_from,
        left_out,
        copied,
        keys[:, 0].astype(np.uint64),
        seen.sketches.near(copied),
        [text for _, text in seen.sample],
        time.perf_counter() - begun,
    )


def _hold_out(
    held_from: NDArray[np.int64], names: NDArray[np.uint64], dropped: NDArray[np.bool_], part: float, whole: bool
) -> None:
    """Put into `held_from` (each document's size) where its held-out end begins."""
    sizes = np.where(dropped, 0, held_from)
    total = int(sizes.sum())
    wanted = left = int(total * part)
    order = np.argsort(names, kind="stable")
    for place in order.tolist():
        if 0 < sizes[place] <= left and len(sizes) > 1:
            left -= int(sizes[place])
            held_from[place] = 0
    if whole:
        if wanted == left and len(sizes) > 1:
            held_from[next(place for place in order.tolist() if sizes[place])] = 0
    elif wanted - left < left:  # too little: take the end of the largest one as well
        kept = np.where(dropped, 0, held_from)
        largest = int(kept.argmax())
        held_from[largest] = kept[largest] - left


def _epochs(sections: Sequence[Section], trained: NDArray[np.int64]) -> list[float]:
    """Of each section: as its portion says, or so that weights are kept and all is as long as it is. Raises
    PreparationError."""
    weights = [section.portion.weight for section in sections]
    if not any(weights):
        return [section.portion.epochs for section in sections]
    found = []
    for section in sections:
        size = int(trained[section.first : section.end].sum())
        if section.portion.weight and not size:
            raise PreparationError(f"{section.portion.name}: has a weight, and no text that is trained on")
        found.append(section.portion.weight / sum(weights) * int(trained.sum()) / size if size else 0.0)
    return found
