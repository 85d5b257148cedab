"""Hostile payloads for every codec. `python -m tests.fuzz.codecs [libFuzzer options]` searches with atheris, guided by
coverage, until it is stopped; `one_input` is the target, which any other source of bytes can drive too."""

import sys

import numpy as np
import torch

if __name__ == "__main__":
    import atheris

    with atheris.instrument_imports(include=["dlx.training.codecs"]):
        import dlx.training.codecs  # noqa: F401  instrumented from here on

from dlx.training.codecs import CodecError, codec
from dlx.training.recipe.recipe import Plan

SHAPES: dict[str, tuple[int, ...]] = {"up_proj.weight": (24, 17), "norm.weight": (9,), "experts.down_proj": (3, 40, 34)}
PLANS = [
    *((codec("int4"), Plan(level=level)) for level in (4, 8)),
    (codec("ternary"), Plan(level=2)),
    *((codec("lowrank"), Plan(rank=rank)) for rank in (1, 3, 5)),
    *((codec("topk"), Plan(level=2, rank=rank)) for rank in (32, 256)),
]


def one_input(data: bytes) -> None:
    """The first byte chooses a codec, the second how the others become a payload. They are taken as they are, cut or
    filled up with zeros to the right size, or as changes (place, place, byte) of a payload that the codec made."""
    if len(data) < 2:
        return
    chosen, plan = PLANS[data[0] % len(PLANS)]
    size = chosen.size(SHAPES, plan)
    match data[1] % 3:
        case 0:
            payload = data[2:]
        case 1:
            payload = data[2:][:size].ljust(size, b"\0")
        case _:
            changed = bytearray(_GOOD[data[0] % len(PLANS)])
            for index in range(2, len(data) - 2, 3):
                changed[(data[index] << 8 | data[index + 1]) % size] ^= data[index + 2]
            payload = bytes(changed)
    on_device = codec(chosen.info.name, "cpu")
    try:
        decoded = chosen.decode(payload, SHAPES, plan)
    except CodecError:
        try:
            on_device.decode(payload, SHAPES, plan)
        except CodecError:
            return
        raise AssertionError("one implementation takes what the other refuses") from None
    again = on_device.decode_arrays(payload, SHAPES, plan)
    assert all(again[name].tobytes() == tensor.numpy().tobytes() for name, tensor in decoded.items())
    assert len(payload) == size
    for name, shape in SHAPES.items():
        tensor = decoded[name]
        assert tuple(tensor.shape) == shape and tensor.dtype == torch.float32
        assert torch.isfinite(tensor).all()
        assert not torch.signbit(tensor[tensor == 0]).any()  # a zero has one form too
    chosen.encode({name: tensor.clamp(-1e4, 1e4) for name, tensor in decoded.items()}, plan, (payload, plan))


def _good() -> list[bytes]:
    numbers = np.random.default_rng(1)
    tensors = {name: torch.from_numpy(numbers.normal(size=shape).astype(np.float32)) for name, shape in SHAPES.items()}
    return [chosen.encode(tensors, plan) for chosen, plan in PLANS]


_GOOD = _good()


if __name__ == "__main__":
    torch.set_num_threads(1)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
