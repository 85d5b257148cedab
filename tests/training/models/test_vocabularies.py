"""Embeddings with more rows than the tokenizer has ids, or resized for added ones: from a model's folder through
training to a pulled folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from dlx.ground.merkle import file_root
from dlx.training.data.prepare import Preparation, prepare_blobs
from dlx.training.data.shards import Dataset
from dlx.training.data.vocabulary import Vocabulary
from dlx.training.inner.loop import InnerLoop
from dlx.training.inner.pipeline import Link
from dlx.training.models import weights
from dlx.training.models.evaluate import heldout_loss, heldout_loss_of_stages
from dlx.training.models.export import export
from dlx.training.models.merging import merge
from dlx.training.models.model_files import MERGED
from dlx.training.models.placement import Placement
from dlx.training.models.pretrained import Checkpoint
from dlx.training.models.shapes import stage_shapes
from dlx.training.models.stages import StageModel, initialise
from dlx.training.recipe.draft import complete, draft_from_toml
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import WeightsRef, parse_model
from dlx.training.recipe.usage import read_usage
from tests.training import texts
from tests.training.recipe.test_families import CASES

ADDED = ["<|tool|>", "<|think|>"]
STEPS = 6
TOML = """
name = "tune"
stages = {stages}
rounds = 2
[model]
source = "hf"
[data]
source = ["in"]
tokenizer = "hf/tokenizer.json"
sequence_length = 16
batch_size = 4
micro_batches = 2
[plan]
inner_steps = {steps}
[inner]
optimiser = "adamw"
lr = 1e-2
"""


def _folder(folder: Path, case: str, tied: bool, rows: int | None) -> Path:
    """A model's of so many rows. None: of 320, then resized for `ADDED`, as its tokenizer has them."""
    _, model_class, config_class, theirs = CASES[case]
    torch.manual_seed(3)
    model = model_class(config_class(**theirs | {"vocab_size": rows or 320, "tie_word_embeddings": tied})).eval()
    path = texts.tokenizer(folder / "tokenizer.json")
    if rows is None:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ADDED])
        tokenizer.save(str(path))
        model.resize_token_embeddings(tokenizer.get_vocab_size(), mean_resizing=False)
    model.save_pretrained(folder)
    settings = {"eos_token": texts.END, "additional_special_tokens": [] if rows else ADDED}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def _run(folder: Path, stages: list[list[int]], source: bool, more: str = "") -> tuple[Manifest, Dataset]:
    """Of the folder's model, or of one like it whose weights are drawn. Its blobs lie in `blobs` beside the folder."""
    texts.json_lines(folder.parent / "in" / "rows.jsonl", [{"text": text} for text in texts.texts(30)])
    (folder.parent / "run.toml").write_text(TOML.format(stages=stages, steps=STEPS) + more)
    draft, blobs = draft_from_toml(folder.parent / "run.toml"), folder.parent / "blobs"
    if not source:
        config = draft.model.config | {"tie_word_embeddings": True}
        draft = replace(draft, model=replace(draft.model, config=config, source=""))
    data = prepare_blobs(Preparation(draft.sources, tokenizer=folder / "tokenizer.json"), blobs)

    def written(tensors: dict[str, torch.Tensor]) -> WeightsRef:
        path = blobs / weights.write_blob(tensors, blobs).hex()
        return WeightsRef(path.name, path.stat().st_size, file_root(path).hex())

    checkpoint, genesis, base = (
        Checkpoint(draft, Path(draft.model.source)) if source else None,
        list[WeightsRef](),
        list[WeightsRef](),
    )
    for stage in range(len(stages)):
        if checkpoint is not None:
            (base if draft.adapter else genesis).append(written(checkpoint.weights(stage)))
        if checkpoint is None or draft.adapter:
            genesis.append(written(initialise(draft, stage)))
    return complete(draft, genesis, data, base=base), Dataset.open(blobs / data.sha256, blobs)


def _trained(
    manifest: Manifest, dataset: Dataset, blobs: Path, together: Callable[..., list[Any]]
) -> tuple[list[Path], list[float]]:
    """The stages' files after some steps, and the losses."""
    loops = []
    for stage, ref in enumerate(manifest.genesis):
        loop = InnerLoop(manifest, stage, dataset, Placement(device="cpu", threads=1), blobs)
        loop.load_weights(weights.read(blobs / ref.sha256, loop.shapes))
        loops.append(loop)

    def work(stage: int, previous: Link | None, following: Link | None) -> list[float]:
        loop = loops[stage]
        return [loop.step(index, STEPS, loop.positions(index), previous, following) for index in range(STEPS)]

    losses = together(len(loops), work)[-1]
    assert isinstance(losses, list), losses
    return [blobs / weights.write_blob(loop.weights(), blobs).hex() for loop in loops], losses


@pytest.mark.parametrize(
    ("case", "start", "stages"),
    [
        ("llama", "tied", [[0, 3]]),
        ("llama", "untied", [[0, 1], [1, 3]]),
        ("llama", "tied", [[0, 1], [1, 2], [2, 3]]),
        ("llama", "drawn", [[0, 1], [1, 2], [2, 3]]),
        ("gemma3_text", "tied", [[0, 1], [1, 3]]),
        ("gpt2", "drawn", [[0, 1], [1, 3]]),
    ],
)
@pytest.mark.parametrize("rows", [385, None], ids=["padded", "resized"])
def test_it_is_trained_exported_and_loaded(
    case: str, start: str, stages: list[list[int]], rows: int | None, together: Callable[..., list[Any]], tmp_path: Path
) -> None:
    folder = _folder(tmp_path / "hf", case, start == "tied", rows)
    manifest, dataset = _run(folder, stages, source=start != "drawn")
    assert parse_model(manifest.model).vocab_size == (rows or 322)
    assert dataset.vocab_size == (320 if rows else 322)

    files, losses = _trained(manifest, dataset, tmp_path / "blobs", together)
    assert losses[-1] < losses[0]
    vocabulary = Vocabulary.read(folder / "tokenizer.json")
    export(manifest, files, tmp_path / "out", vocabulary, read_usage(folder)[0])
    loaded, tokenizer = _loaded(tmp_path / "out")
    assert loaded.config.tie_word_embeddings == (start == "drawn" or (start == "tied" and len(stages) == 1))
    spelled = f"a{ADDED[0]}b"
    assert tokenizer(spelled)["input_ids"] == vocabulary.encode([spelled])[0]

    models = [StageModel(manifest, stage) for stage in range(len(stages))]
    for model, file in zip(models, files, strict=True):
        model.load(weights.read(file, stage_shapes(manifest, model.stage)))
    if models[-1].tied_head is not None:
        models[-1].tied_head.data.copy_(models[0].embedding)
    hidden = ids = dataset.batch("train", range(3), 16)[:, :-1]
    with torch.inference_mode():
        for model in models:
            hidden = model(hidden)
        assert hidden.shape[-1] == (rows or 322) and torch.equal(loaded(ids).logits, hidden)
    heldout = heldout_loss_of_stages(manifest, files, dataset, 4)
    assert heldout == pytest.approx(heldout_loss(tmp_path / "out", dataset, 16, 4), rel=1e-6)


@pytest.mark.parametrize("rows", [385, None], ids=["padded", "resized"])
def test_an_adapter_of_a_tied_base_is_loaded_on_it_and_merged(
    rows: int | None, together: Callable[..., list[Any]], tmp_path: Path
) -> None:
    """In two stages, of which the last one's base has the head's copy; PEFT loads it on the tied base."""
    folder = _folder(tmp_path / "hf", "llama", True, rows)
    manifest, dataset = _run(folder, [[0, 1], [1, 3]], source=True, more="[adapter]\nrank = 4\nalpha = 32\n")
    files, losses = _trained(manifest, dataset, tmp_path / "blobs", together)
    assert losses[-1] < losses[0]
    beside = Vocabulary.read(folder / "tokenizer.json"), read_usage(folder)[0]
    export(manifest, files, tmp_path / "adapter", *beside)
    export(manifest, files, tmp_path / "whole", *beside, MERGED, tmp_path / "blobs")
    whole, tokenizer = _loaded(tmp_path / "whole")
    assert len(tokenizer) == dataset.vocab_size
    adapted: Any = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), str(tmp_path / "adapter"))
    ids = dataset.batch("train", range(3), 16)[:, :-1]
    with torch.inference_mode():
        torch.testing.assert_close(adapted(ids).logits, whole(ids).logits)
        with adapted.disable_adapter():
            assert not torch.allclose(adapted(ids).logits, whole(ids).logits, atol=1e-3)
    heldout = heldout_loss_of_stages(manifest, files, dataset, 4, tmp_path / "blobs")
    assert heldout == pytest.approx(heldout_loss(tmp_path / "whole", dataset, 16, 4), rel=1e-5)

    merge(manifest, tmp_path / "adapter", folder, tmp_path / "made")  # by who has two folders alone
    pulled, made = ({one.name: one.read_bytes() for one in (tmp_path / name).iterdir()} for name in ("whole", "made"))
    assert made == pulled
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"model.norm.weight": 2 * tensors["model.norm.weight"]}, folder / "model.safetensors")
    with pytest.raises(weights.WeightsError, match="has other weights than the adapter's base"):
        merge(manifest, tmp_path / "adapter", folder, tmp_path / "of another")
    assert not (tmp_path / "of another").exists()


def _loaded(folder: Path) -> tuple[Any, Any]:
    loaded, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    return loaded, AutoTokenizer.from_pretrained(folder)
