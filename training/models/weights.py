"""Canonical safetensors files: one byte string for one set of named float32 tensors.

The layout is the one safetensors 0.8 writes (names in code point order, header padded with spaces to 8 bytes, no
metadata). It is written down here so that no later version of the library can change a run's hashes; every reader of
safetensors can load the files, and `sha256sum` gives the weights hash.

Written from tensors or arrays alike, and read as either: who audits has no torch.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlx.ground import blobs, durable, merkle

if TYPE_CHECKING:
    from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]
Values = Mapping[str, "Tensor"] | Mapping[str, np.ndarray]


class WeightsError(ValueError):
    """Tensors that have no canonical file, or a file that is not canonical."""


def serialise(tensors: Values) -> bytes:
    """The canonical file of float32 tensors of any shape. Raises WeightsError for another dtype."""
    return b"".join(_chunks(tensors))


def weights_hash(tensors: Values) -> bytes:
    """sha256 (32 bytes) of the canonical file, without making the file."""
    digest = hashlib.sha256()
    for chunk in _chunks(tensors):
        digest.update(chunk)
    return digest.digest()


def tree_root(tensors: Values) -> bytes:
    """The canonical file's Merkle root (see ground.merkle), without making the file."""
    return merkle.tree_root(_chunks(tensors))


def write(tensors: Values, path: Path) -> bytes:
    """Write the canonical file to `path` atomically; returns its sha256."""
    durable.write_chunks(path, _chunks(tensors))
    return weights_hash(tensors)


def write_blob(tensors: Values, folder: Path) -> bytes:
    """Write the canonical file to `folder/<hex of its sha256>` atomically; returns the sha256."""
    return blobs.write_blob(folder, _chunks(tensors))


def file_size(shapes: Shapes) -> int:
    """Bytes of the canonical file of tensors of these shapes."""
    return len(_header(shapes)) + 4 * _count(shapes)


def read(path: Path, shapes: Shapes, *, sha256: bytes | None = None, finite: bool = False) -> dict[str, Tensor]:
    """What `read_arrays` reads, as tensors of the same memory. Raises as that does."""
    import torch

    found = read_arrays(path, shapes, sha256=sha256, finite=finite)
    return {name: torch.from_numpy(values) for name, values in found.items()}


def read_arrays(
    path: Path, shapes: Shapes, *, sha256: bytes | None = None, finite: bool = False
) -> dict[str, np.ndarray]:
    """The float32 arrays of a canonical file, as views of one buffer.

    The file must hold exactly the tensors of `shapes`. Its size and header are compared with the only ones possible
    before anything else is read, so nothing of a hostile file is ever parsed. With `finite` no value may be infinite or
    NaN. Raises WeightsError; with `sha256`, the file's name as a blob, Damaged where its bytes do not have that hash or
    it is not there; OSError for trouble that is not the file's.
    """
    header, flat = _header(shapes), np.empty(_count(shapes), np.float32)
    try:
        wrong = _read_into(flat, path, header)
        found = b"" if sha256 is None else blobs.file_hash(path) if wrong else _sha256(header, flat)
    except OSError as error:
        if error.errno not in blobs.LOST:
            raise
        wrong, found = os.strerror(error.errno or 0), b""
    if sha256 is not None and found != sha256:
        raise blobs.Damaged(sha256, wrong or "its bytes do not match its name")
    if wrong:
        raise WeightsError(f"{path.name}: {wrong}")
    if finite and not np.isfinite(flat).all():
        raise WeightsError(f"{path.name}: holds a value that is not finite")
    return _split(flat, shapes)


def array(tensor: Tensor | np.ndarray) -> np.ndarray:
    """The values as a contiguous array: without a copy where they are contiguous in main memory."""
    return np.asarray(tensor if isinstance(tensor, np.ndarray) else tensor.detach().cpu().numpy(), order="C")


def is_float32(tensor: Tensor | np.ndarray) -> bool:
    return str(tensor.dtype) in ("torch.float32", "float32")


def _read_into(flat: np.ndarray, path: Path, header: bytes) -> str:
    """Fill `flat` from the canonical file that begins with `header`; what is wrong with the file, or ""."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size != len(header) + flat.nbytes:
            return f"expected {len(header) + flat.nbytes} bytes"
        if file.read(len(header)) != header:
            return "not the canonical file of these tensors"
        if file.readinto(flat.view(np.uint8).data) != flat.nbytes:
            return "ended early"
    return ""


def _sha256(header: bytes, flat: np.ndarray) -> bytes:
    digest = hashlib.sha256(header)
    digest.update(flat.view(np.uint8).data)
    return digest.digest()


def _chunks(tensors: Values) -> Iterator[Any]:
    """The header, then each tensor's bytes."""
    for name, tensor in tensors.items():
        if not is_float32(tensor):
            raise WeightsError(f"{name}: expected float32, got {tensor.dtype}")
    yield _header({name: tuple(tensor.shape) for name, tensor in tensors.items()})
    for name in sorted(tensors):
        yield array(tensors[name]).reshape(-1).view(np.uint8)


def _header(shapes: Shapes) -> bytes:
    entries, offset = {}, 0
    for name in sorted(shapes):
        end = offset + 4 * math.prod(shapes[name])
        entries[name] = {"dtype": "F32", "shape": list(shapes[name]), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _count(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def _split(flat: np.ndarray, shapes: Shapes) -> dict[str, np.ndarray]:
    arrays, start = {}, 0
    for name in sorted(shapes):
        count = math.prod(shapes[name])
        arrays[name] = flat[start : start + count].reshape(shapes[name])
        start += count
    return arrays
