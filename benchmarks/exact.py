"""What exact arithmetic costs: processor seconds of an inner step of a whole replica beside those in float32.

`python -m benchmarks.exact [--hidden N] [--layers N] [--bits N] [--steps N]`: a Llama of Muon on one thread, the two
kinds of steps in turns.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from msgspec.structs import replace

from benchmarks.attacks import SOURCE
from benchmarks.trainings import Job, Method, Setting, manifest_of, prepare
from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import InnerLoop
from dlx.training.models.stages import initialise


def main(
    hidden: Annotated[int, typer.Option(min=32, help="The model's width.")] = 256,
    layers: Annotated[int, typer.Option(min=1)] = 4,
    sequence: Annotated[int, typer.Option(min=16, help="Tokens of a sample.")] = 128,
    batch: Annotated[int, typer.Option(min=1, help="Samples of a step.")] = 8,
    bits: Annotated[int, typer.Option(min=7, max=21, help="Of each factor of an exact product.")] = 21,
    steps: Annotated[int, typer.Option(min=1, help="Of each kind, beside one that warms up.")] = 5,
) -> None:
    """Print the processor seconds of a step of both kinds, and what one is of the other."""
    torch.set_num_threads(1)
    setting = Setting(SOURCE, hidden=hidden, layers=layers, sequence=sequence, batch=batch)
    with tempfile.TemporaryDirectory(prefix="dlx-exact-") as name:
        folder = Path(name)
        prepare(setting, folder)
        plan = {"level": 4, "inner_steps": steps + 1}
        manifest = manifest_of(Job(Method("exact", inner={}, plan=plan), setting, 1e-2, 0, steps + 1), folder)
        dataset = Dataset.open(folder / "blobs" / manifest.data.manifest.sha256, folder / "blobs")
        loops = {
            "float32": InnerLoop(manifest, 0, dataset),
            "exact": InnerLoop(replace(manifest, arithmetic="exact", exact_bits=bits), 0, dataset),
        }
        spent = dict.fromkeys(loops, 0.0)
        for loop in loops.values():
            loop.load_weights(initialise(manifest, 0))
            loop.load_optimiser_state({})
        for step in range(steps + 1):
            for kind, loop in loops.items():
                began = time.process_time()
                loop.step(step, steps + 1, loop.positions(step), None, None)
                spent[kind] += (time.process_time() - began) * (step > 0)
    parameters = sum(one.numel() for one in loops["exact"].weights().values())
    each = {kind: seconds / steps for kind, seconds in spent.items()}
    sys.stdout.write(
        f"{parameters:,} parameters, {sequence * batch} tokens a step, {bits} bits: float32 {each['float32']:.2f} s, "
        f"exact {each['exact']:.2f} s, {each['exact'] / each['float32']:.1f} times as much\n"
    )


if __name__ == "__main__":
    typer.run(main)
