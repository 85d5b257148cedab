import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlx.training.codecs import CodecError, codec
from dlx.training.models import weights
from dlx.training.recipe.recipe import Plan

TOPK = codec("topk")
PLAN = Plan(level=2, rank=32)
ONE, TWO = 0x3C00, 0x4000  # fp16 bits
FILLED = list(range(32))


def _payload(magnitudes: list[int], places: list[int], codes: list[int], count: int = 4096) -> bytes:
    """One tensor's payload: fp16 magnitudes by their bits, low and high of each chunk. Then ascending places of 32
    values in a chunk, of fewer in a last one, 7 bits of each as they are; codes 0..3."""
    marks, lows = b"", sum((place & 127) << (7 * at) for at, place in enumerate(places))
    for first in range(0, len(places), 32):
        chunk, length = places[first : first + 32], min(4096, count - 128 * first)
        row = sum(1 << ((place >> 7) + at) for at, place in enumerate(chunk))
        marks += row.to_bytes(-(-(len(chunk) + (length - 1 >> 7)) // 8), "little")
    values = sum(code << (2 * at) for at, code in enumerate(codes))
    packed = lows.to_bytes(-(-7 * len(places) // 8), "little") + values.to_bytes(-(-len(codes) // 4), "little")
    return np.array(magnitudes, "<u2").tobytes() + marks + packed


def _decode(payload: bytes, count: int = 4096) -> torch.Tensor:
    return TOPK.decode(payload, {"w": (count,)}, PLAN)["w"]


def test_the_layout_is_the_documented_one() -> None:
    places = [0, 1, 2, *range(100, 128), 4095]
    codes = [0, 1, 2, *[3] * 29]
    payload = _payload([ONE, TWO], places, codes)
    assert len(payload) == TOPK.size({"w": (4096,)}, PLAN) == 4 + 8 + 28 + 8
    decoded = _decode(payload)
    expected = torch.zeros(4096)
    expected[places] = torch.tensor([1.0, 2.0, -1.0, *[-2.0] * 29])
    assert torch.equal(decoded, expected)
    assert TOPK.encode({"w": expected}, PLAN) == payload


def test_a_short_chunk_keeps_its_share() -> None:
    assert TOPK.size({"w": (4096 + 129,)}, PLAN) == 2 * 4 + 8 + 1 + 30 + 9  # 32 + 2 values
    assert TOPK.size({"a": (1,), "b": (), "c": (0,)}, PLAN) == 2 * (4 + 1 + 1 + 1)
    values = torch.zeros(4096 + 129)
    values[:40], values[-3:] = torch.arange(1.0, 41), torch.tensor([0.5, -8.0, 8.0])
    decoded = TOPK.decode(TOPK.encode({"w": values}, PLAN), {"w": (4225,)}, PLAN)["w"]
    assert torch.equal(decoded.nonzero().view(-1), torch.tensor([*range(8, 40), 4223, 4224]))
    assert decoded[-2:].tolist() == [-8, 8]


def test_the_largest_are_kept_at_the_means_of_the_large_and_the_small() -> None:
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(7, 4096)).astype(np.float32))
    decoded = TOPK.decode(TOPK.encode({"w": values}, PLAN), {"w": (7, 4096)}, PLAN)["w"]
    for chunk, sent in zip(values, decoded, strict=True):
        kept = chunk.abs().topk(32).indices.sort().values
        assert torch.equal(sent.nonzero().view(-1), kept)
        sizes = chunk[kept].abs()
        high = sizes > sizes.mean()
        means = torch.where(high, sizes[high].mean(), sizes[~high].mean())
        assert torch.allclose(sent[kept], means.copysign(chunk[kept]), rtol=1e-3)


def test_equal_sizes_are_exact_and_the_first_of_them_kept() -> None:
    values = torch.full((4096,), -0.5)
    decoded = _decode(TOPK.encode({"w": values}, PLAN))
    assert torch.equal(decoded.nonzero().view(-1), torch.arange(32)) and (decoded[:32] == -0.5).all()
    few = torch.zeros(4096)
    few[[5, 4000]] = torch.tensor([3.0, -3.0])
    payload = TOPK.encode({"w": few}, PLAN)
    assert torch.equal(_decode(payload), few)
    assert payload == _payload([0, 0x4200], [*range(31), 4000], [0] * 5 + [1] + [0] * 25 + [3])


def test_decoding_gives_the_golden_bits() -> None:
    steps = np.frombuffer(hashlib.shake_128(b"golden").digest(2 * 34), np.uint8)
    places = [*np.cumsum(steps[:32].astype(int) % 120 + 1).tolist(), 3, 128]
    codes = [0, 1, *(steps[36:66] % 4).tolist(), 0, 3]
    decoded = _decode(_payload([0x0001, 0x1234, 0x3555, 0x7BFF], places, codes, 4096 + 129), 4096 + 129)
    digest = weights.weights_hash({"w": decoded}).hex()
    assert digest == "72f32c360dd9dc949e6203614c1fc5e010602fcc890d854d864e17eb9b805239"


@pytest.mark.parametrize(
    ("magnitudes", "places", "codes", "reason"),
    [
        ([ONE, 0x7C00], FILLED, [0] * 16 + [1] * 16, "negative or not finite"),
        ([ONE, 0x7E01], FILLED, [0] * 16 + [1] * 16, "negative or not finite"),
        ([0x8000, ONE], FILLED, [1] * 32, "negative or not finite"),
        ([ONE, 0xBC00], FILLED, [0] * 16 + [1] * 16, "negative or not finite"),
        ([TWO, ONE], FILLED, [0] * 16 + [1] * 16, "low is not below high"),
        ([ONE, ONE], FILLED, [0] * 16 + [1] * 16, "low is not below high"),
        ([ONE, 0], FILLED, [0] * 32, "low is not below high"),
        ([ONE, TWO], [1, 0, *range(2, 32)], [0] * 16 + [1] * 16, "not ascending"),
        ([ONE, TWO], [0, 0, *range(2, 32)], [0] * 16 + [1] * 16, "not ascending"),
        ([ONE, TWO], FILLED, [0] * 32, "a magnitude is not used"),
        ([ONE, TWO], FILLED, [1] * 32, "a magnitude is not used"),
        ([0, 0], FILLED, [1] + [0] * 31, "used and zero"),
        ([0, TWO], FILLED, [0] * 32, "a magnitude is not used"),
        ([0, TWO], FILLED, [2] + [1] * 31, "not one of the first"),
        ([0, TWO], [*range(31), 99], [1] * 31 + [0], "not one of the first"),
        ([0, 0], [*range(31), 99], [0] * 32, "not one of the first"),
    ],
)
def test_refuses_what_it_would_never_make(
    magnitudes: list[int], places: list[int], codes: list[int], reason: str
) -> None:
    with pytest.raises(CodecError, match=f"w: .*{reason}"):
        _decode(_payload(magnitudes, places, codes))


def test_places_stay_inside_a_short_chunk_and_padding_is_zero() -> None:
    good = [[0, ONE], [77], [1], 78]  # one value of at most 128
    assert _decode(_payload(*good), 78)[77] == 1
    with pytest.raises(CodecError, match="outside their chunk"):
        _decode(_payload(*good), 77)
    for place in (-2, -1):  # the last bytes of low bits and of values
        payload = bytearray(_payload(*good))
        payload[place] |= 0x80
        with pytest.raises(CodecError, match="padding is not zero"):
            _decode(bytes(payload), 78)


@pytest.mark.parametrize(
    ("marks", "reason"),
    [
        (0, "a chunk has not 32 marks"),
        (2**31 - 1, "a chunk has not 32 marks"),
        (2**33 - 1, "a chunk has not 32 marks"),
        (2**64 - 1, "a chunk has not 32 marks"),
        (2**31 - 1 | 1 << 63, "outside their chunk"),  # the bit that a full chunk has left over
        (2**31 - 1 | 1 << 31, "not ascending"),  # all places below 128, and all low bits zero
    ],
)
def test_a_chunk_has_a_mark_for_each_place_and_none_beyond_its_last(marks: int, reason: str) -> None:
    payload = bytearray(_payload([ONE, TWO], [0] * 32, [0] * 16 + [1] * 16))
    payload[4:12] = marks.to_bytes(8, "little")
    if reason != "not ascending":
        payload[12:40] = sum(at << (7 * at) for at in range(32)).to_bytes(28, "little")
    with pytest.raises(CodecError, match=f"w: .*{reason}"):
        _decode(bytes(payload))


@pytest.mark.parametrize(("rank", "bits"), [(32, 12.0), (64, 10.5), (100, 9.7), (128, 9.25), (181, 8.7), (256, 8.2)])
def test_a_payload_is_near_the_entropy_of_its_places(rank: int, bits: float) -> None:
    values = torch.from_numpy(np.random.default_rng(0).normal(size=16 * 4096).astype(np.float32))
    plan, share = Plan(level=2, rank=rank), rank / 4096
    payload = TOPK.encode({"w": values}, plan)
    assert 8 * len(payload) <= bits * 16 * rank
    entropy = 4096 * -(share * np.log2(share) + (1 - share) * np.log2(1 - share))
    assert 8 * len(payload) < 1.09 * 16 * (entropy + 2 * rank + 32)


def test_the_norm_is_that_of_the_decoded_values() -> None:
    values = torch.from_numpy(np.random.default_rng(0).normal(size=9 * 4096 + 77).astype(np.float32))
    data = np.frombuffer(TOPK.encode({"w": values}, PLAN), np.uint8)
    decoded = TOPK.decode_part("w", data, (len(values),), PLAN).astype(np.float64)
    assert TOPK.decoder("w", data, (len(values),), PLAN).square(0, len(values)) == pytest.approx(decoded @ decoded)


@given(st.integers(1, 5000), st.integers(32, 256), st.integers(0, 2**32))
def test_a_payload_decodes_to_what_encodes_to_it(count: int, rank: int, seed: int) -> None:
    numbers, plan = np.random.default_rng(seed), Plan(level=2, rank=rank)
    values = numbers.choice([0, 1, -1, 2], size=count, p=[0.9, 0.04, 0.03, 0.03]).astype(np.float32)
    payload = TOPK.encode({"w": torch.from_numpy(values)}, plan)
    decoded = TOPK.decode(payload, {"w": (count,)}, plan)
    assert TOPK.encode(decoded, plan) == payload
    for place in range(len(payload)):
        changed = bytearray(payload)
        changed[place] ^= 1 << seed % 8
        try:
            other = TOPK.decode(bytes(changed), {"w": (count,)}, plan)["w"]
        except CodecError:
            continue
        assert not torch.equal(other, decoded["w"])
