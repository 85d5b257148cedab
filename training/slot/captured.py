"""The tensors that went over a stage's pipes in a segment, captured: what a replay gets in place of its neighbours."""

import hashlib
import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

from dlx.training.inner.packing import packed_bytes, unpack
from dlx.training.inner.pipeline import Bytes
from dlx.training.recipe.recipe import Packing
from dlx.training.slot.distances import ratio


class Piece(NamedTuple):
    """A tensor as it goes over a pipe."""

    shape: tuple[int, ...]
    packing: Packing

    @property
    def size(self) -> int:
        return packed_bytes(self.shape, self.packing)

    def values(self, data: Bytes) -> np.ndarray:
        return unpack(bytearray(data), self.shape, self.packing).numpy().astype(np.float64)


class Captured:
    """A `Link` to a neighbour of the past: gives what it sent, and compares what it got, in the recorded order."""

    def __init__(
        self,
        received: BinaryIO,
        sent: BinaryIO | None,
        pieces: Mapping[str, Piece],
        numbers: Mapping[str, Sequence[tuple[float, ...]]],
        first: int,
        slack: float,
    ) -> None:
        self._received, self._sent, self._pieces, self._numbers, self._first = received, sent, pieces, numbers, first
        self._slack, self._norm = slack, 0.0
        self._apart, self._whole = defaultdict[str, float](float), defaultdict[str, float](float)  # squares, by kind
        self.first_apart: dict[str, int] = {}  # of each kind the first step in which a bit of it differs
        self._hashed = hashlib.sha256()

    @property
    def is_compared(self) -> bool:
        return self._sent is not None

    @property
    def distance(self) -> float:
        """The largest of the kinds of tensors."""
        return max((ratio(self._apart[kind], whole) for kind, whole in self._whole.items()), default=0.0)

    @property
    def hash(self) -> bytes:
        """The sha256 of the tensors that it got: a file's of that name, where they are those that were sent."""
        return self._hashed.digest()

    def send(self, kind: str, step: int, micro: int, data: Bytes) -> None:
        if kind == "norm":
            self._norm = struct.unpack("<d", data)[0] ** 0.5
        if kind in self._pieces:
            self._hashed.update(data)
        if kind in self._pieces and self._sent is not None:
            piece = self._pieces[kind]
            recorded = self._sent.read(piece.size)
            if recorded != data:
                self.first_apart.setdefault(kind, step)
            there = piece.values(recorded)
            self._apart[kind] += float(np.square(piece.values(data) - there).sum())
            self._whole[kind] += float(np.square(there).sum())

    def recv(self, kind: str, step: int, micro: int) -> bytes:
        if kind in self._numbers:
            numbers = self._numbers[kind][step - self._first]
            if kind == "total" and numbers[0] < self._norm <= numbers[0] * (1 + self._slack):
                numbers = (self._norm, *numbers[1:])  # rounding may have the replay's part above the whole that was
            return struct.pack(f"<{len(numbers)}d", *numbers)
        return self._received.read(self._pieces[kind].size)
