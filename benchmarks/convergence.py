"""How much loss the exchange of pseudo-gradients costs, beside averaging the gradients of every step.

`python -m benchmarks.convergence [--quick] [--json FILE] [--out FOLDER]` trains one model by several methods at equal
tokens, 4 replicas each, simulated in one process with the nodes' engine. Every method's inner learning rate is tuned at
a short length. Prints a table and writes it to the folder, with a PNG (loss against tokens and against bytes). What was
trained there is not trained again, so an interrupted run goes on: name another folder after changing code or text.
"""

import glob
import hashlib
import json
import math
import os
import platform
import shlex
import statistics
import sys
import sysconfig
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from training.draft import complete, draft_from_toml
from training.manifest import BlobRef, Manifest
from training.presets import INNER_STEPS, PRESETS

REPLICAS = 4
POINTS = 20  # of a curve
HELDOUT_SAMPLES = 256  # of the last point; the curve's others take an eighth
LONGEST = 3000  # inner steps
TARGETS = ((350, 1.5), (1000, 3.0))  # (traffic ratio at least, gap in percent at most)

_NESTEROV = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
_MUON = {"optimiser": "muon"}
_ADAMW_LRS = (2e-3, 4e-3, 8e-3)
_MUON_LRS = (1e-2, 2e-2, 4e-2)


@dataclass(frozen=True)
class Method:
    """One row. `lrs` are the inner learning rates tried: Muon's for the matrices where that is the optimiser."""

    name: str
    lrs: tuple[float, ...] = _MUON_LRS
    seeds: int = 1
    every_step: bool = False  # gradients averaged in every step, instead of a pseudo-gradient once per round
    compressed: bool = True
    inner: dict[str, Any] = field(default_factory=lambda: _MUON)
    outer: dict[str, Any] = field(default_factory=dict)
    codec: str = "int4"
    plan: dict[str, Any] = field(default_factory=lambda: {"inner_steps": INNER_STEPS})
    adaptive: bool = False


def _with_adamw(name: str, **rest: Any) -> Method:
    return Method(name, **{"lrs": _ADAMW_LRS, "inner": {"optimiser": "adamw"}} | rest)


METHODS = (
    _with_adamw("all-reduce AdamW", lrs=(1e-3, 2e-3, 4e-3), every_step=True),
    Method("all-reduce Muon", seeds=3, every_step=True),
    _with_adamw("DiLoCo H 20", compressed=False, outer=_NESTEROV, plan={"inner_steps": 20}),
    _with_adamw("DiLoCo H 50", compressed=False, outer=_NESTEROV, plan={"inner_steps": 50}),
    _with_adamw(
        "dilocox",
        lrs=(1e-3, 2e-3, 4e-3),
        outer=PRESETS["dilocox"]["outer"],
        codec="lowrank",
        plan=PRESETS["dilocox"]["plan"],
        adaptive=True,
    ),
    _with_adamw("default, AdamW"),
    Method("default, delay 0", seeds=3),
    Method("default, delay 1", outer={"lr": 0.8, "alpha": 0.8, "delay": 1}),
    Method("sparse", seeds=3, codec="topk", plan=PRESETS["sparse"]["plan"]),
    # For the higher traffic ratio: sparser still.
    Method("topk 1/128, H 4", codec="topk", plan={"level": 2, "rank": 32, "inner_steps": 4}),
)


@dataclass(frozen=True)
class Setting:
    """What all methods share."""

    source: str  # a text file, folder or glob
    hidden: int = 128
    layers: int = 4
    sequence: int = 128
    batch: int = 2  # samples of one replica and step


@dataclass(frozen=True)
class Length:
    """Of the trainings, in inner steps."""

    steps: int
    tuning: int = 500
    tuning_rounds: int = 3  # at least
    widenings: int = 2  # of the learning rates tried, at most

    def of_tuning(self, method: Method) -> int:
        return max(self.tuning, self.tuning_rounds * method.plan["inner_steps"])


@dataclass(frozen=True)
class Job:
    """One training."""

    method: Method
    setting: Setting
    lr: float
    seed: int
    steps: int

    @property
    def key(self) -> str:
        """The same for all that trains the same, whatever it is called."""
        facts = asdict(replace(self, method=replace(self.method, name="", lrs=(), seeds=1)))
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


Result = dict[str, Any]  # loss, curve of (steps, bytes, loss), bytes_per_round, traffic_ratio, seconds


def main(
    quick: Annotated[bool, typer.Option("--quick", help="A tiny model and few steps: does everything run?")] = False,
    steps: Annotated[int, typer.Option(min=20, help="Inner steps of each method.")] = LONGEST,
    source: Annotated[str, typer.Option(metavar="GLOB", help="The text to train on.")] = str(
        Path(sysconfig.get_paths()["stdlib"]) / "*.py"
    ),
    only: Annotated[list[str] | None, typer.Option(help="Methods that have this in their name (repeatable).")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Trainings at the same time, of one thread each.")] = (
        os.cpu_count() or 1
    ),
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For the table, the picture and what is done so far.")] = (
        Path("build/convergence")
    ),
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the rows there.")] = None,
) -> None:
    """Train by every method; print loss, gap to the best all-reduce, and traffic."""
    setting, length = Setting(os.path.abspath(source)), Length(steps)
    methods = [m for m in METHODS if not only or any(part in m.name for part in only)]
    if quick:
        setting, length = replace(setting, hidden=32, layers=2, sequence=32), Length(60, 20, 2, 0)
        methods = [replace(m, seeds=1, plan=m.plan | {"inner_steps": min(10, m.plan["inner_steps"])}) for m in methods]
    started = time.monotonic()
    prepare(setting, out)
    jobs = []
    for method, lr in zip(methods, tune(methods, setting, length, out, workers), strict=True):
        jobs += [Job(method, setting, lr, seed, length.steps) for seed in range(method.seeds)]
    results = train_all(sorted(jobs, key=lambda job: job.seed), out, workers)
    rows = _rows(jobs, results)
    heading = {
        "command": shlex.join([Path(sys.executable).name, "-m", "benchmarks.convergence", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "setting": ", ".join(f"{key} {value}" for key, value in asdict(setting).items() if key != "source"),
        "wall_seconds": round(time.monotonic() - started),  # of this run: less what an earlier one had done
    }
    text = "".join(f"{key:<13} {value}\n" for key, value in heading.items()) + "\n" + _table(rows)
    sys.stdout.write(text)
    (out / "table.txt").write_text(text)
    _plot(jobs, results, out / "convergence.png")
    if json_file is not None:
        json_file.write_text(json.dumps(heading | {"rows": [finite(row) for row in rows]}, indent=2) + "\n")


def tune(methods: Sequence[Method], setting: Setting, length: Length, out: Path, workers: int) -> list[float]:
    """Each method's best learning rate of those tried: its own, and further ones while the best lies at an edge."""
    tried = [sorted(method.lrs) for method in methods]
    best: list[float] = []
    for _ in range(1 + length.widenings):
        jobs = [
            [Job(method, setting, lr, 0, length.of_tuning(method)) for lr in lrs]
            for method, lrs in zip(methods, tried, strict=True)
        ]
        results = train_all([job for own in jobs for job in own], out, workers)
        best = [min(own, key=lambda job: results[job.key]["loss"]).lr for own in jobs]
        tried = [_widened(lrs, lr) for lrs, lr in zip(tried, best, strict=True)]
    return best


def _widened(lrs: Sequence[float], best: float) -> list[float]:
    """Twice or half as far where the best of the ascending rates is the last or the first."""
    return [*([best / 2] if best == lrs[0] else []), *lrs, *([best * 2] if best == lrs[-1] else [])]


def train(job: Job, out: Path) -> Result:
    """Train one model, or take the result that an earlier run left in the folder."""
    kept = out / "jobs" / f"{job.key}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    import torch

    from benchmarks import simulation
    from training.data import Dataset
    from training.inner import TrainingError
    from training.stages import initialise

    torch.set_num_threads(1)
    manifest, blobs = _manifest(job, out), out / "blobs"
    dataset = Dataset.open(blobs / manifest.data.manifest.sha256, blobs)
    genesis, began = initialise(manifest, 0), time.monotonic()
    steps, every = manifest.rounds * manifest.plan.inner_steps, max(1, job.steps // POINTS)
    if job.method.every_step:
        points = simulation.all_reduce(manifest, dataset, genesis, every)
    else:
        points = simulation.diloco(manifest, REPLICAS, dataset, genesis, compressed=job.method.compressed)
    size = 4 * sum(tensor.numel() for tensor in genesis.values())
    curve: list[tuple[int, int, float]] = []
    point = simulation.Point(1, size, genesis)
    try:
        for point in points:
            last = point.steps == steps
            if last or point.steps // every > (curve[-1][0] // every if curve else 0):
                samples = HELDOUT_SAMPLES if last else HELDOUT_SAMPLES // 8
                curve.append((point.steps, point.bytes, simulation.loss(manifest, point.version, dataset, samples)))
    except TrainingError:  # it has diverged
        curve.append((steps, point.bytes, math.inf))
    sent = point.bytes * steps / point.steps
    result: Result = {
        "loss": curve[-1][2],
        "curve": curve,
        "steps": steps,
        "bytes_per_round": round(sent / (steps if job.method.every_step else manifest.rounds)),
        "traffic_ratio": size * steps / sent,
        "seconds": time.monotonic() - began,
    }
    kept.parent.mkdir(exist_ok=True)
    temporary = kept.with_suffix(".new")
    temporary.write_text(json.dumps(result))
    temporary.rename(kept)
    return result


def train_all(jobs: Sequence[Job], out: Path, workers: int) -> dict[str, Result]:
    """Results by the jobs' keys; what an earlier run left in the folder is not trained again."""
    results: dict[str, Result] = {}
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        waiting = {pool.submit(train, job, out): job for job in jobs}
        for future in as_completed(waiting):
            job = waiting[future]
            results[job.key] = result = future.result()
            what = f"{job.method.name}, lr {job.lr:g}, seed {job.seed}, {result['steps']} steps"
            _note(f"{len(results)}/{len(jobs)}  {what}: loss {result['loss']:.4f} in {result['seconds']:.0f} s")
    return results


_DRAFT = """\
name = "convergence"
rounds = {rounds}
stages = [[0, {layers}]]
max_replicas = {replicas}

[model.config]
model_type = "llama"
vocab_size = 256
hidden_size = {hidden}
intermediate_size = {intermediate}
num_hidden_layers = {layers}
num_attention_heads = {heads}
num_key_value_heads = {heads}
max_position_embeddings = {sequence}

[data]
source = [{source}]
sequence_length = {sequence}
batch_size = {batch}
micro_batches = {micro_batches}
seed = {seed}

"""


def _manifest(job: Job, out: Path) -> Manifest:
    """A run of one stage. Where every step is averaged, its one replica does the work of all."""
    method, setting = job.method, job.setting
    together = REPLICAS if method.every_step else 1
    lr = {"muon_lr": job.lr} if method.inner.get("optimiser") == "muon" else {"lr": job.lr}
    text = _DRAFT.format(
        rounds=job.steps // method.plan["inner_steps"],
        replicas=REPLICAS // together,
        hidden=setting.hidden,
        intermediate=round(setting.hidden * 8 / 3 / 8) * 8,
        heads=max(1, setting.hidden // 32),
        layers=setting.layers,
        source=json.dumps(setting.source),
        sequence=setting.sequence,
        batch=setting.batch * together,
        micro_batches=together,
        seed=job.seed,
    )
    tables = {"inner": method.inner | lr, "outer": method.outer, "codec": {"name": method.codec}, "plan": method.plan}
    if method.adaptive:  # the rank alone: there is no link whose time the inner steps could follow
        steps = method.plan["inner_steps"]
        tables["adaptive"] = {"min_inner_steps": steps, "max_inner_steps": steps}
    for table, values in tables.items():
        text += f"[{table}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    path = out / f"{job.key}-{os.getpid()}.toml"
    path.write_text(text)
    try:
        draft = draft_from_toml(path)
    finally:
        path.unlink()
    data = msgspec.json.decode((out / "data.json").read_bytes(), type=BlobRef)
    return complete(draft, [data], data, bytes(32))  # the genesis is drawn where it is needed: any blob stands for it


def prepare(setting: Setting, out: Path) -> None:
    """The text as shards in the folder."""
    from training.prepare import prepare

    out.mkdir(parents=True, exist_ok=True)
    sources = [Path(path) for path in sorted(glob.glob(setting.source))]
    if not sources:
        raise typer.BadParameter(f"{setting.source}: no such file or folder", param_hint="--source")
    (out / "data.json").write_bytes(msgspec.json.encode(prepare(sources, out / "blobs")))


def _rows(jobs: Sequence[Job], results: dict[str, Result]) -> list[dict[str, Any]]:
    """One row per method, its loss the mean over the seeds."""
    rows = []
    for name in dict.fromkeys(job.method.name for job in jobs):
        own = [job for job in jobs if job.method.name == name]
        found = [results[job.key] for job in own]
        losses = [result["loss"] for result in found]
        rows.append(
            {
                "method": name,
                "seeds": len(found),
                "lr": own[0].lr,
                "loss": round(statistics.mean(losses), 4),
                "spread": round(max(losses) - min(losses), 4),
                "bytes_per_round": found[0]["bytes_per_round"],
                "traffic_ratio": round(found[0]["traffic_ratio"], 1),
                "steps": found[0]["steps"],
                "seconds": round(statistics.mean(result["seconds"] for result in found)),
            }
        )
    every_step = {job.method.name for job in jobs if job.method.every_step}
    best = min((row["loss"] for row in rows if row["method"] in every_step), default=float("nan"))
    return [row | {"gap_percent": round(100 * (row["loss"] / best - 1), 2)} for row in rows]


def _table(rows: Sequence[dict[str, Any]]) -> str:
    keys = (
        "method",
        "seeds",
        "lr",
        "loss",
        "spread",
        "gap_percent",
        "bytes_per_round",
        "traffic_ratio",
        "steps",
        "seconds",
    )
    cells = [list(keys), *([str(row[key]) for key in keys] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in cells]
    for ratio, gap in TARGETS:
        reached = [row["method"] for row in rows if row["traffic_ratio"] >= ratio and row["gap_percent"] <= gap]
        lines.append(f"gap of at most {gap:g}% at {ratio} times less traffic: {', '.join(reached) or 'not reached'}")
    return "\n".join(lines) + "\n"


def _plot(jobs: Sequence[Job], results: dict[str, Result], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 5), sharey=True)
    for job in jobs:
        if job.seed:
            continue
        steps, sent, losses = zip(*results[job.key]["curve"], strict=True)
        tokens = [step * REPLICAS * job.setting.batch * job.setting.sequence for step in steps]
        left.plot(tokens, losses, label=job.method.name)
        right.plot(sent, losses)
    left.set(xlabel="tokens", ylabel="held-out loss (nats per token)")
    right.set(xlabel="bytes sent by one replica", xscale="log")
    left.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def finite(row: dict[str, Any]) -> dict[str, Any]:
    """What has diverged has no loss: JSON knows no infinity."""
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}


def _note(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')}  {text}\n")


if __name__ == "__main__":
    typer.run(main)
