"""What packing the tensors that go from stage to stage costs in loss, and saves in bytes.

`python -m benchmarks.pipes [--steps N] [--seeds N] [--json FILE]` trains one replica of four stages, one layer each, on
the standard library's source: the node's own inner loop and pipes, a stage a thread, and nothing else of a run. Rows of
one seed see the same samples from the same first weights.
"""

import json
import os
import platform
import shlex
import statistics
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from msgspec.structs import replace

from benchmarks import simulation
from benchmarks.trainings import Job, Method, Setting, manifest_of, prepare
from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import InnerLoop
from dlx.training.inner.pipeline import Link, queue_links
from dlx.training.models.stages import initialise
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import step_bytes

LAYERS, BATCH, LR, HELDOUT_SAMPLES = 4, 8, 1e-2, 256
ROWS = (("float32", "precision"), ("float32", "int8"), ("bfloat16", "precision"), ("bfloat16", "int8"))


def main(
    steps: Annotated[int, typer.Option(min=1, help="Inner steps of each training.")] = 600,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each row.")] = 3,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the result there.")
    ] = None,
) -> None:
    """Print each packing's bytes per token and held-out loss, beside float32's."""
    torch.set_num_threads(1)
    setting = Setting(str(Path(sysconfig.get_paths()["stdlib"]) / "*.py"), layers=LAYERS, batch=BATCH)
    result: dict[str, Any] = {
        "command": shlex.join([Path(sys.executable).name, "-m", "benchmarks.pipes", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "rows": [],
    }
    sys.stdout.write("".join(f"{key:<10} {result[key]}\n" for key in ("command", "machine")) + "\n")
    sys.stdout.write(
        f"{'precision':<10} {'pipe':<10} {'bytes a token':>14} {'held-out loss':>14} {'beside float32':>15}\n"
    )
    with tempfile.TemporaryDirectory(prefix="dlx-pipes-") as folder:
        prepare(setting, Path(folder))
        for precision, pipe in ROWS:
            losses, sent = [], 0.0
            for seed in range(seeds):
                whole = manifest_of(Job(Method("pipes"), setting, LR, seed, steps), Path(folder))
                whole = replace(whole, precision=precision, pipe=pipe)
                split = replace(whole, stages=[(layer, layer + 1) for layer in range(LAYERS)])
                losses.append(_train(whole, split, steps, Path(folder) / "blobs"))
                sent = 2 * (LAYERS - 1) * step_bytes(split) / (BATCH * whole.data.sequence_length)
            row = {"precision": precision, "pipe": pipe, "bytes_per_token": sent, "losses": losses}
            result["rows"].append(row)
            loss, first = statistics.fmean(losses), statistics.fmean(result["rows"][0]["losses"])
            sys.stdout.write(f"{precision:<10} {pipe:<10} {sent:>14.0f} {loss:>14.4f} {loss / first - 1:>+15.2%}\n")
            sys.stdout.flush()
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")


def _train(whole: Manifest, split: Manifest, steps: int, blobs: Path) -> float:
    """The held-out loss of the model after so many steps of its stages."""
    dataset = Dataset.open(blobs / whole.data.manifest.sha256, blobs)
    loops = [InnerLoop(split, stage, dataset) for stage in range(LAYERS)]
    for stage, loop in enumerate(loops):
        loop.load_weights(initialise(split, stage))
    between = [queue_links(60.0) for _ in range(LAYERS - 1)]
    previous: list[Link | None] = [None, *(ends[1] for ends in between)]
    following: list[Link | None] = [*(ends[0] for ends in between), None]

    def work(stage: int) -> None:
        loop = loops[stage]
        for step in range(steps):
            samples = loop.positions(step) if stage in (0, LAYERS - 1) else None
            loop.step(step, steps, samples, previous[stage], following[stage])

    with ThreadPoolExecutor(LAYERS) as threads:
        list(threads.map(work, range(LAYERS)))
    version = {name: tensor for loop in loops for name, tensor in loop.weights().items()}
    return simulation.loss(whole, version, dataset, HELDOUT_SAMPLES)


if __name__ == "__main__":
    typer.run(main)
