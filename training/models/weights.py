"""Canonical safetensors files: one byte string for one set of named float32 tensors.

The layout is the one safetensors 0.8 writes: names in code point order, the header padded with spaces to 8 bytes. There
is no metadata but in the file of a Hugging Face folder, where transformers 4 looks for the format. The layout is
written down here so that no later version of the library can change a run's hashes; every reader of safetensors can
load the files, and `sha256sum` gives the weights hash. Only such a file may have another dtype than float32.

A stage's state need never be in memory twice. Files are read (`Stored`) and written (`Writer`) one tensor after the
other, in the order of the names, and a mapping may make its tensors when it is asked for them (`Lazy`). Written from
tensors or arrays alike, and read as either: who audits has no torch.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Self, TypeVar

import numpy as np

from dlx.ground import blobs, hash_memory
from dlx.ground.large import ReadOnce
from dlx.ground.streamed import Stream, Written

if TYPE_CHECKING:
    from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]
Values = Mapping[str, "Tensor"] | Mapping[str, np.ndarray]
Dtype = Literal["float32", "bfloat16", "float16"]  # of a Hugging Face folder's file
T = TypeVar("T")

_KINDS = {"float32": ("F32", 4), "bfloat16": ("BF16", 2), "float16": ("F16", 2)}  # safetensors' name, bytes a value
_PIECE = 1 << 20  # bytes read, hashed and looked at while they are in the cache


class WeightsError(ValueError):
    """Tensors that have no canonical file, or a file that is not canonical."""


class Lazy(Mapping[str, T], Generic[T]):
    """Named tensors of known shapes, in the files' order, each made by `make(name)` whenever it is asked for."""

    def __init__(self, shapes: Shapes, make: Callable[[str], T]) -> None:
        self.shapes: Shapes = {name: shapes[name] for name in sorted(shapes)}
        self._make = make

    def __getitem__(self, name: str) -> T:
        if name not in self.shapes:
            raise KeyError(name)
        return self._make(name)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


class Zeros(Lazy[np.ndarray]):
    """A state that was never used, to be read as `Stored` is."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__(shapes, lambda name: np.zeros(shapes[name], np.float32))

    def read_into(self, out: np.ndarray, name: str, start: int = 0) -> None:
        out.fill(0)


class Layout(NamedTuple):
    """Of a canonical file: its first bytes, where each tensor's begin, and how many there are in all."""

    header: bytes
    starts: Mapping[str, int]
    size: int


class Stored(Lazy[np.ndarray]):
    """The float32 arrays of a canonical file, each read when it is asked for. One thread at a time: once all was read
    from the front on, or `verify` was called, several.

    The file must hold exactly the tensors of `shapes`. Its size and header are compared with the only ones possible
    before anything else is read, so nothing of a hostile file is ever parsed. With `finite` no value may be infinite or
    NaN. `exported`: the file of a Hugging Face folder. With `sha256`, the file's name as a blob, the bytes must have
    that hash: whoever reads in order finds out with the last tensor, also about values; whoever does not before the
    first one. What this process has written or hashed is not hashed again. What is read `once` does not stay in the
    page cache.

    Opening and reading raise WeightsError; with `sha256` Damaged where the bytes do not have that hash or the file is
    not there; OSError for trouble that is not the file's. A file that is removed meanwhile can still be read.
    """

    def __init__(
        self,
        path: Path,
        shapes: Shapes,
        *,
        sha256: bytes | None = None,
        finite: bool = False,
        once: bool = False,
        exported: bool = False,
    ) -> None:
        super().__init__(shapes, self._read)
        self.path, self._sha256 = path, sha256
        self._finite, self._is_finite = finite, True  # whether it must be, and is as far as it was read
        header, self._starts, self._size = layout(shapes, "float32" if exported else None)
        self._digest, self._seen = hashlib.sha256(header), len(header)  # and the bytes read from the front on
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115  as long as the object
            wrong = self._faults(header)
        except OSError as error:
            raise self._lost(error) from error
        if wrong:
            raise self._not_canonical(wrong)
        self._once = ReadOnce(self._file.fileno()) if once else None
        self._is_sound = sha256 is None or hash_memory.is_known(self._file.fileno(), sha256)

    def read_into(self, out: np.ndarray, name: str, start: int = 0) -> None:
        """Fill `out`, contiguous float32 of any shape, with the tensor's values from number `start` on."""
        at, data = self._starts[name] + 4 * start, out.reshape(-1).view(np.uint8)
        if not self._is_sound and at != self._seen:
            self.verify()
        for low in range(0, len(data), _PIECE):
            self._fill(data[low : low + _PIECE], at + low)
        if self._is_sound:
            self._judge()

    def read_all(self, into: Mapping[str, np.ndarray], threads: int) -> None:
        """Fill contiguous float32 arrays with all tensors; on so many threads where the bytes need no hash."""
        with ThreadPoolExecutor(threads if self._is_sound else 1, "read") as pool:
            for read in [pool.submit(self.read_into, into[name], name) for name in sorted(self.shapes)]:
                read.result()
        self._finite = False  # what was looked at is not looked at again

    def verify(self) -> None:
        """Read and look at all that has not been read yet, so that nothing is found later."""
        if self._is_sound and not self._finite:
            return
        at, piece = self._seen, np.empty(_PIECE, np.uint8)
        while True:
            self._fill(piece[: self._size - at], at)
            at += len(piece)
            if at >= self._size:
                break
        self._judge()
        self._finite = False

    def _read(self, name: str) -> np.ndarray:
        found = np.empty(self.shapes[name], np.float32)
        self.read_into(found, name)
        return found

    def _fill(self, piece: np.ndarray, at: int) -> None:
        """With the bytes from `at` on, which are hashed where they come next."""
        try:
            if os.preadv(self._file.fileno(), [piece.data], at) != len(piece):
                raise self._not_canonical("ended early")
        except OSError as error:
            raise self._lost(error) from error
        if self._once is not None:
            self._once.reached(at + len(piece))
        if self._finite and len(piece) and _has_no_number(piece.view(np.float32)):
            self._is_finite = False
        if at != self._seen:
            return
        if not self._is_sound:
            self._digest.update(piece.data)
        self._seen += len(piece)
        if self._seen == self._size:
            self._end()

    def _end(self) -> None:
        self._finite = self._finite and not self._is_finite  # what was looked at is not looked at again
        if self._is_sound:
            return
        assert self._sha256 is not None
        if self._digest.digest() != self._sha256:
            raise blobs.Damaged(self._sha256, "its bytes do not match its name")
        self._is_sound = True
        hash_memory.remember(self._file.fileno(), self._sha256)

    def _judge(self) -> None:
        if not self._is_finite:
            raise WeightsError(f"{self.path.name}: holds a value that is not finite")

    def _faults(self, header: bytes) -> str:
        if os.fstat(self._file.fileno()).st_size != self._size:
            return f"expected {self._size} bytes"
        if self._file.read(len(header)) != header:
            return "not the canonical file of these tensors"
        return ""

    def _not_canonical(self, wrong: str) -> Exception:
        try:
            if self._sha256 is not None and blobs.file_hash(self.path) != self._sha256:
                return blobs.Damaged(self._sha256, wrong)
        except OSError as error:
            return self._lost(error)
        return WeightsError(f"{self.path.name}: {wrong}")

    def _lost(self, error: OSError) -> Exception:
        if error.errno not in blobs.LOST:
            return error
        reason = os.strerror(error.errno or 0)
        return (
            WeightsError(f"{self.path.name}: {reason}") if self._sha256 is None else blobs.Damaged(self._sha256, reason)
        )


class Writer:
    """The canonical file of float32 tensors that come one after the other: a `ground.streamed.Stream`, with the same
    arguments. `exported`: the dtype of the file of a Hugging Face folder, to which values are rounded. Whoever adds a
    tensor can go on with the next one while threads do the work."""

    def __init__(
        self,
        shapes: Shapes,
        folder: Path | None = None,
        *,
        tree: bool = False,
        cached: bool = True,
        exported: Dtype | None = None,
    ) -> None:
        self._shapes, self._left, self._dtype = shapes, sorted(shapes, reverse=True), exported
        self._came = 0  # values of the next tensor
        self._header, _, size = layout(shapes, exported)
        self._stream = Stream(folder, size, tree=tree, cached=cached)

    def __enter__(self) -> Self:
        self._stream.__enter__()
        self._stream.feed(self._header)
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stream.__exit__(*raised)

    def add(self, name: str, tensor: Tensor | np.ndarray) -> None:
        """The next tensor in the order of the names: it must not change until it was taken (see `Buffers`).

        Raises WeightsError for another dtype, shape or name than the next one's, or a value that the file's dtype does
        not have; OSError for a full disk."""
        if not is_float32(tensor):
            raise WeightsError(f"{name}: expected float32, got {tensor.dtype}")
        if self._left[-1:] != [name] or self._came or tuple(tensor.shape) != tuple(self._shapes[name]):
            raise WeightsError(f"{name}: not the next tensor, or of another shape")
        self._left.pop()
        values = array(tensor).reshape(-1)
        if self._dtype in (None, "float32"):
            self._stream.feed(values.view(np.uint8))
            return
        for low in range(0, len(values), _PIECE):
            self._stream.feed(rounded(name, values[low : low + _PIECE], self._dtype).view(np.uint8))

    def extend(self, name: str, values: np.ndarray) -> None:
        """The next values, flat float32, of the next tensor, of which a large one may come in pieces. As `add`."""
        self._came += len(values)
        if self._left[-1:] != [name] or self._came > math.prod(self._shapes[name]):
            raise WeightsError(f"{name}: not the next tensor, or longer")
        if self._came == math.prod(self._shapes[name]):
            self._left.pop()
            self._came = 0
        self._stream.feed(values.view(np.uint8))

    def finish(self, path: Path | None = None) -> Written:
        """As the stream's. Raises OSError."""
        if self._left:
            raise WeightsError(f"{self._left[-1]}: no such tensor came")
        return self._stream.finish(path)


def serialise(tensors: Values) -> bytes:
    """The canonical file of float32 tensors of any shape. Raises WeightsError for another dtype."""
    return b"".join(_chunks(tensors))


def weights_hash(tensors: Values, exported: Dtype | None = None) -> bytes:
    """sha256 (32 bytes) of the canonical file, without making the file. `exported`: see Writer."""
    return _written(tensors, exported=exported).sha256


def tree_root(tensors: Values) -> bytes:
    """The canonical file's Merkle root (see ground.merkle), without making the file."""
    return _written(tensors, tree=True).root


def write(tensors: Values, path: Path, *, exported: Dtype | None = None) -> bytes:
    """Write the canonical file to `path` atomically; returns its sha256. `exported`: see Writer."""
    return _written(tensors, path.parent, path, exported=exported).sha256


def write_blob(tensors: Values, folder: Path, *, cached: bool = True) -> bytes:
    """Write the canonical file to `folder/<hex of its sha256>` atomically; returns the sha256. `cached`: see Writer."""
    return _written(tensors, folder, cached=cached).sha256


def write_blobs(folder: Path, *states: Values, cached: bool = True) -> list[bytes]:
    """`write_blob` for several at the same time; the sha256 of each."""
    with ThreadPoolExecutor(len(states), "states") as threads:
        return list(threads.map(lambda tensors: write_blob(tensors, folder, cached=cached), states))


def shapes_of(tensors: Values) -> Shapes:
    """Without making a tensor of a `Lazy` mapping."""
    if isinstance(tensors, Lazy):
        return tensors.shapes
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def file_size(shapes: Shapes) -> int:
    """Bytes of the canonical file of tensors of these shapes."""
    return layout(shapes).size


def layout(shapes: Shapes, exported: Dtype | None = None) -> Layout:
    """Of the canonical file of tensors of these shapes; `exported`: see Writer."""
    header = _header(shapes, exported)
    return Layout(header, *_offsets(shapes, len(header), _KINDS[exported or "float32"][1]))


def read(path: Path, shapes: Shapes, *, sha256: bytes | None = None, finite: bool = False) -> dict[str, Tensor]:
    """What `read_arrays` reads, as tensors of the same memory. Raises as that does."""
    import torch

    found = read_arrays(path, shapes, sha256=sha256, finite=finite)
    return {name: torch.from_numpy(values) for name, values in found.items()}


def read_arrays(
    path: Path, shapes: Shapes, *, sha256: bytes | None = None, finite: bool = False
) -> dict[str, np.ndarray]:
    """All float32 arrays of a canonical file. Raises as `Stored` does."""
    stored = Stored(path, shapes, sha256=sha256, finite=finite)
    found = dict(stored)
    stored.verify()  # of no tensors there is no last one
    return found


def tensors(arrays: Lazy[np.ndarray]) -> Lazy[Tensor]:
    """Each as a tensor of the same memory."""
    import torch

    return Lazy(arrays.shapes, lambda name: torch.from_numpy(arrays[name]))


def array(tensor: Tensor | np.ndarray) -> np.ndarray:
    """The values as a contiguous array: without a copy where they are contiguous in main memory."""
    return np.asarray(tensor if isinstance(tensor, np.ndarray) else tensor.detach().cpu().numpy(), order="C")


def rounded(name: str, values: np.ndarray, dtype: Dtype) -> np.ndarray:
    """Float32 values as the nearest of `dtype`, of two as near ones the even one; bfloat16 as its bits, in uint16.
    Raises WeightsError, with the tensor's name, where there is no such number."""
    if dtype == "float32":
        return values
    found: np.ndarray
    if dtype == "float16":
        with np.errstate(over="ignore"):
            found = values.astype(np.float16)
        lost = not np.isfinite(found).all()
    else:
        bits = values.view(np.uint32)
        found = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
        lost = not np.isfinite(values).all() or bool(((found & 0x7F80) == 0x7F80).any())
    if lost:
        raise WeightsError(f"{name}: holds a value that {dtype} does not have")
    return found


def is_float32(tensor: Tensor | np.ndarray) -> bool:
    return str(tensor.dtype) in ("torch.float32", "float32")


def _written(
    tensors: Values,
    folder: Path | None = None,
    path: Path | None = None,
    *,
    tree: bool = False,
    cached: bool = True,
    exported: Dtype | None = None,
) -> Written:
    with Writer(shapes_of(tensors), folder, tree=tree, cached=cached, exported=exported) as writer:
        for name in sorted(tensors):
            writer.add(name, tensors[name])
        return writer.finish(path)


def _chunks(tensors: Values) -> Iterator[Any]:
    """The header, then each tensor's bytes."""
    yield _header(shapes_of(tensors))
    for name in sorted(tensors):
        if not is_float32(tensors[name]):
            raise WeightsError(f"{name}: expected float32, got {tensors[name].dtype}")
        yield array(tensors[name]).reshape(-1).view(np.uint8)


def _header(shapes: Shapes, exported: Dtype | None = None) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}} if exported else {}
    kind, width = _KINDS[exported or "float32"]
    offset = 0
    for name in sorted(shapes):
        end = offset + width * math.prod(shapes[name])
        entries[name] = {"dtype": kind, "shape": list(shapes[name]), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _offsets(shapes: Shapes, start: int, width: int) -> tuple[dict[str, int], int]:
    """Where each tensor's bytes begin after a header of `start` bytes, and the file's end."""
    starts = {}
    for name in sorted(shapes):
        starts[name] = start
        start += width * math.prod(shapes[name])
    return starts, start


def _has_no_number(values: np.ndarray) -> bool:
    """Whether a value of a float32 array that is not empty is infinite or NaN."""
    return not (np.isfinite(values.min()) and np.isfinite(values.max()))
