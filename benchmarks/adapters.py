"""What a run trains of an adapter: B alone, both factors, or both with an exact correction of the base, at equal bytes.

A Llama of 115,000 parameters is trained on modules of Python, once a seed, and then adapted to another language by
replicas of the nodes' own slots and outer step. The mean of B_i A_i is not the product of the means. So FedEx-LoRA
(arXiv 2410.09432) adds what is missing to the base after each round. Everybody has all payloads here, so that costs no
bytes, but a base that changes has to be sealed and kept like a version.
"""

import math
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from msgspec.structs import replace
from torch import Tensor

from benchmarks import simulation
from dlx.ground.merkle import file_root
from dlx.training.codecs import codec, payload_sizes
from dlx.training.data.prepare import prepare
from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import InnerLoop
from dlx.training.models import weights
from dlx.training.models.evaluate import heldout_loss_of_weights
from dlx.training.models.shapes import stage_shapes
from dlx.training.models.stages import initialise
from dlx.training.outer.payloads import Payload
from dlx.training.recipe.advice import FINE_TUNING
from dlx.training.recipe.draft import Draft, DraftData, DraftModel, complete
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Adapter, BlobRef, Inner, Model, Outer, Plan, WeightsRef, parse_model

STDLIB = f"{sysconfig.get_paths()['stdlib']}/[a-f]*.py"
HIDDEN, LAYERS, SEQUENCE, BATCH, STEPS = 64, 2, 64, 4, 10  # the last two of a replica: samples, and steps of a round
PRETRAINING = 1000  # inner steps, of 8 samples
SAMPLES = 128  # of the held-out text
LAYERS_AND_HEADS = {"num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 4}
CONFIG: dict[str, bool | int | float | str] = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": HIDDEN,
    "intermediate_size": 128,
}
CONFIG |= LAYERS_AND_HEADS | {"max_position_embeddings": SEQUENCE}

# At equal bytes: A and B of rank 8 have 1.08 times the values of B of rank 14, and 0.94 times those of rank 16. No part
# of a payload is padded.
AVERAGED = "both averaged: LoRA"  # what all are compared with
METHODS: list[tuple[str, Adapter | None, str]] = [
    ("B alone: FFA-LoRA", Adapter(rank=14, alpha=28, train="b"), "adamw"),
    ("B alone: FFA-LoRA", Adapter(rank=16, alpha=32, train="b"), "adamw"),
    (AVERAGED, Adapter(rank=8, alpha=16, train="both"), "adamw"),
    ("both, base corrected: FedEx-LoRA", Adapter(rank=8, alpha=16, train="both"), "adamw"),
    ("all weights", None, "adamw"),
    ("all weights", None, "muon"),
]
RATES = (0.01, 0.02, 0.04, 0.08)  # of the factors; of all weights a quarter


class Run(NamedTuple):
    """What one training came to: held-out nats per byte before and after, bytes that a replica sent in a round."""

    before: float
    after: float
    bytes: int


app = typer.Typer(add_completion=False, help=__doc__)

# By the config.json of Llama 3.2 1B and Llama 3.1 8B.
_LLAMA = {"model_type": "llama", "vocab_size": 128256, "num_attention_heads": 32, "num_key_value_heads": 8}
_LLAMA |= {"max_position_embeddings": 131072}
MODELS: dict[str, dict[str, Any]] = {
    "1B": _LLAMA
    | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "tie_word_embeddings": True},
    "8B": _LLAMA | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
}


@app.command()
def sizes() -> None:
    """Print a table of values trained and of bytes that a member sends in a round, in int4, by the models' shapes."""
    typer.echo("| model | trained | rank | values | bytes a round, of all stages | fewer than of all weights |")
    typer.echo("|---|---|---:|---:|---:|---:|")
    for name, config in MODELS.items():
        whole = _size(config, None)
        typer.echo(f"| {name} | all weights | | {whole[0]:,} | {whole[1]:,} | |")
        for rank in (8, 16):
            for train in ("b", "both"):
                values, sent = _size(config, Adapter(rank=rank, train=train))  # type: ignore[arg-type]
                part = f"{whole[1] / sent:,.0f} times"
                typer.echo(f"| {name} | {_TRAINED[train]} | {rank} | {values:,} | {sent:,} | {part} |")


_TRAINED = {"b": "B alone", "both": "both factors"}


def _size(config: dict[str, Any], adapter: Adapter | None) -> tuple[int, int]:
    """Values, and bytes of their payload."""
    draft = _draft(config, [(0, config["num_hidden_layers"])], Inner(), 0, adapter, 1, 1)
    shapes = stage_shapes(draft, 0)
    return sum(math.prod(shape) for shape in shapes.values()), max(payload_sizes(draft, shapes).values())


@app.command()
def loss(
    base_text: Annotated[str, typer.Option(help="Glob of the text that the base learns.")] = STDLIB,
    text: Annotated[str, typer.Option(help="Glob of the text that it is adapted to.")] = "contracts/src/**/*.sol",
    replicas: int = 4,
    rounds: int = 6,
    seeds: Annotated[int, typer.Option(min=2)] = 5,
    only: Annotated[str, typer.Option(help="Of methods whose name has this.")] = "",
    rate: Annotated[list[float] | None, typer.Option(help="In place of the grid's; may be repeated.")] = None,
) -> None:
    """Print a table: each method at that rate of the same grid whose mean over all seeds is lowest."""
    torch.set_num_threads(1)
    methods, rates, began = [one for one in METHODS if only in one[0]], rate or RATES, time.process_time()
    beside = next(place for place, one in enumerate(methods) if one[0] == AVERAGED)
    found: dict[tuple[int, float], list[Run]] = {}
    for seed in range(seeds):
        with tempfile.TemporaryDirectory(prefix="dlx-adapters-") as work:
            setting = _Setting(Path(work), base_text, text, replicas, rounds, seed)
            for place, (name, adapter, optimiser) in enumerate(methods):
                for lr in rates:
                    one = setting.run(name, adapter, _inner(adapter, optimiser, lr))
                    found.setdefault((place, lr), []).append(one)
                    typer.echo(f"seed {seed}, {name}, {optimiser}, {lr:g}: {one.after:.4f}", err=True)
    typer.echo(f"{setting.parameters:,} parameters, {time.process_time() - began:.0f} s of a processor")
    best = [
        min((found[place, lr] for lr in rates), key=lambda runs: statistics.fmean(run.after for run in runs))
        for place in range(len(methods))
    ]
    typer.echo(
        "| trained | rank | optimiser | rate | bytes a round, of a replica | before | after | more than both averaged |"
    )
    typer.echo("|---|---:|---|---:|---:|---:|---:|---:|")
    for place, ((name, adapter, optimiser), runs) in enumerate(zip(methods, best, strict=True)):
        lr = next(lr for lr in rates if found[place, lr] is runs)
        after = [run.after for run in runs]
        more = [one - other.after for one, other in zip(after, best[beside], strict=True)]
        cells = [name, str(adapter.rank if adapter else "-"), optimiser]
        cells += [f"{_inner(adapter, optimiser, lr).lr:g}", f"{runs[0].bytes:,}"]
        cells += [_shown([run.before for run in runs]), _shown(after), _shown(more) if any(more) else ""]
        typer.echo(f"| {' | '.join(cells)} |")


def _shown(values: Sequence[float]) -> str:
    """Mean and standard error."""
    return f"{statistics.fmean(values):.4f} ± {statistics.stdev(values) / math.sqrt(len(values)):.4f}"


def _inner(adapter: Adapter | None, optimiser: Any, rate: float) -> Inner:
    """FINE_TUNING at another rate."""
    rate = rate if adapter else rate / 4
    return replace(FINE_TUNING, optimiser=optimiser, lr=rate, matrix_lr=rate, weight_decay=0.0)


class _Setting:
    """What all trainings of a seed share: a base, and another text."""

    def __init__(self, work: Path, base_text: str, text: str, replicas: int, rounds: int, seed: int) -> None:
        self._work, self._replicas, self._rounds, self._seed = work, replicas, rounds, seed
        root = Path("/")
        self._first = prepare(sorted(root.glob(base_text.lstrip("/"))), work)
        self._other = prepare(sorted(Path().glob(text)), work)
        self._dataset = Dataset.open(work / self._other.sha256, work)
        self._base = self._pretrained()
        self.parameters = sum(one.numel() for one in self._base.values())

    def run(self, name: str, adapter: Adapter | None, inner: Inner) -> Run:
        """One training by all replicas."""
        manifest = self._manifest(self._other, inner, adapter, BATCH, self._rounds)
        start = self._base if adapter is None else initialise(manifest, 0)
        before, base = self._loss(manifest, start), self._work / manifest.base[0].sha256 if adapter else None
        correction = _Correction(manifest, self._base, start) if "FedEx" in name else None
        hears = correction.after if correction else lambda loops, payloads: None
        for point in simulation.diloco(manifest, self._replicas, self._dataset, start, base=base, sealed=hears):
            if point.steps == self._rounds * STEPS:
                if correction:
                    manifest = replace(manifest, base=[written(correction.base, self._work)])
                after = self._loss(manifest, point.version)
        return Run(before, after, point.bytes // self._rounds)

    def _loss(self, manifest: Manifest, tensors: Mapping[str, Tensor]) -> float:
        return heldout_loss_of_weights(manifest, [tensors], self._dataset, SAMPLES, self._work)

    def _pretrained(self) -> dict[str, Tensor]:
        manifest = self._manifest(self._first, Inner(), None, 8, PRETRAINING // STEPS)
        loop = InnerLoop(manifest, 0, Dataset.open(self._work / self._first.sha256, self._work))
        loop.load_weights(initialise(manifest, 0))
        loop.load_optimiser_state({})
        for step in range(PRETRAINING):
            loop.step(step, PRETRAINING, loop.positions(step), None, None)
        return {name: one.clone() for name, one in loop.weights().items()}

    def _manifest(self, data: BlobRef, inner: Inner, adapter: Adapter | None, batch: int, rounds: int) -> Manifest:
        draft = _draft(CONFIG, [(0, LAYERS)], inner, self._seed, adapter, batch, rounds)
        base = [written(self._base, self._work)] if adapter else []
        return complete(draft, [written(initialise(draft, 0), self._work)], data, bytes(32), base=base)


def _draft(
    config: dict[str, Any],
    stages: list[tuple[int, int]],
    inner: Inner,
    seed: int,
    adapter: Adapter | None,
    batch: int,
    rounds: int,
) -> Draft:
    parsed = parse_model(Model(config))
    return Draft(
        name="adapters",
        model=DraftModel({key: getattr(parsed, key) for key in parsed.__struct_fields__}),
        stages=stages,
        data=DraftData(source=["x"], sequence_length=SEQUENCE, batch_size=batch, seed=seed),
        inner=inner,
        outer=Outer(policy="mean"),
        plan=Plan(inner_steps=STEPS),
        adapter=adapter,
        rounds=rounds,
        tokens_per_step=batch * SEQUENCE,
    )


def written(tensors: Mapping[str, Tensor], folder: Path) -> WeightsRef:
    """The tensors as a blob."""
    name = weights.write_blob(tensors, folder).hex()
    return WeightsRef(name, (folder / name).stat().st_size, file_root(folder / name).hex())


class _Correction:
    """The base with what the product of the means lacks of the mean of the products, round after round."""

    def __init__(self, manifest: Manifest, base: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> None:
        self.base = {name: one.clone() for name, one in base.items()}
        self._manifest, self._factors = manifest, {name: one.clone() for name, one in start.items()}

    def after(self, loops: Sequence[InnerLoop], payloads: Sequence[Path]) -> None:
        """Every replica's base is corrected alike."""
        adapter, shapes = self._manifest.adapter, stage_shapes(self._manifest, 0)
        assert adapter is not None
        chosen = codec(self._manifest.codec.name)
        changes = [Payload(chosen, shapes, one, self._manifest.plan).decoded() for one in payloads]
        ends = [{name: self._factors[name] - torch.from_numpy(one[name]) for name in shapes} for one in changes]
        self._factors = {name: torch.stack([one[name] for one in ends]).mean(0) for name in shapes}
        for name in (one for one in shapes if one.endswith(".lora_B.weight")):
            path = name.removesuffix(".lora_B.weight")
            a, weight = f"{path}.lora_A.weight", f"{path}.weight"
            mean = torch.stack([one[name] @ one[a] for one in ends]).mean(0)
            self.base[weight] += adapter.alpha / adapter.rank * (mean - self._factors[name] @ self._factors[a])
        for loop in loops:
            loop._model.load(self.base)


if __name__ == "__main__":
    app()
