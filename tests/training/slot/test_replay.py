"""Contributions of a replica of three stages, checked by somebody else, each stage alone: honest ones and cheats."""

import hashlib
import math
import shutil
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from dlx.ground.blobs import write_blob
from dlx.ground.constants import NO_HASH, UNIT
from dlx.training.codecs import codec
from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import InnerLoop
from dlx.training.inner.pipeline import Link
from dlx.training.models import weights
from dlx.training.models.stages import stage_shapes
from dlx.training.outer.step import SealedPayload, apply_round
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Adaptive, Codec, Inner, Model, Outer, Plan, packing
from dlx.training.slot.directions import Directions, Projection
from dlx.training.slot.distances import WEIGHTS, Deviation, Part, part_of, thresholds
from dlx.training.slot.replay import Checked, Drawn, Missing, NotCheckable, check_contribution, needed, sent
from dlx.training.slot.rounds import RoundInputs, Trained
from dlx.training.slot.slot import Slot
from dlx.training.slot.trace import Trace
from dlx.training.slot.undecided import Undecided
from tests.attacks.lies import LIES, last_segment
from tests.training.conftest import ROWS
from tests.training.recipe.test_families import CASES, full

RunMaker = Callable[..., Manifest]
Together = Callable[..., list[Any]]

STAGES = 3
SPLIT = [(stage, stage + 1) for stage in range(STAGES)]
ADAMW = Inner(optimiser="adamw", lr=1e-2, clip=0.5)
MUON = Inner(optimiser="muon", lr=1e-2, matrix_lr=1e-2, clip=0.5, schedule="wsd")
SHAMPOO = replace(MUON, optimiser="shampoo")
LATE = Outer(lr=0.8, delay=1, alpha=0.8)


@dataclass
class Replica:
    """A run of one replica without a ledger: its rounds, by stage, and what their draws hand over."""

    manifest: Manifest
    dataset: Dataset
    blobs: Path
    folder: Path
    together: Together
    left_out: Sequence[int] = ()

    def __post_init__(self) -> None:
        self.versions = [[bytes.fromhex(one.sha256)] for one in self.manifest.genesis]  # by stage
        self.trained: list[list[Trained]] = []  # by round
        self.traces: list[list[Trace]] = []

    @property
    def stages(self) -> int:
        return len(self.manifest.stages)

    def round(self, cheats: dict[int, Callable[..., InnerLoop]] | None = None) -> list[Trained]:
        """One round; the stages in `cheats` train with another loop."""
        t, plan, delay = len(self.trained), self.manifest.plan, self.manifest.outer.delay
        base = max(0, t - delay)

        def slot(stage: int) -> Slot:
            loop = (cheats or {}).get(stage, InnerLoop)(self.manifest, stage, self.dataset)
            return Slot(self.manifest, loop, stage, self.folder / str(stage), self.blobs)

        def work(stage: int, previous: Link | None, next: Link | None) -> Trained:
            inputs = RoundInputs(
                round=t,
                plan=plan,
                steps_before=t * plan.inner_steps,
                total_steps=self.manifest.rounds * plan.inner_steps,
                base_version=base,
                base_weights=self.versions[stage][base],
                samples=self.lot(t),
                left_out=tuple(self.trained[one][stage].payload for one in self.left_out if one <= t - 1 - delay),
            )
            return slots[stage].train(inputs, previous, next)

        slots = [slot(stage) for stage in range(self.stages)]
        made = self.together(self.stages, work)
        assert all(isinstance(one, Trained) for one in made), made
        self.trained.append(made)
        self.traces.append([self._trace(stage, t) for stage in range(self.stages)])
        for stage, one in enumerate(made):
            sealed = [SealedPayload(self.blobs / one.payload.hex(), plan.inner_steps, 32768, plan)]
            newest = self.blobs / self.versions[stage][-1].hex()
            counted = [] if t in self.left_out else sealed
            self.versions[stage].append(apply_round(self.manifest, stage, newest, None, counted, self.blobs).weights)
        return made

    def lot(self, round: int) -> tuple[tuple[int, int], ...]:
        """Of the second replica of two, in two parts, as a lot may be."""
        need = self.manifest.plan.inner_steps * self.manifest.data.batch_size
        first = (2 * round + 1) * need
        return (first, first + 3), (first + 7, first + need + 4)

    def _trace(self, stage: int, round: int) -> Trace:
        found = Undecided(self.folder / str(stage)).find(round)
        assert found is not None
        return found.trace

    def drawn(self, stage: int, round: int, segment: int, **said: Any) -> Drawn:
        trained, plan = self.trained[round][stage], self.manifest.plan
        folded = (*trained.folded, NO_HASH, NO_HASH)
        values = {name: getattr(trained, name) for name in trained.__struct_fields__}
        values |= {"folded_payload": folded[0], "folded_payload2": folded[1]}
        return Drawn(
            stage=stage,
            segment=segment,
            statement=SimpleNamespace(**(values | said)),  # type: ignore[arg-type]
            trace=self.traces[round][stage],
            plan=plan,
            steps_before=round * plan.inner_steps,
            total_steps=self.manifest.rounds * plan.inner_steps,
            samples=self.lot(round),
            own_plans={one[stage].payload: plan for one in self.trained},
        )

    def hand_over(self, round: int, segment: int, public: Path) -> Path:
        """The draw's outcome: what all stages hand over, in a new folder; the slots' folders stay as they are."""
        public.mkdir()
        for stage in range(self.stages):
            copy = public.parent / f"{public.name}-slot-{stage}"
            shutil.copytree(self.folder / str(stage), copy)
            Undecided(copy).decide(round, [segment], public, self.manifest.outer.ahead)
            shutil.rmtree(copy)
        return public

    def check(self, drawn: Drawn, public: Path, projection: Projection | None = None) -> Checked:
        folders = [public, self.blobs]
        return check_contribution(self.manifest, drawn, self.dataset, folders, projection=projection)


@pytest.fixture(scope="module")
def replica(
    tiny_run: RunMaker, dataset: Dataset, blobs: Path, together: Together, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Replica]:
    def make(left_out: Sequence[int] = (), **changes: Any) -> Replica:
        manifest = tiny_run(SPLIT, rounds=8, **({"inner": ADAMW, "plan": Plan(inner_steps=4)} | changes))
        return Replica(manifest, dataset, blobs, tmp_path_factory.mktemp("replica"), together, left_out)

    return make


# ---- honest work


TIED = {"tie_word_embeddings": True}
HONEST: dict[str, dict[str, Any]] = {
    "float32, AdamW, int4, delay 0": {"plan": Plan(inner_steps=45)},
    "float32, Shampoo, int4, delay 0": {"inner": SHAMPOO, "plan": Plan(inner_steps=43)},
    "bfloat16, Shampoo, ternary, experts": {"precision": "bfloat16", "inner": SHAMPOO, "codec": Codec("ternary"),
                                            "plan": Plan(level=2, inner_steps=6),
                                            "model": Model(full(CASES["qwen3_moe"][0]))},
    "float32, Muon, lowrank, delay 1": {"inner": MUON, "codec": Codec("lowrank"), "outer": LATE,
                                        "plan": Plan(rank=4, inner_steps=21)},
    "bfloat16, AdamW, topk, delay 1": {"precision": "bfloat16", "codec": Codec("topk"), "outer": LATE,
                                       "plan": Plan(level=2, rank=64, inner_steps=5)},
    "float32, Muon, tied embeddings": {"inner": MUON, "plan": Plan(inner_steps=21), "config": TIED},
    "float32, Muon, lowrank, experts": {"inner": MUON, "codec": Codec("lowrank"), "plan": Plan(rank=4, inner_steps=21),
                                        "model": Model(full(CASES["qwen3_moe"][0]))},
    "float32, Muon, lowrank, capped scores": {"inner": MUON, "codec": Codec("lowrank"),
                                              "plan": Plan(rank=4, inner_steps=21),
                                              "model": Model(full(CASES["gemma2"][0]))},
    "bfloat16, Shampoo, capped scores": {"precision": "bfloat16", "inner": SHAMPOO, "plan": Plan(inner_steps=5),
                                         "model": Model(full(CASES["gemma2"][0]))},
    "float32, Muon, int8 pipes": {"inner": MUON, "pipe": "int8", "plan": Plan(inner_steps=21)},
    "float32, Muon, topk, ahead": {"inner": MUON, "codec": Codec("topk"), "outer": Outer(ahead=0.5),
                                   "plan": Plan(level=2, rank=64, inner_steps=45)},
    "float32, Muon, lowrank, ahead with a delay": {"inner": MUON, "codec": Codec("lowrank"),
                                                   "outer": replace(LATE, ahead=0.5),
                                                   "plan": Plan(rank=4, inner_steps=3)},
    "bfloat16, Muon, ternary, delay 0": {"precision": "bfloat16", "inner": MUON, "codec": Codec("ternary"),
                                         "plan": Plan(level=2, inner_steps=3)},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("what", HONEST)
def test_honest_work_passes_exactly_in_every_stage_from_what_was_handed_over_alone(
    what: str, replica: Callable[..., Replica], tmp_path: Path
) -> None:
    """Rounds 0 and 1 were left out by their seals, so what follows has folded payloads in it."""
    run = replica((0, 1), **HONEST[what])
    for _ in range(4):
        run.round()
    assert any(one.folded for made in run.trained for one in made)
    assert (run.manifest.outer.delay == 0) == all(one.start_payload == NO_HASH for made in run.trained for one in made)
    for round, segment in [(0, 0), *((3, one) for one in range(run.trained[3][0].segments))]:
        public = run.hand_over(round, segment, tmp_path / f"public-{round}-{segment}")
        for stage in range(STAGES):
            checked = run.check(run.drawn(stage, round, segment), public)
            loss, nothing = checked.loss_stated, dict.fromkeys(checked.deviations, Deviation(0.0, 0.0))
            assert checked == Checked(reasons=(), deviations=nothing, loss_stated=loss, loss_replayed=loss) and loss > 0
    length = {"float32": 20, "bfloat16": 4}[run.manifest.precision]
    assert run.trained[3][0].segments == -(-run.manifest.plan.inner_steps // length)


@pytest.mark.parametrize("arithmetic", ["device", "exact"])
def test_work_on_rows_of_conversations_passes_exactly_in_every_stage(
    arithmetic: Any, row_dataset: Dataset, tiny_run: RunMaker, blobs: Path, together: Together, tmp_path: Path
) -> None:
    manifest = tiny_run(SPLIT, rounds=8, data=ROWS, inner=ADAMW, plan=Plan(inner_steps=4), arithmetic=arithmetic)
    run = Replica(manifest, row_dataset, blobs, tmp_path / "replica", together)
    run.round()
    public = run.hand_over(0, 0, tmp_path / "public")
    for stage in range(STAGES):
        checked = run.check(run.drawn(stage, 0, 0), public)
        nothing = dict.fromkeys(checked.deviations, Deviation(0.0, 0.0))
        assert (checked.reasons, checked.deviations, checked.activations) == ((), nothing, 0.0)
        assert checked.loss_replayed == checked.loss_stated > 0
    with pytest.raises(NotCheckable, match="data of its own"):
        check_contribution(manifest, run.drawn(1, 0, 0), None, [public, blobs])


# ---- cheats of one stage


class _Cheat(InnerLoop):
    """A stage that trains otherwise, or sends something else."""

    def __init__(self, how: str, manifest: Manifest, stage: int, dataset: Dataset) -> None:
        inner, precision = manifest.inner, manifest.precision
        if how == "lr":
            inner = replace(inner, lr=inner.lr * 1.1)
        if how == "precision":
            precision = "bfloat16"
        super().__init__(replace(manifest, inner=inner, precision=precision), stage, dataset)
        self._model.packing = packing(manifest)  # what its neighbours take
        need = manifest.plan.inner_steps * manifest.data.batch_size
        self._how, self._aside = how, {"last round's data": -2 * need, "other data": need}.get(how, 0)

    def step(
        self, index: int, total_steps: int, samples: Any, previous: Any, next: Any, *rest: Any, **named: Any
    ) -> float:
        kept = [{name: one.clone() for name, one in of.items()} for of in (self.weights(), self.optimiser_state())]
        links = [None if one is None else _Junk(one, self._how) for one in (previous, next)]
        samples = [position + self._aside for position in samples]
        loss = super().step(index, total_steps, samples, *links, *rest, **named)
        if self._how == "norm":  # as it sent it
            self.norms = self.norms._replace(passed_on=self.norms.passed_on * 1.5)
        if (self._how == "one of ten" and index % 10 == 4) or self._how == "nothing":
            self.load_weights(kept[0])
            self.load_optimiser_state(kept[1])
        return loss


class _Junk:
    """Sends other tensors or numbers than were computed."""

    def __init__(self, link: Link, how: str) -> None:
        self._link, self._how = link, how

    def send(self, kind: str, step: int, micro: int, data: bytes) -> None:
        if self._how == f"junk {kind}":
            data = (np.frombuffer(data, "<f4") * np.float32(1.5)).tobytes()
        if kind == "total" and self._how == "invented loss":
            norm, loss = struct.unpack("<2d", data)
            data = struct.pack("<2d", norm, loss * 0.9)
        if kind == "norm" and self._how == "norm":
            data = struct.pack("<d", struct.unpack("<d", data)[0] * 1.5)  # of squares
        self._link.send(kind, step, micro, data)

    def recv(self, kind: str, step: int, micro: int) -> bytes:
        return self._link.recv(kind, step, micro)


CHEATS = {
    ("lr", 1): "weights' change", ("precision", 1): "weights' change", ("one of ten", 1): "weights' change",
    ("nothing", 0): "weights' change", ("nothing", 2): "weights' change",
    ("other data", 0): "weights' change", ("other data", 2): "weights' change",
    ("last round's data", 0): "weights' change",
    ("junk activation", 0): "activations sent", ("junk activation", 1): "activations sent",
    ("junk gradient", 1): "gradients sent", ("junk gradient", 2): "gradients sent",
    ("norm", 0): "a gradient norm", ("norm", 1): "a gradient norm",
    ("junk embedding", 0): "activations sent", ("junk embedding", 1): "activations sent",
    ("junk tied gradient", 1): "gradients sent", ("junk tied gradient", 2): "gradients sent",
}  # fmt: skip


@pytest.mark.parametrize(("how", "who"), CHEATS)
def test_a_cheat_is_found_in_its_own_stage_and_nobody_else_is_blamed(
    how: str, who: int, replica: Callable[..., Replica], tmp_path: Path
) -> None:
    run = replica(plan=Plan(inner_steps=10), config=TIED if "embedding" in how or "tied" in how else {})
    run.round()
    run.round({who: lambda *arguments: _Cheat(how, *arguments)})
    public = run.hand_over(1, 0, tmp_path / "public")
    found = [run.check(run.drawn(stage, 1, 0), public) for stage in range(STAGES)]
    assert [one.honest for one in found] == [stage != who for stage in range(STAGES)], found
    assert any(CHEATS[how, who] in reason for reason in found[who].reasons), found[who]


class _FalseCovariances(InnerLoop):
    """A last step after which a matrix's covariance is 2% smaller, so its steps in the next segment are longer."""

    def step(self, index: int, *rest: Any, **named: Any) -> float:
        loss = super().step(index, *rest, **named)
        if index == 19:
            for name, one in self.optimiser_state().items():
                if name.startswith("shampoo.columns.") and name.endswith("self_attn.q_proj.weight"):
                    one.mul_(0.98)
        return loss


def test_covariances_that_no_gradients_give_are_found(replica: Callable[..., Replica], tmp_path: Path) -> None:
    run = replica(inner=SHAMPOO, plan=Plan(inner_steps=10))
    run.round()
    run.round({1: _FalseCovariances})
    public = run.hand_over(1, 0, tmp_path / "public")
    found = [run.check(run.drawn(stage, 1, 0), public) for stage in range(STAGES)]
    assert [one.honest for one in found] == [True, False, True], found
    assert [one.partition(" is ")[0] for one in found[1].reasons] == ["the optimiser state's change"], found[1]


class _Frozen(InnerLoop):
    """Its norms take no step, though their moments go on."""

    def step(self, *rest: Any, **named: Any) -> float:
        kept = {name: one.clone() for name, one in self.weights().items() if "norm" in name}
        loss = super().step(*rest, **named)
        for name, one in kept.items():
            self.weights()[name].copy_(one)
        return loss


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_class_of_tensors_that_takes_no_step_is_found_however_small_it_is(
    precision: str, replica: Callable[..., Replica], tmp_path: Path
) -> None:
    run = replica(inner=MUON, precision=precision)
    run.round()
    run.round({1: _Frozen})
    public = run.hand_over(1, 0, tmp_path / "public")
    found = [run.check(run.drawn(stage, 1, 0), public) for stage in range(STAGES)]
    assert [one.honest for one in found] == [True, False, True], found
    assert "off in norms and other vectors, at most" in found[1].reasons[0]


class _Coarse(InnerLoop):
    """Its gradients are those of matrices that were rounded to so many bits, with a scale for each row."""

    bits: int

    def _advance(self, step: Any, batch: Any, pipes: Any, stop: Any, conclude: Any, ready: Any) -> float:
        ready()  # what is still being written are the true weights
        parts = [(part_of(name, tuple(one.shape)).tensors, one) for name, one in self.weights().items()]
        matrices = [one for tensors, one in parts if tensors == "matrices"]
        kept = [one.clone() for one in matrices]
        for one in matrices:
            scale = one.abs().amax(-1, keepdim=True).clamp(min=1e-12) / (2 ** (self.bits - 1) - 1)
            one.copy_((one / scale).round() * scale)

        def restored() -> None:
            for one, before in zip(matrices, kept, strict=True):
                one.copy_(before)

        return super()._advance(step, batch, pipes, stop, conclude, restored)


class _Of4Bits(_Coarse):
    bits = 4


class _Of5Bits(_Coarse):
    bits = 5


class _Of8Bits(_Coarse):
    bits = 8


WIDE = {"hidden_size": 64, "intermediate_size": 168, "num_attention_heads": 4, "num_key_value_heads": 4}


@pytest.mark.parametrize(
    ("inner", "coarse"),
    [(ADAMW, _Of4Bits), (MUON, _Of5Bits), (SHAMPOO, _Of5Bits)],
    ids=["adamw", "muon", "shampoo"],
)
def test_weights_of_few_bits_are_found_and_those_of_8_end_as_near_as_honest_work(
    inner: Inner, coarse: type[_Coarse], replica: Callable[..., Replica], tmp_path: Path
) -> None:
    """In bfloat16, at the width of the table in docs/threats.md: no limit may be much wider than it is."""
    run = replica(inner=inner, precision="bfloat16", config=WIDE, plan=Plan(inner_steps=8))
    run.round()
    run.round({1: coarse, 2: _Of8Bits})
    public = run.hand_over(1, 1, tmp_path / "public")
    found = [run.check(run.drawn(stage, 1, 1), public) for stage in range(STAGES)]
    assert [one.honest for one in found] == [True, False, True], found
    matrices, limits = found[1].deviations[Part(WEIGHTS, "matrices")], thresholds(run.manifest).limits["matrices"]
    assert matrices.distance > limits.weights


class _Moved(InnerLoop):
    """A round's last step ends by half of the limit further in one direction."""

    def step(self, index: int, *rest: Any, **named: Any) -> float:
        if index % 4 == 0:
            self.begun = {name: one.clone() for name, one in self.weights().items()}
        loss = super().step(index, *rest, **named)
        for name, end in self.weights().items() if index % 4 == 3 else ():
            towards = torch.randn(end.shape, generator=torch.Generator().manual_seed(len(name)))
            end += (0.02 if end.dim() == 2 else 0.0) * (end - self.begun[name]).norm() / towards.norm() * towards
        return loss


def test_ends_that_are_moved_by_less_than_the_limit_are_found_by_their_direction(
    replica: Callable[..., Replica], tmp_path: Path
) -> None:
    run, directions = replica(precision="bfloat16", inner=MUON), [Directions() for _ in range(STAGES)]
    for round in range(4):
        run.round({1: _Moved})
        public = run.hand_over(round, 0, tmp_path / f"public-{round}")
        for stage, one in enumerate(directions):
            checked = run.check(run.drawn(stage, round, 0), public, Projection(b"mine"))
            assert checked.honest, checked.reasons
            one.add({str(part): found.sketch for part, found in checked.deviations.items() if found.sketch})
    assert [bool(one.faults()) for one in directions] == [False, True, False]
    assert "weights of the layers' matrices add up" in directions[1].faults()[0]


def test_numbers_beyond_all_measure_are_false_and_end_no_check(replica: Callable[..., Replica], tmp_path: Path) -> None:
    run = replica()
    run.round()
    public, drawn = run.hand_over(0, 0, tmp_path / "public"), run.drawn(2, 0, 0)
    steps = tuple(replace(one, norm=1e300) for one in drawn.trace.steps)
    checked = run.check(Drawn(**(vars(drawn) | {"trace": replace(drawn.trace, steps=steps)})), public)
    assert any(reason.startswith("a gradient norm is 1 off") for reason in checked.reasons), checked


def test_a_part_of_the_norm_that_rounding_lifts_above_the_whole_is_honest(
    replica: Callable[..., Replica], tmp_path: Path
) -> None:
    """As where the stages after have next to no gradient; far above it would be a lie, against clipping."""
    run = replica()
    run.round()
    public, drawn = run.hand_over(0, 0, tmp_path / "public"), run.drawn(0, 0, 0)
    part = math.sqrt(run.traces[0][1].steps[0].norm_in)  # of the first stage

    def with_norm(norm: float) -> Checked:
        first, *rest = drawn.trace.steps
        trace = replace(drawn.trace, steps=(replace(first, norm_out=norm**2 * (1 - 1e-12), norm=norm), *rest))
        return run.check(Drawn(**(vars(drawn) | {"trace": trace})), public)

    assert not any("breaks off" in one for one in with_norm(part * (1 - 1e-6)).reasons)
    assert any("breaks off" in one for one in with_norm(part * 0.9).reasons)


def test_an_invented_loss_is_the_last_stages_fault(replica: Callable[..., Replica], tmp_path: Path) -> None:
    """It states the loss that it sent, so all stages agree on it."""

    class Liar(_Cheat):
        def step(self, *arguments: Any) -> float:
            return super().step(*arguments) * 0.9

    run = replica()
    run.round({2: lambda *arguments: Liar("invented loss", *arguments)})
    public = run.hand_over(0, 0, tmp_path / "public")
    found = [run.check(run.drawn(stage, 0, 0), public) for stage in range(STAGES)]
    assert [one.honest for one in found] == [True, True, False]
    assert len(found[2].reasons) == 1 and "a loss is 0.11 off" in found[2].reasons[0]
    assert found[2].loss_stated == pytest.approx(0.9 * found[2].loss_replayed)


# ---- payloads that are not of the work


def _change(run: Replica, stage: int, round: int) -> dict[str, Tensor]:
    """u, as the slot has it."""
    folder, name = run.folder / str(stage) / "rounds" / str(round), run.trained[round][stage].change
    return weights.read(folder / name.hex(), stage_shapes(run.manifest, stage))


def _with_change(run: Replica, drawn: Drawn, change: dict[str, Tensor], public: Path, **said: Any) -> Drawn:
    """Its maker commits to this change instead."""
    name = weights.write_blob(change, public)
    states = (*drawn.trace.states[:-1], replace(drawn.trace.states[-1], weights=name))
    statement = SimpleNamespace(**(vars(drawn.statement) | {"change": name} | said))
    return Drawn(**(vars(drawn) | {"trace": replace(drawn.trace, states=states), "statement": statement}))


def _noise(tensor: Tensor) -> Tensor:
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)) * tensor.std()


FALSE_PAYLOADS: dict[str, Callable[[Tensor], Tensor]] = {
    "sign flip": lambda one: -one,
    "noise": _noise,
    "ten times": lambda one: one * 10,
    "a tenth more": lambda one: one * 1.1,
    "zeros": torch.zeros_like,
    "poison after honest work": lambda one: one + 0.5 * _noise(one),
}
CODECS = {
    "int4": {"plan": Plan(inner_steps=4)},
    "topk": {"codec": Codec("topk"), "plan": Plan(level=2, rank=64, inner_steps=4)},
    "lowrank": {"codec": Codec("lowrank"), "plan": Plan(rank=4, inner_steps=4)},
}


@pytest.fixture(scope="module", params=CODECS)
def two_rounds(request: pytest.FixtureRequest, replica: Callable[..., Replica]) -> Replica:
    run = replica(**CODECS[request.param])
    run.round()
    run.round()
    return run


@pytest.mark.parametrize("how", FALSE_PAYLOADS)
def test_a_payload_that_is_not_of_the_change_is_false(how: str, two_rounds: Replica, tmp_path: Path) -> None:
    run, chosen, plan = two_rounds, codec(two_rounds.manifest.codec.name), two_rounds.manifest.plan
    payload = chosen.encode({name: FALSE_PAYLOADS[how](one) for name, one in _change(run, 1, 1).items()}, plan)
    public = run.hand_over(1, 0, tmp_path / "public")
    checked = run.check(run.drawn(1, 1, 0, payload=write_blob(public, [payload])), public)
    (reason,) = checked.reasons
    assert reason.startswith("the payload is not what the round's change gives: ")
    assert (checked.weights, checked.optimiser) == (0.0, 0.0), "the work itself was honest"


@pytest.mark.parametrize("how", FALSE_PAYLOADS)
def test_a_change_that_is_not_of_the_work_is_false_although_its_payload_is(
    how: str, two_rounds: Replica, tmp_path: Path
) -> None:
    """So what the next round takes for its residual adds up as well."""
    run, chosen, plan = two_rounds, codec(two_rounds.manifest.codec.name), two_rounds.manifest.plan
    change = {name: FALSE_PAYLOADS[how](one) for name, one in _change(run, 1, 1).items()}
    public = run.hand_over(1, 0, tmp_path / "public")
    payload = write_blob(public, [chosen.encode(change, plan)])
    checked = run.check(_with_change(run, run.drawn(1, 1, 0), change, public, payload=payload), public)
    assert [reason for reason in checked.reasons if "payload" in reason] == []
    assert any(reason.startswith("the weights' change is ") for reason in checked.reasons), checked
    assert checked.optimiser == 0.0


def test_a_residual_that_the_round_before_did_not_leave_is_seen_in_the_change(
    two_rounds: Replica, tmp_path: Path
) -> None:
    """It adds to the change what nobody trained: what it says that it began with does not have it."""
    run, chosen, plan = two_rounds, codec(two_rounds.manifest.codec.name), two_rounds.manifest.plan
    public = run.hand_over(1, 0, tmp_path / "public")
    honest, before = _change(run, 1, 1), _change(run, 1, 0)
    extra = {name: 0.1 * before[name].std() * torch.ones_like(one) for name, one in honest.items()}
    change = {name: one + extra[name] for name, one in honest.items()}
    said = {"payload": write_blob(public, [chosen.encode(change, plan)])}
    checked = run.check(_with_change(run, run.drawn(1, 1, 0), change, public, **said), public)
    assert any(reason.startswith("the weights' change is ") for reason in checked.reasons), checked

    other = {"change_before": weights.write_blob({name: before[name] + extra[name] for name in before}, public)}
    checked = run.check(run.drawn(1, 1, 0, **other), public)
    assert any(reason.startswith("the weights' change is ") for reason in checked.reasons), checked
    other = {"payload_before": run.trained[1][1].payload}
    checked = run.check(run.drawn(1, 1, 0, **other), public)
    assert any(reason.startswith("the weights' change is ") for reason in checked.reasons), checked
    for one in ("change_before", "payload_before"):
        checked = run.check(run.drawn(1, 1, 0, **{one: NO_HASH}), public)
        assert checked.reasons == ("of the change before and its payload it names only one",)
    nothing = run.drawn(1, 1, 0, change_before=NO_HASH, payload_before=NO_HASH)
    assert not run.check(nothing, public).honest


def test_a_false_change_shows_in_the_last_segment_and_a_false_state_in_those_beside_it(
    long_round: Replica, tmp_path: Path
) -> None:
    """So nobody can shift what he invented from one to the other."""
    run, plan = long_round, long_round.manifest.plan
    public = [run.hand_over(1, segment, tmp_path / f"public-{segment}") for segment in range(2)]
    change = {name: one * 1.1 for name, one in _change(run, 1, 1).items()}
    found = []
    for segment, folder in enumerate(public):
        payload = write_blob(folder, [codec("int4").encode(change, plan)])
        found.append(run.check(_with_change(run, run.drawn(1, 1, segment), change, folder, payload=payload), folder))
    assert [one.honest for one in found] == [True, False]

    drawn = [run.drawn(1, 1, segment) for segment in range(2)]
    middle = weights.read(public[1] / drawn[1].trace.states[1].weights.hex(), stage_shapes(run.manifest, 1))
    for one, folder in zip(drawn, public, strict=True):
        name = weights.write_blob({key: tensor * 1.001 for key, tensor in middle.items()}, folder)
        first, between, last = one.trace.states
        states = (first, replace(between, weights=name), last)
        lie = Drawn(**(vars(one) | {"trace": replace(one.trace, states=states)}))
        checked = run.check(lie, folder)
        assert any(reason.startswith("the weights' change is ") for reason in checked.reasons), checked


def test_an_earlier_payload_sent_again_is_false(two_rounds: Replica, tmp_path: Path) -> None:
    public = two_rounds.hand_over(1, 0, tmp_path / "public")
    stale = two_rounds.drawn(1, 1, 0, payload=two_rounds.trained[0][1].payload)
    (reason,) = two_rounds.check(stale, public).reasons
    assert reason.startswith("the payload is not what the round's change gives: ")


def test_who_states_another_part_than_its_payload_keeps_where_the_rank_adapts_is_false(
    replica: Callable[..., Replica], tmp_path: Path
) -> None:
    adaptive = Adaptive(inner_steps=1000, min_rank=2, max_rank=8)
    run = replica(codec=Codec("lowrank"), plan=Plan(rank=4, inner_steps=5), adaptive=adaptive)
    (trained, *_), public = run.round(), run.hand_over(0, 0, tmp_path / "public")
    assert 0 < trained.kept < UNIT and run.check(run.drawn(0, 0, 0), public).honest
    assert run.check(run.drawn(0, 0, 0, kept=trained.kept + 1), public).honest, "sums in another order"
    for lie in (0, trained.kept - 2, trained.kept + 2, UNIT):
        (reason,) = run.check(run.drawn(0, 0, 0, kept=lie), public).reasons
        assert f"the payload keeps {trained.kept} of 32768 parts" in reason and f"{lie} are stated" in reason


def test_no_payload_at_all_and_another_start_are_false(two_rounds: Replica, tmp_path: Path) -> None:
    public = two_rounds.hand_over(1, 0, tmp_path / "public")
    junk = two_rounds.drawn(0, 1, 0, payload=write_blob(public, [b"no payload"]))
    assert two_rounds.check(junk, public).reasons[0].startswith("the payload: ")
    other = two_rounds.drawn(0, 1, 0, base_weights=two_rounds.versions[0][0])
    assert two_rounds.check(other, public).reasons[0].startswith("the weights before are not what the version")
    loss = two_rounds.drawn(0, 1, 0, loss=two_rounds.trained[1][0].loss - 1)
    assert two_rounds.check(loss, public) == Checked(reasons=("the stated loss is not the mean of the steps' losses",))


@pytest.mark.slow
def test_who_starts_from_another_part_of_its_residual_is_found_whatever_is_drawn(
    replica: Callable[..., Replica], tmp_path: Path
) -> None:
    run = replica(codec=Codec("topk"), plan=Plan(level=2, rank=64, inner_steps=45), outer=Outer(ahead=0.5))
    for _ in range(2):
        run.round()
    manifest = run.manifest
    for segment in range(3):
        public, drawn = run.hand_over(1, segment, tmp_path / f"public-{segment}"), run.drawn(1, 1, segment)
        run.manifest = replace(manifest, outer=Outer(ahead=0.25))
        assert run.check(drawn, public).reasons[0].startswith("the weights before are not what the version")
        run.manifest = replace(manifest, outer=Outer())
        assert run.check(drawn, public).reasons[0].startswith("the weights before are not what the version")
        run.manifest = manifest
        assert run.check(drawn, public).honest
        before = run.trained[1][1]
        weights.write_blob(_change(run, 1, 1), public)  # sound, and another round's
        nothing = {"change_before": NO_HASH, "payload_before": NO_HASH}
        for lie in ({"change_before": before.change}, {"payload_before": before.payload}, nothing):
            first, *_ = run.check(run.drawn(1, 1, segment, **lie), public).reasons
            assert first.startswith("the weights before are not what the version")
        half = run.check(run.drawn(1, 1, segment, change_before=NO_HASH), public)
        assert half.reasons == ("of the change before and its payload it names only one",)
        (public / drawn.statement.change_before.hex()).unlink()
        with pytest.raises(Missing):
            run.check(drawn, public)


# ---- a lie that is kept to one segment


def test_a_lie_in_one_segment_is_found_where_that_segment_is_drawn_and_nowhere_else(
    replica: Callable[..., Replica], tmp_path: Path
) -> None:
    """So it is found with the manifest's share in each round, however many segments the round has."""
    lie = LIES["last-segment"]
    assert lie.end is not None

    class Liar(InnerLoop):
        """-10 times its update, in the last segment only."""

        def step(self, index: int, *known: Any, **named: Any) -> float:
            if index % 12 == last_segment(self._manifest):
                self.begun = {name: tensor.clone() for name, tensor in self.weights().items()}
            loss = super().step(index, *known, **named)
            if index % 12 == 11:
                self.load_weights(lie.end(self.begun, self.weights(), 0))
            return loss

    run = replica(inner=MUON, precision="bfloat16", plan=Plan(inner_steps=12))
    run.round()
    run.round({1: Liar})
    for segment in range(3):
        public = run.hand_over(1, segment, tmp_path / f"public-{segment}")
        found = [run.check(run.drawn(stage, 1, segment), public) for stage in range(STAGES)]
        assert [one.honest for one in found] == [True, segment < 2, True], segment
    assert found[1].weights == pytest.approx(1.1, abs=0.2), "the claimed change is -10 times the replayed one"


# ---- files that are not there, or not what they should be


@pytest.fixture(scope="module")
def long_round(replica: Callable[..., Replica]) -> Replica:
    """Two segments, after a round, so that no state is of zeros."""
    run = replica(plan=Plan(inner_steps=21))
    run.round()
    run.round()
    return run


def test_what_is_missing_is_named_and_tensors_that_neighbours_keep_back_are_not_compared(
    long_round: Replica, tmp_path: Path
) -> None:
    public = long_round.hand_over(1, 1, tmp_path / "public")
    drawn = long_round.drawn(1, 1, 1)
    own = {name for name in needed(long_round.manifest, drawn) if (public / name.hex()).exists()}
    assert len(own) == 8, "two states of which one is the change, what came, and what was before"
    assert set(needed(long_round.manifest, drawn)) - own == {drawn.statement.base_weights, drawn.statement.payload}
    own.discard(drawn.statement.payload_before)  # it is among the members' blobs as well
    for name in own:
        kept = (public / name.hex()).read_bytes()
        (public / name.hex()).unlink()
        with pytest.raises(Missing) as missing:
            long_round.check(drawn, public)
        assert missing.value.blobs == (name,)
        (public / name.hex()).write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))  # a wrong copy is none
        with pytest.raises(Missing) as missing:
            long_round.check(drawn, public)
        assert missing.value.blobs == (name,)
        (public / name.hex()).write_bytes(kept)
    assert len(sent(drawn)) == 2
    for name in sent(drawn):
        (public / name.hex()).unlink()
    checked = long_round.check(drawn, public)
    assert checked.honest and checked.uncompared == ("activations", "gradients")


@pytest.mark.parametrize("damage", ["not finite", "another stage's"])
@pytest.mark.parametrize("role", ["start", "end"])
def test_a_state_that_is_none_of_the_stage_is_its_makers_fault(
    damage: str, role: str, long_round: Replica, tmp_path: Path
) -> None:
    public = long_round.hand_over(1, 1, tmp_path / "public")
    drawn = long_round.drawn(1, 1, 1)
    index = 1 if role == "start" else 2
    shapes = stage_shapes(long_round.manifest, 1 if damage == "not finite" else 0)
    tensors = {name: torch.full(shape, math.nan if damage == "not finite" else 1.0) for name, shape in shapes.items()}
    states = list(drawn.trace.states)
    states[index] = replace(states[index], weights=weights.write_blob(tensors, public))
    said = SimpleNamespace(**vars(drawn.statement))
    said.change = states[2].weights
    trace = replace(drawn.trace, states=tuple(states))
    false = Drawn(**(vars(drawn) | {"trace": trace, "statement": said}))
    reasons = long_round.check(false, public).reasons
    what = "weights" if role == "start" else "change"
    assert any(what in reason and ("finite" in reason or "expected" in reason) for reason in reasons), reasons


def test_recorded_tensors_of_another_size_are_its_makers_fault(long_round: Replica, tmp_path: Path) -> None:
    public = long_round.hand_over(1, 1, tmp_path / "public")
    drawn = long_round.drawn(1, 1, 1)
    edge = replace(drawn.trace.boundaries[1], activations_in=write_blob(public, [b"short"]))
    trace = replace(drawn.trace, boundaries=(drawn.trace.boundaries[0], edge))
    (reason,) = long_round.check(Drawn(**(vars(drawn) | {"trace": trace})), public).reasons
    assert reason.startswith("the recorded tensors") and "have 5 bytes, not" in reason


def test_data_that_only_the_replica_has_hinders_the_ends_alone(long_round: Replica, tmp_path: Path) -> None:
    public = long_round.hand_over(1, 0, tmp_path / "public")
    folders = [public, long_round.blobs]
    assert check_contribution(long_round.manifest, long_round.drawn(1, 1, 0), None, folders).honest
    for stage in (0, 2):
        with pytest.raises(NotCheckable, match="data of its own"):
            check_contribution(long_round.manifest, long_round.drawn(stage, 1, 0), None, folders)
        forged = long_round.drawn(stage, 1, 0, payload=long_round.trained[0][stage].payload)
        assert not check_contribution(long_round.manifest, forged, None, folders).honest, "its payload hides nothing"
    unknown = Drawn(**(vars(long_round.drawn(1, 1, 0, start_payload=bytes([7]) * 32)) | {"own_plans": {}}))
    with pytest.raises(Missing):
        check_contribution(long_round.manifest, unknown, None, folders)


def test_the_files_of_a_check_are_bytes_that_anybody_can_hash(long_round: Replica, tmp_path: Path) -> None:
    public = long_round.hand_over(1, 1, tmp_path / "public")
    for path in public.iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    drawn = long_round.drawn(1, 1, 1)
    recorded = (public / drawn.trace.boundaries[1].activations_in.hex()).read_bytes()
    assert len(recorded) == 1 * 2 * (2 * 16 * 16) * 4, "steps x micro-batches x [2, 16, 16] of float32"
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(long_round.traces[1][1]), type=Trace) == drawn.trace
