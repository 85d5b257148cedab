import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlx.training.codecs import CodecError, codec
from dlx.training.models import weights
from dlx.training.recipe.recipe import Plan

TERNARY = codec("ternary")
PLAN = Plan(level=2)
ONE, HALF = 0x3C00, 0x3800  # fp16 bits of 1.0 and 0.5


def _payload(scales: list[int], codes: list[int]) -> bytes:
    """One tensor's payload: fp16 scales by their bits; codes -1, 0 and 1, five to a byte."""
    digits = [code % 3 for code in codes] + [0] * (-len(codes) % 5)
    packed = [sum(digit * 3**at for at, digit in enumerate(digits[low : low + 5])) for low in range(0, len(digits), 5)]
    return np.array(scales, "<u2").tobytes() + bytes(packed)


def _decode(payload: bytes, count: int) -> torch.Tensor:
    return TERNARY.decode(payload, {"w": (count,)}, PLAN)["w"]


def test_bytes_are_the_documented_ones() -> None:
    values = torch.zeros(647)
    values[:5], values[640:] = torch.tensor([0.5, -0.5, 0.0, 0.5, 0.02]), -1
    payload = TERNARY.encode({"w": values}, PLAN)
    assert payload == _payload([HALF, ONE], [1, -1, 0, 1, 0] + [0] * 635 + [-1] * 7)
    assert len(payload) == TERNARY.size({"w": (647,)}, PLAN) == 4 + 130
    assert payload[4] == 1 + 2 * 3 + 27
    assert _decode(payload, 647)[:5].tolist() == [0.5, -0.5, 0, 0.5, 0]
    assert _decode(payload, 647)[640:].tolist() == [-1] * 7


def test_a_value_takes_a_bit_and_five_eighths() -> None:
    assert 8 * TERNARY.size({"w": (1000, 640)}, PLAN) == 1.625 * 640_000
    assert TERNARY.size({"a": (1,), "b": (), "c": (0,), "d": (128,)}, PLAN) == 3 + 3 + 2 + 26


def test_the_scale_is_the_mean_size_of_what_is_sent() -> None:
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 640)).astype(np.float32))
    decoded = _decode(TERNARY.encode({"w": values.view(-1)}, PLAN), values.numel()).view(50, 640)
    for group, sent in zip(values, decoded, strict=True):
        sizes = group.abs()
        scale = sizes[sizes >= 0.61 * sizes.square().mean().sqrt()].mean()
        own = sent.abs().max()
        assert own == pytest.approx(float(scale), rel=5e-4)
        assert torch.equal(sent, torch.where(sizes > own / 2, own.copysign(group), 0))
    assert (decoded - values).norm() < 0.44 * values.norm()  # the best that three levels can do is 0.436


def test_decoding_gives_the_golden_bits() -> None:
    bits = np.frombuffer(hashlib.shake_128(b"golden").digest(6 + 2 * 128 + 3), np.uint8)
    packed = bits[6:] % 243
    packed[-1] %= 27  # three values
    scales = (bits[:6].view("<u2") % 0x7C00).astype("<u2")
    decoded = _decode(scales.tobytes() + packed.tobytes(), 1280 + 13)
    digest = weights.weights_hash({"w": decoded}).hex()
    assert digest == "f3c95383a71b9bea409d650d6cff8f719c52253a399424a5ced13f6a77459fc6"


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (_payload([0x7C00], [1] * 8), "negative or not finite"),
        (_payload([0x7E00], [1] * 8), "negative or not finite"),
        (_payload([0x8000], [0] * 8), "negative or not finite"),
        (_payload([0xBC00], [1] * 8), "negative or not finite"),
        (_payload([0], [0] * 7 + [1]), "neither zero nor scaled"),
        (_payload([ONE], [0] * 8), "neither zero nor scaled"),
        (_payload([ONE], [1] * 9), "padding is not zero"),
        (np.array([ONE], "<u2").tobytes() + bytes([243, 1]), "a byte is 243 or more"),
        (np.array([ONE], "<u2").tobytes() + bytes([1, 255]), "padding is not zero"),
    ],
)
def test_refuses_what_it_would_never_make(payload: bytes, reason: str) -> None:
    with pytest.raises(CodecError, match=f"w: .*{reason}"):
        _decode(payload, 8)


def test_a_fault_is_found_in_every_group_and_in_the_norm_too() -> None:
    values = torch.from_numpy(np.random.default_rng(1).normal(size=300 * 640 + 77).astype(np.float32))
    good = TERNARY.encode({"w": values}, PLAN)
    for place in (2 * 301, 2 * 301 + 130 * 128, len(good) - 2):
        bad = bytearray(good)
        bad[place] = 243
        decoder = TERNARY.decoder("w", np.frombuffer(bytes(bad), np.uint8), (len(values),), PLAN)
        with pytest.raises(CodecError, match="a byte is 243 or more"):
            _decode(bytes(bad), len(values))
        with pytest.raises(CodecError, match="a byte is 243 or more"):
            decoder.square(0, len(values))
    decoded = _decode(good, len(values)).double()
    decoder = TERNARY.decoder("w", np.frombuffer(good, np.uint8), (len(values),), PLAN)
    assert decoder.square(0, len(values)) == pytest.approx(float(decoded @ decoded), rel=1e-12)


@pytest.mark.parametrize("value", [2**-149, 1e-30, 0.5 * 2**-24, 0.51 * 2**-24, 1.5 * 2**-24, 65504.0])
def test_the_smallest_and_largest_values_have_a_payload(value: float) -> None:
    tensor = torch.full((130,), value)
    tensor[::3] *= -0.9
    decoded = _decode(TERNARY.encode({"w": tensor}, PLAN), 130)
    assert (decoded - tensor).abs().max() <= max(2**-24, value * 0.11)


@given(st.integers(1, 1300), st.integers(0, 2**32))
def test_a_payload_decodes_to_what_encodes_to_it(count: int, seed: int) -> None:
    numbers = np.random.default_rng(seed)
    values = numbers.standard_normal(count) * 10.0 ** numbers.uniform(-9, 4, count // 640 + 1).repeat(640)[:count]
    payload = TERNARY.encode({"w": torch.from_numpy(values.astype(np.float32))}, PLAN)
    decoded = _decode(payload, count)
    assert TERNARY.encode({"w": decoded}, PLAN) == payload
    for place in range(len(payload)):
        changed = bytearray(payload)
        changed[place] ^= 1 << seed % 8
        try:
            other = _decode(bytes(changed), count)
        except CodecError:
            continue
        assert not torch.equal(other, decoded)
