"""What every codec shares: a payload is the tensors' parts in the order of their names, each of a size known before.

A part is encoded, checked and decoded alone, in blocks that stay in the processor's cache and may be shared by threads.
So whoever sums payloads needs neither a whole payload nor a whole decoded tensor in memory.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from dlx.training.models.weights import Shapes, Values, array, is_float32, shapes_of
from dlx.training.recipe.codec_info import CodecInfo
from dlx.training.recipe.recipe import Plan

if TYPE_CHECKING:
    from torch import Tensor


AT_ONCE = 1 << 19  # values: what a thread does with them takes longer than to wake another one up


class CodecError(ValueError):
    """A payload that `encode` would never make, tensors that have no payload, or a plan that is another codec's."""


class Decoder(ABC):
    """A tensor's part, to be decoded in blocks of `block` values, in any order and by several threads."""

    block: int  # the same for every part of this tensor under this plan

    @abstractmethod
    def into(self, out: Any, start: int) -> None:
        """Fill `out`, a flat float32 array, with the values from number `start` on, of the flattened tensor: a multiple
        of `block`; as many as some blocks have, or the tensor has left. Raises CodecError unless they are canonical.

        A codec on a device fills tensors too: those that lie there without a detour."""

    def square(self, start: int, length: int) -> float:
        """The sum of the squares of what `into` gives, float64. Raises CodecError as that does."""
        values = scratch("block", length)
        self.into(values, start)
        wide = scratch("wide", length, np.float64)
        wide[...] = values
        return float(wide @ wide)


class Encoder(ABC):
    """A tensor's part in the making, from blocks of `block` values, in any order and by several threads."""

    block: int

    @abstractmethod
    def take(self, values: np.ndarray, start: int) -> None:
        """Encode some blocks from number `start` on, flat float32. Raises CodecError."""


class Codec(ABC):
    """A codec has no state."""

    info: CodecInfo
    device: str | None = None  # of torch, where it computes; None: in main memory, with numpy

    # ---- a tensor's part --------------------------------------------------------------------------------------------

    def parts(self, shapes: Shapes, plan: Plan) -> dict[str, slice]:
        """Where each tensor's bytes are in a payload, in the payload's order. Raises CodecError for a plan of another
        codec."""
        low, high = self.info.ranks
        if plan.level not in self.info.levels or not low <= plan.rank <= high:
            raise CodecError(f"{self.info.name}: has no level {plan.level} with rank {plan.rank}")
        found, start = {}, 0
        for name in sorted(shapes):
            end = start + self._size(name, shapes[name], plan)
            found[name] = slice(start, end)
            start = end
        return found

    def encode_part(
        self,
        name: str,
        tensor: Tensor | np.ndarray,
        plan: Plan,
        out: np.ndarray,
        previous: tuple[np.ndarray, Plan] | None = None,
    ) -> None:
        """Fill `out`, one tensor's part of a payload (uint8). `previous`: its part of the slot's last payload, and that
        one's plan. Raises CodecError."""
        if not is_float32(tensor):
            raise CodecError(f"{name}: expected float32, got {tensor.dtype}")
        self._encode(name, array(tensor), plan, out, previous)

    def encoder(
        self,
        name: str,
        shape: tuple[int, ...],
        plan: Plan,
        out: np.ndarray,
        previous: tuple[np.ndarray, Plan] | None = None,
    ) -> Encoder:
        """To fill `out` as `encode_part` does. A codec that cannot take a tensor apart takes it as one block."""
        return self._in_blocks(name, shape, plan, out) or Whole(self, name, shape, plan, out, previous)

    def decode_part(self, name: str, data: np.ndarray, shape: tuple[int, ...], plan: Plan) -> np.ndarray:
        """The finite float32 array of one tensor's part (uint8) of a payload of unknown origin, which has the size that
        `parts` says. Raises CodecError."""
        decoder, values = self.decoder(name, data, shape, plan), np.empty(count(shape), np.float32)
        for start, length in spans(len(values), decoder.block):
            decoder.into(values[start : start + length], start)
        return values.reshape(shape)

    @abstractmethod
    def decoder(self, name: str, data: np.ndarray, shape: tuple[int, ...], plan: Plan) -> Decoder:
        """Of such a part. Raises CodecError."""

    def evidence(self, shape: tuple[int, ...], plan: Plan, data: np.ndarray, index: int) -> list[slice]:
        """The bytes of a tensor's part (uint8) that decode to its value of that number, in the order in which a
        contract reads them (contracts/src/Payloads.sol). Raises CodecError where no contract does."""
        raise CodecError(f"{self.info.name}: no contract decodes it")

    def examiner(self, plan: Plan) -> Examiner:
        """To ask whether an honest encoder would have made a payload, part by part."""
        return Examiner(self, plan)

    # ---- whole payloads ---------------------------------------------------------------------------------------------

    def encode(self, tensors: Values, plan: Plan, previous: tuple[bytes, Plan] | None = None) -> bytes:
        """The payload of finite float32 tensors of any shape. Raises CodecError.

        `previous` is the payload that the same slot made before and its plan: where the codec starts its search. One
        that does not fit these tensors is not used.
        """
        shapes = shapes_of(tensors)
        payload = np.empty(self.size(shapes, plan), np.uint8)
        old = self._previous(shapes, previous)
        for name, part in self.parts(shapes, plan).items():
            self.encode_part(name, tensors[name], plan, payload[part], old.get(name))
        return payload.tobytes()

    def decode(self, data: Any, shapes: Shapes, plan: Plan) -> dict[str, Tensor]:
        """What `decode_arrays` gives, as tensors of the same memory. Raises CodecError."""
        import torch

        return {name: torch.from_numpy(values) for name, values in self.decode_arrays(data, shapes, plan).items()}

    def decode_arrays(self, data: Any, shapes: Shapes, plan: Plan) -> dict[str, np.ndarray]:
        """Finite float32 arrays of `shapes` from a payload of unknown origin (any buffer). Raises CodecError."""
        payload = np.frombuffer(data, np.uint8)
        size = self.size(shapes, plan)
        if len(payload) != size:
            raise CodecError(f"payload: expected {size} bytes, got {len(payload)}")
        parts = self.parts(shapes, plan)
        return {name: self.decode_part(name, payload[part], shapes[name], plan) for name, part in parts.items()}

    def fault(self, tensors: Values, payload: bytes, plan: Plan) -> str:
        """What the `examiner` finds of a whole payload, which decodes."""
        examiner, data = self.examiner(plan), np.frombuffer(payload, np.uint8)
        for name, part in self.parts(shapes_of(tensors), plan).items():
            examiner.see(name, tensors[name], data[part])
        return examiner.fault()

    def size(self, shapes: Shapes, plan: Plan) -> int:
        """The bytes that every payload of tensors of `shapes` has. Raises CodecError for a plan of another codec."""
        return max((part.stop for part in self.parts(shapes, plan).values()), default=0)

    def _previous(self, shapes: Shapes, previous: tuple[bytes, Plan] | None) -> dict[str, tuple[np.ndarray, Plan]]:
        """The previous payload's part of each tensor; none where it does not fit."""
        if previous is None:
            return {}
        payload, plan = np.frombuffer(previous[0], np.uint8), previous[1]
        try:
            fits = len(payload) == self.size(shapes, plan)
        except CodecError:
            return {}
        return {name: (payload[part], plan) for name, part in self.parts(shapes, plan).items()} if fits else {}

    @abstractmethod
    def _size(self, name: str, shape: tuple[int, ...], plan: Plan) -> int:
        """The bytes of the tensor's part."""

    def _in_blocks(self, name: str, shape: tuple[int, ...], plan: Plan, out: np.ndarray) -> Encoder | None:
        """To fill `out` block by block; None where the tensor cannot be taken apart."""
        return None

    @abstractmethod
    def _encode(
        self, name: str, tensor: np.ndarray, plan: Plan, out: np.ndarray, previous: tuple[np.ndarray, Plan] | None
    ) -> None:
        """Fill `out`, the tensor's part (uint8), from a contiguous float32 array."""


class Examiner:
    """Whether an honest encoder would have made a payload, which decodes, of the tensors shown. Of a codec whose
    encoder gives the same bits on every machine that is any other payload than its own."""

    def __init__(self, codec: Codec, plan: Plan) -> None:
        self._codec, self._plan, self._fault = codec, plan, ""

    def see(self, name: str, tensor: Tensor | np.ndarray, data: np.ndarray) -> None:
        """The next tensor, and its part of the payload (uint8)."""
        if self._fault:
            return
        own = np.empty_like(data)
        try:
            self._codec.encode_part(name, tensor, self._plan, own)
        except CodecError as error:
            self._fault = str(error)
        else:
            self._fault = "" if np.array_equal(own, data) else f"{name}: the encoder gives other bytes"

    def fault(self) -> str:
        """Why not; empty where it may have."""
        return self._fault


class Whole(Encoder):
    def __init__(
        self,
        codec: Codec,
        name: str,
        shape: tuple[int, ...],
        plan: Plan,
        out: np.ndarray,
        previous: tuple[np.ndarray, Plan] | None,
    ) -> None:
        self._codec, self._name, self._shape, self._plan = codec, name, shape, plan
        self._out, self._previous, self.block = out, previous, count(shape)

    def take(self, values: np.ndarray, start: int) -> None:
        self._codec.encode_part(self._name, values.reshape(self._shape), self._plan, self._out, self._previous)


def combine(operation: np.ufunc, values: np.ndarray, decoder: Decoder, factor: float = 1.0, start: int = 0) -> None:
    """`values`, flat, = operation(values, factor x what is decoded from number `start` on, where a block begins).
    Raises CodecError."""
    for low, length in spans(len(values), decoder.block):
        piece, decoded = values[low : low + length], scratch("block", length)
        decoder.into(decoded, start + low)
        if factor != 1:
            decoded *= np.float32(factor)
        operation(piece, decoded, out=piece)


def spans(length: int, block: int, limit: int = AT_ONCE) -> Iterator[tuple[int, int]]:
    """Start and length of the pieces of so many values: whole blocks, but for the last, and at most `limit` values
    where a block is not longer."""
    size = max(1, limit // block) * block
    for start in range(0, length, size):
        yield start, min(size, length - start)


def too_large(name: str) -> CodecError:
    return CodecError(f"{name}: holds a value that is not finite or too large")


def count(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def row_sums(values: np.ndarray) -> np.ndarray:
    """The sums [n] of float32 rows [n, k], the halves added element by element: the same bits on every machine, which
    no library's own reduction promises."""
    while (width := values.shape[1]) > 32 and width % 2 == 0:
        values = values[:, : width // 2] + values[:, width // 2 :]
    columns = np.ascontiguousarray(values.T)  # short rows are slow
    while (width := len(columns)) > 1:
        half = width // 2
        left_over = columns[2 * half :]
        columns = columns[:half] + columns[half : 2 * half]
        columns[: len(left_over)] += left_over
    return columns[0]


class _Local(threading.local):
    def __init__(self) -> None:
        self.arrays: dict[tuple[str, Any], np.ndarray] = {}


_local = _Local()


def scratch(purpose: str, count: int, dtype: Any = np.float32) -> np.ndarray:
    """A flat array of this thread's, with anything in it, until the thread asks again for the same purpose and type.

    Fresh memory costs more than the arithmetic in it, and giving it back stops all threads of the process."""
    found = _local.arrays.get((purpose, dtype))
    if found is None or len(found) < count:
        found = _local.arrays[purpose, dtype] = np.empty(count, dtype)
    return found[:count]
