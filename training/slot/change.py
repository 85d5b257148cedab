"""A slot's rule, tensor by tensor: where its round starts, and what the round has changed.

Float32 throughout, one IEEE operation after the other, in pieces that stay in the processor's cache: a round begins and
ends without a second copy of the stage. Tensors are flat here, and filled or changed in place.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np

from dlx.ground.streamed import Buffers
from dlx.training.codecs.base import AT_ONCE, Codec, combine, scratch, spans
from dlx.training.codecs.base import Encoder as CodecEncoder
from dlx.training.models.weights import Lazy, Shapes
from dlx.training.outer.inner_products import Decodable
from dlx.training.outer.payloads import Payload
from dlx.training.recipe.recipe import Plan

_CACHED = 1 << 17  # values: with all that comes of them in a core's own cache


class Source(Protocol):
    """Tensors to be had piece by piece: a `weights.Stored`, say."""

    def read_into(self, out: np.ndarray, name: str, start: int = 0) -> None: ...


class Difference:
    """Tensors less `factor` times what a payload gives, where there is one. So is a residual, of a change and the
    payload that encodes it."""

    def __init__(self, whole: Source, payload: Payload | None, factor: float = 1.0) -> None:
        self.whole, self.payload, self.factor = whole, payload, factor

    def block(self, name: str) -> int:
        """Of so many values a multiple may be read alone."""
        return 1 if self.payload is None else self.payload.decoder(name).block

    def read_into(self, out: np.ndarray, name: str, start: int = 0) -> None:
        self.whole.read_into(out, name, start)
        if self.payload is not None:
            combine(np.subtract, out, self.payload.decoder(name), self.factor, start)


class Start:
    """start[t]: `base`, the version less the slot's own payload in flight, less `ahead` times the slot's residual. So a
    slot goes on from a part of what it has found and no payload had room for: step-ahead error feedback (arXiv
    2008.05823)."""

    def __init__(self, base: Difference, residual: Difference, ahead: float = 0.0) -> None:
        self.base, self.residual, self.ahead = base, residual, ahead

    def block(self, name: str) -> int:
        """Of so many values a multiple may be read alone."""
        return math.lcm(self.base.block(name), self.residual.block(name) if self.ahead else 1)

    def read_into(self, out: np.ndarray, name: str, start: int = 0) -> None:
        if not self.ahead:
            self.base.read_into(out, name, start)
            return
        for _ in self.beside_residual(out, name, start):
            pass

    def beside_residual(self, out: np.ndarray, name: str, start: int = 0) -> Iterator[tuple[np.ndarray, slice]]:
        """Fill `out` with the start, piece by piece; of each the residual's values, which are this thread's until the
        next, and where it lies in `out`."""
        self.base.read_into(out, name, start)
        for at, size in spans(len(out), self.residual.block(name)):
            where, kept = slice(at, at + size), scratch("residual", size)
            self.residual.read_into(kept, name, start + at)
            if self.ahead:
                out[where] -= np.multiply(kept, np.float32(self.ahead), out=scratch("ahead", size))
            yield kept, where


class Last(Protocol):
    """A payload from which a codec may start its search."""

    plan: Plan

    def part(self, name: str) -> np.ndarray: ...


class Change:
    """What a round has changed, made and encoded tensor by tensor, in any order.

    The start's residual is what the payload before has left of its change, `folded` payloads come back into this one,
    and from `newest`, the slot's last payload, the codec may start its search. Several `threads` share a tensor's
    blocks where the codec can take it apart, and give the same bits; what is read is sound by then (see
    `weights.Stored`).
    """

    def __init__(
        self,
        codec: Codec,
        shapes: Shapes,
        plan: Plan,
        start: Start,
        folded: Sequence[Decodable],
        newest: Last | None,
        threads: int = 1,
    ) -> None:
        self._codec, self._shapes, self._plan = codec, shapes, plan
        self._start, self._folded, self._newest = start, folded, newest
        self._threads, self._pool, self._buffers = threads, ThreadPoolExecutor(threads, "change"), Buffers()

    def encode(self, name: str, end: np.ndarray, part: np.ndarray, change: np.ndarray) -> None:
        """Fill `change`, flat float32, and `part`, the tensor's of the payload that encodes it (uint8). Raises
        CodecError."""
        for _ in self._made(name, end, part, lambda start, length: change[start : start + length]):
            pass

    def pieces(self, name: str, end: np.ndarray, part: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """The same, the change piece by piece: the number of a piece's first value, and its values, in memory that is
        used again once a stream has taken them (see `Buffers`)."""
        return self._made(name, end, part, lambda start, length: self._buffers.of(length))

    def _made(
        self, name: str, end: np.ndarray, part: np.ndarray, room: Callable[[int, int], np.ndarray]
    ) -> Iterator[tuple[int, np.ndarray]]:
        """`room(start, length)`: memory for these values."""
        old = None if self._newest is None else (self._newest.part(name), self._newest.plan)
        encoder = self._codec.encoder(name, self._shapes[name], self._plan, part, old)
        blocks = [encoder.block, *(one.block(name) for one in (self._start, self._start.residual))]
        block = math.lcm(*blocks, *(one.decoder(name).block for one in self._folded))
        end = end.reshape(-1)
        for start, length in spans(len(end), block, self._threads * AT_ONCE):
            made = room(start, length)
            self._make(name, start, end[start : start + length], made, encoder, block)
            yield start, made

    def _make(
        self, name: str, start: int, end: np.ndarray, made: np.ndarray, encoder: CodecEncoder, block: int
    ) -> None:
        """From value number `start` on, the blocks dealt among threads."""
        shares = list(spans(len(end), block, max(1, -(-len(end) // self._threads))))

        def share(number: int) -> None:
            for first, size in shares[number :: self._threads]:
                for at, few in spans(size, block, _CACHED):
                    low, high = first + at, first + at + few
                    values, begin = made[low:high], start + low
                    change_into(values, name, begin, self._start, end[low:high], self._folded)
                    encoder.take(values, begin)

        if len(shares) == 1:
            share(0)
        else:
            list(self._pool.map(share, range(self._threads)))


def change_into(
    out: np.ndarray,
    name: str,
    low: int,
    start: Start,
    end: np.ndarray,
    folded: Sequence[Decodable],
) -> None:
    """u[t] = start - end + residual + each folded payload in the order given, from the tensor's value number
    `low` on, where a block of its payloads begins; `end` is flat and as long as `out`."""
    for residual, where in start.beside_residual(out, name, low):
        out[where] -= end[where]
        out[where] += residual
    for payload in folded:
        combine(np.add, out, payload.decoder(name), start=low)


def filled(start: Source, shapes: Shapes) -> Lazy[np.ndarray]:
    """The start's tensors in memory that is used again, for whoever feeds them to a stream (see `Buffers`), or is done
    with one before the next."""
    buffers = Buffers()

    def make(name: str) -> np.ndarray:
        out = buffers.of(math.prod(shapes[name]))
        start.read_into(out, name)
        return out.reshape(shapes[name])

    return Lazy(shapes, make)
