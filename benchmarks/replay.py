"""How far replays end from the claim: honest ones that differ in process, threads or instruction set, and mild cheats.

`python -m benchmarks.replay [--width 128] [--json FILE]` trains two rounds of a replica of three stages with one thread
and checks the last segment of the second, as level 3 of the audit does, each time in a new process. Each cheat trains
the second round in its own way, from the honest state. Distances as in training/slot/distances.py, whose thresholds
they justify. A row has the largest over the stages, for cheats the smallest: what the threshold must lie between.
"""

import contextlib
import json
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
import torch.distributed as dist
import typer
from msgspec.structs import replace

from dlx.training.data.prepare import prepare
from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import InnerLoop
from dlx.training.inner.pipeline import Link, queue_links
from dlx.training.inner.ranks.group import Group
from dlx.training.inner.ranks.loop import RankedLoop, serve
from dlx.training.models import weights
from dlx.training.models.placement import Placement
from dlx.training.models.stages import initialise
from dlx.training.outer.step import SealedPayload, apply_round
from dlx.training.recipe.draft import Draft, DraftData, DraftModel, complete
from dlx.training.recipe.families import LlamaConfig
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Inner, Plan, packing
from dlx.training.slot import distances, replay, segments
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
    device: str = "cpu"  # of the replay; the work was done on the CPU
    environment: dict[str, str] = field(default_factory=dict)
    rate: float = 1.0  # the learning rates are those of the manifest times this
    left_out: bool = False  # a step of the segment, though the tensors of it were sent; the others may be longer for it
    replica: int = 0  # whose data
    late: int = 0  # so many rounds ago the data was due
    precision: str = ""  # other than the run's
    compile: bool = False  # the layers, as they are trained
    ranks: int = 1  # of the middle stage
    tensor_parallel: int = 1  # of these

    @property
    def trained_again(self) -> bool:
        return not self.honest or bool(self.precision) or self.compile or self.ranks > 1

    @property
    def false_stages(self) -> tuple[int, ...]:
        """Who is to be found: of false data those that read it."""
        if self.honest:
            return ()
        return (0, STAGES - 1) if self.replica or self.late else tuple(range(STAGES))


def _instructions(aten: str, onednn: str, mkl: str) -> dict[str, str]:
    """No others are used, as on an older machine."""
    return {"ATEN_CPU_CAPABILITY": aten, "ONEDNN_MAX_CPU_ISA": onednn, "MKL_ENABLE_INSTRUCTIONS": mkl}


HONEST = (
    Case("another process"),
    Case("2 threads", threads=2),
    Case("3 threads", threads=3),
    Case("middle stage by 2 ranks", ranks=2),
    Case("2 ranks, tensor parallel", ranks=2, tensor_parallel=2),
    Case("AVX2", environment=_instructions("avx2", "AVX2", "AVX2")),
    Case("SSE", environment=_instructions("default", "SSE41", "SSE4_2")),
    Case("trained with compiled layers", compile=True),
    Case("AVX-512 without bfloat16", environment=_instructions("avx512", "AVX512_CORE", "AVX512")),
)
CHEATS = (
    Case("learning rate + 1%", False, rate=1.01),
    Case("learning rate + 10%", False, rate=1.1),
    Case("learning rate - 10%", False, rate=0.9),
    Case("one step left out", False, left_out=True),
    Case("one step left out, others longer", False, rate=20 / 19, left_out=True),
    Case("another replica's data", False, replica=1),
    Case("the data of the round before", False, late=1),
)
OTHER_PRECISION = {
    "float32": Case("bfloat16 for float32", False, precision="bfloat16"),
    "bfloat16": Case("trained in float32", True, precision="float32"),  # nearer to the mathematics than any machine
}


def main(
    width: Annotated[int, typer.Option(help="Hidden size; layers, heads and the rest follow.")] = 128,
    layers: Annotated[int, typer.Option(help="Of the model, at least one for each stage.")] = 6,
    length: Annotated[int, typer.Option(help="Segment length in bfloat16, in inner steps.")] = 0,
    precisions: Annotated[str, typer.Option(help="Which, separated by commas.")] = "float32,bfloat16",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the result there.")
    ] = None,
) -> None:
    """Print every case's distances, for all optimisers and both precisions."""
    if length:
        segments.SEGMENT_STEPS["bfloat16"] = length
    rows: list[dict[str, Any]] = []
    titles = ("weights", "rate", "optimiser", "activations", "gradients", "loss")
    sys.stdout.write(f"{'':<51}" + "".join(f"{title:>12}" for title in titles) + "\n")
    for precision in precisions.split(","):
        for optimiser in ("adamw", "muon", "shampoo"):
            with tempfile.TemporaryDirectory(prefix="dlx-replay-") as folder:
                bench = Bench(Path(folder), precision, optimiser, width, layers)
                for case in (*HONEST, OTHER_PRECISION[precision], *CHEATS):
                    measured = bench.measure(case)
                    row = {title: _extreme([one[title] for one in measured], case) for title in titles}
                    what = {"precision": precision, "optimiser": optimiser, "case": case.name, "honest": case.honest}
                    rows.append(what | row | {"right": all(one["right"] for one in measured)})
                    numbers = "".join(f"{row[title]:>12.1e}" for title in titles)
                    sys.stdout.write(f"{precision:<10}{optimiser:<7}{case.name:<34}{numbers}\n")
                    sys.stdout.flush()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
    sys.stdout.write(f"{distances.THRESHOLDS}; {machine}\n")
    if json_file is not None:
        json_file.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")
    wrong = [row for row in rows if not row["right"]]
    for row in wrong:
        sys.stderr.write(f"{row['precision']}, {row['optimiser']}, {row['case']}: on the wrong side of a threshold\n")
    raise typer.Exit(1 if wrong else 0)


def _extreme(distances: Sequence[float], case: Case) -> float:
    """The largest over the stages; of a cheat the smallest of those that cheat and have any (the last sends no
    activations)."""
    if case.honest:
        return max(distances)
    return min(filter(None, (distances[stage] for stage in case.false_stages)), default=0.0)


class Bench:
    """A run on the standard library's sources, whose replica has trained its first round honestly."""

    def __init__(self, folder: Path, precision: str, optimiser: str, width: int, layers: int) -> None:
        self.folder, self.length = folder, segments.SEGMENT_STEPS[precision]  # type: ignore[index]
        sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        data = prepare(sources, folder)
        model = LlamaConfig(
            vocab_size=256, hidden_size=width, intermediate_size=width // 3 * 8, num_hidden_layers=layers,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=128,
        )  # fmt: skip
        per_stage = layers // STAGES
        draft = Draft(
            name="replay",
            model=DraftModel(msgspec.to_builtins(model)),
            stages=[(per_stage * stage, per_stage * (stage + 1)) for stage in range(STAGES)],
            data=DraftData(source=[str(path) for path in sources], sequence_length=128, batch_size=8, micro_batches=4),
            inner=Inner(optimiser=optimiser, matrix_lr=1e-2),  # type: ignore[arg-type]
            plan=Plan(inner_steps=20),
            precision=precision,  # type: ignore[arg-type]
            rounds=ROUNDS,
            tokens_per_step=8 * 128,
        )
        genesis = [weights.write_blob(initialise(draft, stage), folder) for stage in range(STAGES)]
        self.manifest = complete(
            draft, [msgspec.structs.replace(data, sha256=one.hex()) for one in genesis], data, bytes(32)
        )
        self.trained = _apart({}, _rounds, self.manifest, folder)

    def measure(self, case: Case) -> list[dict[str, Any]]:
        """Of each stage."""
        trained = _apart({}, _again, self.manifest, self.folder, case) if case.trained_again else self.trained
        slots = self.folder / ("again" if case.trained_again else "honest")
        found = _apart(
            case.environment,
            _check,
            self.manifest,
            self.folder,
            slots,
            trained,
            Placement(device=case.device, threads=case.threads),
        )
        for stage, one in enumerate(found):
            one["right"] = one.pop("passes") == (stage not in case.false_stages)
        return found


def _apart(environment: dict[str, str], function: Any, *arguments: Any) -> Any:
    """The function's result in a process of its own."""
    os.environ |= environment
    try:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(_with_lengths, (dict(segments.SEGMENT_STEPS), function, arguments))
    finally:
        for name in environment:
            del os.environ[name]


def _with_lengths(lengths: dict[Any, int], function: Any, arguments: Sequence[Any]) -> Any:
    segments.SEGMENT_STEPS.update(lengths)
    return function(*arguments)


def _rounds(manifest: Manifest, folder: Path) -> list[Trained]:
    """The honest work: two rounds, of which the second is returned; after the first, the slots are copied."""
    bases = [bytes.fromhex(one.sha256) for one in manifest.genesis]
    first = _train(manifest, manifest, folder, folder / "honest", 0, bases, Case("honest"))
    shutil.copytree(folder / "honest", folder / "first")
    (folder / "bases").write_bytes(b"".join(_next_bases(manifest, folder, bases, first)))
    return _train(manifest, manifest, folder, folder / "honest", 1, _bases(folder), Case("honest"))


def _again(manifest: Manifest, folder: Path, case: Case) -> list[Trained]:
    inner = replace(manifest.inner, lr=manifest.inner.lr * case.rate, matrix_lr=manifest.inner.matrix_lr * case.rate)
    shutil.rmtree(folder / "again", ignore_errors=True)
    shutil.copytree(folder / "first", folder / "again")
    altered = replace(manifest, inner=inner, precision=case.precision or manifest.precision)  # type: ignore[arg-type]
    return _train(manifest, altered, folder, folder / "again", 1, _bases(folder), case)


def _next_bases(manifest: Manifest, folder: Path, bases: Sequence[bytes], trained: Sequence[Trained]) -> list[bytes]:
    found = []
    for stage, (base, one) in enumerate(zip(bases, trained, strict=True)):
        sealed = [SealedPayload(folder / one.payload.hex(), one.inner_steps, 32768, manifest.plan)]
        found.append(apply_round(manifest, stage, folder / base.hex(), None, sealed, folder).weights)
    return found


def _bases(folder: Path) -> list[bytes]:
    data = (folder / "bases").read_bytes()
    return [data[at : at + 32] for at in range(0, len(data), 32)]


class _Loop(InnerLoop):
    """An inner loop that may cheat."""

    case: Case
    skipped: int

    def step(self, index: int, total_steps: int, *rest: Any) -> float:
        if not (self.case.left_out and index == self.skipped):
            return super().step(index, total_steps, *rest)
        kept = [{name: one.clone() for name, one in of.items()} for of in (self.weights(), self.optimiser_state())]
        loss = super().step(index, total_steps, *rest)
        self.load_weights(kept[0])
        self.load_optimiser_state(kept[1])
        return loss


def _lot(manifest: Manifest, round: int, replica: int) -> tuple[int, int]:
    """The positions of a replica in a round, where two are counted in every one."""
    need = manifest.plan.inner_steps * manifest.data.batch_size
    first = (2 * round + replica) * need
    return first, first + need


def _train(
    manifest: Manifest, altered: Manifest, folder: Path, slots: Path, round: int, bases: Sequence[bytes], case: Case
) -> list[Trained]:
    """One round of all stages, each in a thread; they train as `altered` says."""
    torch.set_num_threads(1)
    dataset = Dataset.open(folder / manifest.data.manifest.sha256, folder)
    steps = manifest.plan.inner_steps

    def slot(stage: int) -> Slot:
        if group is not None and stage == 1:
            shared = Placement(device="cpu", threads=1, ranks=case.ranks, tensor_parallel=case.tensor_parallel)
            ranked = RankedLoop(group, altered, stage, dataset, shared)
            return RankedSlot(manifest, ranked, stage, slots / str(stage), folder)
        placement = Placement(device="cpu", threads=1, compile=case.compile)
        loop = _Loop(altered, stage, dataset, placement)
        loop._model.packing = packing(manifest)  # what is recorded has the size that checkers expect
        loop.case, loop.skipped = case, (round + 1) * steps - segments.segment_steps(manifest) // 2 - 1
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


def _check(
    manifest: Manifest, folder: Path, slots: Path, trained: Sequence[Trained], placement: Placement
) -> list[dict[str, Any]]:
    """The last segment of the round, of every stage."""
    torch.set_num_threads(placement.threads)
    dataset = Dataset.open(folder / manifest.data.manifest.sha256, folder)
    rounds = [Undecided(slots / str(stage)) for stage in range(STAGES)]
    finished = [one.find(1) for one in rounds]
    folders = [folder, *(one.folder(1) for one in rounds)]
    found = []
    for stage, (one, kept) in enumerate(zip(trained, finished, strict=True)):
        assert kept is not None
        after = finished[stage + 1] if stage + 1 < STAGES else None
        drawn = replay.Drawn(
            stage=stage,
            segment=one.segments - 1,
            statement=_Said(one),  # type: ignore[arg-type]
            trace=kept.trace,
            plan=manifest.plan,
            steps_before=manifest.plan.inner_steps,
            total_steps=ROUNDS * manifest.plan.inner_steps,
            samples=(_lot(manifest, 1, 0),),
            own_plans={one.payload_before: manifest.plan},
            next_trace=after.trace if after else None,
        )
        checked = replay.check_contribution(manifest, drawn, dataset, folders, placement)
        loss = abs(checked.loss_replayed - checked.loss_stated) / checked.loss_stated if checked.loss_stated else 0.0
        names = ("weights", "rate", "optimiser", "activations", "gradients")
        found.append({name: abs(getattr(checked, name)) for name in names} | {"loss": loss, "passes": checked.honest})
    return found


if __name__ == "__main__":
    typer.run(main)
