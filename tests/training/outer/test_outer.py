import hashlib
import json
import math
import os
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dlx.ground.blobs import Damaged, write_blob
from dlx.ground.constants import NO_HASH, UNIT
from dlx.ground.merkle import file_root
from dlx.training.codecs import CodecError, codec
from dlx.training.codecs.int4 import Groups
from dlx.training.models import weights
from dlx.training.models.stages import stage_shapes
from dlx.training.models.weights import Shapes, WeightsError
from dlx.training.outer import step
from dlx.training.outer.step import OuterError, SealedPayload, Version, apply_round
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Outer, Plan
from tests.training.devices import DEVICES

GOLDEN = Path(__file__).parent / "golden" / "outer.json"

PLAN = Plan()
OUTERS = {
    "plain": Outer(),
    "slow": Outer(lr=0.8, delay=1, alpha=0.8),
    "heavy-ball": Outer(lr=0.7, momentum=0.9),
    "nesterov": Outer(lr=0.7, momentum=0.9, nesterov=True),
}
# (steps, multiplier) of each contribution, per round; the third seal is empty
ROUNDS = [
    [(640, 32768), (640, 32768)],
    [(640, 32768), (1280, 16384), (64, 65535)],
    [],
    [(1, 1), (2**63, 32767)],
    [(640, 0)],
]


def _tensors(seed: str, shapes: Shapes) -> dict[str, Tensor]:
    """The same values on every machine, unlike torch.randn's."""
    tensors = {}
    for name, shape in shapes.items():
        bits = hashlib.shake_128(f"{seed} {name}".encode()).digest(2 * math.prod(shape))
        values = np.frombuffer(bits, "<i2").astype(np.float32) / np.float32(2**18)
        tensors[name] = torch.from_numpy(values).view(shape)
    return tensors


def _version(tensors: dict[str, Tensor], folder: Path) -> Version:
    return Version(weights.write_blob(tensors, folder), NO_HASH, weights.tree_root(tensors), NO_HASH)


class _Stage:
    """Stage 0 of a small run with the files that its versions are made of."""

    def __init__(self, manifest: Manifest, folder: Path) -> None:
        self.manifest, self.folder = manifest, folder
        self.threads: int = 1
        self.device: str | None = None
        self.shapes = stage_shapes(manifest, 0)
        self.version = _version(_tensors("genesis", self.shapes), folder)

    def path(self, digest: bytes) -> Path:
        return self.folder / digest.hex()

    def payload(self, seed: str, steps: int = 640, multiplier: int = 32768) -> SealedPayload:
        data = codec("int4").encode(_tensors(seed, self.shapes), PLAN)
        return SealedPayload(self.path(write_blob(self.folder, [data])), steps, multiplier, PLAN)

    def apply(self, *contributions: SealedPayload) -> Version:
        momentum = None if self.version.momentum == NO_HASH else self.path(self.version.momentum)
        weights_path = self.path(self.version.weights)
        paths = weights_path, momentum
        where: dict[str, Any] = {"threads": self.threads, "device": self.device}
        self.version = apply_round(self.manifest, 0, *paths, contributions, self.folder, **where)
        return self.version

    def read(self, digest: bytes) -> dict[str, Tensor]:
        return weights.read(self.path(digest), self.shapes, sha256=digest)


@pytest.fixture
def stage(tiny_run: Callable[..., Manifest], tmp_path: Path) -> Callable[[str], _Stage]:
    def make(rule: str) -> _Stage:
        manifest = tiny_run([(0, 1)], outer=OUTERS[rule], config={"hidden_size": 144, "num_hidden_layers": 1})
        return _Stage(manifest, tmp_path)

    return make


@pytest.mark.parametrize(("count", "device"), [(1, None), (2, None), (3, None), *((2, one) for one in DEVICES)])
@pytest.mark.parametrize("rule", OUTERS)
def test_every_machine_makes_the_golden_history(
    rule: str, count: int, device: str | None, stage: Callable[[str], _Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    if count > 1:
        monkeypatch.setattr(Groups, "block", 1024)  # so that there are blocks for every thread,
        monkeypatch.setattr(step, "_PIECE", 4096)  # and pieces of tensors
    run = stage(rule)
    run.threads, run.device = count, device
    history = []
    for index, contributions in enumerate(ROUNDS):
        payloads = [run.payload(f"{index} {number}", *one) for number, one in enumerate(contributions)]
        version = run.apply(*payloads)
        history.append([version.weights.hex(), version.momentum.hex()])
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if "REGENERATE_GOLDEN" in os.environ:
        GOLDEN.write_text(json.dumps(golden | {rule: history}, indent=1) + "\n")
    else:
        assert history == golden[rule]


@pytest.mark.parametrize("rule", OUTERS)
def test_a_step_is_the_one_of_the_design(rule: str, stage: Callable[[str], _Stage]) -> None:
    """Against numpy's float32, operation by operation."""
    run, chosen = stage(rule), OUTERS[rule]
    name = "model.layers.0.mlp.up_proj.weight"
    version, momentum = run.read(run.version.weights)[name].numpy(), np.float32(0)
    for index in range(3):
        payloads = [run.payload(f"{index} {number}", steps) for number, steps in enumerate((640, 64, 3))]
        run.apply(*payloads)
        total = np.zeros_like(version)
        for one in payloads:
            gradient = codec("int4").decode(one.payload.read_bytes(), run.shapes, PLAN)[name].numpy()
            total = total + gradient * np.float32(one.steps**2 * 640 / (640**3 + 64**3 + 3**3))
        if chosen.momentum:
            momentum = momentum * np.float32(chosen.momentum) + total
            total = total + momentum * np.float32(chosen.momentum) if chosen.nesterov else momentum
        version = version - total * np.float32(chosen.lr)
    assert np.array_equal(run.read(run.version.weights)[name].numpy(), version)
    assert (run.version.momentum == NO_HASH) == (chosen.momentum == 0)


def test_memory_does_not_grow_with_the_stage(tiny_run: Callable[..., Manifest], tmp_path: Path) -> None:
    config = {"vocab_size": 40_000, "hidden_size": 144, "num_hidden_layers": 1}
    run = _Stage(tiny_run([(0, 1)], outer=OUTERS["nesterov"], config=config), tmp_path)
    payloads = [run.payload(seed) for seed in "abc"]
    run.apply(payloads[0])  # also makes the momentum
    size = run.path(run.version.weights).stat().st_size
    tracemalloc.start()
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(step, "_PIECE", 1 << 18)
            run.apply(*payloads)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 40e6 and peak < 15e6, "four buffers of a piece of weights and momentum each, and two blocks"


def test_payloads_of_several_plans_are_of_no_round(stage: Callable[[str], _Stage]) -> None:
    run = stage("plain")
    one, other = run.payload("a"), run.payload("b")
    with pytest.raises(OuterError, match="one plan"):
        run.apply(one, replace(other, plan=Plan(inner_steps=7)))


def test_contributions_count_in_the_order_given(stage: Callable[[str], _Stage]) -> None:
    run = stage("plain")
    genesis = run.version
    payloads = [run.payload(seed, steps) for seed, steps in (("a", 640), ("b", 64), ("c", 3))]
    forward = run.apply(*payloads)
    run.version = genesis
    backward = run.apply(*reversed(payloads))
    left, right = run.read(forward.weights), run.read(backward.weights)
    assert forward != backward  # other bits,
    assert all(torch.allclose(left[name], right[name], atol=1e-6) for name in left)  # the same mean


def test_the_roots_are_those_of_the_files(stage: Callable[[str], _Stage]) -> None:
    run = stage("nesterov")
    after = run.apply(run.payload("a"))
    assert after.weights_root == file_root(run.path(after.weights))
    assert after.momentum_root == file_root(run.path(after.momentum))
    assert stage("plain").apply(run.payload("a")).momentum_root == NO_HASH


def test_an_empty_seal_changes_nothing(stage: Callable[[str], _Stage]) -> None:
    run = stage("nesterov")
    assert run.apply() == run.version
    after = run.apply(run.payload("a"))
    files = sorted(os.listdir(run.folder))
    assert run.apply() == after
    assert sorted(os.listdir(run.folder)) == files


@pytest.mark.parametrize(
    "contributions",
    [[(640, 32768)] * 3, [(640, 1), (1, 65535)], [(2**64 - 1, 32768), (1, 32768)], [(3, 7), (5, 11), (7, 13)]],
)
def test_parts_are_exact_ratios_rounded_once(contributions: list[tuple[int, int]]) -> None:
    longest, total = max(t for t, _ in contributions), sum(t**3 for t, _ in contributions)
    exact = (Fraction(t * t * m * longest, total * 32768) for t, m in contributions)
    assert step.parts(*zip(*contributions, strict=True)) == [
        struct.unpack("f", struct.pack("f", float(one)))[0] for one in exact
    ]


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 2)), min_size=1, max_size=64))
def test_nobody_shortens_a_round_and_nobody_stretches_it(contributions: list[tuple[int, int]]) -> None:
    """Each has moved as far as it took steps; or twice as far, which the policy halves; or it is dropped."""
    contributions[0] = (contributions[0][0], 1)
    steps, kinds = zip(*contributions, strict=True)
    parts = step.parts(steps, [(0, UNIT, UNIT // 2)[kind] for kind in kinds])
    lengths = [count * max(1, kind) for count, kind in contributions]
    longest = max(count for count, kind in contributions if kind)
    assert sum(part * length for part, length in zip(parts, lengths, strict=True)) == pytest.approx(longest, rel=1e-5)
    assert all(0 <= part <= 1 for part in parts), "and no contribution is made larger than it is"


def test_who_is_dropped_takes_nothing_from_the_others() -> None:
    assert step.parts([20, 20, 20], [UNIT, UNIT, 0]) == [0.5, 0.5, 0.0]
    assert step.parts([20, 2, 20], [UNIT, UNIT, 0])[:2] == step.parts([20, 2], [UNIT, UNIT])
    assert step.parts([20, 20], [0, 0]) == [0.0, 0.0], "which a captured seal can say"


def test_who_is_cut_gives_nothing_to_the_others() -> None:
    """A payload that is a thousand times too long adds as much as an honest one, and stretches nothing."""
    assert step.parts([20, 20], [UNIT, UNIT // 1024]) == [0.5, 0.5 / 1024]


@pytest.mark.parametrize(("steps", "multiplier"), [(0, 32768), (-1, 32768), (1, -1), (1, 65536)])
def test_weights_that_no_seal_can_have_are_refused(steps: int, multiplier: int) -> None:
    with pytest.raises(OuterError, match=f"{steps} steps with the multiplier {multiplier}"):
        step.parts([steps], [multiplier])


def test_bad_files_are_refused_and_nothing_is_written(stage: Callable[[str], _Stage]) -> None:
    run = stage("nesterov")
    good = run.payload("good")
    foreign = run.path(write_blob(run.folder, [b"\xff" * good.payload.stat().st_size]))
    swapped = run.payload("other")
    swapped.payload.write_bytes(good.payload.read_bytes())
    missing = run.path(bytes(32))
    files = sorted(os.listdir(run.folder))
    for payload, error in ((foreign, CodecError), (swapped.payload, Damaged), (missing, Damaged)):
        with pytest.raises(error):
            run.apply(good, SealedPayload(payload, 640, 32768, PLAN))
    genesis = run.path(run.version.weights)
    with pytest.raises(WeightsError):
        apply_round(run.manifest, 0, genesis, good.payload, [good], run.folder)
    with pytest.raises(OuterError, match="expected a blob"):
        apply_round(run.manifest, 0, run.folder / "weights.safetensors", None, [good], run.folder)
    genesis.write_bytes(genesis.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(Damaged, match="do not match its name") as caught:
        run.apply(good)
    assert caught.value.blob == run.version.weights
    assert sorted(os.listdir(run.folder)) == files
