"""Runs that train an adapter: what the stages compute is what PEFT's own model computes, and PEFT loads what is
exported."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM

from dlx.ground.merkle import file_root
from dlx.training.data.shards import Dataset
from dlx.training.data.vocabulary import Vocabulary
from dlx.training.inner.loop import InnerLoop
from dlx.training.inner.pipeline import run_step
from dlx.training.models import adapters, weights
from dlx.training.models.batches import counted, documents, parted
from dlx.training.models.evaluate import EvaluateError, heldout_loss, heldout_loss_of_stages
from dlx.training.models.export import export
from dlx.training.models.generate import Writer
from dlx.training.models.loss import summed
from dlx.training.models.model_files import MERGED, Folder
from dlx.training.models.parallel import check_ranks
from dlx.training.models.placement import ONE_THREAD, Placement, PlacementError
from dlx.training.models.shapes import factor_shapes, frozen_shapes, model_shapes, stage_shapes
from dlx.training.models.stages import StageModel, initialise
from dlx.training.recipe.draft import Draft, complete
from dlx.training.recipe.families import FAMILIES
from dlx.training.recipe.manifest import Manifest, canonical_bytes, parse
from dlx.training.recipe.parameters import rule
from dlx.training.recipe.recipe import Adapter, BlobRef, Model, WeightsRef, embedding_shape, parse_model
from dlx.training.recipe.soundness import check
from dlx.training.recipe.strict import ManifestError
from tests.training.conftest import tiny_draft
from tests.training.recipe.test_families import CASES, SPLITS, full

B, BOTH = Adapter(rank=4, alpha=6.0, train="b"), Adapter(rank=4, alpha=6.0)
ONE_OF_EACH = [case for case in CASES if "," not in case]
TIED = ["gpt2", "opt, as its 350m", "qwen2", "gemma3_text"]


def _whole(case: str, **changes: Any) -> Draft:
    return tiny_draft(SPLITS[0], model=Model(full(CASES[case][0] | changes)))


def _written(tensors: Any, blobs: Path) -> WeightsRef:
    name = weights.write_blob(tensors, blobs).hex()
    return WeightsRef(name, (blobs / name).stat().st_size, file_root(blobs / name).hex())


@pytest.fixture
def adapter_run(data_manifest: BlobRef, blobs: Path) -> Callable[..., Manifest]:
    """A manifest whose base, a whole model of random weights, and first factors, random too, lie in `blobs`."""

    def make(case: str, split: list[tuple[int, int]], adapter: Adapter, **changes: Any) -> Manifest:
        draft = tiny_draft(split, model=Model(full(CASES[case][0] | changes)), adapter=adapter)
        whole, layout = initialise(_whole(case, **changes), 0), parse_model(draft.model).layout
        whole[f"{layout.head}.weight"] = whole.get(f"{layout.head}.weight", whole[f"{layout.tokens}.weight"])
        base, genesis = [], []
        for stage in range(len(split)):
            base.append(_written({name: whole[name] for name in frozen_shapes(draft, stage)}, blobs))
            chance = torch.Generator().manual_seed(stage)
            first = {
                name: 0.1 * torch.randn(shape, generator=chance) for name, shape in stage_shapes(draft, stage).items()
            }
            genesis.append(_written(first, blobs))
        return complete(draft, genesis, data_manifest, bytes(32), base=base)

    return make


def _models(manifest: Manifest, blobs: Path, placement: Placement = ONE_THREAD) -> list[StageModel]:
    found = []
    for stage in range(len(manifest.stages)):
        model = StageModel(manifest, stage, placement)
        model.load_base(manifest, blobs)
        model.load(weights.read(blobs / manifest.genesis[stage].sha256, stage_shapes(manifest, stage)))
        found.append(model)
    return found


def _factors(manifest: Manifest, blobs: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for stage in range(len(manifest.stages)):
        trained = weights.read_arrays(blobs / manifest.genesis[stage].sha256, stage_shapes(manifest, stage))
        found |= {
            name: torch.from_numpy(values) for name, values in adapters.exported(manifest, stage, trained).items()
        }
    return found


def _peft(case: str, manifest: Manifest, blobs: Path, **changes: Any) -> Any:
    """PEFT's own model, with our factors copied in by its own names."""
    _, model_class, config_class, options = CASES[case]
    config = config_class(**options, **({"tie_word_embeddings": False} | changes))
    config._experts_implementation = "eager"
    model = model_class(config).eval()
    model.load_state_dict(initialise(_whole(case, **changes), 0), strict=not changes)
    adapter, layout = manifest.adapter, parse_model(manifest.model).layout
    assert adapter is not None
    wrapped = get_peft_model(
        model,
        LoraConfig(
            r=adapter.rank, lora_alpha=int(adapter.alpha), target_modules=[*layout.linear],
            fan_in_fan_out=layout.transposed, task_type="CAUSAL_LM",
        ),
    )  # fmt: skip
    there = {name.replace(".default.", "."): one for name, one in wrapped.named_parameters() if one.requires_grad}
    ours = _factors(manifest, blobs)
    assert there.keys() == ours.keys()
    with torch.no_grad():
        for name, parameter in there.items():
            parameter.copy_(ours[name])
    return wrapped


def _expected(model: Any, batches: Any) -> tuple[float, dict[str, Tensor]]:
    total = 0.0
    for batch in batches:
        logits = model(batch[:, :-1]).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()) / len(batches)
        loss.backward()
        total += loss.item()
    names = {
        name.removeprefix("base_model.model.").replace(".default.", "."): one for name, one in model.named_parameters()
    }
    return total, {name: one.grad for name, one in names.items() if one.requires_grad}


@pytest.mark.parametrize(("split", "adapter"), [(SPLITS[0], BOTH), (SPLITS[2], B)], ids=["both", "b"])
@pytest.mark.parametrize("case", ONE_OF_EACH)
def test_loss_and_gradients_are_pefts_bit_for_bit(
    case: str, split: list[tuple[int, int]], adapter: Adapter, adapter_run: Callable[..., Manifest], dataset: Dataset,
    together: Callable[..., Any], blobs: Path,
) -> None:  # fmt: skip
    manifest = adapter_run(case, split, adapter)
    models = _models(manifest, blobs)
    batches = dataset.batch("train", range(4), 16).split(2)
    loss, expected = _expected(_peft(case, manifest, blobs), batches)
    losses = together(len(split), lambda stage, *links: run_step(models[stage], 0, batches, *links))
    assert losses == [None] * (len(split) - 1) + [loss]
    for stage, model in enumerate(models):
        found = {name: tuple(one.shape) for name, one in model.trained().items()}
        assert list(found.items()) == list(stage_shapes(manifest, stage).items())
        for name, parameter in model.named_parameters():
            if name in found:
                assert torch.equal(parameter.grad, expected[name]), name
            else:
                assert parameter.grad is None, name


def test_an_adapter_learns_rows_of_conversations_as_peft_learns_each_document(
    adapter_run: Callable[..., Manifest], row_dataset: Dataset, together: Callable[..., Any], blobs: Path
) -> None:
    manifest = adapter_run("llama", SPLITS[2], B)
    manifest = replace(manifest, data=replace(manifest.data, chat=True))
    models, theirs = _models(manifest, blobs), _peft("llama", manifest, blobs)
    words = row_dataset.batch("train", range(4), 16)
    *_, stated = together(3, lambda stage, *links: run_step(models[stage], 0, words.split(2), *links))
    loss = torch.zeros(())
    for ids, labels in documents(parted(words, rows=True)):
        loss = loss + summed(theirs(ids).logits[0], labels[0]) / counted(words)
    loss.backward()
    assert float(stated) == pytest.approx(float(loss), rel=1e-6)
    expected = {name.replace(".default.", "."): one.grad for name, one in theirs.named_parameters()}
    for model in models:
        for name, parameter in model.trained().items():
            torch.testing.assert_close(
                parameter.grad, expected[f"base_model.model.{name}"], rtol=1e-4, atol=1e-7, msg=name
            )


@pytest.mark.parametrize("split", SPLITS, ids=len)
@pytest.mark.parametrize("case", TIED)
def test_a_tied_head_is_a_copy_in_the_last_stage_and_tied_in_what_is_merged(
    case: str, split: list[tuple[int, int]], adapter_run: Callable[..., Manifest], dataset: Dataset,
    together: Callable[..., Any], blobs: Path, tmp_path: Path,
) -> None:  # fmt: skip
    manifest = adapter_run(case, split, B, tie_word_embeddings=True)
    assert embedding_shape(manifest) is None
    models = _models(manifest, blobs)
    batches = dataset.batch("train", range(4), 16).split(2)
    reference = _peft(case, manifest, blobs, tie_word_embeddings=True)
    loss, expected = _expected(reference, batches)
    losses = together(len(split), lambda stage, *links: run_step(models[stage], 0, batches, *links))
    assert losses[-1] == loss
    found = {name: one.grad for model in models for name, one in model.trained().items()}
    assert all(torch.equal(gradient, expected[name]) for name, gradient in found.items())

    export(manifest, [blobs / one.sha256 for one in manifest.genesis], tmp_path / "whole", form=MERGED, base=blobs)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert loaded.config.tie_word_embeddings and loaded.lm_head.weight is loaded.get_input_embeddings().weight
    torch.testing.assert_close(loaded(batches[0]).logits, reference(batches[0]).logits)


@pytest.mark.parametrize("adapter", [B, BOTH], ids=lambda one: one.train)
@pytest.mark.parametrize("case", ONE_OF_EACH)
def test_peft_loads_what_is_exported_and_the_merged_model_computes_the_same(
    case: str, adapter: Adapter, adapter_run: Callable[..., Manifest], dataset: Dataset, blobs: Path, tmp_path: Path
) -> None:
    manifest = adapter_run(case, SPLITS[1], adapter)
    files = [blobs / one.sha256 for one in manifest.genesis]
    export(manifest, files, tmp_path / "adapter", Vocabulary.of_bytes())
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    _, model_class, config_class, options = CASES[case]
    config = config_class(**options, tie_word_embeddings=False)
    model = model_class(config).eval()
    model.load_state_dict(initialise(_whole(case), 0))
    loaded = PeftModel.from_pretrained(model, str(tmp_path / "adapter"))
    batch = dataset.batch("train", range(4), 16)
    expected = _peft(case, manifest, blobs)(batch[:, :-1]).logits
    torch.testing.assert_close(loaded(batch[:, :-1]).logits, expected)

    assert Folder(manifest, tmp_path / "adapter").stage_hashes() == [
        bytes.fromhex(one.sha256) for one in manifest.genesis
    ]
    digest = export(manifest, files, tmp_path / "whole", form=MERGED, base=blobs)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    torch.testing.assert_close(merged(batch[:, :-1]).logits, expected)
    assert export(manifest, files, tmp_path / "again", form=MERGED, base=blobs) == digest
    own = heldout_loss_of_stages(manifest, files, dataset, blobs=blobs)
    assert own == pytest.approx(heldout_loss(tmp_path / "whole", dataset, 16), rel=1e-5)


@pytest.mark.parametrize("checkpoint", ["layers", "selective"])
@pytest.mark.parametrize("split", SPLITS[::2], ids=len)
def test_computing_activations_again_gives_the_same_gradients(
    checkpoint: Any, split: list[tuple[int, int]], adapter_run: Callable[..., Manifest], dataset: Dataset,
    together: Callable[..., Any], blobs: Path,
) -> None:  # fmt: skip
    manifest, batches = adapter_run("llama", split, B), dataset.batch("train", range(4), 16).split(2)

    def gradients(placement: Placement) -> dict[str, Tensor]:
        models = _models(manifest, blobs, placement)
        together(len(split), lambda stage, *links: run_step(models[stage], 0, batches, *links))
        return {name: one.grad for model in models for name, one in model.trained().items()}  # type: ignore[misc]

    plain, again = gradients(ONE_THREAD), gradients(Placement(device="cpu", threads=1, checkpoint=checkpoint))
    assert all(torch.equal(plain[name], again[name]) for name in plain)


def test_in_bfloat16_a_layer_computes_what_pefts_does(
    adapter_run: Callable[..., Manifest], dataset: Dataset, blobs: Path
) -> None:
    manifest = replace(adapter_run("llama", SPLITS[0], B), precision="bfloat16")
    (model,), batch = _models(manifest, blobs), dataset.batch("train", range(4), 16)
    reference = _peft("llama", manifest, blobs)
    with torch.autocast("cpu", torch.bfloat16):
        expected = reference(batch[:, :-1]).logits.float()
    assert torch.equal(model(batch[:, :-1]), expected)


def test_version_0_is_the_base() -> None:
    draft = tiny_draft(SPLITS[1], adapter=B)
    for stage in range(2):
        assert all(not tensor.any() for tensor in initialise(draft, stage).values())
    both = initialise(tiny_draft(SPLITS[1], adapter=BOTH), 0)
    assert all(bool(one.any()) == name.endswith("lora_A.weight") for name, one in both.items())


def test_a_is_drawn_as_peft_draws_it_and_by_exact_arithmetic() -> None:
    draft = tiny_draft(SPLITS[0], adapter=Adapter(rank=64, train="b"))
    found = adapters.untrained(draft, 0)
    name = "model.layers.0.mlp.down_proj.lora_A.weight"
    values, bound = found[name], 1 / np.sqrt(24)
    assert (
        values.shape == (64, 24)
        and abs(values).max() <= bound
        and values.std() == pytest.approx(bound / 3**0.5, rel=0.05)
    )
    assert values[0, :3].tolist() == VALUES, "another machine would train another run"


VALUES = [-0.04795467481017113, 0.09201769530773163, -0.06707245856523514]


def test_the_families_linear_modules_are_their_plain_matrices() -> None:
    for family in FAMILIES:
        config = parse_model(Model(full(CASES[family][0])))
        layout, found = config.layout, set[str]()
        for name, shape in model_shapes(config):
            if name.startswith(f"{layout.layers}.") and len(shape) == 2 and rule(name).matrix:
                found.add(name.removesuffix(".weight").rpartition(".")[2])
        assert found == set(layout.linear), family


@pytest.mark.parametrize(
    ("case", "targets", "words"),
    [
        (
            "qwen3_moe",
            ["gate_up_proj"],
            'adapter.targets: expected some of q_proj, k_proj, v_proj, o_proj, .* got "gate_',
        ),
        ("llama", ["q_proj", "q_proj"], 'each once, got "q_proj"'),
        ("llama", ["c_attn"], 'layer of llama, each once, got "c_attn"'),
        ("gpt2", ["q_proj"], "expected some of c_attn, c_proj, c_fc"),
    ],
)
def test_a_target_that_is_no_plain_matrix_is_refused_by_name(case: str, targets: list[str], words: str) -> None:
    draft = tiny_draft(SPLITS[0], model=Model(full(CASES[case][0])), adapter=Adapter(targets=targets))
    with pytest.raises(ManifestError, match=words):
        check(draft, parse_model(draft.model))


def test_chosen_targets_alone_get_factors() -> None:
    draft = tiny_draft(SPLITS[1], adapter=Adapter(rank=2, targets=["v_proj"]))
    assert stage_shapes(draft, 0) == {
        "model.layers.0.self_attn.v_proj.lora_A.weight": (2, 16),
        "model.layers.0.self_attn.v_proj.lora_B.weight": (16, 2),
    }
    assert len(factor_shapes(draft, 1)) == 4


def test_a_manifest_states_a_base_for_each_stage_or_none(adapter_run: Callable[..., Manifest]) -> None:
    manifest = adapter_run("llama", SPLITS[1], B)
    for changes, words in [
        ({"base": manifest.base[:1]}, r"base: expected one blob per stage \(2\), got 1"),
        ({"adapter": None}, "base: expected none without an adapter, got 2"),
    ]:
        with pytest.raises(ManifestError, match=words):
            parse(canonical_bytes(replace(manifest, **changes)))


def test_several_ranks_are_refused(adapter_run: Callable[..., Manifest]) -> None:
    with pytest.raises(PlacementError, match="a stage with an adapter is trained by one"):
        check_ranks(adapter_run("llama", SPLITS[0], B))


def test_a_step_changes_what_is_trained_and_nothing_else(
    adapter_run: Callable[..., Manifest], dataset: Dataset, blobs: Path
) -> None:
    manifest = adapter_run("llama", SPLITS[0], B)
    loop = InnerLoop(manifest, 0, dataset, blobs=blobs)
    loop.load_weights(weights.read(blobs / manifest.genesis[0].sha256, stage_shapes(manifest, 0)))
    loop.load_optimiser_state({})
    before = {name: one.clone() for name, one in loop._model.named_parameters()}
    loop.step(0, 10, loop.positions(0), None, None)
    for name, one in loop._model.named_parameters():
        assert torch.equal(one, before[name]) == (name not in loop.shapes), name


def test_an_adapter_alone_is_no_model_to_evaluate_or_serve(
    adapter_run: Callable[..., Manifest], dataset: Dataset, blobs: Path, tmp_path: Path
) -> None:
    manifest = adapter_run("llama", SPLITS[0], B)
    export(manifest, [blobs / manifest.genesis[0].sha256], tmp_path / "adapter")
    for use in (lambda: heldout_loss(tmp_path / "adapter", dataset, 16), lambda: Writer(tmp_path / "adapter")):
        with pytest.raises(EvaluateError, match="an adapter without its base; name that by --base, or `pull --merged`"):
            use()
