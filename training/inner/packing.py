"""Hidden states and their gradients as the bytes that go from stage to stage, token by token.

`float32` and `bfloat16` (rounded to the nearest, halves to even) are the values themselves, little-endian. In `int8` a
token's values are 4 bytes of a float32 scale, then one code each: its largest absolute value is code 127 or -127.
Packing happens on the tensor's device, so that fewer bytes leave it.
"""

import math

import torch
from torch import Tensor

from dlx.training.models.transfers import to_device, to_host
from dlx.training.recipe.recipe import Packing, row_bytes

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def pack(tensor: Tensor, packing: Packing) -> memoryview:
    """Of a float32 tensor [..., width]; float32 in main memory is not copied."""
    values = tensor.detach()
    return (
        to_host(_quantised(values) if packing == "int8" else values.to(_DTYPES[packing]))
        .contiguous()
        .view(torch.uint8)
        .numpy()
        .data.cast("B")
    )


def unpack(data: bytearray, shape: tuple[int, ...], packing: Packing, device: str = "cpu") -> Tensor:
    """The float32 tensor of `shape` on the device; `data`, which has as many bytes as that takes, becomes its memory
    where nothing has to be converted. Codes and scales may be any: a scale that is no number gives values that are
    none."""
    *rows, width = shape
    packed = to_device(torch.frombuffer(data, dtype=torch.uint8), device).view(*rows, row_bytes(packing, width))
    if packing == "int8":
        scales = packed[..., :4].flatten().view(torch.float32).view(*rows, 1)
        return packed[..., 4:].view(torch.int8) * scales
    return packed.view(_DTYPES[packing]).to(torch.float32)


def packed_bytes(shape: tuple[int, ...], packing: Packing) -> int:
    *rows, width = shape
    return math.prod(rows) * row_bytes(packing, width)


def _quantised(values: Tensor) -> Tensor:
    scales = values.abs().amax(-1, keepdim=True) / 127
    # Where all are zero, or one is no number, the scale alone says so. The smallest scales are rounded a lot.
    sound = scales.isfinite() & (scales > 0)
    codes = torch.where(sound, values / torch.where(sound, scales, 1), 0).round_().clamp_(-127, 127).to(torch.int8)
    return torch.cat([scales.view(torch.uint8), codes.view(torch.uint8)], dim=-1)
