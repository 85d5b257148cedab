"""The run's order of samples: which sample lies at a position, computed by anyone from a few numbers alone.

The order walks through all samples once per epoch. An epoch shuffles the shards, takes them in windows of a few, and
shuffles the samples inside each window, so that neighbouring positions lie in few shards.
docs/protocol/files.md has the bytes. No torch, no numpy.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from math import isqrt
from typing import NamedTuple

WINDOW = 4  # shards
_EPOCHS = 4  # laid out at a time: a round may end one and begin the next
_KEYS = 256  # of windows


class _Window(NamedTuple):
    shards: tuple[int, ...]  # indices in the data manifest
    ends: list[int]  # samples up to and including each of them


class _Epoch(NamedTuple):
    windows: list[_Window]
    ends: list[int]  # samples up to and including each window


class SampleOrder:
    """Of a run with this seed over shards with so many samples each (at least one in all).

    Samples are numbered through the shards, in the order of `counts`; positions from 0 on without end.

    Examples:
        >>> order = SampleOrder(seed=7, counts=[3, 4])
        >>> order.samples, sorted(order.ids(range(7)))
        (7, [0, 1, 2, 3, 4, 5, 6])
        >>> order.ids(range(7)) == order.ids(range(7, 14))  # each epoch has its own order
        False
    """

    def __init__(self, seed: int, counts: Sequence[int]) -> None:
        self._seed, self._counts = seed, tuple(counts)
        self._firsts = [0, *accumulate(self._counts)]  # the number of each shard's first sample, then of all
        self._epoch = lru_cache(_EPOCHS)(self._laid_out)
        self._key = lru_cache(_KEYS)(self._window_key)

    @property
    def samples(self) -> int:
        """How many there are: positions in an epoch."""
        return self._firsts[-1]

    def ids(self, positions: Iterable[int]) -> list[int]:
        """The samples at these positions."""
        return [self._id(position) for position in positions]

    def shards(self, intervals: Iterable[tuple[int, int]]) -> list[int]:
        """The indices of the shards in whose windows the positions of half-open intervals lie, in their order."""
        found: dict[int, None] = {}
        for low, high in intervals:
            while low < high:
                epoch, place = divmod(low, self.samples)
                laid_out = self._epoch(epoch)
                index = bisect_right(laid_out.ends, place)
                window = laid_out.windows[index]
                found |= dict.fromkeys(shard for shard in window.shards if self._counts[shard])
                low += laid_out.ends[index] - place
        return list(found)

    def _id(self, position: int) -> int:
        epoch, place = divmod(position, self.samples)
        laid_out = self._epoch(epoch)
        index = bisect_right(laid_out.ends, place)
        window = laid_out.windows[index]
        size = window.ends[-1]
        place = permuted(self._key(epoch, index), place - (laid_out.ends[index] - size), size)
        at = bisect_right(window.ends, place)
        return self._firsts[window.shards[at]] + place - (window.ends[at - 1] if at else 0)

    def _laid_out(self, epoch: int) -> _Epoch:
        key = _key(b"dlx shard order", self._seed, epoch)
        order = sorted(range(len(self._counts)), key=lambda shard: (keyed(key, 0, shard), shard))
        windows = [tuple(order[at : at + WINDOW]) for at in range(0, len(order), WINDOW)]
        ends = [list(accumulate(self._counts[shard] for shard in window)) for window in windows]
        return _Epoch(list(map(_Window, windows, ends)), list(accumulate(one[-1] for one in ends)))

    def _window_key(self, epoch: int, window: int) -> bytes:
        return _key(b"dlx sample order", self._seed, epoch, window)


def permuted(key: bytes, place: int, size: int) -> int:
    """Where `place` goes in the key's permutation of range(size).

    A Feistel network over the pairs (left < rows, right < columns), a few more pairs than places; what lands past the
    end walks on, which keeps it a permutation.

    Examples:
        >>> sorted(permuted(b"key", place, 10) for place in range(10))
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    rows = isqrt(size - 1) + 1
    columns = -(-size // rows)
    while True:
        left, right = divmod(place, columns)
        for turn in range(0, 8, 2):
            left = (left + keyed(key, turn, right)) % rows
            right = (right + keyed(key, turn + 1, left)) % columns
        place = left * columns + right
        if place < size:
            return place


def keyed(key: bytes, turn: int, value: int) -> int:
    """Below 2^64."""
    digest = hashlib.blake2b(value.to_bytes(8, "big") + bytes([turn]), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "big")


def _key(purpose: bytes, *numbers: int) -> bytes:
    message = purpose + b"".join(number.to_bytes(8, "big") for number in numbers)
    return hashlib.blake2b(message, digest_size=32).digest()
