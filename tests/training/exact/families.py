"""`python -m tests.training.exact.families GIVEN THREADS`: hashes of the weights after two exact steps of each run that
GIVEN has (JSON: the manifests by name, and the folder of blobs), by its name."""

import hashlib
import json
import sys
from pathlib import Path

import torch

from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import InnerLoop
from dlx.training.models import weights
from dlx.training.recipe.manifest import Manifest, parse


def stepped(manifest: Manifest, blobs: Path) -> str:
    dataset = Dataset.open(blobs / manifest.data.manifest.sha256, blobs)
    loop, genesis = InnerLoop(manifest, 0, dataset, blobs=blobs), blobs / manifest.genesis[0].sha256
    loop.load_weights(weights.tensors(weights.Stored(genesis, loop.shapes)))
    for step in range(2):
        loop.step(step, 4, loop.positions(step), None, None)
    found = hashlib.sha256()
    for state in (loop.weights(), loop.optimiser_state()):
        for _, values in sorted(state.items()):
            found.update(values.numpy().tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]))
    runs, folder = json.loads(Path(sys.argv[1]).read_bytes())
    print(json.dumps({name: stepped(parse(text.encode()), Path(folder)) for name, text in runs.items()}))
