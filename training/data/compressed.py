"""Files compressed with Zstandard, read in bounded memory whatever they hold."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from dlx.training.data.shards import DataError

MAX_WINDOW = 1 << 27  # bytes that a decompressor keeps: as much as `zstd --ultra --long` needs

_CHUNK = 4096  # bytes decompressed at a time: they become at most 128 MiB


def open_file(path: Path) -> io.BufferedReader:
    """The decompressed bytes of all its frames. Reading raises OSError, and DataError for what is no such file, ends
    within a frame or needs a larger window."""
    return io.BufferedReader(_Decompressed(path, open(path, "rb")), 1 << 20)


class _Decompressed(io.RawIOBase):
    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._file, self._chunks, self._waiting = file, _decompress(path, file), memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        while not self._waiting:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._waiting = memoryview(chunk)
        size = min(len(buffer), len(self._waiting))
        buffer[:size] = self._waiting[:size]
        self._waiting = self._waiting[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def _decompress(path: Path, file: BinaryIO) -> Iterator[bytes]:
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
        raise DataError(f"{path}: cannot be decompressed ({' '.join(str(error).split())[:200]})") from None
    if frame is not None:
        raise DataError(f"{path}: ends in the middle: it was not written or copied whole")
