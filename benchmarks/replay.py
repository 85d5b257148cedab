"""How far replays end from the claim: honest ones that differ in process, threads or instruction set, and mild cheats.

`python -m benchmarks.replay [--width 96] [--json FILE]` trains some rounds of a replica of three stages with one thread
and replays all segments but the first round's, as level 3 of the audit does, each time in a new process.
`--device cuda` trains on a GPU, and `--replay-on cuda` replays on one too. `--keep FOLDER` keeps the work: called again
on another machine with a copy of that folder, it replays there what was done here. Each cheat trains those rounds in
its own way, from the honest state. Distances are those of training/slot/distances.py, whose limits they justify. A row
has the largest over stages and segments, for cheats the smallest. `limit` is the largest part of its limit that a
measure has: honest ones stay below 1, cheats above. `alike` is the largest score of a common direction of the
deviations over the segments (training/slot/directions.py), for cheats the smallest over the stages.
"""

import contextlib
import json
import math
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from unittest.mock import patch

import msgspec
import torch
import torch.distributed as dist
import typer
from msgspec.structs import replace
from torch import Tensor
from torch.backends import cpu
from torch.nn.attention import SDPBackend, sdpa_kernel

from dlx.training.data.prepare import prepare
from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import InnerLoop
from dlx.training.inner.pipeline import Link, queue_links
from dlx.training.inner.ranks.group import Group
from dlx.training.inner.ranks.loop import RankedLoop, serve
from dlx.training.models import weights
from dlx.training.models.placement import Placement, hardware
from dlx.training.models.stages import initialise
from dlx.training.outer.step import SealedPayload, apply_round
from dlx.training.recipe.draft import Draft, DraftData, DraftModel, complete
from dlx.training.recipe.families import FAMILIES
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Inner, Plan, WeightsRef, packing
from dlx.training.slot import distances, replay, segments
from dlx.training.slot.directions import MOST, Directions, Projection
from dlx.training.slot.ranked import RankedSlot, take_part
from dlx.training.slot.rounds import RoundInputs, Trained
from dlx.training.slot.slot import Slot
from dlx.training.slot.undecided import Undecided

STAGES = 3
ROUNDS = 10  # of the run, which decides the learning rates


@dataclass(frozen=True)
class Case:
    """One contribution, checked: honest ones in another environment, cheats trained in another way."""

    name: str
    honest: bool = True
    threads: int = 1
    device: str = "cpu"  # of the replay
    environment: dict[str, str] = field(default_factory=dict)
    kernels: str = ""  # of the replay: "split" sums of products, or "plain" attention
    rate: float = 1.0  # the learning rates are those of the manifest times this
    decay: float = 1.0  # the weight decay too
    left_out: bool = False  # a step of each segment, though the tensors of it were sent
    replica: int = 0  # whose data
    late: int = 0  # so many rounds ago the data was due
    precision: str = ""  # other than the run's
    bits: int = 0  # gradients are those of matrices that were rounded to so many bits, row by row
    frozen: str = ""  # the class of tensors that takes no step
    moved: float = 0.0  # each segment's end, by so much of what the limit lets pass, always in one direction
    compile: bool = False  # the layers, as they are trained
    ranks: int = 1  # of the middle stage
    tensor_parallel: int = 1  # of these

    @property
    def trained_again(self) -> bool:
        return not self.honest or bool(self.precision) or self.compile or self.ranks > 1

    @property
    def false_stages(self) -> tuple[int, ...]:
        """Who is to be found: of false data those that read it, of a frozen embedding those that have one."""
        if self.honest:
            return ()
        ends = self.replica or self.late or self.frozen == "embeddings"
        return (0, STAGES - 1) if ends else tuple(range(STAGES))


def _instructions(aten: str, onednn: str, mkl: str) -> dict[str, str]:
    """No others are used, as on an older machine."""
    return {"ATEN_CPU_CAPABILITY": aten, "ONEDNN_MAX_CPU_ISA": onednn, "MKL_ENABLE_INSTRUCTIONS": mkl}


HONEST = (
    Case("another process"),
    Case("2 threads", threads=2),
    Case("plain attention", kernels="plain"),
    Case("sums of products in two halves", kernels="split"),
    Case("middle stage by 2 ranks, tensor parallel", ranks=2, tensor_parallel=2),
    Case("AVX2", environment=_instructions("avx2", "AVX2", "AVX2")),
    Case("SSE", environment=_instructions("default", "SSE41", "SSE4_2")),
    Case("trained with compiled layers", compile=True),
    Case("AVX-512 without bfloat16", environment=_instructions("avx512", "AVX512_CORE", "AVX512")),
)
CHEATS = (
    Case("learning rate + 1%", False, rate=1.01),
    Case("learning rate + 10%", False, rate=1.1),
    Case("learning rate - 10%", False, rate=0.9),
    Case("no weight decay", False, decay=0.0),
    Case("one step left out", False, left_out=True),
    Case("weights of 4 bits", False, bits=4),
    Case("weights of 8 bits", False, bits=8),  # in bfloat16 most of its segments end as near as honest work
    Case("norms frozen", False, frozen="vectors"),
    Case("embedding and head frozen", False, frozen="embeddings"),
    Case("ends moved by half of the limit", False, moved=0.5),
    Case("another replica's data", False, replica=1),
    Case("the data of the round before", False, late=1),
)
OTHER_PRECISION = {
    "float32": Case("bfloat16 for float32", False, precision="bfloat16"),
    "bfloat16": Case("trained in float32", True, precision="float32"),  # nearer to the mathematics than any machine
}


def main(
    width: Annotated[int, typer.Option(help="Hidden size; layers, heads and the rest follow.")] = 64,
    layers: Annotated[int, typer.Option(help="Of the model, at least one for each stage.")] = 3,
    family: Annotated[str, typer.Option(help="One with grouped queries.")] = "llama",
    rounds: Annotated[int, typer.Option(help="Rounds of 20 steps, of which all but the first are replayed.")] = 2,
    rate: Annotated[float, typer.Option(help="Times the default learning rates.")] = 1.0,
    length: Annotated[int, typer.Option(help="Segment length in bfloat16, in inner steps.")] = 0,
    precisions: Annotated[str, typer.Option(help="Which, separated by commas.")] = "float32,bfloat16",
    optimisers: Annotated[str, typer.Option(help="Which, separated by commas.")] = "adamw,muon,shampoo",
    device: Annotated[str, typer.Option(help="What the work is done on: cpu or cuda.")] = "cpu",
    replay_on: Annotated[str, typer.Option(help="Devices that replay it too, separated by commas.")] = "",
    keep: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="For the work, which is taken from there if it is there.")
    ] = None,
    cases: Annotated[str, typer.Option(help="Those alone with one of these, separated by commas, in their name.")] = "",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the result there.")
    ] = None,
) -> None:
    """Print every case's distances, for all optimisers and both precisions."""
    if length:
        segments.SEGMENT_STEPS["bfloat16"] = length
    rows: list[dict[str, Any]] = []
    sys.stdout.write(f"{'':<51}" + "".join(f"{title:>9}" for title in TITLES) + "\n")
    for precision in precisions.split(","):
        for optimiser in optimisers.split(","):
            with tempfile.TemporaryDirectory(prefix="dlx-replay-") as temporary:
                folder = Path(temporary) if keep is None else keep / f"{precision}-{optimiser}-{family}-{width}"
                bench = Bench(folder, precision, optimiser, width, layers, rounds, rate, device, family)
                elsewhere = [Case(f"on {one}", device=one) for one in replay_on.split(",") if one]
                for case in (*HONEST, *elsewhere, OTHER_PRECISION[precision], *CHEATS):
                    if not any(part in case.name for part in cases.split(",")):
                        continue
                    row = summary(bench.measure(case), case)
                    what = {"precision": precision, "optimiser": optimiser, "case": case.name, "honest": case.honest}
                    rows.append(what | row)
                    numbers = "".join(f"{row[title]:>9.1e}" for title in TITLES)
                    sys.stdout.write(f"{precision:<10}{optimiser:<8}{case.name:<33}{numbers}\n")
                    sys.stdout.flush()
    gpus = {one: hardware(one) for one in (device, *replay_on.split(",")) if one not in ("", "cpu")}
    kinds = ", ".join((f"{platform.machine()} ({cpu.get_cpu_capability()})", *gpus.values()))
    machine = f"{kinds}, {os.cpu_count()} cores, torch {torch.__version__}, work done on {device}"
    sys.stdout.write(f"{machine}\n")
    if json_file is not None:
        json_file.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")
    wrong = [row for row in rows if (row["limit"] > 1 or row["alike"] > MOST) == row["honest"]]
    for row in wrong:
        sys.stderr.write(f"{row['precision']}, {row['optimiser']}, {row['case']}: on the wrong side of its limits\n")
    raise typer.Exit(1 if wrong else 0)


class Replayed(NamedTuple):
    """A segment of a stage: what was measured, by title, and the sketches of its deviations."""

    stage: int
    measures: dict[str, float]
    sketches: dict[str, bytes]


_OF_WEIGHTS = [f"{what} {tensors[0]}" for what in ("w", "rate", "opt") for tensors in distances.CLASSES]
TITLES = (*_OF_WEIGHTS, "sent", "loss", "limit", "alike")


def summary(replayed: Sequence[Replayed], case: Case) -> dict[str, float]:
    """By title the largest; of a cheat the smallest of those that cheat and have any."""
    found = {}
    for title in TITLES[:-1]:
        if case.honest:
            found[title] = max(one.measures[title] for one in replayed)
        else:
            of = [one.measures[title] for one in replayed if one.stage in case.false_stages]
            found[title] = min(filter(None, of), default=0.0) if title != "limit" else min(of)
    stages = range(STAGES) if case.honest else case.false_stages
    scores = [_alike(one for one in replayed if one.stage == stage) for stage in stages]
    return found | {"alike": max(scores) if case.honest else min(scores)}


def _alike(replayed: Iterable[Replayed]) -> float:
    """The largest score of a stage's parts."""
    directions = Directions()
    for one in replayed:
        directions.add(one.sketches)
    return max((one.score for one in directions.parts.values()), default=0.0)


class Bench:
    """A run on the standard library's sources, whose replica has trained its rounds honestly."""

    def __init__(
        self,
        folder: Path,
        precision: str,
        optimiser: str,
        width: int = 64,
        layers: int = 3,
        rounds: int = 2,
        rate: float = 1.0,
        device: str = "cpu",
        family: str = "llama",
    ) -> None:
        self.folder, self.rounds, self.device = folder, range(1, rounds), device
        kept = folder / "work.json"
        if kept.exists():
            self.manifest, self.trained = msgspec.json.decode(
                kept.read_bytes(), type=tuple[Manifest, list[list[Trained]]]
            )
            return
        folder.mkdir(parents=True, exist_ok=True)
        sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        data = prepare(sources, folder)
        kind: Any = FAMILIES[family]
        model = kind(
            vocab_size=256, hidden_size=width, intermediate_size=width // 3 * 8, num_hidden_layers=layers,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=128,
            **({"head_dim": width // 4} if "head_dim" in kind.__struct_fields__ else {}),
        )  # fmt: skip
        per_stage = layers // STAGES
        inner = Inner(optimiser=optimiser, matrix_lr=1e-2)  # type: ignore[arg-type]
        draft = Draft(
            name="replay",
            model=DraftModel(msgspec.to_builtins(model)),
            stages=[(per_stage * stage, per_stage * (stage + 1)) for stage in range(STAGES)],
            data=DraftData(source=[str(path) for path in sources], sequence_length=32, batch_size=8, micro_batches=2),
            inner=_faster(inner, rate),
            plan=Plan(inner_steps=20),
            precision=precision,  # type: ignore[arg-type]
            rounds=ROUNDS,
            tokens_per_step=8 * 32,
        )
        genesis = [weights.write_blob(initialise(draft, stage), folder) for stage in range(STAGES)]
        self.manifest = complete(
            draft, [WeightsRef(one.hex(), data.size, one.hex()) for one in genesis], data, bytes(32)
        )
        self.trained = PROCESSES.run("training", {}, _honestly, self.manifest, folder, self.rounds, device)
        kept.write_bytes(msgspec.json.encode((self.manifest, self.trained)))

    def measure(self, case: Case) -> list[Replayed]:
        """Of each stage and segment of the rounds after the first."""
        trained = self.trained
        if case.trained_again:
            trained = PROCESSES.run("training", {}, _again, self.manifest, self.folder, self.rounds, case, self.device)
        slots = self.folder / ("again" if case.trained_again else "honest")
        found = []
        for round, made in zip(self.rounds, trained, strict=True):
            name = case.name if case.environment else "replays"
            found += PROCESSES.run(name, case.environment, _check, self.manifest, self.folder, slots, round, made, case)
        return found


IDLE = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}  # other threads' waiting takes no time on a busy machine


class _Processes:
    """One for each environment, beside the one that trains: it replays all cases that need no other."""

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}

    def run(self, name: str, environment: dict[str, str], function: Any, *arguments: Any) -> Any:
        if name not in self._pools:
            with patch.dict(os.environ, environment | IDLE):
                self._pools[name] = multiprocessing.get_context("spawn").Pool(1)
                self._pools[name].apply(_ready)
        return self._pools[name].apply(_with_lengths, (dict(segments.SEGMENT_STEPS), function, arguments))


def _ready() -> None:
    """The process has begun, and torch has seen its environment."""


def _with_lengths(lengths: dict[Any, int], function: Any, arguments: Sequence[Any]) -> Any:
    segments.SEGMENT_STEPS.update(lengths)
    return function(*arguments)


PROCESSES = _Processes()


def _faster(inner: Inner, rate: float) -> Inner:
    return replace(inner, lr=inner.lr * rate, matrix_lr=inner.matrix_lr * rate)


def _honestly(manifest: Manifest, folder: Path, rounds: range, device: str) -> list[list[Trained]]:
    """The work of `rounds`; before the first of these, the slots are copied."""
    bases, found = [bytes.fromhex(one.sha256) for one in manifest.genesis], []
    for round in range(rounds.stop):
        (folder / f"bases-{round}").write_bytes(b"".join(bases))
        if round == rounds.start:
            shutil.copytree(folder / "honest", folder / "first")
        found.append(_train(manifest, manifest, folder, folder / "honest", round, Case("honest"), device))
        bases = _next_bases(manifest, folder, bases, found[-1])
    return found[rounds.start :]


def _again(manifest: Manifest, folder: Path, rounds: range, case: Case, device: str) -> list[list[Trained]]:
    inner = _faster(manifest.inner, case.rate)
    inner = replace(inner, weight_decay=inner.weight_decay * case.decay)
    shutil.rmtree(folder / "again", ignore_errors=True)
    shutil.copytree(folder / "first", folder / "again")
    altered = replace(manifest, inner=inner, precision=case.precision or manifest.precision)  # type: ignore[arg-type]
    return [_train(manifest, altered, folder, folder / "again", round, case, device) for round in rounds]


def _next_bases(manifest: Manifest, folder: Path, bases: Sequence[bytes], trained: Sequence[Trained]) -> list[bytes]:
    found = []
    for stage, (base, one) in enumerate(zip(bases, trained, strict=True)):
        sealed = [SealedPayload(folder / one.payload.hex(), one.inner_steps, 32768, manifest.plan)]
        found.append(apply_round(manifest, stage, folder / base.hex(), None, sealed, folder).weights)
    return found


def _bases(folder: Path, round: int) -> list[bytes]:
    data = (folder / f"bases-{round}").read_bytes()
    return [data[at : at + 32] for at in range(0, len(data), 32)]


class _Loop(InnerLoop):
    """An inner loop that may cheat."""

    case: Case
    length: int  # of a segment

    def step(self, index: int, total_steps: int, *rest: Any) -> float:
        within, last = index % self.length, self.length - 1
        kept = [_copies(of) for of in (self.weights(), self.optimiser_state())]
        if within == 0:
            self._begun = kept[0]
        loss = super().step(index, total_steps, *rest)
        if self.case.left_out and within == self.length // 2:
            self.load_weights(kept[0])
            self.load_optimiser_state(kept[1])
        if self.case.frozen:
            _put(self.weights(), {name: one for name, one in kept[0].items() if _class(name, one) == self.case.frozen})
        if self.case.moved and within == last:
            limits = distances.thresholds(self._manifest).limits
            _put(self.weights(), _moved(self._begun, self.weights(), self.case.moved, limits))
        return loss

    def _advance(self, step: Any, batch: Any, pipes: Any, stop: Any, conclude: Any, ready: Any) -> float:
        """`ready` is called when the gradients are there, and before anything else changes weights."""
        kept = _copies(self.weights())

        def restored() -> None:
            ready()
            _put(self.weights(), kept)

        if self.case.bits:
            ready()
            of = {name: one for name, one in kept.items() if _class(name, one) == "matrices"}
            _put(self.weights(), {name: _rounded(one, self.case.bits) for name, one in of.items()})
        return super()._advance(step, batch, pipes, stop, conclude, restored)


def _class(name: str, tensor: Tensor) -> distances.Class:
    return distances.part_of(name, tuple(tensor.shape)).tensors


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: one.clone() for name, one in tensors.items()}


def _put(targets: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, one in values.items():
        targets[name].copy_(one)


def _rounded(tensor: Tensor, bits: int) -> Tensor:
    """With a scale for each row."""
    scale = tensor.abs().amax(-1, keepdim=True).clamp(min=1e-12) / (2 ** (bits - 1) - 1)
    return (tensor / scale).round() * scale


Limits = Mapping[distances.Class, distances.Limits]


def _moved(start: Mapping[str, Tensor], end: Mapping[str, Tensor], part: float, limits: Limits) -> dict[str, Tensor]:
    """`end`, moved by so much of each class's limit, in one direction, and so little along the change that the rate
    does not tell."""
    directions = {
        name: torch.randn(one.shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
        for name, one in start.items()
    }
    found = {}
    for tensors in {_class(name, one) for name, one in start.items()}:
        by = part * limits[tensors].weights
        names = [name for name, one in start.items() if _class(name, one) == tensors]
        whole, length = (
            sum(of(name).square().sum().item() for name in names) ** 0.5
            for of in (lambda name: end[name] - start[name], directions.__getitem__)
        )
        for name in names:
            found[name] = (
                end[name]
                + by * whole / length * directions[name].to(end[name].device)
                - by**2 * (end[name] - start[name])
            )
    return found


def _lot(manifest: Manifest, round: int, replica: int) -> tuple[int, int]:
    """The positions of a replica in a round, where two are counted in every one."""
    need = manifest.plan.inner_steps * manifest.data.batch_size
    first = (2 * round + replica) * need
    return first, first + need


def _train(
    manifest: Manifest, altered: Manifest, folder: Path, slots: Path, round: int, case: Case, device: str
) -> list[Trained]:
    """One round of all stages, each in a thread; they train as `altered` says."""
    torch.set_num_threads(1)
    dataset = Dataset.open(folder / manifest.data.manifest.sha256, folder)
    steps, bases = manifest.plan.inner_steps, _bases(folder, round)

    def slot(stage: int) -> Slot:
        if group is not None and stage == 1:
            shared = Placement(device="cpu", threads=1, ranks=case.ranks, tensor_parallel=case.tensor_parallel)
            ranked = RankedLoop(group, altered, stage, dataset, shared)
            return RankedSlot(manifest, ranked, stage, slots / str(stage), folder)
        placement = Placement(device=device, threads=1, compile=case.compile)
        loop = _Loop(altered, stage, dataset, placement)
        loop._model.packing = packing(manifest)  # what is recorded has the size that checkers expect
        loop.case, loop.length = case, segments.segment_steps(manifest)
        return Slot(manifest, loop, stage, slots / str(stage), folder)

    def work(one: Slot, stage: int, previous: Link | None, next: Link | None) -> Trained:
        samples = (_lot(manifest, round - case.late, case.replica),)
        inputs = RoundInputs(round, manifest.plan, round * steps, ROUNDS * steps, round, bases[stage], samples)
        return one.train(inputs, previous, next)

    links = [queue_links(3600.0) for _ in range(STAGES - 1)]
    before, after = [None, *(behind for _, behind in links)], [*(ahead for ahead, _ in links), None]
    with _ranks(case.ranks) as group, ThreadPoolExecutor(STAGES) as pool:
        ours = [slot(stage) for stage in range(STAGES)]
        return list(pool.map(work, ours, range(STAGES), before, after))


@contextlib.contextmanager
def _ranks(ranks: int) -> Iterator[Group | None]:
    """Rank 0's group of several, of which the others are processes that serve it."""
    if ranks == 1:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="dlx-ranks-") as folder:
        store = str(Path(folder) / "store")
        code = "import sys; from benchmarks.replay import serve_rank; serve_rank(*sys.argv[1:])"
        others = [
            subprocess.Popen([sys.executable, "-c", code, store, str(rank), str(ranks)]) for rank in range(1, ranks)
        ]
        try:
            yield Group(dist.FileStore(store, ranks), 0, ranks, "cpu", beside=ranks)
        finally:
            for other in others:
                other.kill()
                other.wait()


def serve_rank(store: str, rank: str, ranks: str) -> None:
    """Until it is killed."""
    torch.set_num_threads(1)
    group = Group(dist.FileStore(store, int(ranks)), int(rank), int(ranks), "cpu", beside=int(ranks))
    serve(group, partial(take_part, device=None))


@dataclass(frozen=True)
class _Said:
    """The statement of a trained round."""

    trained: Trained

    def __getattr__(self, name: str) -> Any:
        folded = (*self.trained.folded, bytes(32), bytes(32))
        return {"folded_payload": folded[0], "folded_payload2": folded[1]}.get(name) or getattr(self.trained, name)


@contextlib.contextmanager
def _kernels(which: str) -> Iterator[None]:
    """Others than torch takes by itself."""
    linear = torch.nn.functional.linear

    def split(values: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
        columns = values.shape[-1] // 2
        found = linear(values[..., :columns], matrix[:, :columns]) + linear(values[..., columns:], matrix[:, columns:])
        return found if bias is None else found + bias

    with contextlib.ExitStack() as stack:
        if which == "plain":
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        elif which == "split":
            stack.enter_context(patch("torch.nn.functional.linear", split))
        yield


def _check(
    manifest: Manifest, folder: Path, slots: Path, round: int, trained: Sequence[Trained], case: Case
) -> list[Replayed]:
    """Every segment of the round, of every stage."""
    torch.set_num_threads(case.threads)
    dataset = Dataset.open(folder / manifest.data.manifest.sha256, folder)
    rounds = [Undecided(slots / str(stage)) for stage in range(STAGES)]
    finished = [one.find(round) for one in rounds]
    folders = [folder, *(one.folder(round) for one in rounds)]
    placement, limits = Placement(device=case.device, threads=case.threads), distances.thresholds(manifest)
    found = []
    for stage, (one, kept) in enumerate(zip(trained, finished, strict=True)):
        assert kept is not None
        for segment in range(one.segments):
            drawn = replay.Drawn(
                stage=stage,
                segment=segment,
                statement=_Said(one),  # type: ignore[arg-type]
                trace=kept.trace,
                plan=manifest.plan,
                steps_before=round * manifest.plan.inner_steps,
                total_steps=ROUNDS * manifest.plan.inner_steps,
                samples=(_lot(manifest, round, 0),),
                own_plans={one.payload_before: manifest.plan},
            )
            with _kernels(case.kernels):
                checked = replay.check_contribution(
                    manifest, drawn, dataset, folders, placement, Projection(b"the benchmark's")
                )
            sketches = {str(part): one.sketch for part, one in checked.deviations.items() if one.sketch}
            found.append(Replayed(stage, _measures(checked, limits), sketches))
    return found


def _measures(checked: replay.Checked, limits: distances.Thresholds) -> dict[str, float]:
    """By title; the limit is infinite for what is false and not measured."""
    loss = abs(checked.loss_replayed - checked.loss_stated) / checked.loss_stated if checked.loss_stated else 0.0
    sent = max(checked.activations, checked.gradients)
    found = dict.fromkeys(_OF_WEIGHTS, 0.0) | {"sent": sent, "loss": loss}
    parts = [sent / limits.sent, loss / limits.numbers]
    for (kind, tensors), one in checked.deviations.items():
        most = limits.limits[tensors]
        if kind == distances.WEIGHTS:
            measured = {"w": (one.distance, most.weights), "rate": (abs(one.rate), most.rate)}
        else:
            measured = {"opt": (one.distance, most.optimiser)}
        for what, (value, limit) in measured.items():
            title = f"{what} {tensors[0]}"
            found[title] = max(found[title], value)
            parts.append(value / limit)
    if not checked.honest and max(parts) <= 1:  # for something else: a norm, or it broke off
        parts.append(math.inf)
    return found | {"limit": max(parts)}


if __name__ == "__main__":
    typer.run(main)
