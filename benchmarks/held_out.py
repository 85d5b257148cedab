"""How far honest computations of a version's held-out loss are apart: other threads, other batches, another precision.

`python -m benchmarks.held_out [--steps N] [--seeds N]` trains a byte-level Llama of 0.8M parameters on docs/protocol,
and computes its loss on 16 held-out samples, in two stages, through a file of activations.
"""

import os
import platform
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import torch
import typer
from msgspec.structs import replace

from dlx.ground.constants import MICRO, NO_HASH
from dlx.training.data.prepare import prepare
from dlx.training.data.shards import Dataset
from dlx.training.inner.forward import deviation, stage_pass
from dlx.training.inner.loop import InnerLoop
from dlx.training.models import weights
from dlx.training.models.placement import Placement, take
from dlx.training.models.stages import initialise
from dlx.training.recipe.draft import complete, draft_from_toml
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import BlobRef, Precision, WeightsRef

DOCUMENTS = Path(__file__).resolve().parents[1] / "docs" / "protocol"
SAMPLES = 16
DRAFT = """
name = "held-out"
rounds = 100
stages = [[0, 4]]
[model.config]
model_type = "llama"
vocab_size = 256
hidden_size = 128
intermediate_size = 344
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 4
max_position_embeddings = 128
[data]
source = ["*.md"]
sequence_length = 128
batch_size = 4
[inner]
lr = 4e-3
"""
Found = tuple[bytes, float]  # the first stage's activations, and the loss


def main(
    steps: Annotated[int, typer.Option(min=1, help="Inner steps of each training.")] = 40,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings.")] = 2,
) -> None:
    """Print the relative differences to one thread and batches of 4."""
    command = shlex.join([Path(sys.executable).name, "-m", "benchmarks.held_out", *sys.argv[1:]])
    sys.stdout.write(f"command    {command}\n")
    sys.stdout.write(f"machine    {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n\n")
    with tempfile.TemporaryDirectory(prefix="dlx-held-out-") as name:
        folder = Path(name)
        data = prepare([DOCUMENTS], folder)
        for seed in range(seeds):
            whole = _manifest(folder, data, seed)
            trained = _trained(whole, Dataset.open(folder / data.sha256, folder), steps)
            bases: dict[Precision, Found] = {}
            for precision in ("float32", "bfloat16"):
                split = replace(whole, stages=[(0, 2), (2, 4)], precision=precision)
                base = bases[precision] = _computed(split, trained, folder, 1, 1)
                for threads, pieces, what in ((2, 1, "2 threads"), (1, 4, "batches of 1")):
                    own, loss = _computed(split, trained, folder, threads, pieces)
                    apart = deviation(folder / base[0].hex(), folder / own.hex(), precision)
                    _print(seed, precision, what, f"loss {loss / base[1] - 1:+.1e}, activations {apart:.1e}")
            _print(seed, "bfloat16", "beside float32", f"loss {bases['bfloat16'][1] / bases['float32'][1] - 1:+.1e}")


def _print(seed: int, precision: str, what: str, found: str) -> None:
    sys.stdout.write(f"seed {seed}  {precision:<9} {what:<15} {found}\n")
    sys.stdout.flush()


def _manifest(folder: Path, data: BlobRef, seed: int) -> Manifest:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "run.toml"
        path.write_text(DRAFT)
        (Path(place) / "a.md").touch()
        draft = draft_from_toml(path)
    draft = replace(draft, data=replace(draft.data, seed=seed))
    return complete(draft, [WeightsRef("ab" * 32, 1, "cd" * 32)], data, salt=bytes(32))


def _trained(manifest: Manifest, dataset: Dataset, steps: int) -> dict[str, torch.Tensor]:
    torch.set_num_threads(1)
    loop = InnerLoop(manifest, 0, dataset)
    loop.load_weights(initialise(manifest, 0))
    for step in range(steps):
        loop.step(step, steps, loop.positions(step), None, None)
    return {name: tensor.clone() for name, tensor in loop.weights().items()}


def _computed(manifest: Manifest, tensors: dict[str, torch.Tensor], folder: Path, threads: int, pieces: int) -> Found:
    """`pieces` of a batch of 4 at a time."""
    manifest = replace(manifest, data=replace(manifest.data, micro_batches=pieces))
    names = [
        weights.write_blob({name: tensors[name] for name in initialise(manifest, stage)}, folder) for stage in range(2)
    ]
    take(Placement(device="cpu", threads=threads))
    dataset = Dataset.open(folder / manifest.data.manifest.sha256, folder)
    first = stage_pass(manifest, 0, names, range(SAMPLES), dataset, NO_HASH, folder)
    last = stage_pass(manifest, 1, names, range(SAMPLES), dataset, first.activations, folder)
    return first.activations, last.sum / last.count / MICRO


if __name__ == "__main__":
    typer.run(main)
