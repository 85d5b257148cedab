"""int4: four bits a value (the plan's level may also say 2 or 8), one fp16 scale for each group of 128 values.

Layout of a tensor's part: its groups' scales (little-endian fp16), then its values as two's complement codes of that
many bits, packed from the lowest bits of a byte up. A tensor is flattened and padded with zeros to whole groups. A
value is its code times its group's scale; the codes are -1..1, -7..7 or -127..127. So that a group has one form only,
scale and codes are all zero, or some code is at one of the two ends.
"""

import numpy as np

from dlx.training.codecs.base import Codec, CodecError, count, row_sums, too_large
from dlx.training.codecs.packing import CODES, LARGEST, UNUSED, pack
from dlx.training.recipe import codec_info
from dlx.training.recipe.recipe import Plan

_GROUP = 128
_BLOCK = 256  # groups worked on at a time: the temporaries stay in the cache

_NORMAL, _STEP = (np.float32(value) for value in (np.finfo(np.float16).tiny, np.finfo(np.float16).smallest_subnormal))

_VALUES = {bits: codes.astype(np.float32) for bits, codes in CODES.items()}


class Int4(Codec):
    info = codec_info.INT4

    def _size(self, name: str, shape: tuple[int, ...], plan: Plan) -> int:
        return part_size(shape, plan.level)

    def _encode(
        self, name: str, tensor: np.ndarray, plan: Plan, out: np.ndarray, previous: tuple[np.ndarray, Plan] | None
    ) -> None:
        encode_part(name, tensor, plan.level, out)

    def _decode(self, name: str, data: np.ndarray, shape: tuple[int, ...], plan: Plan) -> np.ndarray:
        return decode_part(name, data, shape, plan.level)


def part_size(shape: tuple[int, ...], bits: int) -> int:
    """The bytes of a tensor's part."""
    return _groups(shape) * (2 + _GROUP * bits // 8)


def encode_part(name: str, tensor: np.ndarray, bits: int, out: np.ndarray) -> None:
    """Fill a tensor's part (uint8) from contiguous float32. Raises CodecError."""
    groups = _groups(tuple(tensor.shape))
    flat = tensor.reshape(-1)
    scales, packed = out[: 2 * groups].reshape(groups, 2), out[2 * groups :].reshape(groups, _GROUP * bits // 8)
    values = np.empty((min(_BLOCK, groups), _GROUP), np.float32)
    codes = np.empty(values.shape, np.int8)
    for start in range(0, groups, _BLOCK):
        here = slice(start, min(start + _BLOCK, groups))
        block = values[: here.stop - start]
        part = flat[start * _GROUP : here.stop * _GROUP]
        block.reshape(-1)[: len(part)] = part
        block.reshape(-1)[len(part) :] = 0
        scale = _scales(name, block, bits)
        scales[here] = scale.astype("<f2").view(np.uint8).reshape(-1, 2)
        # A group too small for any scale becomes zero: the residual keeps it.
        block /= np.where(scale == 0, np.float32(np.inf), scale.astype(np.float32))[:, None]
        np.rint(block, out=block)
        largest = 2 ** (bits - 1) - 1
        np.clip(block, -largest, largest, out=block)
        np.copyto(codes[: len(block)], block, casting="unsafe")
        packed[here] = pack(codes[: len(block)], bits)


def decode_part(name: str, data: np.ndarray, shape: tuple[int, ...], bits: int) -> np.ndarray:
    """The float32 array of a part (uint8) that has the right size. Raises CodecError unless it is canonical."""
    groups = _groups(shape)
    scale_bits = np.frombuffer(data[: 2 * groups].tobytes(), "<u2")
    if (scale_bits >= 0x7C00).any():  # infinite, NaN or negative
        raise CodecError(f"{name}: a scale is negative or not finite")
    scales = scale_bits.astype(np.uint16).view(np.float16).astype(np.float32)
    packed = data[2 * groups :].reshape(groups, _GROUP * bits // 8)
    values = np.empty((groups, _GROUP), np.float32)
    for start in range(0, groups, _BLOCK):
        here = slice(start, start + _BLOCK)
        block = packed[here]
        if UNUSED[bits][block].any():
            raise CodecError(f"{name}: a code is {-(2 ** (bits - 1))}")
        live = scales[here] != 0
        if (LARGEST[bits][block].any(axis=1) != live).any() or block[~live].any():
            raise CodecError(f"{name}: a group is neither zero nor scaled to its largest code")
        table = _VALUES[bits]
        np.take(table, block, axis=0, out=values[here].reshape(*block.shape, table.shape[1]), mode="clip")
        values[here] *= scales[here, None]
    flat = values.reshape(-1)
    if flat[count(shape) :].any():
        raise CodecError(f"{name}: the padding is not zero")
    return flat[: count(shape)].reshape(shape)


def _groups(shape: tuple[int, ...]) -> int:
    return -(-count(shape) // _GROUP)


def _scales(name: str, values: np.ndarray, bits: int) -> np.ndarray:
    """An fp16 scale for each group of float32 values [groups, 128]."""
    largest = np.abs(np.maximum(values.max(axis=1), -values.min(axis=1)))  # NaN if any value is; abs: never -0.0
    with np.errstate(over="ignore"):
        highest = largest / np.float32(2 ** (bits - 1) - 1)
        # Among the coarse fp16 numbers near zero the lower one: with the higher the largest code might not be reached.
        highest = np.where(highest < _NORMAL, np.floor(highest / _STEP) * _STEP, highest).astype(np.float16)
        if not np.isfinite(highest).all():
            raise too_large(name)
        return highest if bits > 2 else np.minimum(_ternary(values).astype(np.float16), highest)


def _ternary(values: np.ndarray) -> np.ndarray:
    """For each group the mean size of those values that -1, 0 and 1 times it should not round to zero: the best for a
    normal distribution is 0.61 of the root mean square and more, and a group of one size keeps its size."""
    sizes = np.abs(values)
    root = np.sqrt(row_sums(sizes * sizes) / np.float32(_GROUP))
    sizes *= sizes >= np.float32(0.61) * root[:, None]
    return row_sums(sizes) / np.maximum(np.count_nonzero(sizes, axis=1), 1).astype(np.float32)
