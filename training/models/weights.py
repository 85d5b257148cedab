"""Canonical safetensors files: one byte string for one set of named float32 tensors.

The layout is the one safetensors 0.8 writes (names in code point order, header padded with spaces to 8 bytes, no
metadata). It is written down here so that no later version of the library can change a run's hashes; every reader of
safetensors can load the files, and `sha256sum` gives the weights hash.
"""

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dlx.ground import blobs, durable

Shapes = Mapping[str, tuple[int, ...]]


class WeightsError(ValueError):
    """Tensors that have no canonical file, or a file that is not canonical."""


def serialise(tensors: Mapping[str, Tensor]) -> bytes:
    """The canonical file of float32 tensors of any shape. Raises WeightsError for another dtype."""
    return b"".join(_chunks(tensors))


def weights_hash(tensors: Mapping[str, Tensor]) -> bytes:
    """sha256 (32 bytes) of the canonical file, without making the file."""
    digest = hashlib.sha256()
    for chunk in _chunks(tensors):
        digest.update(chunk)
    return digest.digest()


def write(tensors: Mapping[str, Tensor], path: Path) -> bytes:
    """Write the canonical file to `path` atomically; returns its sha256."""
    durable.write_chunks(path, _chunks(tensors))
    return weights_hash(tensors)


def write_blob(tensors: Mapping[str, Tensor], folder: Path) -> bytes:
    """Write the canonical file to `folder/<hex of its sha256>` atomically; returns the sha256."""
    return blobs.write_blob(folder, _chunks(tensors))


def file_size(shapes: Shapes) -> int:
    """Bytes of the canonical file of tensors of these shapes."""
    return len(_header(shapes)) + 4 * _count(shapes)


def read(path: Path, shapes: Shapes, *, sha256: bytes | None = None, finite: bool = False) -> dict[str, Tensor]:
    """The float32 tensors of a canonical file, as views of one buffer.

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
    return _split(torch.from_numpy(flat), shapes)


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


def _chunks(tensors: Mapping[str, Tensor]) -> Iterator[Any]:
    """The header, then each tensor's bytes without a copy where it is contiguous in main memory."""
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32:
            raise WeightsError(f"{name}: expected float32, got {tensor.dtype}")
    yield _header({name: tuple(tensor.shape) for name, tensor in tensors.items()})
    for name in sorted(tensors):
        yield tensors[name].detach().cpu().contiguous().view(-1).numpy().view(np.uint8)


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


def _split(flat: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    tensors, start = {}, 0
    for name in sorted(shapes):
        count = math.prod(shapes[name])
        tensors[name] = flat[start : start + count].view(shapes[name])
        start += count
    return tensors
