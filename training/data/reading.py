"""A file as the bytes of UTF-8 text, of which documents are made: decompressed, converted from UTF-16, without a byte
order mark. Memory is bounded whatever it holds."""

import codecs
import gzip
import io
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from dlx.training.data.shards import DataError
from dlx.training.recipe.pointers import pointer_of

COMPRESSED = (".gz", ".zst")
MAX_WINDOW = 1 << 27  # bytes that a decompressor keeps: as much as `zstd --ultra --long` needs

_CHUNK = 4096  # bytes decompressed at a time: they become at most 128 MiB
_PIECE = 1 << 20  # bytes of what came of them
_UTF_16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}

RECODE = "write it as UTF-8 (`iconv -f WINDOWS-1252 -t UTF-8`, where that is what it is)"


class Document(NamedTuple):
    name: str  # the file's path below the sources' common folder; with "#number" where a file has many documents
    size: int  # bytes, at least 1
    pieces: Iterable[bytes]  # those bytes; valid UTF-8 but with `raw`. Lazy: read them before the next document


def unread(path: Path, error: OSError) -> DataError:
    """What is said of a file that cannot be read."""
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        return DataError(f"{path}: a link to nothing")
    return DataError(f"{path}: cannot be read ({error.strerror})")


class Opened(io.BufferedReader):
    """Use `open_text`. `start` bytes were left out before the first; `size` bytes follow, None: not known yet."""

    start = 0
    size: int | None = None


def bare(path: Path) -> Path:
    """Without the ending that says how it is compressed.

    Examples:
        >>> str(bare(Path("rows.jsonl.gz"))), str(bare(Path("a.txt")))
        ('rows.jsonl', 'a.txt')
    """
    return path.with_suffix("") if path.suffix.lower() in COMPRESSED else path


def open_text(path: Path, convert: bool = True) -> Opened:
    """How a file is compressed follows from its name. Without `convert` UTF-16 stays as it is. Reading raises OSError,
    and DataError for a pointer to another file and for what ends within, is damaged, needs a larger window or is not
    what its mark says."""
    file = open(path, "rb", buffering=0)  # noqa: SIM115 - what is returned closes it
    try:
        if found := pointer_of(file.fileno()):
            raise DataError(f"{path}: {found}")
        pieces = _decompressed(path, file)
        first = next(pieces, b"")
        while len(first) < 4 and (more := next(pieces, b"")):
            first += more
        encoding = _UTF_16.get(first[:2]) if convert else None
        if encoding and first.startswith(codecs.BOM_UTF32_LE):
            raise DataError(f"{path}: is UTF-32, and UTF-8 or UTF-16 is read")
        start = 2 if encoding else 3 if first.startswith(codecs.BOM_UTF8) else 0
        plain = path == bare(path) and not encoding
        if plain:
            file.seek(start)
            opened = Opened(file, _PIECE)
            opened.size = os.fstat(file.fileno()).st_size - start
        else:
            rest = _chained(first[start:], pieces)
            opened = Opened(_Stream(file, _converted(path, rest, encoding) if encoding else rest), _PIECE)
        opened.start = start
    except BaseException:
        file.close()
        raise
    return opened


class _Stream(io.RawIOBase):
    def __init__(self, file: io.FileIO, pieces: Iterator[bytes]) -> None:
        self._file, self._pieces, self._waiting = file, pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        while not self._waiting:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._waiting = memoryview(piece)
        size = min(len(buffer), len(self._waiting))
        buffer[:size] = self._waiting[:size]
        self._waiting = self._waiting[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def _chained(first: bytes, rest: Iterable[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _converted(path: Path, pieces: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """UTF-16 behind its mark as UTF-8."""
    decoder, at = codecs.getincrementaldecoder(encoding)(), 2
    try:
        for piece in pieces:
            yield decoder.decode(piece).encode()
            at += len(piece)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        wrong = at - len(decoder.getstate()[0]) + error.start
        raise DataError(f"{path}: not UTF-16 text, as its byte order mark says, at byte {wrong}") from None


def _decompressed(path: Path, file: io.FileIO) -> Iterator[bytes]:
    match path.suffix.lower():
        case ".gz":
            return _gunzipped(path, file)
        case ".zst":
            return _unzstd(path, file)
        case _:
            return iter(lambda: file.read(_CHUNK), b"")


def _gunzipped(path: Path, file: io.FileIO) -> Iterator[bytes]:
    try:
        with gzip.GzipFile(fileobj=file) as members:
            while piece := members.read(_PIECE):
                yield piece
    except EOFError:
        raise _cut(path) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(path, error) from None


def _unzstd(path: Path, file: io.FileIO) -> Iterator[bytes]:
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
    frame = None  # the one that is open
    try:
        while chunk := file.read(_CHUNK):
            while chunk:
                frame = frame or decompressor.decompressobj()
                if found := frame.decompress(chunk):
                    yield found
                chunk = frame.unused_data
                if frame.eof:
                    frame = None
    except zstandard.ZstdError as error:
        raise _damaged(path, error) from None
    if frame is not None:
        raise _cut(path)


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: cannot be decompressed ({' '.join(str(error).split())[:200]})")


def _cut(path: Path) -> DataError:
    return DataError(f"{path}: ends in the middle: it was not written or copied whole")
