"""A tiny run that the training tests share: byte-level text, a Llama of a few thousand parameters."""

import hashlib
import os
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

from dlx.ground.merkle import tree_root
from dlx.training.data.prepare import prepare
from dlx.training.data.rows import BEGINS, SILENT
from dlx.training.data.shards import DataManifest, Dataset, Rows, Shard
from dlx.training.inner.pipeline import Link, queue_links
from dlx.training.models import weights
from dlx.training.models.stages import StageModel, initialise
from dlx.training.recipe.draft import Draft, DraftData, complete
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import BlobRef, Inner, Model, Plan, WeightsRef
from tests.patience import PATIENCE

TINY = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "initializer_range": 0.02,
    "rope_scaling": None,
    "tie_word_embeddings": False,
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Before every test: some leave others behind, and with other threads sums have other bits."""
    torch.set_num_threads(1)


ROWS = DraftData(source=["corpus"], sequence_length=16, batch_size=4, micro_batches=2, seed=7, chat=True)


def tiny_draft(stages: list[tuple[int, int]], *, config: dict[str, Any] | None = None, **changes: Any) -> Draft:
    values: dict[str, Any] = {
        "name": "tiny",
        "model": Model(TINY | (config or {})),
        "stages": stages,
        "data": DraftData(source=["corpus"], sequence_length=16, batch_size=4, micro_batches=2, seed=7),
        "inner": Inner(optimiser="adamw", lr=1e-2),
        "plan": Plan(inner_steps=4),
        "rounds": 5,
        "tokens_per_step": 64,
        "max_replicas": 4,
    }
    return Draft(**(values | changes))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text files with structure to learn: 40 files of 1.4 kB."""
    folder = tmp_path_factory.mktemp("corpus")
    for index in range(40):
        lines = (f"line {line} of file {index} says {line % 7} and {(line * index) % 5}.\n" for line in range(40))
        (folder / f"{index:02}.txt").write_text("".join(lines))
    return folder


@pytest.fixture(scope="session")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blobs")


@pytest.fixture(scope="session")
def data_manifest(corpus: Path, blobs: Path) -> BlobRef:
    return prepare([corpus], blobs)


@pytest.fixture(scope="session")
def dataset(data_manifest: BlobRef, blobs: Path) -> Dataset:
    return Dataset.open(blobs / data_manifest.sha256, blobs)


@pytest.fixture(scope="session")
def row_dataset(blobs: Path) -> Dataset:
    """60 rows of 17 words, 20 more held out, of two or three documents each whose second half is learnt."""
    generator = np.random.default_rng(7)

    def shard(rows: int) -> Shard:
        words = generator.integers(1, 256, (rows, 17)).astype("<u4")
        for row in words:
            for low, high in pairwise([0, *sorted({*generator.integers(2, 16, 2).tolist()}), 17]):
                row[low : (low + high + 1) // 2] |= SILENT
                row[low] |= BEGINS | SILENT
        content = words.tobytes()
        name = hashlib.sha256(content).hexdigest()
        (blobs / name).write_bytes(content)
        return Shard(name, len(content), words.size, "cd" * 32)

    template = Rows(17, BlobRef("ee" * 32, 1), conversations=1, cut=0, left_out=0)
    tokenizer = BlobRef("dd" * 32, 1)
    shards = {"train": [shard(60)], "heldout": [shard(20)]}
    return Dataset(DataManifest(**shards, rows=template, tokenizer=tokenizer, separator=1, dtype="uint32"), blobs)


@pytest.fixture(scope="session")
def tiny_run(data_manifest: BlobRef, blobs: Path) -> Callable[..., Manifest]:
    """`tiny_run(stages, config={...}, **draft fields)` gives a complete manifest whose genesis lies in `blobs`."""

    def make(stages: list[tuple[int, int]], **changes: Any) -> Manifest:
        draft = tiny_draft(stages, **changes)
        genesis = []
        for stage in range(len(stages)):
            content = weights.serialise(initialise(draft, stage))
            name = hashlib.sha256(content).hexdigest()
            (blobs / name).write_bytes(content)
            genesis.append(WeightsRef(name, len(content), tree_root([content]).hex()))
        return complete(draft, genesis, data_manifest, salt=bytes(32))

    return make


@pytest.fixture(scope="session")
def build_stages() -> Callable[[Manifest], list[StageModel]]:
    """Every stage of a manifest with its genesis weights."""

    def build(manifest: Manifest) -> list[StageModel]:
        models = []
        for stage in range(len(manifest.stages)):
            model = StageModel(manifest, stage)
            model.load_state_dict(initialise(manifest, stage))
            models.append(model)
        return models

    return build


@pytest.fixture(scope="session")
def together() -> Callable[..., list[Any]]:
    """`together(stages, work)` runs `work(stage, previous, next)` in a thread per stage, linked in a pipe, and gives
    what each returned or raised."""

    def run_all(count: int, work: Callable[[int, Link | None, Link | None], Any], timeout: float = 60.0) -> list[Any]:
        previous: list[Link | None] = [None] * count
        following: list[Link | None] = [None] * count
        for stage in range(count - 1):
            following[stage], previous[stage + 1] = queue_links(timeout)
        results: list[Any] = [None] * count

        def run(stage: int) -> None:
            try:
                results[stage] = work(stage, previous[stage], following[stage])
            except Exception as error:
                results[stage] = error

        threads = [threading.Thread(target=run, args=(stage,), daemon=True) for stage in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        return results

    return run_all
