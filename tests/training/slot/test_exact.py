"""Runs in exact arithmetic: a segment is repeated bit for bit on a machine of another kind, and nothing else passes."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlx.training.data.shards import Dataset
from dlx.training.exact import mode
from dlx.training.inner.loop import InnerLoop
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Inner, Outer, Plan
from dlx.training.slot.replay import NotCheckable, sent
from tests.patience import patient
from tests.training.slot.test_replay import Replica

WHOLE, PIPE = [(0, 3)], [(0, 1), (1, 3)]
ADAMW = Inner(optimiser="adamw", lr=1e-2, clip=0.5)
MUON = Inner(optimiser="muon", lr=1e-2, clip=0.5, schedule="wsd")
STEPS = 22  # two segments
OTHER_MACHINE = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_WAIT_POLICY": "PASSIVE"}
CHECK = """
import pickle, sys, torch
from dlx.training.data.shards import Dataset
from dlx.training.slot.replay import check_contribution
torch.set_num_threads(2)
for manifest, drawn, (public, blobs) in pickle.load(open(sys.argv[1], "rb")):
    dataset = Dataset.open(blobs / manifest.data.manifest.sha256, blobs)
    found = check_contribution(manifest, drawn, dataset, [public, blobs])
    assert found.honest and found.loss_replayed == found.loss_stated > 0, found
"""


@pytest.fixture
def trained(
    tiny_run: Callable[..., Manifest], dataset: Dataset, blobs: Path, together: Callable[..., list[Any]], tmp_path: Path
) -> Callable[..., Replica]:
    def make(split: list[tuple[int, int]], arithmetic: str = "exact", **changes: Any) -> Replica:
        plan = Plan(inner_steps=STEPS)
        manifest = tiny_run(split, rounds=8, arithmetic=arithmetic, **({"inner": ADAMW, "plan": plan} | changes))
        return Replica(manifest, dataset, blobs, tmp_path / "replica", together)

    return make


def check_elsewhere(run: Replica, round: int, tmp_path: Path) -> None:
    """All segments of a round, on what torch takes for a machine of another kind."""
    given = [
        (run.manifest, run.drawn(stage, round, segment), [public, run.blobs])
        for segment in range(run.trained[round][0].segments)
        for public in [run.hand_over(round, segment, tmp_path / f"public-{round}-{segment}")]
        for stage in range(run.stages)
    ]
    (tmp_path / "given").write_bytes(pickle.dumps(given))
    command = [sys.executable, "-c", CHECK, str(tmp_path / "given")]
    made = subprocess.run(
        command, env=os.environ | OTHER_MACHINE, capture_output=True, text=True, timeout=patient(120), check=False
    )
    assert made.returncode == 0, made.stderr[-2000:]


@pytest.mark.parametrize("inner", [ADAMW, MUON], ids=lambda one: one.optimiser)
@pytest.mark.parametrize("split", [WHOLE, PIPE], ids=["whole", "pipe"])
def test_a_segment_is_repeated_bit_for_bit_on_another_kind_of_machine(
    split: list[tuple[int, int]], inner: Inner, trained: Callable[..., Replica], tmp_path: Path
) -> None:
    run = trained(split, inner=inner)
    run.round()
    check_elsewhere(run, 0, tmp_path)


def test_so_is_one_of_a_run_with_int8_pipes_whose_rounds_start_ahead(
    trained: Callable[..., Replica], tmp_path: Path
) -> None:
    outer = Outer(lr=0.8, delay=1, alpha=0.8, ahead=0.5)
    run = trained(PIPE, pipe="int8", outer=outer, plan=Plan(inner_steps=3))
    for _ in range(3):
        run.round()
    check_elsewhere(run, 2, tmp_path)


class _Nudged(InnerLoop):
    """Adds next to nothing to one weight after one step."""

    def step(self, index: int, *rest: Any, **named: Any) -> float:
        loss = super().step(index, *rest, **named)
        if index == 5:
            self.weights()["model.layers.1.mlp.up_proj.weight"][3, 2] += 1e-6
        return loss


def test_a_weight_that_is_1e_6_off_in_one_step_is_found(trained: Callable[..., Replica], tmp_path: Path) -> None:
    run = trained(PIPE)
    run.round({1: _Nudged})
    public = run.hand_over(0, 0, tmp_path / "public")
    fed, false = (run.check(run.drawn(stage, 0, 0), public) for stage in (0, 1))
    assert fed.honest, "who was fed what came of it is not to blame"
    steps, weights, state = false.reasons
    assert steps == "inner step 6 is the first that differs, in its gradient"
    assert (
        weights.startswith("the weights at the segment's end: ")
        and " values differ, the first: lm_head.weight[" in weights
    )
    assert state.startswith("the optimiser state: ") and "exp_avg" in state


class _Feeding(InnerLoop):
    """Gives the next stage other activations than it has computed."""

    def step(self, index: int, total_steps: int, samples: Any, previous: Any, next: Any, *rest: Any) -> float:
        return super().step(index, total_steps, samples, previous, _Louder(next), *rest)


class _Louder:
    def __init__(self, link: Any) -> None:
        self._link, self.recv = link, link.recv

    def send(self, kind: str, step: int, micro: int, data: bytes) -> None:
        louder = (np.frombuffer(data, "<f4") * np.float32(1.5)).tobytes() if kind == "activation" else data
        self._link.send(kind, step, micro, louder)


def test_tensors_that_were_sent_are_compared_where_nobody_shows_them_too(
    trained: Callable[..., Replica], tmp_path: Path
) -> None:
    """By the hash that their sender named: the stage after may be its accomplice, or slow."""
    run = trained(PIPE, plan=Plan(inner_steps=2))
    run.round({0: _Feeding})
    public = run.hand_over(0, 0, tmp_path / "public")
    assert run.check(run.drawn(1, 0, 0), public).honest, "who was fed"
    drawn = run.drawn(0, 0, 0)
    shown = run.check(drawn, public)
    for name in sent(drawn):
        (public / name.hex()).unlink()
    hidden = run.check(drawn, public)
    assert hidden.reasons == ("the activations sent are not those that it named",) and not hidden.uncompared
    assert shown.reasons == ("inner step 0 is the first that differs, in its activation",)


def test_the_last_step_of_a_round_is_compared_by_the_change(trained: Callable[..., Replica], tmp_path: Path) -> None:
    class Late(InnerLoop):
        def step(self, index: int, *rest: Any, **named: Any) -> float:
            loss = super().step(index, *rest, **named)
            if index == STEPS - 1:
                self.weights()["model.norm.weight"][7] += 1e-6
            return loss

    run = trained(WHOLE)
    run.round({0: Late})
    public = run.hand_over(0, 1, tmp_path / "public")
    (reason,) = run.check(run.drawn(0, 0, 1), public).reasons
    assert reason.startswith("the round's change: 1 value differs, the first: model.norm.weight[7] is "), reason


def test_rounding_hides_the_same_where_the_arithmetic_is_the_device_s(
    trained: Callable[..., Replica], tmp_path: Path
) -> None:
    run = trained(PIPE, arithmetic="device")
    run.round({1: _Nudged})
    public = run.hand_over(0, 0, tmp_path / "public")
    assert all(run.check(run.drawn(stage, 0, 0), public).honest for stage in (0, 1))


def test_what_this_machine_cannot_compute_exactly_blames_nobody(
    trained: Callable[..., Replica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(WHOLE, plan=Plan(inner_steps=2))
    run.round()
    public = run.hand_over(0, 0, tmp_path / "public")
    monkeypatch.delitem(mode._COMPUTED, "silu_backward")  # as another torch may name it otherwise
    with pytest.raises(NotCheckable, match="on this machine silu_backward is not computed exactly"):
        run.check(run.drawn(0, 0, 0), public)
