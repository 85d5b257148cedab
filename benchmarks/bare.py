"""The bare loop that `benchmarks.overhead` compares with: one process, the same model, data, optimiser and steps.

`python -m benchmarks.bare MANIFEST BLOBS STEPS` prints {"tokens_per_second", "threads"} of the faster of one
thread and all cores.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

WARM_UP_STEPS = 5


def main(manifest_file: Path, blobs: Path, steps: int) -> None:
    """Measures each thread count after a few steps of warming up."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    rates = {threads: _rate(manifest_file, blobs, steps, threads) for threads in {1, os.cpu_count() or 1}}
    best = max(rates, key=lambda threads: rates[threads])
    print(json.dumps({"tokens_per_second": rates[best], "threads": best}))


def _rate(manifest_file: Path, blobs: Path, steps: int, threads: int) -> float:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from dlx.training.data.shards import Dataset
    from dlx.training.inner.optimisers import Optimisers
    from dlx.training.recipe.manifest import parse

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    manifest = parse(manifest_file.read_bytes())
    data, inner = manifest.data, manifest.inner
    dataset = Dataset.open(blobs / data.manifest.sha256, blobs)
    config: dict[str, Any] = manifest.model.config | {"attn_implementation": "sdpa", "use_cache": False}
    model = LlamaForCausalLM(LlamaConfig(**config))
    steppers = Optimisers(dict(model.named_parameters()), manifest)
    started = 0.0
    for step in range(WARM_UP_STEPS + steps):
        if step == WARM_UP_STEPS:
            started = time.perf_counter()
        places = range(step * data.batch_size, (step + 1) * data.batch_size)
        ids = dataset.ids(data.seed, places, data.sequence_length)
        for micro in dataset.batch("train", ids, data.sequence_length).chunk(data.micro_batches):
            logits = model(micro[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), micro[:, 1:].flatten())
            (loss / data.micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), inner.clip)
        steppers.step(1.0)
        model.zero_grad()
    return steps * manifest.tokens_per_step / (time.perf_counter() - started)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
