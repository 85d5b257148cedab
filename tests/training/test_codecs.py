import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from training import weights
from training.codecs import CodecError, codec
from training.manifest import Plan

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


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(CodecError, match="unknown codec 'zip': expected one of int4"):
        codec("zip")


def test_int4_bytes_are_the_documented_ones() -> None:
    values = {"z": torch.tensor([7.0, -1.0, 0.4, 3.0]), "a": torch.full((129,), -3.5)}
    payload = INT4.encode(values, PLAN)
    first = _payload([HALF, HALF], [-7] * 129)
    assert payload == first + _payload([ONE], [7, -1, 0, 3])
    decoded = INT4.decode(payload, {"z": (4,), "a": (129,)}, PLAN)
    assert decoded["z"].tolist() == [7, -1, 0, 3]
    assert decoded["a"].tolist() == [-3.5] * 129


@given(st.integers(0, 2**32), st.floats(1e-12, 1e3))
def test_int4_is_right_to_half_a_step(seed: int, size: float) -> None:
    values = _random(seed, size=size)
    payload = INT4.encode(values, PLAN)
    decoded = INT4.decode(payload, SHAPES, PLAN)
    assert len(payload) == INT4.max_size(SHAPES, PLAN) == 66 * (1 + 2 + 1 + 0)
    for name, tensor in values.items():
        assert decoded[name].shape == tensor.shape and decoded[name].dtype == torch.float32
        largest = tensor.abs().max().item() if tensor.numel() else 0.0
        # fp16 has no number between 0 and 6e-8: below that a step is as coarse
        assert torch.all((decoded[name] - tensor).abs() <= largest / 7 * 0.501 + 4 * 6e-8)
    assert INT4.encode(decoded, PLAN) == payload or size < 1e-4  # what fits the grid is kept as it is


def test_what_one_payload_rounds_off_the_next_ones_carry() -> None:
    """Error feedback: the sum of what was sent stays within one step of the sum of what was meant, for ever."""
    residual = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    meant = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    sent = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    for seed in range(50):
        gradient = _random(seed % 3, size=1e-7 if seed % 2 else 1e-2)
        update = {name: gradient[name] + residual[name] for name in gradient}
        decoded = INT4.decode(INT4.encode(update, PLAN), SHAPES, PLAN)
        residual = {name: update[name] - decoded[name] for name in update}
        for name in SHAPES:
            meant[name] += gradient[name]
            sent[name] += decoded[name]
    for name in ("a", "b", "scalar"):
        assert (meant[name] - sent[name]).abs().max() < 0.01
        assert meant[name].abs().max() > 0.1


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


@given(st.binary(min_size=198, max_size=198))
def test_random_bytes_are_refused_or_finite(data: bytes) -> None:
    try:
        decoded = INT4.decode(data, {"w": (300,)}, PLAN)
    except CodecError:
        return
    assert torch.isfinite(decoded["w"]).all()
    assert decoded["w"].abs().max() <= 7 * 65504


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
        (_payload([ONE], [1, -8]), "a nibble is -8"),
        (_payload([ONE], [-8, 1]), "a nibble is -8"),
        (_payload([0], [1]), "scale is zero and its values are not"),
        (_payload([ONE], []), "scale is zero and its values are not"),
        (_payload([ONE], [1] * 101), "padding is not zero"),
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
        "no values",
        "padding",
    ],
)
def test_int4_refuses_what_it_would_never_make(payload: bytes, reason: str) -> None:
    with pytest.raises(CodecError, match=reason):
        INT4.decode(payload, {"w": (100,)}, PLAN)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30, -4.6e5])
def test_values_without_a_payload_are_refused(value: float) -> None:
    tensor = torch.zeros(1000)
    tensor[777] = value
    with pytest.raises(CodecError, match="w: holds a value"):
        INT4.encode({"w": tensor}, PLAN)


def test_other_precisions_are_refused() -> None:
    with pytest.raises(CodecError, match="expected float32"):
        INT4.encode({"w": torch.zeros(3, dtype=torch.float64)}, PLAN)


def test_long_tensors_are_decoded_block_by_block() -> None:
    values = _random(0, {"w": (1030, 129)})
    decoded = INT4.decode(INT4.encode(values, PLAN), {"w": (1030, 129)}, PLAN)
    assert (decoded["w"] - values["w"]).abs().max() < 5e-4
    bad = bytearray(INT4.encode(values, PLAN))
    bad[-70] = 0x88
    with pytest.raises(CodecError, match="a nibble is -8"):
        INT4.decode(bad, {"w": (1030, 129)}, PLAN)
