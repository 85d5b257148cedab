"""A trained model that goes on with text like its own: the rates of the wizard's draft teach it, those for drawn
weights undo what it knows."""

import sysconfig
from pathlib import Path

import pytest
from torch import Tensor

from dlx.ground.merkle import file_root
from dlx.training.data.prepare import prepare
from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import InnerLoop
from dlx.training.models import weights
from dlx.training.models.evaluate import heldout_loss_of_weights
from dlx.training.models.shapes import stage_shapes
from dlx.training.models.stages import initialise
from dlx.training.recipe.advice import FINE_TUNING
from dlx.training.recipe.draft import Draft, DraftData, complete
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import BlobRef, Inner, Model, Plan, WeightsRef
from tests.training.recipe.test_families import full

CONFIG = {"model_type": "llama", "vocab_size": 256, "hidden_size": 48, "intermediate_size": 128, "num_hidden_layers": 2}
CONFIG |= {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64}
PRETRAINING, STEPS = 800, 10  # inner steps in all, and of a round
ROUNDS = 4
SAMPLES = 64  # of the held-out text


def _manifest(blobs: Path, data: BlobRef, seed: int, inner: Inner) -> Manifest:
    samples = DraftData(source=["x"], sequence_length=64, batch_size=8, seed=seed)
    draft = Draft(
        name="tune", model=Model(full(CONFIG)), stages=[(0, 2)], data=samples, inner=inner, plan=Plan(),
        rounds=ROUNDS, tokens_per_step=512,
    )  # fmt: skip
    name = weights.write_blob(initialise(draft, 0), blobs).hex()
    return complete(
        draft, [WeightsRef(name, (blobs / name).stat().st_size, file_root(blobs / name).hex())], data, bytes(32)
    )


def _train(manifest: Manifest, dataset: Dataset, start: dict[str, Tensor], steps: int) -> list[float]:
    """The held-out loss before, and after each round; `start` becomes the last weights."""
    loop = InnerLoop(manifest, 0, dataset)
    loop.load_weights(start)
    loop.load_optimiser_state({})
    losses = [heldout_loss_of_weights(manifest, [loop.weights()], dataset, SAMPLES)]
    for step in range(steps):
        loop.step(step, steps, loop.positions(step), None, None)
        if (step + 1) % STEPS == 0 and steps == ROUNDS * STEPS:
            losses.append(heldout_loss_of_weights(manifest, [loop.weights()], dataset, SAMPLES))
    start |= {name: tensor.clone() for name, tensor in loop.weights().items()}
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_drafts_rates_do_not_undo_what_a_model_knows(seed: int, tmp_path: Path) -> None:
    stdlib = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    first, like = (prepare(files, tmp_path) for files in (stdlib[:60], stdlib[60:90]))
    dataset = Dataset.open(tmp_path / first.sha256, tmp_path)
    manifest = _manifest(tmp_path, first, seed, Inner())
    base = weights.read(tmp_path / manifest.genesis[0].sha256, stage_shapes(manifest, 0))
    _train(manifest, dataset, base, PRETRAINING)

    dataset, found = Dataset.open(tmp_path / like.sha256, tmp_path), {}
    for name, inner in (("draft", FINE_TUNING), ("scratch", Inner())):
        found[name] = _train(_manifest(tmp_path, like, seed, inner), dataset, dict(base), ROUNDS * STEPS)
    print(f"seed {seed}: {found}")
    assert sorted(found["draft"], reverse=True) == found["draft"], "every round teaches it"
    assert found["scratch"][1] > found["scratch"][0], "the rates for drawn weights undo more in a round than they teach"
