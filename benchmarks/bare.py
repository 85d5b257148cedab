"""The bare loop that others are compared with: one process, the same model, data, optimiser and steps.

`python -m benchmarks.bare MANIFEST BLOBS STEPS THREADS` prints {"tokens_per_second", "cpu_seconds_per_token"}.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

WARM_UP_STEPS = 5


def main(manifest_file: Path, blobs: Path, steps: int, threads: int) -> None:
    """Measures after a few steps of warming up."""
    loop = Loop(manifest_file, blobs, threads)
    for step in range(WARM_UP_STEPS):
        loop.step(step)
    began, used = time.perf_counter(), time.process_time()
    for step in range(WARM_UP_STEPS, WARM_UP_STEPS + steps):
        loop.step(step)
    tokens = steps * loop.manifest.tokens_per_step
    rate, cost = tokens / (time.perf_counter() - began), (time.process_time() - used) / tokens
    print(json.dumps({"tokens_per_second": rate, "cpu_seconds_per_token": cost}))


class Loop:
    """A plain torch loop of a manifest's model, data and optimisers. `forward` may be a wrapper of `model`."""

    def __init__(self, manifest_file: Path, blobs: Path, threads: int, seed: int = 0) -> None:
        """`seed`: of the first weights, and of nothing else."""
        os.environ["HF_HUB_OFFLINE"] = "1"
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        from dlx.training.data.shards import Dataset
        from dlx.training.inner.optimisers import Optimisers
        from dlx.training.recipe.manifest import parse

        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        self.manifest = parse(manifest_file.read_bytes())
        self._dataset = Dataset.open(blobs / self.manifest.data.manifest.sha256, blobs)
        config: dict[str, Any] = self.manifest.model.config | {"attn_implementation": "sdpa", "use_cache": False}
        self.model = LlamaForCausalLM(LlamaConfig(**config))
        self.forward: Callable[..., Any] = self.model
        self._steppers = Optimisers(dict(self.model.named_parameters()), self.manifest)

    def step(self, number: int, but_the_last: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        """The run's inner step of this number. `but_the_last`: what every micro-batch before the last runs in."""
        import torch

        data = self.manifest.data
        places = range(number * data.batch_size, (number + 1) * data.batch_size)
        ids = self._dataset.ids(data.seed, places, data.sequence_length)
        batches = self._dataset.batch("train", ids, data.sequence_length).chunk(data.micro_batches)
        for micro in batches[:-1]:
            with but_the_last():
                self._backward(micro)
        self._backward(batches[-1])
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.manifest.inner.clip)
        self._steppers.step(1.0)
        self.model.zero_grad()

    def _backward(self, micro: Any) -> None:
        import torch

        logits = self.forward(micro[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), micro[:, 1:].flatten())
        (loss / self.manifest.data.micro_batches).backward()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
