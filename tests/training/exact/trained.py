"""`python -m tests.training.exact.trained FOLDER OPTIMISER BITS THREADS`: a hash of the weights after some exact steps
from weights that every machine draws alike, and the last loss. FOLDER holds a prepared setting (`prepared`). 0 bits: in
plain float32."""

import hashlib
import json
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch

from benchmarks.attacks import SOURCE
from benchmarks.trainings import Job, Method, Setting, manifest_of, prepare
from dlx.training.data.shards import Dataset
from dlx.training.exact.mode import Exact
from dlx.training.inner.loop import InnerLoop

SETTING = Setting(SOURCE, hidden=32, layers=2, sequence=32, batch=4)
STEPS = 4


def prepared(folder: Path) -> None:
    prepare(SETTING, folder)


def trained(folder: Path, optimiser: str, bits: int) -> tuple[str, float]:
    method = Method("exact", inner={"optimiser": optimiser}, plan={"level": 4, "inner_steps": STEPS})
    manifest = manifest_of(Job(method, SETTING, 1e-2, 0, STEPS), folder)
    dataset = Dataset.open(folder / "blobs" / manifest.data.manifest.sha256, folder / "blobs")
    with Exact(bits) if bits else nullcontext():
        loop = InnerLoop(manifest, 0, dataset)
        loop.load_weights({name: _drawn(name, tuple(shape)) for name, shape in loop.shapes.items()})
        loop.load_optimiser_state({})
        losses = [loop.step(step, STEPS, loop.positions(step), None, None) for step in range(STEPS)]
    found = hashlib.sha256()
    for _, values in sorted(loop.weights().items()):
        found.update(values.detach().numpy().tobytes())
    return found.hexdigest(), losses[-1]


def _drawn(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    numbers = np.random.default_rng(sum(name.encode())).integers(-(2**20), 2**20, shape) / 2**20
    return torch.from_numpy((0.05 * numbers if len(shape) > 1 else 1 + 0.1 * numbers).astype(np.float32))


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[4]))
    print(json.dumps(trained(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
