"""Text becomes token ids, and conversations become rows of words: piece after piece, in as many processes as are
wanted, in the same order."""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dlx.training.data import rows
from dlx.training.data.conversations import ConversationError, Template
from dlx.training.data.shards import DataError, Split, TextError
from dlx.training.data.vocabulary import Vocabulary

PIECE = 256 * 1024  # bytes of a document that the tokenizer sees at once: a longer one is cut

BATCH = 1024 * 1024  # bytes of text that a process gets at a time

_ROWS = 64  # that a batch of conversations fills, about: fewer have much room left at their ends
_WORD = 4  # bytes of text to a token, about

_Batch = TypeVar("_Batch")


class Part(NamedTuple):
    """Some bytes of a document, or (None) its end."""

    split: Split
    content: bytes | None
    where: str  # the document
    at: int  # where they are in it


Tokens = list[tuple[Split, bytes]]  # token ids as they lie in shards


class Text(NamedTuple):
    split: Split
    content: str
    ends: bool  # the document ends with it


class Conversation(NamedTuple):
    split: Split
    content: bytes  # see conversations.conversation
    where: str


class Counts(NamedTuple):
    """Of conversations, each of one sample or several."""

    packed: int = 0
    cut: int = 0  # of those packed: with a sample that is longer than a row
    left_out: int = 0  # an assistant would speak behind the row's end only

    def __add__(self, other: "Counts") -> "Counts":  # type: ignore[override]
        return Counts(*map(sum, zip(self, other, strict=True)))


class Encoded(NamedTuple):
    """What a batch becomes: token ids as they lie in shards, or rows of words."""

    tokens: Tokens
    counts: Counts = Counts()


class Chat(NamedTuple):
    """How conversations are packed."""

    text: str  # of the template
    special: dict[str, str]  # tokens that the template may name
    row: int  # words

    @property
    def batch(self) -> int:
        """Bytes of conversations that are packed together."""
        return max(BATCH, _ROWS * _WORD * self.row)

    @property
    def template(self) -> Template:
        """Raises DataError for one that is none."""
        try:
            return Template(self.text, self.special)
        except ConversationError as error:
            raise DataError(str(error)) from None


def raw_batches(parts: Iterable[Part]) -> Iterator[Encoded]:
    """Bytes as tokens, 0 after each document."""
    batch: Tokens = []
    size = 0
    for part in parts:
        content = b"\0" if part.content is None else part.content
        batch.append((part.split, content))
        size += len(content)
        if size >= BATCH:
            yield Encoded(batch)
            batch, size = [], 0
    yield Encoded(batch)


def text_batches(parts: Iterable[Part]) -> Iterator[list[Text]]:
    """Texts of about a megabyte together: where they are cut depends on the documents alone. Raises DataError."""
    batch: list[Text] = []
    size = 0
    for text in _texts(parts):
        batch.append(text)
        size += len(text.content)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    yield batch


def conversation_batches(parts: Iterable[Part]) -> Iterator[list[Conversation]]:
    """All conversations in one, so that they are packed together."""
    batch, content = list[Conversation](), b""
    for part in parts:
        content += part.content or b""
        if part.content is None:
            batch.append(Conversation(part.split, content, part.where))
            content = b""
    yield batch


def tokenised(
    batches: Iterable[_Batch], vocabulary: Vocabulary, dtype: str, chat: Chat | None, workers: int
) -> Generator[Encoded, None, None]:
    """The ids of each batch of texts, in order, as little-endian `dtype`; with `chat` the rows of each batch of
    conversations. Computed in so many processes of their own if there are several. Raises DataError."""
    pool = _processes(workers, (vocabulary.content, vocabulary.separator, dtype, chat)) if workers > 1 else None
    if pool is None:
        yield from map(_encoder(vocabulary, dtype, chat), batches)
        return
    waiting: deque[Future[Encoded]] = deque()
    try:
        for batch in batches:
            waiting.append(pool.submit(_work, batch))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise DataError(
            "a tokenising process ended by itself, perhaps for want of memory: use fewer --workers"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _processes(workers: int, given: tuple[bytes, int, str, Chat | None]) -> ProcessPoolExecutor | None:
    """None where there can be none: their locks lie in shared memory, which a container may lack, or not let write."""
    try:
        return ProcessPoolExecutor(workers, get_context("spawn"), _begin, given)
    except OSError:
        return None


_of_this_process: Callable[[Any], Encoded]


def _begin(tokenizer: bytes, separator: int, dtype: str, chat: Chat | None) -> None:
    """In a new process, which ends with the one that asked for it: an interruption is that one's business."""
    global _of_this_process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=_end_after, args=(parent,), daemon=True).start()
    _of_this_process = _encoder(Vocabulary.parse(tokenizer, separator, "the tokenizer"), dtype, chat)


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _work(batch: Any) -> Encoded:
    return _of_this_process(batch)


def _encoder(vocabulary: Vocabulary, dtype: str, chat: Chat | None) -> Callable[[Any], Encoded]:
    """Of batches. Raises DataError for a template that is none."""
    if chat is None:
        return partial(_encoded, vocabulary=vocabulary, dtype=dtype)
    return partial(_packed, vocabulary=vocabulary, template=chat.template, row=chat.row)


def _packed(batch: list[Conversation], vocabulary: Vocabulary, template: Template, row: int) -> Encoded:
    documents: dict[Split, list[rows.Words]] = {"train": [], "heldout": []}
    counts = Counts()
    for split, content, where in batch:
        try:
            samples = vocabulary.spoken(template.rendered(content))
        except (ConversationError, TextError) as error:
            raise TextError(f"{where}: {error}") from None
        found = [words for sample in samples if (words := rows.words(sample, row)) is not None]
        documents[split] += found
        if found:
            counts += Counts(packed=1, cut=any(len(sample.ids) > row for sample in samples))
        else:
            counts += Counts(left_out=1)
    tokens: Tokens = [
        (split, rows.packed(found, row, vocabulary.separator).astype("<u4").tobytes())
        for split, found in documents.items()
    ]
    return Encoded(tokens, counts)


def _encoded(texts: list[Text], vocabulary: Vocabulary, dtype: str) -> Encoded:
    kind = np.dtype(dtype).newbyteorder("<")
    found = zip(texts, vocabulary.encode([text.content for text in texts]), strict=True)
    return Encoded(
        [
            (text.split, np.array([*ids, vocabulary.separator] if text.ends else ids, kind).tobytes())
            for text, ids in found
        ]
    )


def _texts(parts: Iterable[Part]) -> Iterator[Text]:
    """Pieces of at most PIECE bytes, cut after a line or before a space where there is one, whatever the parts."""
    buffer, at = bytearray(), 0
    for part in parts:
        if not buffer:
            at = part.at
        buffer += part.content or b""
        while len(buffer) > PIECE:
            cut = buffer.rfind(b"\n", 0, PIECE) + 1 or max(0, buffer.rfind(b" ", 0, PIECE)) or _character(buffer)
            yield Text(part.split, _decoded(buffer[:cut], part.where, at), False)
            del buffer[:cut]
            at += cut
        if part.content is None:
            yield Text(part.split, _decoded(buffer, part.where, at), True)
            buffer.clear()


def _decoded(content: bytearray, where: str, at: int) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise TextError(f"{where}: not UTF-8 text at byte {at + error.start}") from None


def _character(buffer: bytearray) -> int:
    """PIECE, moved back to where a character begins."""
    return next((cut for cut in range(PIECE, PIECE - 4, -1) if buffer[cut] & 0xC0 != 0x80), PIECE)
