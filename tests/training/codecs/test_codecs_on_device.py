"""The codecs in torch, on every device that is here, against those in numpy: the same bytes, bits and refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlx.training.codecs import CodecError, codec, on_device
from dlx.training.recipe.recipe import Plan
from tests.training.devices import DEVICES

VECTORS = Path(__file__).resolve().parents[3] / "docs" / "vectors" / "codecs.json"
SHAPES: dict[str, tuple[int, ...]] = {
    "layers.0.up_proj.weight": (130, 700),
    "layers.0.norm.weight": (131,),
    "embed_tokens.weight": (90, 48),
    "layers.1.mlp.experts.down_proj": (3, 60, 70),
    "layers.1.norm.weight": (1,),
}
PLANS = [
    *(("int4", Plan(level=level)) for level in (4, 8)),
    ("ternary", Plan(level=2)),
    *(("lowrank", Plan(rank=rank)) for rank in (1, 5)),
    *(("topk", Plan(level=2, rank=rank)) for rank in (32, 33, 256)),
]
EXACT = [(name, plan) for name, plan in PLANS if name != "lowrank"]  # whose encoders give the same bytes everywhere
everywhere = pytest.mark.parametrize("device", DEVICES)


def _tensors(seed: int, kind: str) -> dict[str, np.ndarray]:
    numbers, found = np.random.default_rng(seed), {}
    for name, shape in SHAPES.items():
        values = numbers.standard_normal(shape)
        if kind == "tied":
            values = np.rint(values * 2) / 4
        elif kind == "tiny":
            values *= 10.0 ** numbers.uniform(-12, -3, shape)
        elif kind == "sparse":
            values *= numbers.random(shape) < 0.01
        elif kind == "zero":
            values *= -0.0
        found[name] = values.astype(np.float32)
    return found


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that tensors have several."""
    monkeypatch.setattr(on_device, "_BLOCK", 1 << 14)
    monkeypatch.setattr(on_device._Groups, "block", 1 << 14)
    monkeypatch.setattr(on_device._Trits, "block", 640 * 25)
    monkeypatch.setattr(on_device._Chunks, "block", 1 << 14)
    monkeypatch.setattr(on_device._TopK, "at_once", 3)


@everywhere
@pytest.mark.parametrize("kind", ["normal", "tied", "tiny", "sparse", "zero"])
@pytest.mark.parametrize(("name", "plan"), PLANS)
def test_the_same_bytes_and_bits(name: str, plan: Plan, kind: str, device: str) -> None:
    for seed in range(3):
        tensors = _tensors(seed, kind)
        payload = codec(name).encode(tensors, plan)
        if (name, plan) in EXACT:
            assert codec(name, device).encode(tensors, plan) == payload
        expected = codec(name).decode_arrays(payload, SHAPES, plan)
        found = codec(name, device).decode_arrays(payload, SHAPES, plan)
        assert all(found[key].tobytes() == values.tobytes() for key, values in expected.items())


@everywhere
@settings(max_examples=60)
@given(
    st.sampled_from(PLANS),
    st.sampled_from(["normal", "tied", "sparse"]),
    st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 255)), max_size=3),
)
def test_the_same_payloads_are_refused(
    device: str, chosen: tuple[str, Plan], kind: str, changes: list[tuple[int, int]]
) -> None:
    name, plan = chosen
    payload = bytearray(codec(name).encode(_tensors(0, kind), plan))
    for place, change in changes:
        payload[place % len(payload)] ^= change
    try:
        expected = codec(name).decode_arrays(payload, SHAPES, plan)
    except CodecError:
        with pytest.raises(CodecError):
            codec(name, device).decode_arrays(payload, SHAPES, plan)
        return
    found = codec(name, device).decode_arrays(payload, SHAPES, plan)
    assert all(found[key].tobytes() == values.tobytes() for key, values in expected.items())


@everywhere
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize(("name", "plan"), PLANS)
def test_values_without_a_payload_are_refused(name: str, plan: Plan, value: float, device: str) -> None:
    for key in SHAPES:
        tensors = _tensors(0, "normal")
        tensors[key].reshape(-1)[-1] = value
        with pytest.raises(CodecError, match=f"{key}: holds a value that is not finite or too large"):
            codec(name, device).encode(tensors, plan)


@pytest.mark.parametrize("device", [None, *DEVICES])
@pytest.mark.parametrize("case", json.loads(VECTORS.read_text()), ids=lambda case: f"{case['codec']}-{case['level']}")
def test_the_published_examples_hold_everywhere(case: dict[str, Any], device: str | None) -> None:
    def arrays(tensors: dict[str, Any]) -> dict[str, np.ndarray]:
        return {
            name: np.frombuffer(bytes.fromhex(one["data"]), "<f4").reshape(one["shape"]).copy()
            for name, one in tensors.items()
        }

    chosen, plan, tensors = codec(case["codec"], device), Plan(case["level"], case["rank"], 10), arrays(case["tensors"])
    shapes, payload = {name: values.shape for name, values in tensors.items()}, bytes.fromhex(case["payload"])
    found = chosen.decode_arrays(payload, shapes, plan)
    assert all(found[name].tobytes() == values.tobytes() for name, values in arrays(case["decoded"]).items())
    assert case["codec"] == "lowrank" or chosen.encode(tensors, plan) == payload
