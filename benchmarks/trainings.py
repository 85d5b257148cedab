"""Trainings of one model by several methods, some replicas each, simulated in one process with the nodes' engine.

What was trained is kept in a folder and not trained again, so an interrupted benchmark goes on: name another folder
after changing code or text.
"""

import glob
import hashlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import msgspec
import typer

from dlx.ground import durable
from dlx.training.models.weights import array
from dlx.training.outer.arithmetic import approach
from dlx.training.outer.average import members
from dlx.training.recipe.draft import complete, draft_from_toml
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.presets import INNER_STEPS
from dlx.training.recipe.recipe import Average, BlobRef, WeightsRef

REPLICAS = 4  # where nothing else is said
PUBLISHED = 8  # versions in a published average, 2% of a training apart

_APART = 50
_POINTS = 20  # of a curve
_HELDOUT_SAMPLES = 256  # that every loss is the mean of
FINAL = 0.02  # of the inner rates, at a training's end: at 20 tokens a parameter 0.5% better than 0.1
# A momentum of 0.95 is 0.5% worse, with and without a codec; beta2 0.95 is no worse with bytes, but with byte pairs.
MUON = {"optimiser": "muon", "matrix_momentum": 0.9, "beta2": 0.99, "final": FINAL}


@dataclass(frozen=True)
class Method:
    """One row."""

    name: str
    seeds: int = 1
    every_step: bool = False  # gradients averaged in every step, instead of a pseudo-gradient once per round
    compressed: bool = True
    inner: dict[str, Any] = field(default_factory=lambda: MUON)
    outer: dict[str, Any] = field(default_factory=dict)
    codec: str = "int4"
    plan: dict[str, Any] = field(default_factory=lambda: {"inner_steps": INNER_STEPS})
    adaptive: bool = False
    steps: tuple[int, ...] = ()  # of each replica in a round, where they differ
    stated: tuple[int, ...] = ()  # what each replica says of that, where one lies
    parts: str = ""  # what contributions weigh in the sum, if not what the nodes say: see simulation.PARTS


@dataclass(frozen=True)
class Setting:
    """What all methods share."""

    source: str  # a text file, folder or glob; ** stands for folders within folders
    hidden: int = 128
    layers: int = 4
    sequence: int = 128
    batch: int = 2  # samples of one replica and step
    vocabulary: int = 0  # tokens of a byte-pair encoding made of the text; 0: every byte is one
    replicas: int = REPLICAS


@dataclass(frozen=True)
class Job:
    """One training; `lr` is the inner rate, of the matrices where AdamW does not step them. `batched`: in one
    computation of all replicas (`benchmarks.batched`, `rough`), without the nodes' files."""

    method: Method
    setting: Setting
    lr: float
    seed: int
    steps: int
    batched: bool = False

    @property
    def key(self) -> str:
        """The same for all that trains the same, whatever it is called."""
        facts = asdict(replace(self, method=replace(self.method, name="", seeds=1)))
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


# loss, mean_loss (of the published average), curve of (steps, bytes, loss), bytes (that one replica sent), rounds,
# bytes_per_round, steps, parameters, seconds
Result = dict[str, Any]


def prepare(setting: Setting, out: Path) -> None:
    """The text as shards in the folder."""
    from dlx.training.data.prepare import Preparation, prepare_blobs

    out.mkdir(parents=True, exist_ok=True)
    sources = [Path(path) for path in sorted(glob.glob(setting.source, recursive=True))]
    sources = [path for path in sources if "site-packages" not in path.parts or "site-packages" in setting.source]
    if not sources:
        raise typer.BadParameter(f"{setting.source}: no such file or folder", param_hint="--source")
    if setting.vocabulary:  # a tokenizer takes nothing but UTF-8
        files = (file for path in sources for file in (sorted(path.rglob("*")) if path.is_dir() else [path]))
        sources = [file for file in dict.fromkeys(files) if file.is_file() and _is_text(file)]
        if not sources:
            raise typer.BadParameter(f"{setting.source}: no UTF-8 text", param_hint="--source")
    tokenizer = _tokenizer(sources, setting.vocabulary, out) if setting.vocabulary else None
    made = prepare_blobs(Preparation(sources, tokenizer=tokenizer, raw=tokenizer is None), out / "blobs")
    (out / "data.json").write_bytes(msgspec.json.encode(made))


def parameters(setting: Setting, out: Path) -> int:
    """Of the model that is trained on what `prepare` left in the folder."""
    from dlx.training.models.shapes import stage_shapes

    shapes = stage_shapes(manifest_of(Job(Method("size"), setting, 1e-3, 0, INNER_STEPS), out), 0)
    return sum(math.prod(shape) for shape in shapes.values())


def tokens_of(setting: Setting) -> int:
    """Of all replicas in one step."""
    return setting.replicas * setting.batch * setting.sequence


def train(job: Job, out: Path) -> Result:
    """Train one model, or take the result that an earlier run left in the folder."""
    kept = out / "jobs" / f"{job.key}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    import torch

    from benchmarks import batched, simulation
    from dlx.training.codecs import CodecError
    from dlx.training.data.shards import Dataset
    from dlx.training.inner.loop import TrainingError
    from dlx.training.models.stages import initialise

    torch.set_num_threads(1)
    manifest, blobs = manifest_of(job, out), out / "blobs"
    dataset = Dataset.open(blobs / manifest.data.manifest.sha256, blobs)
    genesis, began = initialise(manifest, 0), time.process_time()
    steps = manifest.rounds * manifest.plan.inner_steps
    if job.method.every_step:
        every = max(1, steps // _APART)
        all_reduce = partial(batched.all_reduce, rough=True) if job.batched else simulation.all_reduce
        points, versions = all_reduce(manifest, dataset, genesis, every), -(-steps // every)
    else:
        method, versions = job.method, manifest.rounds
        uneven = partial(simulation.diloco, steps=method.steps, stated=method.stated, parts=method.parts)
        diloco = partial(batched.diloco, rough=True) if job.batched else uneven
        points = diloco(manifest, job.setting.replicas, dataset, genesis, compressed=method.compressed)
    wanted = set(members(Average(versions=PUBLISHED, every=max(1, versions // _APART)), versions))
    size = 4 * sum(tensor.numel() for tensor in genesis.values())
    curve: list[tuple[int, int, float]] = []
    mean = _Mean()
    point, loss = simulation.Point(1, size, genesis), math.inf
    try:
        for number, point in enumerate(points, start=1):
            if number in wanted:
                mean.add(point.version)
            if number == versions or number * _POINTS // versions > (number - 1) * _POINTS // versions:
                loss = simulation.loss(manifest, point.version, dataset, _HELDOUT_SAMPLES)
                curve.append((point.steps, point.bytes, loss))
        mean_loss = simulation.loss(manifest, mean.version, dataset, _HELDOUT_SAMPLES)
    except (TrainingError, CodecError):  # it has diverged
        loss = mean_loss = math.inf
        curve.append((steps, point.bytes, loss))
    sent = point.bytes * steps / point.steps
    rounds = steps if job.method.every_step else manifest.rounds
    result: Result = {
        "loss": loss,
        "mean_loss": mean_loss,
        "curve": curve,
        "steps": steps,
        "parameters": size // 4,
        "bytes": round(sent),
        "bytes_per_round": round(sent / rounds),
        "rounds": rounds,
        "seconds": time.process_time() - began,
    }
    kept.parent.mkdir(exist_ok=True)
    durable.write_bytes(kept, json.dumps(result).encode())
    return result


class _Mean:
    """The published average of versions that come one after the other."""

    def __init__(self) -> None:
        self._count, self._sum = 0, dict[str, Any]()

    def add(self, version: Mapping[str, Any]) -> None:
        self._count += 1
        for name, tensor in version.items():
            values = array(tensor).copy()
            if self._count == 1:
                self._sum[name] = values
            else:
                approach(self._sum[name], values, 1 / self._count)

    @property
    def version(self) -> Mapping[str, Any]:
        import torch

        return {name: torch.from_numpy(values) for name, values in self._sum.items()}


def train_all(jobs: Sequence[Job], out: Path, workers: int) -> dict[str, Result]:
    """Results by the jobs' keys; what an earlier run left in the folder is not trained again."""
    results: dict[str, Result] = {}
    with ProcessPoolExecutor(workers, get_context("spawn"), ends_with_its_parent) as pool:
        waiting = {pool.submit(train, job, out): job for job in jobs}
        try:
            for future in as_completed(waiting):
                job = waiting[future]
                results[job.key] = result = future.result()
                what = f"{job.method.name}, lr {job.lr:.3g}, batch {job.setting.batch}, seed {job.seed}"
                found = f"{result['steps']} steps: loss {result['loss']:.4f} in {result['seconds']:.0f} s"
                _note(f"{len(results)}/{len(jobs)}  {what}, {found}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # what one training found wrong, the others would find too
            raise
    return results


def ends_with_its_parent() -> None:
    """A worker's first act: one whose benchmark was killed would go on training for hours."""

    def watch() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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
vocab_size = {vocabulary}
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
    together = setting.replicas if method.every_step else 1
    lr = {"lr" if method.inner.get("optimiser") == "adamw" else "matrix_lr": job.lr}
    text = _DRAFT.format(
        rounds=job.steps // method.plan["inner_steps"],
        replicas=setting.replicas // together,
        hidden=setting.hidden,
        vocabulary=setting.vocabulary or 256,
        intermediate=round(setting.hidden * 8 / 3 / 8) * 8,
        heads=max(1, setting.hidden // 32),
        layers=setting.layers,
        source=json.dumps(setting.source),
        sequence=setting.sequence,
        batch=setting.batch * together,
        micro_batches=together,
        seed=job.seed,
    )
    outer = {"policy": "mean"} | method.outer
    tables = {"inner": method.inner | lr, "outer": outer, "codec": {"name": method.codec}, "plan": method.plan}
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
    stand_in = WeightsRef(data.sha256, data.size, data.sha256)
    return complete(draft, [stand_in], data, bytes(32))  # any blob will do: the genesis is drawn where it is needed


def _is_text(path: Path) -> bool:
    try:
        path.read_text("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _tokenizer(sources: Sequence[Path], vocabulary: int, out: Path) -> Path:
    """A byte-level byte-pair encoding of so many tokens, made of the text itself."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    of = hashlib.sha256("\n".join(map(str, sources)).encode()).hexdigest()[:8]
    path = out / f"bpe-{vocabulary}-{of}.json"
    if not path.exists():
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
        )
        texts = (path.read_text(errors="replace") for path in sources)
        made.train_from_iterator(texts, trainer)
        durable.write_bytes(path, made.to_str().encode())
    return path


def _note(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
