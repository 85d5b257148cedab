"""Inner products of decoded payloads, all that an aggregation policy looks at, from one pass over them.

Each block of each payload is decoded once, widened to float64 and multiplied with the others' while all of them are in
the cache. A product's error is that of float64 sums: below 1e-12 of the product of the two norms, whatever the order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dlx.training.codecs import Codec
from dlx.training.codecs.base import Decoder, count, spans
from dlx.training.models.weights import Shapes
from dlx.training.outer.payloads import opened
from dlx.training.recipe.recipe import Plan

_DECODED = 1 << 20  # values of all payloads that a thread decodes and multiplies at a time, or of each:
_ROW, _WIDE = 1 << 16, 1 << 14  # as many decoded, as many multiplied
_FEW = 8  # payloads for which vector products are faster than a matrix product
_MOST = 1 << 16  # products remembered; of more the oldest are forgotten

_Key = tuple[str, int, int]  # a payload's name, and what its decoding depends on: the plan's level and rank


class InnerProducts:
    """Of the payloads of one stage. What was computed is remembered: a payload that was checked has its norm already,
    and a listing that leaves out some of an earlier one needs no pass. One thread at a time."""

    def __init__(self, codec: Codec, shapes: Shapes, threads: int = 1) -> None:
        self._codec, self._shapes, self._threads = codec, shapes, threads
        self._known: dict[tuple[_Key, _Key], float] = {}

    def norms(self, blobs: Sequence[tuple[Path, Plan]]) -> list[float]:
        """The squared norm of each payload. Raises as `matrix`."""
        keys = [_key(*one) for one in blobs]
        for one, key in zip(blobs, keys, strict=True):
            if (key, key) not in self._known:
                self._learn([one])
        return [self._known[key, key] for key in keys]

    def matrix(self, blobs: Sequence[tuple[Path, Plan]]) -> list[list[float]]:
        """The Gram matrix. Raises Damaged, BlobError or CodecError for what is no canonical payload of its plan."""
        keys = [_key(*one) for one in blobs]
        if any((one, other) not in self._known for one in keys for other in keys):
            self._learn(blobs)
        return [[self._known[one, other] for other in keys] for one in keys]

    def _learn(self, blobs: Sequence[tuple[Path, Plan]]) -> None:
        payloads = opened(self._codec, self._shapes, blobs, self._threads)
        keys, device = [_key(*one) for one in blobs], self._codec.device
        if device is None:
            found = gram(payloads, self._shapes, self._threads)
        else:
            from dlx.training.outer import on_device

            found = on_device.gram(payloads, self._shapes, device)
        for row, one in enumerate(keys):
            for column, other in enumerate(keys):
                self._known[one, other] = float(found[row, column])
        while len(self._known) > max(_MOST, len(keys) ** 2):
            self._known.pop(next(iter(self._known)))


class Decodable(Protocol):
    def decoder(self, name: str) -> Decoder: ...


class Plain:
    """Arrays that were decoded already, or never encoded."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._arrays = arrays

    def decoder(self, name: str) -> Decoder:
        return Copied(self._arrays[name])


class Copied(Decoder):
    """An array's values, of a `Plain` one."""

    block = _WIDE

    def __init__(self, values: np.ndarray) -> None:
        self._values = values.reshape(-1)

    def into(self, out: Any, start: int) -> None:
        values = self._values[start : start + len(out)]
        if isinstance(out, np.ndarray):
            out[...] = values
        else:
            out.copy_(out.new_tensor(values))


def gram(payloads: Sequence[Decodable], shapes: Shapes, threads: int = 1) -> np.ndarray:
    """Inner products, float64 [n, n], of payloads of one plan. Raises CodecError."""
    share = _square if len(payloads) == 1 else _share
    with ThreadPoolExecutor(threads, "inner-products") as pool:
        shares = pool.map(lambda number: share(payloads, shapes, number, threads), range(threads))
        return sum(shares, np.zeros((len(payloads), len(payloads))))


def _square(payloads: Sequence[Decodable], shapes: Shapes, share: int, shares: int) -> np.ndarray:
    """As `_share`, of one payload."""
    (payload,), found, number = payloads, 0.0, 0
    for name in sorted(shapes):
        decoder, length = payload.decoder(name), count(shapes[name])
        for start, size in spans(length, decoder.block):
            number += 1
            if number % shares == share:
                found += decoder.square(start, size)
    return np.array([[found]])


def _share(payloads: Sequence[Decodable], shapes: Shapes, share: int, shares: int) -> np.ndarray:
    """What every `shares`-th block, from number `share` on, adds."""
    found, number = np.zeros((len(payloads), len(payloads))), 0
    at_once = max(_ROW, _DECODED // max(1, len(payloads)))
    narrow = max(_WIDE, _DECODED // max(1, len(payloads)))
    rows, wide = np.empty((len(payloads), 0), np.float32), np.empty((len(payloads), narrow))
    for name in sorted(shapes) if payloads else ():
        decoders = [one.decoder(name) for one in payloads]
        for start, length in spans(count(shapes[name]), decoders[0].block, at_once):
            number += 1
            if number % shares != share:
                continue
            if rows.shape[1] < length:
                rows = np.empty((len(payloads), length), np.float32)
            block = rows[:, :length]
            for decoder, row in zip(decoders, block, strict=True):
                decoder.into(row, start)
            for low in range(0, length, narrow):
                piece = block[:, low : low + narrow]
                values = wide[:, : piece.shape[1]]
                values[...] = piece
                _add_products(found, values)
    return found


def _add_products(found: np.ndarray, values: np.ndarray) -> None:
    if len(values) > _FEW:
        found += values @ values.T
        return
    for index, row in enumerate(values):
        products = values[index:] @ row
        found[index, index:] += products
        found[index + 1 :, index] += products[1:]


def _key(path: Path, plan: Plan) -> _Key:
    return path.name, plan.level, plan.rank
