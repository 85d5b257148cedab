"""A slot's rule, tensor by tensor: where its round starts, and what the round has changed.

Float32 throughout, one IEEE operation after the other, in pieces that stay in the processor's cache: a round begins and
ends without a second copy of the stage. Tensors are flat here, and filled or changed in place.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dlx.training.codecs.base import Codec, Decoder
from dlx.training.models.weights import Lazy, Shapes
from dlx.training.outer.payloads import Payload
from dlx.training.recipe.recipe import Plan

_PIECE = 1 << 16  # values


class Source(Protocol):
    """Tensors to be had piece by piece: a `weights.Stored`, say."""

    def read_into(self, out: np.ndarray, name: str, start: int = 0) -> None: ...


class Start:
    """start[t]: the version less alpha times the slot's own payload, where one is not in the version yet."""

    def __init__(self, version: Source, own: Payload | None, alpha: float) -> None:
        self._version, self._own, self._alpha = version, own, alpha

    def read_into(self, out: np.ndarray, name: str) -> None:
        self._version.read_into(out, name)
        if self._own is not None:
            combine(np.subtract, out, self._own.decoder(name), self._alpha)


class Change:
    """What a round has changed, encoded tensor by tensor, in any order.

    `residual` is what the round before has left, `folded` payloads come back into the change, and from `newest`, the
    slot's last payload, the codec may start its search.
    """

    def __init__(
        self,
        codec: Codec,
        shapes: Shapes,
        plan: Plan,
        start: Start,
        residual: Source,
        folded: Sequence[Payload],
        newest: Payload | None,
    ) -> None:
        self._codec, self._shapes, self._plan = codec, shapes, plan
        self._start, self._residual, self._folded, self._newest = start, residual, folded, newest

    def encode(self, name: str, end: np.ndarray, part: np.ndarray, left: np.ndarray) -> None:
        """Fill `part`, the tensor's of the payload (uint8), and `left`, flat float32, with what decoding it does not
        give back: the next residual. Raises CodecError."""
        shape, decay = self._shapes[name], self._codec.info.decay
        change_into(left, name, self._start, end, self._residual, decay, self._folded)
        old = None if self._newest is None else (self._newest.part(name), self._newest.plan)
        self._codec.encode_part(name, left.reshape(shape), self._plan, part, old)
        combine(np.subtract, left, self._codec.decoder(name, part, shape, self._plan))


def change_into(
    out: np.ndarray,
    name: str,
    start: Start,
    end: np.ndarray,
    residual: Source,
    decay: float,
    folded: Sequence[Payload],
) -> None:
    """u[t] = start - end + decay * residual + each folded payload in the order given."""
    start.read_into(out, name)
    end, kept = end.reshape(-1), np.empty(min(_PIECE, len(out)), np.float32)
    for low in range(0, len(out), _PIECE):
        piece = out[low : low + _PIECE]
        piece -= end[low : low + _PIECE]
        kept = kept[: len(piece)]
        residual.read_into(kept, name, low)
        kept *= np.float32(decay)
        piece += kept
    for payload in folded:
        combine(np.add, out, payload.decoder(name))


def combine(operation: np.ufunc, values: np.ndarray, decoder: Decoder, factor: float = 1.0) -> None:
    """`values` = operation(values, factor x the decoded tensor). Raises CodecError."""
    block = np.empty(min(decoder.block, len(values)), np.float32)
    for start in range(0, len(values), decoder.block):
        piece = values[start : start + decoder.block]
        decoded = block[: len(piece)]
        decoder.into(decoded, start)
        if factor != 1:
            decoded *= np.float32(factor)
        operation(piece, decoded, out=piece)


class Scratch:
    """Memory for one tensor at a time, two in turn: while threads still write the one, the next is made.

    Fresh memory costs more than a sha256 of it, so a round takes it once.
    """

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        largest = max((int(np.prod(shape)) for shape in shapes.values()), default=0)
        self._arrays = [np.empty(largest, np.float32) for _ in range(2)]

    def of(self, name: str) -> np.ndarray:
        """A flat array for that tensor; the one before the last is used again."""
        self._arrays.reverse()
        return self._arrays[0][: int(np.prod(self._shapes[name]))]

    def filled(self, start: Start) -> Lazy[np.ndarray]:
        """The start's tensors, each valid until the one after the next is asked for."""

        def make(name: str) -> np.ndarray:
            out = self.of(name)
            start.read_into(out, name)
            return out.reshape(self._shapes[name])

        return Lazy(self._shapes, make)
