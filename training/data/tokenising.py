"""Text becomes token ids: in pieces, piece after piece, in as many processes as are wanted, in the same order."""

import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dlx.training.data.shards import DataError, Split, TextError
from dlx.training.data.vocabulary import Vocabulary

PIECE = 256 * 1024  # bytes of a document that the tokenizer sees at once: a longer one is cut

BATCH = 1024 * 1024  # bytes of text that a process gets at a time


class Part(NamedTuple):
    """Some bytes of a document, or (None) its end."""

    split: Split
    content: bytes | None
    path: Path
    at: int  # where they are in the document


Tokens = list[tuple[Split, bytes]]  # token ids as they lie in shards


class Text(NamedTuple):
    split: Split
    content: str
    ends: bool  # the document ends with it


def raw_batches(parts: Iterable[Part]) -> Iterator[Tokens]:
    """Bytes as tokens, 0 after each document."""
    batch: Tokens = []
    size = 0
    for part in parts:
        content = b"\0" if part.content is None else part.content
        batch.append((part.split, content))
        size += len(content)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    yield batch


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


def tokenised(
    batches: Iterable[list[Text]], vocabulary: Vocabulary, dtype: str, workers: int
) -> Generator[Tokens, None, None]:
    """The ids of each batch, in order, as little-endian `dtype`; computed in so many processes of their own if there
    are several. Raises DataError."""
    if workers == 1:
        for batch in batches:
            yield _encoded(batch, vocabulary, dtype)
        return
    given = vocabulary.content, vocabulary.separator, dtype
    try:
        pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin, given)
    except OSError as error:  # its locks lie in shared memory: a container may have none, or none that can be written
        raise DataError(
            f"no tokenising processes: shared memory (/dev/shm) cannot be used ({error.strerror}): use --workers 1"
        ) from None
    waiting: deque[Future[Tokens]] = deque()
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


_of_this_process: tuple[Vocabulary, str]


def _begin(tokenizer: bytes, separator: int, dtype: str) -> None:
    """In a new process, which ends with the one that asked for it: an interruption is that one's business."""
    global _of_this_process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=_end_after, args=(parent,), daemon=True).start()
    _of_this_process = Vocabulary.parse(tokenizer, separator, "the tokenizer"), dtype


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _work(batch: list[Text]) -> Tokens:
    return _encoded(batch, *_of_this_process)


def _encoded(texts: list[Text], vocabulary: Vocabulary, dtype: str) -> Tokens:
    kind = np.dtype(dtype).newbyteorder("<")
    found = zip(texts, vocabulary.encode([text.content for text in texts]), strict=True)
    return [
        (text.split, np.array([*ids, vocabulary.separator] if text.ends else ids, kind).tobytes())
        for text, ids in found
    ]


def _texts(parts: Iterable[Part]) -> Iterator[Text]:
    """Pieces of at most PIECE bytes, cut after a line or before a space where there is one, whatever the parts."""
    buffer, at = bytearray(), 0
    for part in parts:
        if not buffer:
            at = part.at
        buffer += part.content or b""
        while len(buffer) > PIECE:
            cut = buffer.rfind(b"\n", 0, PIECE) + 1 or max(0, buffer.rfind(b" ", 0, PIECE)) or _character(buffer)
            yield Text(part.split, _decoded(buffer[:cut], part.path, at), False)
            del buffer[:cut]
            at += cut
        if part.content is None:
            yield Text(part.split, _decoded(buffer, part.path, at), True)
            buffer.clear()


def _decoded(content: bytearray, path: Path, at: int) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise TextError(f"{path}: not UTF-8 text at byte {at + error.start}") from None


def _character(buffer: bytearray) -> int:
    """PIECE, moved back to where a character begins."""
    return next((cut for cut in range(PIECE, PIECE - 4, -1) if buffer[cut] & 0xC0 != 0x80), PIECE)
