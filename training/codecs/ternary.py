"""ternary: -1, 0 or 1 times a scale, five values in a byte, one fp16 scale for each group of 640.

Layout of a tensor's part: its groups' scales (little-endian fp16), then its values, flattened, as digits of base 3:
each byte holds five, the first as its lowest digit, where 2 stands for -1. The last group may be shorter, and what the
last byte has left over is zero. So that a group has one form only, its scale is zero exactly where all its values are.

That is 1.625 bits a value, always. An entropy code would need 1.56 of normally distributed ones.
"""

import numpy as np

from dlx.training.codecs.base import Codec, CodecError, Decoder, Encoder, count, row_sums, scratch, spans, too_large
from dlx.training.recipe import codec_info
from dlx.training.recipe.recipe import Plan

DIGITS = 5  # of a byte
GROUP = 128 * DIGITS
LARGEST = np.float32(np.finfo(np.float16).max)  # that a value may be
LEAST = np.float32(0.61)  # of the root mean square, for a value to count in the scale
_BLOCK = 128  # groups
_BYTES = GROUP // DIGITS
_INFINITE = 0x7C00  # fp16 bits; those of NaN and of negative numbers are higher

_WEIGHTS = 3.0 ** np.arange(DIGITS, dtype=np.float32)
_TRITS = np.arange(256)[:, None] // 3 ** np.arange(DIGITS) % 3
_VALUES = np.array([0, 1, -1], np.float32)[_TRITS]
_COUNTS = np.count_nonzero(_TRITS, axis=1).astype(np.uint16)  # also the sum over a group


class Ternary(Codec):
    info = codec_info.TERNARY

    def _size(self, name: str, shape: tuple[int, ...], plan: Plan) -> int:
        return 2 * groups_of(shape) - (-count(shape) // DIGITS)

    def _encode(
        self, name: str, tensor: np.ndarray, plan: Plan, out: np.ndarray, previous: tuple[np.ndarray, Plan] | None
    ) -> None:
        packer, flat = Packer(name, tuple(tensor.shape), out), tensor.reshape(-1)
        for start, length in spans(len(flat), packer.block, packer.block):
            packer.take(flat[start : start + length], start)

    def _in_blocks(self, name: str, shape: tuple[int, ...], plan: Plan, out: np.ndarray) -> Encoder | None:
        return Packer(name, shape, out)

    def decoder(self, name: str, data: np.ndarray, shape: tuple[int, ...], plan: Plan) -> Decoder:
        return Groups(name, data, shape)

    def evidence(self, shape: tuple[int, ...], plan: Plan, data: np.ndarray, index: int) -> list[slice]:
        scale, digits = 2 * (index // GROUP), 2 * groups_of(shape) + index // DIGITS
        return [slice(scale, scale + 2), slice(digits, digits + 1)]


class Packer(Encoder):
    """A tensor's part (uint8) of the right size, to be filled."""

    block = _BLOCK * GROUP

    def __init__(self, name: str, shape: tuple[int, ...], out: np.ndarray) -> None:
        groups = groups_of(shape)
        self._name, self._scales, self._packed = name, out[: 2 * groups].reshape(groups, 2), out[2 * groups :]

    def take(self, values: np.ndarray, start: int) -> None:
        first, whole = start // GROUP, len(values) // GROUP
        rest = len(values) - whole * GROUP
        if whole:
            self._take(values[: whole * GROUP].reshape(whole, GROUP), GROUP, first)
        if rest:
            last = np.zeros((1, GROUP), np.float32)
            last[0, :rest] = values[whole * GROUP :]
            self._take(last, rest, first + whole)

    def _take(self, values: np.ndarray, length: int, first: int) -> None:
        """Groups [n, 640] of so many values each, from number `first` on."""
        scales, packed = self.encode(values, length)
        self._scales[first : first + len(values)] = scales.astype("<f2").view(np.uint8).reshape(-1, 2)
        there = self._packed[first * _BYTES :][: len(packed)]
        there[...] = packed[: len(there)]

    def encode(self, values: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Scales fp16 [n] and bytes [n * 128] of such groups. Raises CodecError."""
        scales = _scales(self._name, values, length)
        half = scales.astype(np.float32)[:, None] * np.float32(0.5)
        half[half == 0] = np.inf
        digits = (values < -half).view(np.uint8)
        digits += digits
        digits += values > half
        wide = scratch("digits", digits.size)
        wide[...] = digits.reshape(-1)
        return scales, (wide.reshape(-1, DIGITS) @ _WEIGHTS).astype(np.uint8)  # of whole numbers


class Groups(Decoder):
    """A tensor's part (uint8) that has the right size."""

    block = _BLOCK * GROUP

    def __init__(self, name: str, data: np.ndarray, shape: tuple[int, ...]) -> None:
        groups = groups_of(shape)
        self._name, self._scales, self._packed = name, data[: 2 * groups].view("<u2"), data[2 * groups :]

    def into(self, out: np.ndarray, start: int) -> None:
        scales, packed = self.checked(start, len(out))
        values = out if len(out) == packed.size * DIGITS else scratch("last values", packed.size * DIGITS)
        np.take(_VALUES, _indices(packed), axis=0, out=values.reshape(-1, DIGITS), mode="clip")
        rows = values.reshape(-1, GROUP)
        np.multiply(rows, scales[:, None], out=rows)
        if values is not out:
            out[...] = values[: len(out)]

    def square(self, start: int, length: int) -> float:
        scales, packed = self.checked(start, length)
        wide = scales.astype(np.float64)
        counts = np.take(_COUNTS, _indices(packed), mode="clip").reshape(packed.shape)
        return float((wide * wide) @ counts.sum(axis=1, dtype=np.uint16))  # of whole numbers

    def checked(self, start: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Scales float32 [n] and bytes [n, 128] of the groups of so many values. Raises CodecError."""
        first, groups = start // GROUP, -(-length // GROUP)
        bits = self._scales[first : first + groups]
        if (bits >= _INFINITE).any():  # infinite, NaN or negative
            raise CodecError(f"{self._name}: a scale is negative or not finite")
        packed, size = self._packed[first * _BYTES :][: -(-length // DIGITS)], groups * _BYTES
        if (spare := length % DIGITS) and packed[-1] >= 3**spare:
            raise CodecError(f"{self._name}: the padding is not zero")
        if len(packed) < size:
            packed = np.concatenate([packed, np.zeros(size - len(packed), np.uint8)])
        packed = packed.reshape(groups, _BYTES)
        if packed.max() >= 3**DIGITS:
            raise CodecError(f"{self._name}: a byte is {3**DIGITS} or more")
        if (np.bitwise_or.reduce(packed, axis=1) != 0).tolist() != (bits != 0).tolist():
            raise CodecError(f"{self._name}: a group is neither zero nor scaled")
        return bits.astype(np.uint16).view(np.float16).astype(np.float32), packed


def groups_of(shape: tuple[int, ...]) -> int:
    return -(-count(shape) // GROUP)


def _indices(packed: np.ndarray) -> np.ndarray:
    found = scratch("indices", packed.size, np.intp)
    found[...] = packed.reshape(-1)
    return found


def _scales(name: str, values: np.ndarray, length: int) -> np.ndarray:
    """An fp16 scale for each group [n, 640] of so many values: the mean size of those that it should not round to zero.
    The best for a normal distribution is of 0.61 of the root mean square and more, and a group of one size keeps it."""
    sizes = np.abs(values, out=scratch("sizes", values.size).reshape(values.shape))
    # Sizes are ordered like their bits, and NaN above all.
    largest = sizes.view(np.int32).max(axis=1).view(np.float32)
    if not (largest <= LARGEST).all():
        raise too_large(name)
    squares = np.multiply(sizes, sizes, out=scratch("squares", sizes.size).reshape(sizes.shape))
    root = np.sqrt(row_sums(squares) / np.float32(length))
    counted = sizes >= (LEAST * root)[:, None]
    counted[:, length:] = False
    sizes *= counted
    numbers = counted.view(np.uint8).sum(axis=1, dtype=np.uint16).astype(np.float32)
    return np.minimum(row_sums(sizes) / numbers, largest).astype(np.float16)
