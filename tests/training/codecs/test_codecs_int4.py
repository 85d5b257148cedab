import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dlx.training.codecs import CodecError, codec
from dlx.training.models import weights
from dlx.training.recipe.recipe import Plan

PLAN = Plan()
INT4 = codec("int4")
SHAPES: dict[str, tuple[int, ...]] = {"b": (3, 50), "a": (128,), "scalar": (), "empty": (0, 5)}


def _random(seed: int, shapes: dict[str, tuple[int, ...]] = SHAPES, size: float = 1e-3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) * size for name, shape in shapes.items()}


def _payload(scales: list[int], nibbles: list[int]) -> bytes:
    """One tensor's payload: fp16 scales by their bits, values -8..7, zero up to whole groups."""
    values = np.array(nibbles + [0] * (128 * len(scales) - len(nibbles))).astype(np.int8).view(np.uint8) & 15
    return np.array(scales, "<u2").tobytes() + (values[0::2] | (values[1::2] << 4)).astype(np.uint8).tobytes()


ONE, HALF = 0x3C00, 0x3800  # fp16 bits of 1.0 and 0.5


def test_bytes_are_the_documented_ones() -> None:
    values = {"z": torch.tensor([7.0, -1.0, 0.4, 3.0]), "a": torch.full((129,), -3.5)}
    payload = INT4.encode(values, PLAN)
    first = _payload([HALF, HALF], [-7] * 129)
    assert payload == first + _payload([ONE], [7, -1, 0, 3])
    decoded = INT4.decode(payload, {"z": (4,), "a": (129,)}, PLAN)
    assert decoded["z"].tolist() == [7, -1, 0, 3]
    assert decoded["a"].tolist() == [-3.5] * 129


@given(st.integers(0, 2**32), st.floats(1e-12, 1e3))
def test_values_are_right_to_half_a_step(seed: int, size: float) -> None:
    values = _random(seed, size=size)
    payload = INT4.encode(values, PLAN)
    decoded = INT4.decode(payload, SHAPES, PLAN)
    assert len(payload) == INT4.size(SHAPES, PLAN) == 66 * (1 + 2 + 1 + 0)
    for name, tensor in values.items():
        assert decoded[name].shape == tensor.shape and decoded[name].dtype == torch.float32
        largest = tensor.abs().max().item() if tensor.numel() else 0.0
        # fp16 has no number between 0 and 6e-8: the largest of seven codes may lose that seven times
        assert torch.all((decoded[name] - tensor).abs() <= largest / 7 * 0.501 + 7 * 6e-8)
    assert INT4.encode(decoded, PLAN) == payload or size < 1e-4  # what fits the grid is kept as it is


def test_decoding_gives_the_golden_bits() -> None:
    bits = np.frombuffer(hashlib.shake_128(b"golden").digest(66 * 9), np.uint8).copy()
    nibbles = [int(bit) % 15 - 7 for bit in bits[18:]]
    nibbles += [int(bit) // 16 % 15 - 7 for bit in bits[18:]]
    nibbles = nibbles[:1100]
    scales = [max(1, int(bit) * 121) for bit in bits[:9]]
    decoded = INT4.decode(_payload(scales, nibbles), {"w": (11, 100)}, PLAN)
    assert weights.weights_hash(decoded).hex() == "fd03de644f09d9267c3a29c061601c6c75e034743cb4f43ce077990ab6c3bd9c"


@given(st.integers(0, 2**32), st.integers(min_value=0))
def test_a_flipped_bit_is_refused_or_means_something_else(seed: int, bit: int) -> None:
    payload = bytearray(INT4.encode(_random(seed), PLAN))
    before = INT4.decode(payload, SHAPES, PLAN)
    bit %= 8 * len(payload)
    payload[bit // 8] ^= 1 << bit % 8
    try:
        after = INT4.decode(payload, SHAPES, PLAN)
    except CodecError:
        return
    assert any(not torch.equal(before[name], after[name]) for name in SHAPES)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "expected 66 bytes, got 0"),
        (_payload([ONE], [1])[:-1], "expected 66 bytes, got 65"),
        (_payload([ONE], [1]) + b"\0", "expected 66 bytes, got 67"),
        (_payload([0x7C00], [1]), "negative or not finite"),
        (_payload([0x7E00], [1]), "negative or not finite"),
        (_payload([0x8000], []), "negative or not finite"),
        (_payload([0xBC00], [1]), "negative or not finite"),
        (_payload([ONE], [1, -8]), "a code is -8"),
        (_payload([ONE], [-8, 1]), "a code is -8"),
        (_payload([0], [7]), "neither zero nor scaled"),
        (_payload([0], [1]), "neither zero nor scaled"),
        (_payload([ONE], []), "neither zero nor scaled"),
        (_payload([ONE], [2, -4, 6]), "neither zero nor scaled"),
        (_payload([ONE], [7] * 101), "padding is not zero"),
    ],
    ids=[
        "empty",
        "short",
        "long",
        "inf",
        "nan",
        "-0",
        "negative",
        "low -8",
        "high -8",
        "no scale",
        "no scale for a small code",
        "no values",
        "half the codes",
        "padding",
    ],
)
def test_refuses_what_it_would_never_make(payload: bytes, reason: str) -> None:
    with pytest.raises(CodecError, match=reason):
        INT4.decode(payload, {"w": (100,)}, PLAN)


def test_long_tensors_are_decoded_block_by_block() -> None:
    values = _random(0, {"w": (1030, 129)})
    decoded = INT4.decode(INT4.encode(values, PLAN), {"w": (1030, 129)}, PLAN)
    assert (decoded["w"] - values["w"]).abs().max() < 5e-4
    bad = bytearray(INT4.encode(values, PLAN))
    bad[-70] = 0x88  # past the first blocks
    with pytest.raises(CodecError, match="a code is -8"):
        INT4.decode(bad, {"w": (1030, 129)}, PLAN)


def _groups(level: int, scales: list[int], codes: list[int]) -> bytes:
    """One tensor's payload at 8 bits: fp16 scales by their bits, codes, zero up to whole groups."""
    padded = codes + [0] * (128 * len(scales) - len(codes))
    number = sum((code % 2**level) << (level * index) for index, code in enumerate(padded))
    return np.array(scales, "<u2").tobytes() + number.to_bytes(16 * level * len(scales), "little")


def test_eight_bits_have_the_documented_bytes() -> None:
    eight = INT4.encode({"w": torch.tensor([63.5, -63.5, 1.0, 0.2])}, Plan(level=8))
    assert eight == _groups(8, [HALF], [127, -127, 2, 0])
    assert INT4.decode(eight, {"w": (4,)}, Plan(level=8))["w"].tolist() == [63.5, -63.5, 1, 0]


@pytest.mark.parametrize(("level", "lost"), [(4, 0.13), (8, 0.008)])
def test_more_bits_lose_less(level: int, lost: float) -> None:
    values, plan = _random(0, {"w": (100, 128)}), Plan(level=level)
    payload = INT4.encode(values, plan)
    assert len(payload) == INT4.size({"w": (100, 128)}, plan) == 100 * (2 + 16 * level)
    decoded = INT4.decode(payload, {"w": (100, 128)}, plan)["w"]
    assert (decoded - values["w"]).norm() < lost * values["w"].norm()
    assert INT4.encode({"w": decoded}, plan) == payload


@pytest.mark.parametrize(
    ("level", "payload", "reason"),
    [
        (8, _groups(8, [ONE], [1, -128]), "a code is -128"),
        (8, _groups(8, [0], [1]), "neither zero nor scaled"),
        (8, _groups(8, [ONE], []), "neither zero nor scaled"),
        (8, _groups(8, [ONE], [127] * 101), "padding is not zero"),
        (8, _groups(8, [0x8000], [1]), "negative or not finite"),
    ],
)
def test_eight_bits_have_one_form(level: int, payload: bytes, reason: str) -> None:
    with pytest.raises(CodecError, match=reason):
        INT4.decode(payload, {"w": (100,)}, Plan(level=level))


@pytest.mark.parametrize("value", [2**-149, 1e-30, 0.5 * 2**-24, 0.51 * 2**-24, 1.5 * 2**-24, 65504.0])
@pytest.mark.parametrize("level", [4, 8])
def test_the_smallest_and_largest_values_have_a_payload(level: int, value: float) -> None:
    tensor = torch.full((130,), value)
    tensor[::3] *= -0.9
    decoded = INT4.decode(INT4.encode({"w": tensor}, Plan(level=level)), {"w": (130,)}, Plan(level=level))
    assert (decoded["w"] - tensor).abs().max() <= max(2**-24 * (2 ** (level - 1)), value * 0.11)
