"""int4: four bits a value (the plan's level may also say 8), one fp16 scale for each group of 128 values.

Layout of a tensor's part: its groups' scales (little-endian fp16), then its values as two's complement codes of that
many bits, packed from the lowest bits of a byte up. A tensor is flattened and padded with zeros to whole groups. A
value is its code times its group's scale; the codes are -7..7 or -127..127. So that a group has one form only,
scale and codes are all zero, or some code is at one of the two ends.
"""

import numpy as np

from dlx.training.codecs.base import Codec, CodecError, Decoder, Encoder, count, scratch, spans, too_large
from dlx.training.codecs.packing import CODES, LARGEST, UNUSED, pack
from dlx.training.recipe import codec_info
from dlx.training.recipe.recipe import Plan

GROUP = 128
_BLOCK = 512  # groups

_NORMAL, _STEP = (np.float32(value) for value in (np.finfo(np.float16).tiny, np.finfo(np.float16).smallest_subnormal))
INFINITE = 0x7C00  # fp16 bits; those of NaN and of negative numbers are higher


class Int4(Codec):
    info = codec_info.INT4

    def _size(self, name: str, shape: tuple[int, ...], plan: Plan) -> int:
        return part_size(shape, plan.level)

    def _encode(
        self, name: str, tensor: np.ndarray, plan: Plan, out: np.ndarray, previous: tuple[np.ndarray, Plan] | None
    ) -> None:
        encode_part(name, tensor, plan.level, out)

    def _in_blocks(self, name: str, shape: tuple[int, ...], plan: Plan, out: np.ndarray) -> Encoder | None:
        return Packer(name, shape, plan.level, out)

    def decoder(self, name: str, data: np.ndarray, shape: tuple[int, ...], plan: Plan) -> Decoder:
        return Groups(name, data, shape, plan.level)

    def evidence(self, shape: tuple[int, ...], plan: Plan, data: np.ndarray, index: int) -> list[slice]:
        scale, code = 2 * (index // GROUP), 2 * _groups(shape) + index * plan.level // 8
        return [slice(scale, scale + 2), slice(code, code + 1)]


def part_size(shape: tuple[int, ...], bits: int) -> int:
    """The bytes of a tensor's part."""
    return _groups(shape) * (2 + GROUP * bits // 8)


def encode_part(name: str, tensor: np.ndarray, bits: int, out: np.ndarray) -> None:
    """Fill a tensor's part (uint8) from contiguous float32. Raises CodecError."""
    packer, flat = Packer(name, tuple(tensor.shape), bits, out), tensor.reshape(-1)
    for start, length in spans(len(flat), packer.block):
        packer.take(flat[start : start + length], start)


class Packer(Encoder):
    """A tensor's part (uint8) of the right size, to be filled."""

    block = _BLOCK * GROUP

    def __init__(self, name: str, shape: tuple[int, ...], bits: int, out: np.ndarray) -> None:
        groups = _groups(shape)
        self._name, self._bits = name, bits
        self._scales = out[: 2 * groups].reshape(groups, 2)
        self._packed = out[2 * groups :].reshape(groups, GROUP * bits // 8)

    def take(self, values: np.ndarray, start: int) -> None:
        first, whole = start // GROUP, len(values) // GROUP
        rest = len(values) - whole * GROUP
        if whole:
            self._take(values[: whole * GROUP].reshape(whole, GROUP), first)
        if rest:
            last = np.zeros((1, GROUP), np.float32)
            last[0, :rest] = values[whole * GROUP :]
            self._take(last, first + whole)

    def _take(self, values: np.ndarray, first: int) -> None:
        """Groups [n, 128] from number `first` on."""
        here, bits = slice(first, first + len(values)), self._bits
        codes = scratch("codes", values.size).reshape(values.shape)
        np.abs(values, out=codes)
        # Sizes are ordered like their bits, and NaN above all.
        largest = codes.view(np.int32).max(axis=1).view(np.float32)
        scale = _scales(self._name, largest, bits)
        factors = scale.astype(np.float32)[:, None]
        # A group too small for any scale becomes zero: error feedback keeps it.
        np.divide(values, np.where(factors == 0, np.float32(np.inf), factors), out=codes)
        np.rint(codes, out=codes)
        top = np.float32(2 ** (bits - 1) - 1)
        if (largest > factors[:, 0] * (top + np.float32(0.25))).any():  # not below: rounding makes no code of that
            np.clip(codes, -top, top, out=codes)
        self._scales[here] = scale.astype("<f2").view(np.uint8).reshape(-1, 2)
        self._packed[here] = pack(codes.astype(np.int8), bits)


class Groups(Decoder):
    """A tensor's part (uint8) that has the right size."""

    block = _BLOCK * GROUP

    def __init__(self, name: str, data: np.ndarray, shape: tuple[int, ...], bits: int) -> None:
        groups = _groups(shape)
        self._name, self._bits = name, bits
        self._scales = data[: 2 * groups].view("<u2")
        self._packed = data[2 * groups :].reshape(groups, GROUP * bits // 8)

    def into(self, out: np.ndarray, start: int) -> None:
        table, groups = _TABLES[self._bits], -(-len(out) // GROUP)
        scales, words, _ = self._checked(start, groups)
        whole = len(out) == groups * GROUP
        values = out if whole else scratch("last values", groups * GROUP)
        np.take(table.values, words.reshape(-1), out=values.view(table.values.dtype), mode="clip")
        rows = values.reshape(groups, GROUP)
        np.multiply(rows, scales[:, None], out=rows)
        if not whole:
            self._check_padding(values[len(out) :])
            out[...] = values[: len(out)]

    def square(self, start: int, length: int) -> float:
        groups = -(-length // GROUP)
        scales, _, facts = self._checked(start, groups)
        if length < groups * GROUP:
            self.into(scratch("block", length), start)
        facts >>= _SQUARE
        wide = scales.astype(np.float64)
        return float((wide * wide) @ facts.sum(axis=1, dtype=facts.dtype))  # of codes: whole numbers

    def _checked(self, start: int, groups: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scales [groups], words [groups, n] and what the table says of each of so many groups. Raises CodecError."""
        table, first = _TABLES[self._bits], start // GROUP
        scale_bits = self._scales[first : first + groups]
        if (scale_bits >= INFINITE).any():  # infinite, NaN or negative
            raise CodecError(f"{self._name}: {faults(self._bits)[0]}")
        scales = scale_bits.astype(np.uint16).view(np.float16).astype(np.float32)
        packed = self._packed[first : first + groups].view(table.word)
        words = scratch("words", packed.size, np.intp).reshape(packed.shape)
        words[...] = packed
        facts = scratch("facts", packed.size, table.facts.dtype).reshape(packed.shape)
        np.take(table.facts, words, out=facts, mode="clip")
        seen = np.bitwise_or.reduce(facts.view(np.uint64), axis=1)  # several words at once
        seen = np.bitwise_or.reduce(seen.view(facts.dtype).reshape(groups, -1), axis=1) & _FLAGS
        live = scales != 0
        if (seen & _HAS_UNUSED).any():
            raise CodecError(f"{self._name}: {faults(self._bits)[1]}")
        if ((seen & _HAS_LARGEST != 0) != live).any() or seen[~live].any():
            raise CodecError(f"{self._name}: {faults(self._bits)[2]}")
        return scales, words, facts

    def _check_padding(self, values: np.ndarray) -> None:
        if values.any():
            raise CodecError(f"{self._name}: {faults(self._bits)[3]}")


def faults(bits: int) -> tuple[str, str, str, str]:
    """What may be wrong with a part."""
    return (
        "a scale is negative or not finite",
        f"a code is {-(2 ** (bits - 1))}",
        "a group is neither zero nor scaled to its largest code",
        "the padding is not zero",
    )


_HAS_UNUSED, _HAS_LARGEST, _HAS_ANY, _FLAGS = 1, 2, 4, 7
_SQUARE = 3  # the bits from this one on: the sum of the codes' squares


class _Table:
    """What each word of packed codes holds: its values, all of them as one item, and facts for check and norm."""

    def __init__(self, bits: int) -> None:
        self.word = np.dtype("<u2") if bits == 4 else np.dtype("u1")  # four values at a time, at 8 bits one
        words = (
            np.arange(2 ** (8 * self.word.itemsize)).astype(self.word).view(np.uint8).reshape(-1, self.word.itemsize)
        )
        codes = CODES[bits][words].reshape(len(words), -1)
        item = np.complex128 if codes.shape[1] == 4 else np.float32
        self.values = np.ascontiguousarray(codes, np.float32).view(item).reshape(-1)
        facts = UNUSED[bits][words].any(axis=1) * _HAS_UNUSED
        facts |= LARGEST[bits][words].any(axis=1) * _HAS_LARGEST
        facts |= codes.any(axis=1) * _HAS_ANY
        facts = facts | np.square(codes.astype(int)).sum(axis=1) << _SQUARE
        self.facts = facts.astype(np.uint32 if bits == 8 else np.uint16)  # also the sum over a group


_TABLES = {bits: _Table(bits) for bits in codec_info.INT4.levels}


def _groups(shape: tuple[int, ...]) -> int:
    return -(-count(shape) // GROUP)


def _scales(name: str, largest: np.ndarray, bits: int) -> np.ndarray:
    """An fp16 scale for each group whose largest size is `largest` [groups]."""
    with np.errstate(over="ignore"):
        highest = largest / np.float32(2 ** (bits - 1) - 1)
        # Among the coarse fp16 numbers near zero the lower one: with the higher the largest code might not be reached.
        highest = np.where(highest < _NORMAL, np.floor(highest / _STEP) * _STEP, highest).astype(np.float16)
        if not np.isfinite(highest).all():
            raise too_large(name)
        return highest
