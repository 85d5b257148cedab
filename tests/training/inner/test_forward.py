"""A version's held-out loss stage by stage, through files of activations."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dlx.ground.blobs import Damaged
from dlx.ground.constants import MICRO, NO_HASH
from dlx.training.data.shards import Dataset
from dlx.training.inner import forward
from dlx.training.inner.forward import MOST, ActivationsError, Passed, stage_pass
from dlx.training.models import weights
from dlx.training.models.batches import counted
from dlx.training.models.evaluate import heldout_loss, heldout_loss_of_stages, heldout_samples
from dlx.training.models.export import export
from dlx.training.models.stages import initialise
from dlx.training.recipe.evaluation import activations_size
from dlx.training.recipe.manifest import Manifest
from tests.training.conftest import ROWS

SPLIT = [(0, 1), (1, 2), (2, 3)]
TIED = {"tie_word_embeddings": True}


@pytest.fixture(params=[{}, {"config": TIED}, {"precision": "bfloat16"}], ids=["float32", "tied", "bfloat16"])
def version(request: pytest.FixtureRequest, tiny_run: Callable[..., Manifest], tmp_path: Path) -> tuple[Any, ...]:
    """A manifest, and the names of its stages' first weights, which lie in the folder as blobs."""
    manifest = tiny_run(SPLIT, **request.param)
    names = [weights.write_blob(initialise(manifest, stage), tmp_path) for stage in range(3)]
    return manifest, names


def passed(manifest: Manifest, names: list[bytes], samples: list[int], dataset: Dataset, folder: Path) -> list[Passed]:
    found = [Passed()]
    for stage in range(3):
        data = None if stage == 1 else dataset
        found.append(stage_pass(manifest, stage, names, samples, data, found[-1].activations, folder))
    return found[1:]


def test_the_stages_come_to_the_whole_models_loss(
    version: tuple[Manifest, list[bytes]], dataset: Dataset, tmp_path: Path
) -> None:
    manifest, names = version
    samples = heldout_samples(dataset, manifest.data.sequence_length, 7)
    first, second, last = passed(manifest, names, samples, dataset, tmp_path)
    size = activations_size(manifest, len(samples))
    assert [(tmp_path / one.activations.hex()).stat().st_size for one in (first, second)] == [size, size]
    assert (last.activations, last.count) == (NO_HASH, len(samples) * manifest.data.sequence_length)
    files = [tmp_path / name.hex() for name in names]
    whole = heldout_loss_of_stages(manifest, files, dataset, 7)
    assert last.sum / last.count / MICRO == pytest.approx(whole, rel=1e-3 if manifest.precision == "bfloat16" else 1e-6)


def test_of_rows_only_what_counts_is_summed(
    tiny_run: Callable[..., Manifest], row_dataset: Dataset, tmp_path: Path
) -> None:
    """As transformers has it of each document by itself."""
    manifest = tiny_run(SPLIT, data=ROWS)
    names = [weights.write_blob(initialise(manifest, stage), tmp_path) for stage in range(3)]
    samples, found = heldout_samples(row_dataset, 16, 7), [Passed()]
    for stage in range(3):
        found.append(stage_pass(manifest, stage, names, samples, row_dataset, found[-1].activations, tmp_path))
    last = found[-1]
    assert last.count == int(counted(row_dataset.batch("heldout", samples, 16))) < 7 * 16
    files = [tmp_path / name.hex() for name in names]
    export(manifest, files, tmp_path / "hf")
    loss = last.sum / last.count / MICRO
    assert loss == pytest.approx(heldout_loss(tmp_path / "hf", row_dataset, 16, 7), rel=1e-6)
    assert loss == pytest.approx(heldout_loss_of_stages(manifest, files, row_dataset, 7), rel=1e-6)


def test_false_or_damaged_activations_are_told_apart(
    tiny_run: Callable[..., Manifest], dataset: Dataset, tmp_path: Path
) -> None:
    manifest = tiny_run(SPLIT)
    names = [weights.write_blob(initialise(manifest, stage), tmp_path) for stage in range(3)]
    first = stage_pass(manifest, 0, names, [0, 1, 2], dataset, NO_HASH, tmp_path)
    with pytest.raises(ActivationsError, match="instead of"):
        stage_pass(manifest, 1, names, [0, 1], None, first.activations, tmp_path)
    (tmp_path / first.activations.hex()).write_bytes(b"else")
    with pytest.raises(Damaged, match="do not match"):
        stage_pass(manifest, 1, names, [0, 1, 2], None, first.activations, tmp_path)
    with pytest.raises(Damaged, match="missing"):
        stage_pass(manifest, 1, names, [0, 1, 2], None, b"\1" * 32, tmp_path)


def test_a_model_that_is_broken_has_the_most_that_can_be_stated(
    tiny_run: Callable[..., Manifest], dataset: Dataset, tmp_path: Path
) -> None:
    manifest = tiny_run([(0, 3)])
    broken = {name: torch.full_like(one, torch.nan) for name, one in initialise(manifest, 0).items()}
    name = weights.write_blob(broken, tmp_path)
    found = forward.stage_pass(manifest, 0, [name], [0, 1], dataset, NO_HASH, tmp_path)
    assert found.sum == found.count * MOST * MICRO
