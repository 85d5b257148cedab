"""Trainings of one model by several methods, 4 replicas each, simulated in one process with the nodes' engine.

What was trained is kept in a folder and not trained again, so an interrupted benchmark goes on: name another folder
after changing code or text.
"""

import glob
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import typer

from dlx.ground import durable
from dlx.training.recipe.draft import complete, draft_from_toml
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.presets import INNER_STEPS
from dlx.training.recipe.recipe import BlobRef

REPLICAS = 4

_POINTS = 20  # of a curve
_HELDOUT_SAMPLES = 256  # that every loss is the mean of
_MUON = {"optimiser": "muon"}
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


@dataclass(frozen=True)
class Setting:
    """What all methods share."""

    source: str  # a text file, folder or glob
    hidden: int = 128
    layers: int = 4
    sequence: int = 128
    batch: int = 2  # samples of one replica and step


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


def prepare(setting: Setting, out: Path) -> None:
    """The text as shards in the folder."""
    from dlx.training.data.prepare import prepare

    out.mkdir(parents=True, exist_ok=True)
    sources = [Path(path) for path in sorted(glob.glob(setting.source))]
    if not sources:
        raise typer.BadParameter(f"{setting.source}: no such file or folder", param_hint="--source")
    (out / "data.json").write_bytes(msgspec.json.encode(prepare(sources, out / "blobs")))


def train(job: Job, out: Path) -> Result:
    """Train one model, or take the result that an earlier run left in the folder."""
    kept = out / "jobs" / f"{job.key}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    import torch

    from benchmarks import simulation
    from dlx.training.codecs import CodecError
    from dlx.training.data.shards import Dataset
    from dlx.training.inner.loop import TrainingError
    from dlx.training.models.stages import initialise

    torch.set_num_threads(1)
    manifest, blobs = manifest_of(job, out), out / "blobs"
    dataset = Dataset.open(blobs / manifest.data.manifest.sha256, blobs)
    genesis, began = initialise(manifest, 0), time.monotonic()
    steps, every = manifest.rounds * manifest.plan.inner_steps, max(1, job.steps // _POINTS)
    if job.method.every_step:
        points = simulation.all_reduce(manifest, dataset, genesis, every)
    else:
        points = simulation.diloco(manifest, REPLICAS, dataset, genesis, compressed=job.method.compressed)
    size = 4 * sum(tensor.numel() for tensor in genesis.values())
    curve: list[tuple[int, int, float]] = []
    point, loss = simulation.Point(1, size, genesis), math.inf
    try:
        for point in points:
            if point.steps == steps or point.steps // every > (curve[-1][0] // every if curve else 0):
                loss = simulation.loss(manifest, point.version, dataset, _HELDOUT_SAMPLES)
                curve.append((point.steps, point.bytes, loss))
    except (TrainingError, CodecError):  # it has diverged
        loss = math.inf
        curve.append((steps, point.bytes, loss))
    sent = point.bytes * steps / point.steps
    result: Result = {
        "loss": loss,
        "curve": curve,
        "steps": steps,
        "bytes_per_round": round(sent / (steps if job.method.every_step else manifest.rounds)),
        "traffic_ratio": size * steps / sent,
        "seconds": time.monotonic() - began,
    }
    kept.parent.mkdir(exist_ok=True)
    durable.write_bytes(kept, json.dumps(result).encode())
    return result


def train_all(jobs: Sequence[Job], out: Path, workers: int) -> dict[str, Result]:
    """Results by the jobs' keys; what an earlier run left in the folder is not trained again."""
    results: dict[str, Result] = {}
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        waiting = {pool.submit(train, job, out): job for job in jobs}
        try:
            for future in as_completed(waiting):
                job = waiting[future]
                results[job.key] = result = future.result()
                what = f"{job.method.name}, lr {job.lr:g}, seed {job.seed}, {result['steps']} steps"
                _note(f"{len(results)}/{len(jobs)}  {what}: loss {result['loss']:.4f} in {result['seconds']:.0f} s")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # what one training found wrong, the others would find too
            raise
    return results


def finite(row: dict[str, Any]) -> dict[str, Any]:
    """What has diverged has no loss: JSON knows no infinity."""
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}


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


def manifest_of(job: Job, out: Path) -> Manifest:
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


def _note(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
