"""What holds for every codec and plan."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dlx.training.codecs import CodecError, codec
from dlx.training.recipe.recipe import Codec, Plan
from dlx.training.recipe.soundness import _check_plan
from dlx.training.recipe.strict import ManifestError

SHAPES: dict[str, tuple[int, ...]] = {
    "layers.0.up_proj.weight": (60, 40),
    "layers.0.down_proj.weight": (33, 129),
    "layers.0.input_layernorm.weight": (150,),
    "embed_tokens.weight": (90, 48),
    "fc1.bias": (),
    "fc1.weight": (0, 5),
    "experts.down_proj": (3, 20, 24),
}
PLANS = [
    *(("int4", Plan(level=level)) for level in (4, 8)),
    ("ternary", Plan(level=2)),
    *(("lowrank", Plan(rank=rank)) for rank in (1, 3, 8, 40)),
    *(("topk", Plan(level=2, rank=rank)) for rank in (32, 256)),
]
every_plan = pytest.mark.parametrize(("name", "plan"), PLANS, ids=lambda value: getattr(value, "rank", value))
any_plan = st.sampled_from(PLANS)


def _random(seed: int, size: float = 1e-3) -> dict[str, Tensor]:
    """Reproducible values with directions that stand out, a heavy tail and many zeros."""
    numbers = np.random.default_rng(seed)
    tensors = {}
    for name, shape in SHAPES.items():
        values = numbers.standard_t(3, size=shape)
        if len(shape) == 2:
            values += 5 * numbers.normal(size=(shape[0], 1)) * numbers.normal(size=shape[1])
        values = values * (numbers.random(shape) < numbers.choice([0.02, 0.5, 1.0]))
        tensors[name] = torch.from_numpy(np.asarray((values * size).clip(-3e4, 3e4), np.float32))
    return tensors


def _equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in SHAPES)


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(CodecError, match="unknown codec 'zip': expected one of int4, lowrank, ternary, topk"):
        codec("zip")


@pytest.mark.parametrize("name", ["int4", "lowrank", "ternary", "topk"])
def test_a_codec_takes_the_plans_that_a_manifest_may_state(name: str) -> None:
    for level in range(2, 9):
        for rank in (0, 1, 31, 32, 33, 256, 257, 4096):
            plan = Plan(level=level, rank=rank)
            try:
                _check_plan(Codec(name), plan)  # type: ignore[arg-type]
            except ManifestError:
                with pytest.raises(CodecError, match=f"{name}: has no level {level} with rank {rank}"):
                    codec(name).decode(b"", SHAPES, plan)
            else:
                assert codec(name).size(SHAPES, plan) > 0


@given(any_plan, st.integers(0, 2**32), st.floats(1e-12, 1e3))
def test_error_feedback_loses_nothing(chosen: tuple[str, Plan], seed: int, size: float) -> None:
    """decode(payload) + residual is what was to be sent, to the rounding of float32."""
    name, plan = chosen
    update = _random(seed, size)
    payload = codec(name).encode(update, plan)
    assert len(payload) == codec(name).size(SHAPES, plan)
    decoded = codec(name).decode(payload, SHAPES, plan)
    for key, tensor in update.items():
        assert decoded[key].shape == tensor.shape and decoded[key].dtype == torch.float32
        residual = tensor - decoded[key]
        rounding = 2**-23 * torch.maximum(tensor.abs(), decoded[key].abs()) + 2**-149
        assert torch.all((decoded[key] + residual - tensor).abs() <= rounding)
        assert residual.norm() <= 1.001 * tensor.norm() + 1e-6  # what is sent is never worse than nothing


@every_plan
def test_what_one_payload_leaves_out_the_next_ones_carry(name: str, plan: Plan) -> None:
    """Sent again and again with error feedback, the sum of what arrives comes close to what was meant."""
    chosen, gradient = codec(name), _random(3)
    residual = {key: torch.zeros_like(tensor) for key, tensor in gradient.items()}
    sent = {key: torch.zeros_like(tensor) for key, tensor in gradient.items()}
    previous = None
    distances = []
    for rounds in range(1, 101):
        update = {key: gradient[key] + residual[key] for key in gradient}
        payload = chosen.encode(update, plan, previous)
        decoded = chosen.decode(payload, SHAPES, plan)
        residual = {key: update[key] - decoded[key] for key in update}
        sent = {key: sent[key] + decoded[key] for key in sent}
        previous = payload, plan
        lost = sum((sent[key] / rounds - gradient[key]).norm() ** 2 for key in sent)
        distances.append(float((lost / sum(tensor.norm() ** 2 for tensor in gradient.values())) ** 0.5))
    assert distances[-1] < 0.4 and distances[-1] < distances[9] / 2


@every_plan
def test_equal_input_gives_equal_bytes(name: str, plan: Plan) -> None:
    previous = codec(name).encode(_random(1), plan), plan
    first = codec(name).encode(_random(2), plan, previous)
    assert codec(name).encode(dict(reversed(_random(2).items())), plan, previous) == first
    assert codec(name).decode(memoryview(first), SHAPES, plan).keys() == SHAPES.keys()


@every_plan
def test_zeros_arrive_as_zeros(name: str, plan: Plan) -> None:
    zeros = {key: -torch.zeros(shape) for key, shape in SHAPES.items()}
    payload = codec(name).encode(zeros, plan)
    decoded = codec(name).decode(payload, SHAPES, plan)
    assert not any(tensor.any() or torch.signbit(tensor).any() for tensor in decoded.values())
    assert codec(name).encode(decoded, plan) == payload


@pytest.mark.parametrize("unfit", [(b"", Plan()), (b"\xff" * 99, Plan(level=2, rank=5))])
@every_plan
def test_a_previous_payload_that_does_not_fit_is_not_used(name: str, plan: Plan, unfit: tuple[bytes, Plan]) -> None:
    assert codec(name).encode(_random(1), plan, unfit) == codec(name).encode(_random(1), plan)


@given(any_plan, st.integers(0, 2**32), st.integers(min_value=0), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_changes_the_values(
    chosen: tuple[str, Plan], seed: int, place: int, change: int
) -> None:
    name, plan = chosen
    payload = bytearray(codec(name).encode(_random(seed), plan))
    before = codec(name).decode(payload, SHAPES, plan)
    payload[place % len(payload)] ^= change
    try:
        after = codec(name).decode(payload, SHAPES, plan)
    except CodecError:
        return
    assert not _equal(before, after)
    assert all(torch.isfinite(tensor).all() for tensor in after.values())


@every_plan
def test_a_wrong_size_is_refused_before_anything_is_allocated(name: str, plan: Plan) -> None:
    huge = {"layers.0.fc1.weight": (1 << 20, 1 << 20), "norm.weight": (1 << 30,)}
    tracemalloc.start()
    try:
        for data in (b"", b"\0" * 1000):
            with pytest.raises(CodecError, match=r"expected \d+ bytes, got"):
                codec(name).decode(data, huge, plan)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@every_plan
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_values_without_a_payload_are_refused(name: str, plan: Plan, value: float) -> None:
    for key in ("layers.0.up_proj.weight", "layers.0.input_layernorm.weight", "embed_tokens.weight"):
        tensors = _random(0)
        tensors[key].view(-1)[77] = value
        with pytest.raises(CodecError, match=f"{key}: holds a value that is not finite or too large"):
            codec(name).encode(tensors, plan)


@every_plan
def test_other_precisions_are_refused(name: str, plan: Plan) -> None:
    with pytest.raises(CodecError, match="expected float32"):
        codec(name).encode({"up_proj.weight": torch.zeros(3, dtype=torch.float64)}, plan)


@every_plan
def test_tensors_need_not_lie_in_one_piece(name: str, plan: Plan) -> None:
    tensor = _random(0)["layers.0.up_proj.weight"]
    apart = tensor.T.contiguous().T
    assert codec(name).encode({"up_proj.weight": apart}, plan) == codec(name).encode({"up_proj.weight": tensor}, plan)


@pytest.mark.parametrize(("name", "plan"), [*PLANS, ("topk", Plan(level=2, rank=33))])
def test_a_part_is_encoded_and_decoded_alone_and_its_blocks_in_any_order(name: str, plan: Plan) -> None:
    chosen, numbers = codec(name), np.random.default_rng(4)
    shapes = {"layers.0.up_proj.weight": (701, 801), "norm.weight": (77,), "embed_tokens.weight": (300_001,)}
    tensors = {key: numbers.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}
    payload = chosen.encode(tensors, plan)
    whole = chosen.decode_arrays(payload, shapes, plan)
    for key, part in chosen.parts(shapes, plan).items():
        data = np.empty(part.stop - part.start, np.uint8)
        chosen.encode_part(key, tensors[key], plan, data)
        assert data.tobytes() == payload[part]
        decoder, values = chosen.decoder(key, data, shapes[key], plan), np.empty(tensors[key].size, np.float32)
        for start in reversed(range(0, len(values), decoder.block)):
            decoder.into(values[start : start + decoder.block], start)
        assert np.array_equal(values.reshape(shapes[key]), whole[key])
        assert np.array_equal(chosen.decode_part(key, data, shapes[key], plan), whole[key])


@pytest.mark.parametrize(("name", "plan"), [*PLANS, ("topk", Plan(level=2, rank=33))])
def test_a_part_made_of_blocks_in_any_order_is_the_same_and_leaves_the_values_alone(name: str, plan: Plan) -> None:
    chosen, numbers = codec(name), np.random.default_rng(5)
    shapes = {"layers.0.up_proj.weight": (701, 801), "norm.weight": (77,), "embed_tokens.weight": (300_001,)}
    for key, shape in shapes.items():
        tensor = numbers.standard_normal(shape).astype(np.float32)
        tensor.reshape(-1)[:40] *= np.float32(-0.0)
        size = chosen.size({key: shape}, plan)
        expected, made, flat = np.empty(size, np.uint8), np.empty(size, np.uint8), tensor.reshape(-1).copy()
        chosen.encode_part(key, tensor, plan, expected)
        encoder = chosen.encoder(key, shape, plan, made)
        for start in reversed(range(0, len(flat), encoder.block)):
            encoder.take(flat[start : start + encoder.block], start)
        assert made.tobytes() == expected.tobytes()
        assert flat.tobytes() == tensor.tobytes()
