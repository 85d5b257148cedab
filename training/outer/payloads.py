"""Payload blobs of unknown origin: hashed, mapped into memory, and decoded where they lie, block by block."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from dlx.ground import hash_memory
from dlx.ground.blobs import LOST, BlobError, Damaged
from dlx.training.codecs import Codec, CodecError
from dlx.training.codecs.base import Decoder
from dlx.training.models.weights import Shapes
from dlx.training.recipe.recipe import Plan


class Payload:
    """A blob whose bytes are what its name says; whether they decode shows block by block.

    They are hashed, unless this process has done so. `shapes` are those of its stage. Raises Damaged for a file that is
    missing or not what its name says, BlobError for one that is too long, CodecError for one that is too short or a
    plan that is another codec's. A file that is removed meanwhile can still be read.
    """

    def __init__(self, codec: Codec, shapes: Shapes, path: Path, plan: Plan) -> None:
        self.path, self.plan, self._codec, self._shapes = path, plan, codec, shapes
        self._parts, size = codec.parts(shapes, plan), codec.size(shapes, plan)
        try:
            with open(path, "rb") as file:
                _verify(file.fileno(), path)
                found = os.fstat(file.fileno()).st_size
                if found > size:
                    raise BlobError(f"blob {path.name}: more than {size} bytes")
                if found < size:
                    raise CodecError(f"payload: expected {size} bytes, got {found}")
                self._data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        except OSError as error:
            if error.errno not in LOST:
                raise
            raise Damaged(bytes.fromhex(path.name), os.strerror(error.errno or 0)) from error

    def part(self, name: str) -> np.ndarray:
        """A tensor's bytes (uint8)."""
        return self._data[self._parts[name]]

    def decoder(self, name: str) -> Decoder:
        """Of a tensor. Raises CodecError."""
        return self._codec.decoder(name, self.part(name), self._shapes[name], self.plan)

    def check(self) -> None:
        """Decode every tensor. Raises CodecError."""
        for name, shape in self._shapes.items():
            self._codec.decode_part(name, self.part(name), shape, self.plan)

    def decoded(self) -> dict[str, np.ndarray]:
        """All float32 arrays. Raises CodecError."""
        return self._codec.decode_arrays(self._data, self._shapes, self.plan)


def opened(codec: Codec, shapes: Shapes, blobs: Sequence[tuple[Path, Plan]], threads: int) -> list[Payload]:
    """The payloads, hashed side by side. Raises as `Payload`."""
    with ThreadPoolExecutor(threads, "payloads") as pool:
        return list(pool.map(lambda one: Payload(codec, shapes, *one), blobs))


def _verify(descriptor: int, path: Path) -> None:
    name = bytes.fromhex(path.name)
    if hash_memory.is_known(descriptor, name):
        return
    with open(descriptor, "rb", closefd=False) as file:
        if hashlib.file_digest(file, "sha256").digest() != name:
            raise Damaged(name, "its bytes do not match its name")
    hash_memory.remember(descriptor, name)
