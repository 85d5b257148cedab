"""The tensors that went over a stage's pipes in a segment, recorded: what a replay gets in place of its neighbours."""

import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import BinaryIO

import numpy as np

from dlx.training.inner.pipeline import Bytes
from dlx.training.slot.distances import ratio


class Recorded:
    """A `Link` to a neighbour of the past: gives what it sent, and compares what it got, in the recorded order."""

    def __init__(
        self,
        came: BinaryIO,
        went: BinaryIO | None,
        pieces: Mapping[str, int],
        numbers: Mapping[str, Sequence[tuple[float, ...]]],
        first: int,
        slack: float,
    ) -> None:
        self._came, self._went, self._pieces, self._numbers, self._first = came, went, pieces, numbers, first
        self._slack, self._norm = slack, 0.0
        self._apart, self._whole = defaultdict[str, float](float), defaultdict[str, float](float)  # squares, by kind

    @property
    def is_compared(self) -> bool:
        return self._went is not None

    @property
    def distance(self) -> float:
        """The largest of the kinds of tensors."""
        return max((ratio(self._apart[kind], whole) for kind, whole in self._whole.items()), default=0.0)

    def send(self, kind: str, step: int, micro: int, data: Bytes) -> None:
        if kind == "norm":
            self._norm = struct.unpack("<d", data)[0] ** 0.5
        if kind in self._pieces and self._went is not None:
            there = np.frombuffer(self._went.read(self._pieces[kind]), "<f4").astype(np.float64)
            self._apart[kind] += float(np.square(np.frombuffer(data, "<f4") - there).sum())
            self._whole[kind] += float(np.square(there).sum())

    def recv(self, kind: str, step: int, micro: int) -> bytes:
        if kind in self._numbers:
            numbers = self._numbers[kind][step - self._first]
            if kind == "total" and numbers[0] < self._norm <= numbers[0] * (1 + self._slack):
                numbers = (self._norm, *numbers[1:])  # rounding may have the replay's part above the whole that was
            return struct.pack(f"<{len(numbers)}d", *numbers)
        return self._came.read(self._pieces[kind])
