"""int4: four bits a value, one fp16 scale for each group of 128 values.

Layout, for each tensor in the order of names: its groups' scales (little-endian fp16), then its values as two's
complement nibbles, two a byte, the earlier one in the low half. A tensor is flattened and padded with zeros to whole
groups. There is no header: the shapes give the exact size. A value is its nibble (-7..7) times its group's scale.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.codecs import CodecError, CodecInfo
from training.manifest import Plan
from training.weights import Shapes

_GROUP = 128
_LARGEST = 7
_GROUP_BYTES = 2 + _GROUP // 2
_BLOCK = 1024  # groups decoded at a time: the temporaries stay in the cache

_NIBBLE = (np.arange(16) ^ 8) - 8
# For each byte its two values as float32, held as one 8-byte item so that one look-up gives both.
_PAIRS = np.stack([np.tile(_NIBBLE, 16), np.repeat(_NIBBLE, 16)], axis=1).astype(np.float32).view(np.uint64).ravel()
_HAS_MINUS_8 = (np.tile(_NIBBLE, 16) == -8) | (np.repeat(_NIBBLE, 16) == -8)


class Int4:
    info = CodecInfo(name="int4", decay=1.0)

    def encode(self, tensors: Mapping[str, Tensor], plan: Plan) -> bytes:
        return b"".join(part for name in sorted(tensors) for part in _encode(name, tensors[name]))

    def decode(self, data: Any, shapes: Shapes, plan: Plan) -> dict[str, Tensor]:
        payload = np.frombuffer(data, np.uint8)
        size = self.max_size(shapes, plan)
        if len(payload) != size:
            raise CodecError(f"payload: expected {size} bytes, got {len(payload)}")
        tensors, start = {}, 0
        for name in sorted(shapes):
            end = start + _GROUP_BYTES * _groups(shapes[name])
            tensors[name] = _decode(name, payload[start:end], shapes[name])
            start = end
        return tensors

    def max_size(self, shapes: Shapes, plan: Plan) -> int:
        """Every payload has exactly this size."""
        return sum(_GROUP_BYTES * _groups(shape) for shape in shapes.values())


def _groups(shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) // _GROUP)


def _encode(name: str, tensor: Tensor) -> tuple[bytes, bytes]:
    if tensor.dtype != torch.float32:
        raise CodecError(f"{name}: expected float32, got {tensor.dtype}")
    groups = _groups(tuple(tensor.shape))
    flat = tensor.detach().cpu().reshape(-1).numpy()
    scales = np.empty(groups, "<f2")
    nibbles = np.empty((groups, _GROUP // 2), np.uint8)
    for start in range(0, groups, _BLOCK):
        block = slice(start, start + _BLOCK)
        values = np.zeros((len(scales[block]), _GROUP), np.float32)
        part = flat[start * _GROUP : (start + _BLOCK) * _GROUP]
        values.reshape(-1)[: len(part)] = part
        scales[block], nibbles[block] = _quantise(name, values)
    return scales.tobytes(), nibbles.tobytes()


def _quantise(name: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """fp16 scales [groups] and packed nibbles [groups, 64] of float32 values [groups, 128], which are used up."""
    largest = np.abs(np.maximum(values.max(axis=1), -values.min(axis=1)))  # NaN if any value is; abs: never -0.0
    with np.errstate(over="ignore"):
        scales = (largest / np.float32(_LARGEST)).astype(np.float16)
    if not np.isfinite(scales).all():
        raise CodecError(f"{name}: holds a value that is not finite or too large for an fp16 scale")
    # A group too small for any scale becomes zero: the residual keeps it.
    values /= np.where(scales == 0, np.float32(np.inf), scales.astype(np.float32))[:, None]
    np.rint(values, out=values)
    np.clip(values, -_LARGEST, _LARGEST, out=values)
    nibbles = values.astype(np.int8).view(np.uint8)
    return scales, (nibbles[:, 0::2] & 15) | (nibbles[:, 1::2] << 4)


def _decode(name: str, data: np.ndarray, shape: tuple[int, ...]) -> Tensor:
    groups, count = _groups(shape), math.prod(shape)
    scale_bits = np.frombuffer(data[: 2 * groups].tobytes(), "<u2")
    if (scale_bits >= 0x7C00).any():  # infinite, NaN or negative
        raise CodecError(f"{name}: a scale is negative or not finite")
    scales = scale_bits.astype(np.uint16).view(np.float16).astype(np.float32)
    nibbles = data[2 * groups :].reshape(groups, _GROUP // 2)
    values = np.empty((groups, _GROUP), np.float32)
    for start in range(0, groups, _BLOCK):
        block = slice(start, start + _BLOCK)
        if _HAS_MINUS_8[nibbles[block]].any():
            raise CodecError(f"{name}: a nibble is -8")
        if (nibbles[block].any(axis=1) != (scales[block] != 0)).any():
            raise CodecError(f"{name}: a scale is zero and its values are not, or the other way round")
        np.take(_PAIRS, nibbles[block], out=values[block].view(np.uint64), mode="clip")
        values[block] *= scales[block, None]
    flat = values.reshape(-1)
    if flat[count:].any():
        raise CodecError(f"{name}: the padding is not zero")
    return torch.from_numpy(flat[:count]).view(shape)
