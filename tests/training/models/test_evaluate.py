import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlx.training.data.prepare import prepare
from dlx.training.data.shards import DataError, Dataset
from dlx.training.inner.loop import InnerLoop
from dlx.training.inner.pipeline import Link
from dlx.training.models import weights
from dlx.training.models.evaluate import EvaluateError, generate, heldout_loss, heldout_loss_of_stages
from dlx.training.models.export import export
from dlx.training.models.stages import initialise
from dlx.training.recipe.manifest import Manifest

SPLIT = [(0, 1), (1, 3)]


@pytest.fixture(scope="module")
def trained(
    tiny_run: Callable[..., Manifest],
    dataset: Dataset,
    together: Callable[..., list[Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Manifest, list[Path], Path]:
    """A manifest, stage files after 60 inner steps, and the exported folder."""
    manifest, folder = tiny_run(SPLIT), tmp_path_factory.mktemp("trained")
    loops = [InnerLoop(manifest, stage, dataset) for stage in range(2)]
    for stage, loop in enumerate(loops):
        loop.load_weights(initialise(manifest, stage))

    def train(stage: int, previous: Link | None, following: Link | None) -> None:
        for index in range(60):
            loops[stage].step(index, 60, loops[stage].positions(index), previous, following)

    together(2, train)
    files = [folder / f"stage-{stage}.safetensors" for stage in range(2)]
    for loop, path in zip(loops, files, strict=True):
        weights.write(loop.weights(), path)
    export(manifest, files, folder / "hf")
    return manifest, files, folder / "hf"


def test_training_lowers_the_loss_on_text_never_trained_on(
    trained: tuple[Manifest, list[Path], Path], dataset: Dataset, blobs: Path
) -> None:
    manifest, files, folder = trained
    genesis = heldout_loss_of_stages(manifest, [blobs / blob.sha256 for blob in manifest.genesis], dataset)
    assert genesis == pytest.approx(math.log(256), abs=0.1)
    after = heldout_loss(folder, dataset, 16)
    assert after < genesis - 2
    assert heldout_loss_of_stages(manifest, files, dataset) == pytest.approx(after, rel=1e-6)
    assert heldout_loss(folder, dataset, 16, max_samples=3) != after


def test_a_short_heldout_text_is_refused(trained: tuple[Manifest, list[Path], Path], tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_bytes(b"a short text of some words")
    ref = prepare([tmp_path / "short.txt"], tmp_path)
    with pytest.raises(DataError, match="held-out data is shorter"):
        heldout_loss(trained[2], Dataset.open(tmp_path / ref.sha256, tmp_path), 16)


def test_generated_text_looks_like_the_training_text(trained: tuple[Manifest, list[Path], Path]) -> None:
    folder = trained[2]
    text = generate(folder, b"line 4 of", tokens=60, seed=1)
    assert 0 < len(text) <= 60
    assert set(text) & set(b"lineofsay")
    assert text == generate(folder, b"line 4 of", tokens=60, seed=1)
    assert text != generate(folder, b"line 4 of", tokens=60, seed=2)
    greedy = generate(folder, b"line 4 of", tokens=40, temperature=0)
    assert greedy == generate(folder, b"line 4 of", tokens=40, seed=9, temperature=0)
    assert len(generate(folder, b"", tokens=2)) <= 2


def test_a_folder_without_a_model_is_one_clear_line(trained: tuple[Manifest, list[Path], Path], tmp_path: Path) -> None:
    with pytest.raises(EvaluateError, match=r"holds no config\.json"):
        generate(tmp_path, b"x")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(EvaluateError, match="cannot be loaded") as caught:
        generate(tmp_path, b"x")
    assert "\n" not in str(caught.value)
    (tmp_path / "config.json").write_bytes((trained[2] / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(EvaluateError, match="cannot be loaded"):
        generate(tmp_path, b"x")
