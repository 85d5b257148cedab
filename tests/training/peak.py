"""`python -m tests.training.peak DRAFT`: bytes that two inner steps of a one-stage run take in their own process.

The most private memory (Linux's RssAnon) of a process that has loaded what a training process has.
"""

import sys
import threading
import time
from pathlib import Path

import torch

import dlx.node.trainer.process  # noqa: F401  with all that it imports
from dlx.training.inner.optimisers import Optimisers
from dlx.training.inner.pipeline import run_step
from dlx.training.models.stages import StageModel, preload
from dlx.training.recipe.draft import draft_from_toml


def main(draft_path: Path) -> int:
    torch.set_num_threads(1)
    preload()
    draft, peaks, done = draft_from_toml(draft_path), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            peaks.append(max(peaks[-1], _private()))

    watching = threading.Thread(target=watch)
    watching.start()
    model = StageModel(draft, 0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    optimisers, data = Optimisers(dict(model.named_parameters()), draft), draft.data
    batch = torch.randint(0, 256, (data.batch_size, data.sequence_length + 1))
    for step in range(2):
        model.zero_grad(set_to_none=True)
        run_step(model, step, batch.split(data.batch_size // data.micro_batches), None, None)
        optimisers.step(1.0)
    time.sleep(0.01)
    done.set()
    watching.join()
    return peaks[-1]


def _private() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
