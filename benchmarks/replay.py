"""How far an inner replay ends from the claim: honest ones that differ in process, threads or sums, and mild cheats.

`python -m benchmarks.replay [--json FILE]` trains two segments of 20 steps with one thread, and replays the second from
the committed states, each time in a new process. Distances as in training/slot/replay.py, whose threshold they justify.
"""

import json
import multiprocessing
import os
import platform
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
import typer
from safetensors.torch import load_file

from dlx.training.data.prepare import prepare
from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import InnerLoop
from dlx.training.models import weights
from dlx.training.models.stages import initialise
from dlx.training.recipe.draft import Draft, DraftData, DraftModel, complete
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Inner
from dlx.training.slot.replay import THRESHOLD, Segment, replay
from dlx.training.slot.segments import SEGMENT_STEPS

TOTAL_STEPS = 200  # of the run, which decides the learning rates

_PARTS = ("weights", "optimiser", "end_weights", "end_optimiser")  # of a Segment

_MODEL: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128, "hidden_act": "silu",
    "attention_bias": False, "mlp_bias": False, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "initializer_range": 0.02, "tie_word_embeddings": False,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One replay, of honest work done otherwise or (with what differs) of a cheat's."""

    name: str
    honest: bool
    threads: int = 1
    micro_batches: int = 4
    rate: float = 1.0  # the learning rates are those of the manifest times this
    left_out: int | None = None  # of the segment's steps
    replica: int = 0  # whose data


CASES = (
    Case("another process", True),
    Case("2 threads", True, threads=2),
    Case("3 threads", True, threads=3),
    Case("half as many micro-batches", True, micro_batches=2),
    Case("learning rate + 1%", False, rate=1.01),
    Case("one step of 20 left out", False, left_out=7),
    Case("another replica's data", False, replica=1),
)


def main(
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the result there.")
    ] = None,
) -> None:
    """Print every case's distances, of the weights and of the optimiser's state, for both optimisers."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="dlx-replay-") as folder:
        for optimiser in ("adamw", "muon"):
            manifest = _manifest(Path(folder), Inner(optimiser=optimiser, muon_lr=1e-2))  # type: ignore[arg-type]
            _apart(_train, manifest, Path(folder))
            for case in CASES:
                weights, state = _apart(_distance, manifest, Path(folder), case)
                row = {"optimiser": optimiser, "case": case.name, "honest": case.honest}
                rows.append(row | {"weights": weights, "state": state})
                sys.stdout.write(f"{optimiser:<8}{case.name:<30}{weights:>10.1e}{state:>10.1e}\n")
                sys.stdout.flush()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
    sys.stdout.write(f"threshold {THRESHOLD:g}; {machine}\n")
    if json_file is not None:
        json_file.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")
    wrong = [row for row in rows if row["honest"] != (max(row["weights"], row["state"]) <= THRESHOLD)]
    for row in wrong:
        sys.stderr.write(f"{row['optimiser']}, {row['case']}: on the wrong side of the threshold\n")
    raise typer.Exit(1 if wrong else 0)


def _manifest(folder: Path, inner: Inner) -> Manifest:
    """A run of one stage on the standard library's sources."""
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    data = prepare(sources, folder)
    draft = Draft(
        name="replay",
        model=DraftModel(_MODEL),
        stages=[(0, 4)],
        data=DraftData(source=[str(path) for path in sources], sequence_length=128, batch_size=8, micro_batches=4),
        inner=inner,
        rounds=TOTAL_STEPS // 20,
        tokens_per_step=8 * 128,
    )
    return complete(draft, [data], data, bytes(32))  # the genesis is drawn where it is needed: any blob stands for it


def _apart(function: Any, *arguments: Any) -> Any:
    """The function's result in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def _train(manifest: Manifest, folder: Path) -> None:
    """The honest work: states at the second segment's ends."""
    loop = _loop(manifest, folder, 0, threads=1)
    loop.load_weights(initialise(manifest, 0))
    for index in range(SEGMENT_STEPS):
        loop.step(index, TOTAL_STEPS, None, None)
    start = loop.weights(), loop.optimiser_state()
    for index in range(SEGMENT_STEPS, 2 * SEGMENT_STEPS):
        loop.step(index, TOTAL_STEPS, None, None)
    for part, tensors in zip(_PARTS, (*start, loop.weights(), loop.optimiser_state()), strict=True):
        weights.write(tensors, folder / f"{part}.safetensors")


def _distance(manifest: Manifest, folder: Path, case: Case) -> tuple[float, float]:
    torch.set_num_threads(case.threads)
    honest = Segment(*(load_file(folder / f"{part}.safetensors") for part in _PARTS))
    ours, claim = manifest, honest
    if case.honest:
        data = msgspec.structs.replace(manifest.data, micro_batches=case.micro_batches)
        ours = msgspec.structs.replace(manifest, data=data)
    else:
        claim = _cheat(manifest, folder, honest, case)
    dataset = Dataset.open(folder / manifest.data.manifest.sha256, folder)
    (distance,) = replay(ours, 0, [claim], SEGMENT_STEPS, SEGMENT_STEPS, TOTAL_STEPS, dataset)
    return distance.weights, distance.optimiser


def _cheat(manifest: Manifest, folder: Path, honest: Segment, case: Case) -> Segment:
    inner = manifest.inner
    inner = msgspec.structs.replace(inner, lr=inner.lr * case.rate, muon_lr=inner.muon_lr * case.rate)
    loop = _loop(msgspec.structs.replace(manifest, inner=inner), folder, case.replica, case.threads)
    loop.load_weights(honest.weights)
    loop.load_optimiser_state(honest.optimiser)
    for index in range(SEGMENT_STEPS):
        if index != case.left_out:
            loop.step(SEGMENT_STEPS + index, TOTAL_STEPS, None, None)
    return Segment(honest.weights, honest.optimiser, loop.weights(), loop.optimiser_state())


def _loop(manifest: Manifest, folder: Path, replica: int, threads: int) -> InnerLoop:
    torch.set_num_threads(threads)
    return InnerLoop(manifest, 0, replica, Dataset.open(folder / manifest.data.manifest.sha256, folder))


if __name__ == "__main__":
    typer.run(main)
