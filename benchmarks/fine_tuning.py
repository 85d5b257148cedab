"""What a run does to a model that is trained already: held-out loss before and after.

`python -m benchmarks.fine_tuning rates [--json FILE]` trains a small model on Python's modules, once a seed. Two
replicas then go on from it, on the nodes' own slots, codecs and outer step: on other modules (`like`), and on this
project's documents (`other`). Every row has the same samples. `source` is the loss on the text that the model came
from: what it has forgotten.

`python -m benchmarks.fine_tuning instructions` does so with conversations: all weights beside an adapter's.
"""

import ast
import json
import math
import os
import statistics
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from benchmarks.trainings import ends_with_its_parent
from dlx.training.recipe.advice import FINE_TUNING
from dlx.training.recipe.draft import Draft, DraftData, DraftModel, complete
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.presets import KINDS
from dlx.training.recipe.recipe import Adapter, BlobRef, Codec, Inner, Model, Plan, WeightsRef, parse_model

REPLICAS, LENGTH, BATCH = 2, 128, 8  # samples of one replica and step
PRETRAINING = 1500  # steps
STEPS = 80  # of each replica
HELDOUT_SAMPLES = 128
CONFIG: dict[str, bool | int | float | str] = {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 3,
    "num_attention_heads": 3, "num_key_value_heads": 3, "max_position_embeddings": LENGTH,
}  # fmt: skip
SCRATCH = Inner()

# Of conversations: a smaller model, which reads text by a tokenizer with a chat template.
TALKER = CONFIG | {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
TALKER |= {"num_attention_heads": 4, "num_key_value_heads": 4}
TALKER_PRETRAINING, TALKER_BATCH = 200, 4  # steps of BATCH samples; samples of a replica and step in the tuning
SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>"]
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# At equal bytes: A and B of rank 8 have 1.08 times the values of B of rank 14, and 0.94 times those of rank 16.
TALKS: list[tuple[str, Adapter | None]] = [
    ("all weights", None),
    ("both factors", Adapter(rank=8, alpha=16, train="both")),
    ("B alone", Adapter(rank=14, alpha=28, train="b")),
    ("B alone", Adapter(rank=16, alpha=32, train="b")),
]
RATE: float = KINDS["lora"]["inner"]["lr"]


class Row(NamedTuple):
    """What is tried: the whole of what the kind of a run decides."""

    name: str
    inner: Inner
    plan: Plan = Plan()
    codec: Codec = Codec()


def _muon(part: float, **changes: Any) -> Inner:
    """The rates for drawn weights, divided."""
    return msgspec.structs.replace(SCRATCH, lr=SCRATCH.lr / part, matrix_lr=SCRATCH.matrix_lr / part, **changes)


def _adamw(lr: float, **changes: Any) -> Inner:
    return msgspec.structs.replace(SCRATCH, optimiser="adamw", lr=lr, **changes)


def rows() -> Iterator[Row]:
    yield Row("as drawn weights", SCRATCH)
    for part in (3, 10, 30, 100):
        yield Row(f"muon, rates / {part}", _muon(part))
    for lr in (1e-3, 3e-4, 1e-4, 3e-5):
        yield Row(f"adamw, lr {lr:g}", _adamw(lr))
    tuned = FINE_TUNING
    yield Row("kind finetune", tuned)
    for key, values in {"warmup": (0.0, 0.2), "final": (0.0, 0.5), "weight_decay": (0.0, 0.01)}.items():
        for value in values:
            yield Row(f"finetune, {key} {value:g}", msgspec.structs.replace(tuned, **{key: value}))
    yield Row("finetune, wsd", msgspec.structs.replace(tuned, schedule="wsd", decay=0.5))
    yield Row("finetune, 5 steps a round", tuned, Plan(inner_steps=5))
    yield Row("finetune, 20 steps a round", tuned, Plan(inner_steps=20))
    yield Row("finetune, topk", tuned, Plan(level=2, rank=128, inner_steps=10), Codec("topk"))


class Tuned(NamedTuple):
    """Held-out nats per token before and after, and bytes that a replica sent in a round."""

    before: float
    after: float
    bytes: int


app = typer.Typer(add_completion=False, help=__doc__)


@app.command(name="rates")
def _rates(
    seeds: Annotated[int, typer.Option(min=1, help="Models, each trained and tuned anew.")] = 3,
    only: Annotated[list[str] | None, typer.Option(help="Rows whose name has this; may be repeated.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Seeds at the same time, of one thread each.")] = (
        os.cpu_count() or 1
    ),
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For data and models.")] = Path("build/fine-tuning"),
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the rows there.")] = None,
) -> None:
    """Tune every seed's model by every row."""
    chosen = [row for row in rows() if not only or any(part in row.name for part in only)]
    if not chosen:
        raise typer.BadParameter(f"of {', '.join(row.name for row in rows())}", param_hint="--only")
    out.mkdir(parents=True, exist_ok=True)
    data = {name: _prepare(files, out) for name, files in texts().items()}
    tuned = partial(_seed, data, [row.name for row in chosen], out)
    with ProcessPoolExecutor(workers, get_context("spawn"), ends_with_its_parent) as pool:
        found = list(pool.map(tuned, range(seeds)))
    sys.stdout.write(f"{'':<28} {'like: change':>20} {'other: change':>20} {'source: change':>20}\n")
    facts = []
    for row in chosen:
        said = {
            text: [one[row.name][text][1] - one[row.name][text][0] for one in found]
            for text in ("like", "other", "source")
        }
        shown = "".join(f" {statistics.fmean(values):>+12.4f} {_spread(values):>7}" for values in said.values())
        sys.stdout.write(f"{row.name:<28}{shown}\n")
        facts.append({"row": row.name} | {text: [one[row.name][text] for one in found] for text in said})
    if json_file is not None:
        json_file.write_text(json.dumps({"seeds": seeds, "steps": STEPS, "rows": facts}, indent=1) + "\n")


def _spread(values: list[float]) -> str:
    return f"± {statistics.stdev(values):.4f}" if len(values) > 1 else ""


def texts() -> dict[str, list[Path]]:
    modules = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    documents = sorted((Path(__file__).parents[1] / "docs").rglob("*.md"))
    return {"source": modules[:100], "like": modules[100:130], "other": documents}


def _prepare(files: list[Path], out: Path) -> BlobRef:
    from dlx.training.data.prepare import prepare

    return prepare(files, out / "blobs")


def _seed(
    data: dict[str, BlobRef], names: list[str], out: Path, seed: int
) -> dict[str, dict[str, tuple[float, float]]]:
    """By row. The text that the model came from: after both tunings, in the mean."""
    import torch

    from benchmarks import simulation
    from dlx.training.data.shards import Dataset
    from dlx.training.models import weights
    from dlx.training.models.shapes import stage_shapes
    from dlx.training.models.stages import initialise

    torch.set_num_threads(1)
    blobs, sets = out / "blobs", {}
    for name, blob in data.items():
        sets[name] = Dataset.open(blobs / blob.sha256, blobs)
    first = manifest_of(data["source"], seed, Row("", SCRATCH, Plan(inner_steps=PRETRAINING)), PRETRAINING)
    kept = out / f"model-{seed}.safetensors"
    if not kept.exists():
        *_, last = simulation.all_reduce(first, sets["source"], initialise(first, 0), PRETRAINING)
        weights.write(last.version, kept)
    base = weights.read(kept, stage_shapes(first, 0))

    def loss(version: Any, text: str) -> float:
        return simulation.loss(first, version, sets[text], HELDOUT_SAMPLES)

    before, found = {text: loss(base, text) for text in sets}, {}
    for row in (row for row in rows() if row.name in names):
        after, forgotten = {}, []
        for text in ("like", "other"):
            *_, end = simulation.diloco(manifest_of(data[text], seed, row), REPLICAS, sets[text], base)
            after[text] = loss(end.version, text)
            forgotten.append(loss(end.version, "source"))
        after["source"] = statistics.fmean(forgotten)
        found[row.name] = {text: (before[text], after[text]) for text in after}
        sys.stderr.write(f"seed {seed}, {row.name}: {found[row.name]}\n")
    return found


def manifest_of(data: BlobRef, seed: int, row: Row, steps: int = STEPS) -> Manifest:
    samples = DraftData(source=["x"], sequence_length=LENGTH, batch_size=BATCH, seed=seed)
    config = msgspec.to_builtins(parse_model(Model(CONFIG)))
    draft = Draft(
        name="tune", model=DraftModel(config), stages=[(0, 3)], data=samples, inner=row.inner, plan=row.plan,
        codec=row.codec, rounds=steps // row.plan.inner_steps, tokens_per_step=LENGTH * BATCH,
        max_replicas=REPLICAS,
    )  # fmt: skip
    stand_in = WeightsRef(data.sha256, data.size, data.sha256)  # any blob will do: the weights are given
    return complete(draft, [stand_in], data, bytes(32))


@app.command()
def instructions(
    seeds: Annotated[int, typer.Option(min=1, help="Models, each trained and tuned anew.")] = 3,
    workers: Annotated[int, typer.Option(min=1, help="Seeds at the same time, of one thread each.")] = (
        os.cpu_count() or 1
    ),
    rate: Annotated[float, typer.Option(help="Of the adapters. All weights have that of their kind.")] = RATE,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For data and models.")] = Path("build/instructions"),
) -> None:
    """Tune every seed's model to answer, by the kinds of a run."""
    text, talks = prepared_talks(out)
    with ProcessPoolExecutor(workers, get_context("spawn"), ends_with_its_parent) as pool:
        found = list(pool.map(partial(talked, text, talks, out, rate=rate), range(seeds)))
    typer.echo("| trained | rank | bytes a round, of a replica | before, of each seed | after | falls by at least |")
    typer.echo("|---|---:|---:|---|---|---:|")
    for (name, adapter), *runs in zip(TALKS, *found, strict=True):
        cells = [name, str(adapter.rank) if adapter else "", f"{runs[0].bytes:,}"]
        cells += [
            ", ".join(f"{value:.3f}" for value in values) for values in zip(*(run[:2] for run in runs), strict=True)
        ]
        cells.append(f"{math.floor(100 * min(1 - run.after / run.before for run in runs))}%")
        typer.echo(f"| {' | '.join(cells)} |")


def prepared_talks(out: Path) -> tuple[BlobRef, BlobRef]:
    """Data manifests, whose blobs lie in `out`: of Python's modules as text, and of questions what a module or a
    function of Python is, which the first line of its documentation answers."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    from dlx.training.data.prepare import Preparation, prepare_blobs

    modules = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    size, alphabet = int(TALKER["vocab_size"]), pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train([str(path) for path in modules[:60]], trainer)
    out.mkdir(parents=True, exist_ok=True)
    bpe.save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(json.dumps({"eos_token": SPECIAL[0], "chat_template": TEMPLATE}))
    rows = [json.dumps(row) for path in modules for row in _asked(path)]
    (out / "answers.jsonl").write_text("\n".join(rows) + "\n")
    text = Preparation(modules[:60], tokenizer=out / "tokenizer.json", separator=SPECIAL[0])
    talks = Preparation([out / "answers.jsonl"], 0.1, out / "tokenizer.json", chat=True, sequence_length=LENGTH)
    return prepare_blobs(text, out), prepare_blobs(talks, out)


def _asked(module: Path) -> Iterator[dict[str, str]]:
    tree = ast.parse(module.read_text(encoding="utf-8"))
    inner = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    for name, node in [(module.stem, tree), *((one.name, one) for one in inner if not one.name.startswith("_"))]:
        if said := ast.get_docstring(node):
            yield {"prompt": f"What is {name}?", "completion": said.splitlines()[0]}


def talked(
    text: BlobRef, talks: BlobRef, out: Path, seed: int, rate: float = RATE, tries: int | None = None
) -> list[Tuned]:
    """A model that knows the text is tuned to the conversations, both as `prepared_talks` made them, as the first of
    TALKS say."""
    import torch

    from benchmarks import simulation
    from benchmarks.adapters import written
    from dlx.training.data.shards import Dataset
    from dlx.training.models import weights
    from dlx.training.models.evaluate import heldout_loss_of_weights
    from dlx.training.models.shapes import stage_shapes
    from dlx.training.models.stages import initialise

    torch.set_num_threads(1)
    first = _talker(text, seed, SCRATCH, Plan(inner_steps=TALKER_PRETRAINING), TALKER_PRETRAINING)
    kept, dataset = out / f"model-{seed}.safetensors", Dataset.open(out / text.sha256, out)
    if not kept.exists():
        *_, last = simulation.all_reduce(first, dataset, initialise(first, 0), TALKER_PRETRAINING)
        weights.write(last.version, kept)
    whole, found, dataset = weights.read(kept, stage_shapes(first, 0)), [], Dataset.open(out / talks.sha256, out)
    base = written(whole, out)
    for _, adapter in TALKS[:tries]:
        inner = msgspec.convert(KINDS["lora"]["inner"] | {"lr": rate}, Inner) if adapter else FINE_TUNING
        tuned = _talker(talks, seed, inner, Plan(), STEPS, adapter, [base] if adapter else [])
        start, file = (initialise(tuned, 0), out / base.sha256) if adapter else (whole, None)
        before = heldout_loss_of_weights(tuned, [start], dataset, HELDOUT_SAMPLES, out)
        *_, end = simulation.diloco(tuned, REPLICAS, dataset, start, base=file)
        after = heldout_loss_of_weights(tuned, [end.version], dataset, HELDOUT_SAMPLES, out)
        found.append(Tuned(before, after, end.bytes // tuned.rounds))
    return found


def _talker(
    data: BlobRef,
    seed: int,
    inner: Inner,
    plan: Plan,
    steps: int,
    adapter: Adapter | None = None,
    base: Sequence[WeightsRef] = (),
) -> Manifest:
    """Of a training on the text, where it is the whole plan, or on conversations."""
    chat = steps > plan.inner_steps
    batch = TALKER_BATCH if chat else BATCH
    config = msgspec.to_builtins(parse_model(Model(TALKER)))
    draft = Draft(
        name="talk", model=DraftModel(config), stages=[(0, 2)], inner=inner, plan=plan, adapter=adapter,
        data=DraftData(source=["x"], sequence_length=LENGTH, batch_size=batch, seed=seed, chat=chat),
        rounds=steps // plan.inner_steps, tokens_per_step=LENGTH * batch, max_replicas=REPLICAS,
    )  # fmt: skip
    return complete(draft, [WeightsRef(data.sha256, data.size, data.sha256)], data, bytes(32), base=base)


if __name__ == "__main__":
    app()
