"""Every family, split and unsplit: what the stages compute is what transformers' own model computes, bit for bit."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Glm4Config,
    Glm4ForCausalLM,
    GlmConfig,
    GlmForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MinistralConfig,
    MinistralForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from dlx.training.data.rows import BEGINS, IDS, SILENT
from dlx.training.data.shards import Dataset
from dlx.training.inner.pipeline import Link, run_step
from dlx.training.models.evaluate import heldout_loss, heldout_loss_of_stages
from dlx.training.models.export import export
from dlx.training.models.stages import initialise, stage_shapes
from dlx.training.recipe.draft import DraftData
from dlx.training.recipe.families import FAMILIES
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Model, parse_model
from dlx.training.recipe.soundness import check
from dlx.training.recipe.strict import ManifestError
from tests.training.conftest import tiny_draft

SPLITS = [[(0, 3)], [(0, 1), (1, 3)], [(0, 1), (1, 2), (2, 3)]]

_SIZES = {"vocab_size": 256, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
_ROTARY = _SIZES | {"intermediate_size": 24, "max_position_embeddings": 32}
_GPT2 = {"vocab_size": 256, "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 32}
_OPT = _SIZES | {"ffn_dim": 24, "max_position_embeddings": 32}
_MOE = _SIZES | {"max_position_embeddings": 32, "num_key_value_heads": 1, "num_experts": 4, "num_experts_per_tok": 2}
_MOE |= {"moe_intermediate_size": 24, "norm_topk_prob": True}
_LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3 |= {"original_max_position_embeddings": 8}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
_LONGROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.5, 2.25], "long_factor": [2.0, 4.0, 8.0]}
_LONGROPE |= {"original_max_position_embeddings": 16}
_LINEAR = {"rope_type": "linear", "factor": 8.0}
_CAPS = {"attn_logit_softcapping": 0.001, "final_logit_softcapping": 0.05}
_GRANITE = {"embedding_multiplier": 12.0, "attention_multiplier": 0.3, "residual_multiplier": 0.22}
_GRANITE |= {"logits_scaling": 8.0}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}

# Of each: the manifest's config, and transformers' own classes and options for the same model.
CASES: dict[str, tuple[dict[str, Any], Any, Any, dict[str, Any]]] = {
    "llama": (
        _ROTARY | {"model_type": "llama", "num_key_value_heads": 1, "attention_bias": True, "rope_theta": 500.0},
        LlamaForCausalLM,
        LlamaConfig,
        _ROTARY | {"num_key_value_heads": 1, "attention_bias": True, "rope_parameters": _ROPE | {"rope_theta": 500.0}},
    ),
    "qwen2": (
        _ROTARY | {"model_type": "qwen2", "num_key_value_heads": 2},
        Qwen2ForCausalLM,
        Qwen2Config,
        _ROTARY | {"num_key_value_heads": 2},
    ),
    "qwen3": (
        _ROTARY | {"model_type": "qwen3", "num_key_value_heads": 1, "head_dim": 12},
        Qwen3ForCausalLM,
        Qwen3Config,
        _ROTARY | {"num_key_value_heads": 1, "head_dim": 12},
    ),
    "qwen3, scaled by yarn": (
        _ROTARY | {"model_type": "qwen3", "num_key_value_heads": 1, "rope_theta": 500.0, "rope_scaling": _YARN},
        Qwen3ForCausalLM,
        Qwen3Config,
        _ROTARY | {"num_key_value_heads": 1, "head_dim": 8, "rope_parameters": _YARN | {"rope_theta": 500.0}},
    ),
    "ministral": (
        _ROTARY
        | {"model_type": "ministral", "num_key_value_heads": 1, "sliding_window": 5, "sliding_window_pattern": 2},
        MinistralForCausalLM,
        MinistralConfig,
        _ROTARY
        | {"num_key_value_heads": 1, "head_dim": 8, "sliding_window": 5}
        | {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    ),
    "mistral": (
        _ROTARY | {"model_type": "mistral", "num_key_value_heads": 1, "sliding_window": 17},
        MistralForCausalLM,
        MistralConfig,
        _ROTARY | {"num_key_value_heads": 1, "sliding_window": 17},
    ),
    "mistral, samples longer than its window": (
        _ROTARY | {"model_type": "mistral", "num_key_value_heads": 1, "sliding_window": 5},
        MistralForCausalLM,
        MistralConfig,
        _ROTARY | {"num_key_value_heads": 1, "sliding_window": 5},
    ),
    "llama, as 3.1": (
        _ROTARY | {"model_type": "llama", "num_key_value_heads": 1, "rope_scaling": _LLAMA3},
        LlamaForCausalLM,
        LlamaConfig,
        _ROTARY | {"num_key_value_heads": 1, "rope_parameters": _LLAMA3 | {"rope_theta": 10000.0}},
    ),
    "olmo2": (
        _ROTARY | {"model_type": "olmo2", "num_key_value_heads": 1},
        Olmo2ForCausalLM,
        Olmo2Config,
        _ROTARY | {"num_key_value_heads": 1},
    ),
    "olmo3": (
        _ROTARY
        | {"model_type": "olmo3", "num_key_value_heads": 1, "sliding_window": 5, "sliding_window_pattern": 2}
        | {"rope_scaling": _YARN | {"attention_factor": 1.25, "beta_fast": 16.0}},
        Olmo3ForCausalLM,
        Olmo3Config,
        _ROTARY
        | {"num_key_value_heads": 1, "sliding_window": 5}
        | {"rope_scaling": _YARN | {"attention_factor": 1.25, "beta_fast": 16.0}}
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "granite": (
        _ROTARY | {"model_type": "granite", "num_key_value_heads": 1} | _GRANITE,
        GraniteForCausalLM,
        GraniteConfig,
        _ROTARY | {"num_key_value_heads": 1} | _GRANITE,
    ),
    "phi3": (
        _ROTARY | {"model_type": "phi3", "num_key_value_heads": 1, "partial_rotary_factor": 0.75},
        Phi3ForCausalLM,
        Phi3Config,
        _ROTARY
        | {"num_key_value_heads": 1, "pad_token_id": None}
        | {"rope_parameters": _ROPE | {"partial_rotary_factor": 0.75}},
    ),
    "phi3, samples longer than its window": (
        _ROTARY | {"model_type": "phi3", "num_key_value_heads": 2, "sliding_window": 5},
        Phi3ForCausalLM,
        Phi3Config,
        _ROTARY | {"num_key_value_heads": 2, "sliding_window": 5, "pad_token_id": None},
    ),
    "phi3, scaled by longrope": (
        _ROTARY
        | {"model_type": "phi3", "num_key_value_heads": 2, "partial_rotary_factor": 0.75}
        | {"rope_scaling": _LONGROPE},
        Phi3ForCausalLM,
        Phi3Config,
        _ROTARY
        | {"num_key_value_heads": 2, "pad_token_id": None, "original_max_position_embeddings": 16}
        | {"rope_parameters": _LONGROPE | {"rope_theta": 10000.0, "partial_rotary_factor": 0.75}},
    ),
    "glm": (
        _ROTARY | {"model_type": "glm", "num_key_value_heads": 1, "head_dim": 12},
        GlmForCausalLM,
        GlmConfig,
        _ROTARY | {"num_key_value_heads": 1, "head_dim": 12, "pad_token_id": None},
    ),
    "glm4": (
        _ROTARY | {"model_type": "glm4", "num_key_value_heads": 1, "head_dim": 12},
        Glm4ForCausalLM,
        Glm4Config,
        _ROTARY | {"num_key_value_heads": 1, "head_dim": 12, "pad_token_id": None},
    ),
    "smollm3": (
        _ROTARY | {"model_type": "smollm3", "num_key_value_heads": 1, "no_rope_layer_interval": 2},
        SmolLM3ForCausalLM,
        SmolLM3Config,
        _ROTARY | {"num_key_value_heads": 1, "no_rope_layer_interval": 2, "pad_token_id": None},
    ),
    "gemma2": (
        _ROTARY
        | {"model_type": "gemma2", "num_key_value_heads": 1, "head_dim": 12, "sliding_window": 7}
        | {"query_pre_attn_scalar": 9}
        | _CAPS,
        Gemma2ForCausalLM,
        Gemma2Config,
        _ROTARY | {"num_key_value_heads": 1, "head_dim": 12, "sliding_window": 7, "query_pre_attn_scalar": 9} | _CAPS,
    ),
    "gemma3_text": (
        _ROTARY
        | {"model_type": "gemma3_text", "num_key_value_heads": 1, "head_dim": 12, "sliding_window": 7}
        | {"sliding_window_pattern": 2, "query_pre_attn_scalar": 9, "rope_scaling": _LINEAR},
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        _ROTARY
        | {"num_key_value_heads": 1, "head_dim": 12, "sliding_window": 7, "query_pre_attn_scalar": 9}
        | {"rope_scaling": _LINEAR}
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "qwen3_moe": (
        _MOE | {"model_type": "qwen3_moe", "head_dim": 12},
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig,
        _MOE | {"head_dim": 12},
    ),
    "opt": ({"model_type": "opt"} | _OPT, OPTForCausalLM, OPTConfig, _OPT | {"pad_token_id": None}),
    "opt, as its 350m": (
        {"model_type": "opt", "word_embed_proj_dim": 8, "do_layer_norm_before": False} | _OPT,
        OPTForCausalLM,
        OPTConfig,
        _OPT | {"word_embed_proj_dim": 8, "do_layer_norm_before": False, "pad_token_id": None},
    ),
    "gpt2": ({"model_type": "gpt2"} | _GPT2, GPT2LMHeadModel, GPT2Config, _GPT2),
    "gpt_neox": (
        _ROTARY | {"model_type": "gpt_neox"},
        GPTNeoXForCausalLM,
        GPTNeoXConfig,
        _ROTARY,
    ),
    "gpt_neox, one after the other": (
        _ROTARY | {"model_type": "gpt_neox", "use_parallel_residual": False, "rotary_pct": 1.0},
        GPTNeoXForCausalLM,
        GPTNeoXConfig,
        _ROTARY | {"use_parallel_residual": False, "rope_parameters": _ROPE | {"partial_rotary_factor": 1.0}},
    ),
}
_NO_DROPOUT = {"dropout": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}


def full(config: dict[str, Any]) -> dict[str, Any]:
    """With the family's defaults, as reading a draft fills them in."""
    return msgspec.to_builtins(parse_model(Model(config)))


@pytest.fixture
def family_run(tiny_run: Callable[..., Manifest]) -> Callable[..., Manifest]:
    def make(case: str, split: list[tuple[int, int]], **changes: Any) -> Manifest:
        return tiny_run(split, model=Model(full(CASES[case][0] | changes)))

    return make


def _unsplit(case: str, weights: dict[str, Tensor], **changes: Any) -> Any:
    """transformers' own model, built and called without any of our code; what there is of dropout is switched off."""
    _, model_class, config_class, options = CASES[case]
    off = {key: value for key, value in _NO_DROPOUT.items() if hasattr(config_class(), key)}
    torch.manual_seed(0)
    config = config_class(**options, **off, **({"tie_word_embeddings": False} | changes))
    config._experts_implementation = "eager"  # as we compute them; the grouped products differ in the last bits
    model = model_class(config)
    assert model.training and dict(model.named_parameters()).keys() == weights.keys()
    model.load_state_dict(weights, strict=not changes)
    return model


def _gradients(model: Any, batches: Any) -> tuple[float, dict[str, Tensor]]:
    total = 0.0
    for batch in batches:
        logits = model(batch[:, :-1]).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()) / len(batches)
        loss.backward()
        total += loss.item()
    return total, {name: parameter.grad for name, parameter in model.named_parameters()}


def test_every_family_is_here() -> None:
    assert {case.partition(",")[0] for case in CASES} == FAMILIES.keys()


@pytest.mark.parametrize("split", SPLITS, ids=len)
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_unsplit_model_bit_for_bit(
    case: str,
    split: list[tuple[int, int]],
    family_run: Callable[..., Manifest],
    dataset: Dataset,
    build_stages: Callable[..., Any],
    together: Callable[..., Any],
) -> None:
    manifest = family_run(case, split)
    models = build_stages(manifest)
    batches = dataset.batch("train", range(4), 16).split(2)
    weights = {name: tensor.clone() for model in models for name, tensor in model.state_dict().items()}
    expected_loss, expected = _gradients(_unsplit(case, weights), batches)

    losses = together(len(split), lambda stage, *links: run_step(models[stage], 0, batches, *links))
    assert losses == [None] * (len(split) - 1) + [expected_loss]
    found = {name: parameter.grad for model in models for name, parameter in model.named_parameters()}
    assert found.keys() == expected.keys()
    for name in expected:
        assert torch.equal(found[name], expected[name]), name
    for stage, model in enumerate(models):
        shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        assert list(shapes.items()) == list(stage_shapes(manifest, stage).items())


def _words() -> torch.Tensor:
    """Four rows of 17: of documents that begin at these places, of which some tokens count."""
    words = torch.randint(1, 256, (4, 17), generator=torch.Generator().manual_seed(3))
    for row, begins in zip(words, ([0, 5, 6], [0], [0, 1, 11, 16], [0, 8]), strict=True):
        row[begins] |= BEGINS | SILENT
    words[:, 3:5] |= SILENT
    words[3, 8:] |= SILENT  # what is left at a row's end
    return words


@pytest.mark.parametrize("case", CASES)
def test_documents_of_a_row_are_trained_as_if_each_were_alone(
    case: str, tiny_run: Callable[..., Manifest], build_stages: Callable[..., Any], together: Callable[..., Any]
) -> None:
    data = DraftData(source=["x"], sequence_length=16, batch_size=4, micro_batches=2, seed=7, chat=True)
    manifest = tiny_run(SPLITS[2], model=Model(full(CASES[case][0])), data=data)
    models, words = build_stages(manifest), _words()
    reference = _unsplit(case, {name: tensor for model in models for name, tensor in model.state_dict().items()})
    count = int((words[:, 1:] & SILENT == 0).sum())
    expected_loss = 0.0
    for row in words:
        ends = [*(int(place) for place in (row & BEGINS).nonzero()), 17]
        for low, high in pairwise(ends):
            document, counts = row[low:high] & IDS, row[low + 1 : high] & SILENT == 0
            if counts.any():
                logits = reference(document[None, :-1]).logits[0]
                loss = functional.cross_entropy(logits[counts], document[1:][counts], reduction="sum") / count
                loss.backward()
                expected_loss += loss.item()
    *_, loss = together(3, lambda stage, *links: run_step(models[stage], 0, words.split(2), *links))
    assert float(loss) == pytest.approx(expected_loss, rel=1e-6)
    found = {name: parameter.grad for model in models for name, parameter in model.named_parameters()}
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-7, msg=name)


@pytest.mark.parametrize("case", ["gpt2", "opt, as its 350m", "qwen2", "gemma2", "gemma3_text", "granite"])
def test_tied_embeddings_work_in_one_stage(
    case: str, family_run: Callable[..., Manifest], dataset: Dataset, build_stages: Callable[..., Any], blobs: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    manifest = family_run(case, SPLITS[0], tie_word_embeddings=True)
    (model,) = build_stages(manifest)
    batches = dataset.batch("train", range(4), 16).split(2)
    weights = model.state_dict()
    assert "lm_head.weight" not in weights
    reference = _unsplit(case, weights, tie_word_embeddings=True)
    expected_loss, expected = _gradients(reference, batches)
    assert run_step(model, 0, batches, None, None) == expected_loss
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, expected[name]), name

    export(manifest, [blobs / manifest.genesis[0].sha256], tmp_path / "hf")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert loaded.config.tie_word_embeddings and loaded.lm_head.weight is loaded.get_input_embeddings().weight
    assert torch.equal(loaded(batches[0]).logits, reference(batches[0]).logits)


@pytest.mark.parametrize("split", SPLITS[1:], ids=len)
@pytest.mark.parametrize("case", ["gpt2", "opt, as its 350m", "gemma3_text", "granite"])
def test_tied_embeddings_work_in_several_stages(
    case: str, split: list[tuple[int, int]], family_run: Callable[..., Manifest], dataset: Dataset,
    build_stages: Callable[..., Any], together: Callable[..., Any], blobs: Path, tmp_path: Path,
) -> None:  # fmt: skip
    """The loss has the same bits; so have the gradients but for the embedding's, which is added up in another order."""
    manifest = family_run(case, split, tie_word_embeddings=True)
    models = build_stages(manifest)
    batches = dataset.batch("train", range(4), 16).split(2)
    weights = {name: tensor.clone() for model in models for name, tensor in model.state_dict().items()}
    reference = _unsplit(case, weights, tie_word_embeddings=True)
    expected_loss, expected = _gradients(reference, batches)
    losses = together(len(split), lambda stage, *links: run_step(models[stage], 0, batches, *links))
    assert losses == [None] * (len(split) - 1) + [expected_loss]
    found = {name: parameter.grad for model in models for name, parameter in model.named_parameters()}
    assert found.keys() == expected.keys()
    tokens = f"{parse_model(manifest.model).layout.tokens}.weight"
    for name in expected:
        if name == tokens:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-8)
        else:
            assert torch.equal(found[name], expected[name]), name

    files = [blobs / blob.sha256 for blob in manifest.genesis]
    export(manifest, files, tmp_path / "hf")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert loaded.config.tie_word_embeddings
    assert torch.equal(loaded(batches[0]).logits, reference(batches[0]).logits)
    heldout = heldout_loss_of_stages(manifest, files, dataset, 4)
    assert heldout == pytest.approx(heldout_loss(tmp_path / "hf", dataset, 16, 4), rel=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_the_exported_folder_reloads_to_identical_logits(
    case: str, family_run: Callable[..., Manifest], dataset: Dataset, build_stages: Callable[..., Any], blobs: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    manifest = family_run(case, SPLITS[1])
    export(manifest, [blobs / blob.sha256 for blob in manifest.genesis], tmp_path / "hf")
    loaded, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "hf", output_loading_info=True, **({"experts_implementation": "eager"} if "moe" in case else {})
    )
    assert not any(report.values()) and type(loaded) is CASES[case][1]
    ids = dataset.batch("train", range(2), 16)[:, :-1]
    hidden = ids
    for model in build_stages(manifest):
        hidden = model(hidden)
    assert torch.equal(loaded(ids).logits, hidden)


@pytest.mark.parametrize("case", CASES)
def test_first_weights_are_the_familys(case: str, family_run: Callable[..., Manifest]) -> None:
    whole = initialise(family_run(case, SPLITS[0]), 0)
    for stage in range(2):
        for name, tensor in initialise(family_run(case, SPLITS[1]), stage).items():
            assert torch.equal(tensor, whole[name])
    torch.manual_seed(0)
    theirs = dict(CASES[case][1](CASES[case][2](**CASES[case][3], tie_word_embeddings=False)).named_parameters())
    for name, tensor in whole.items():
        same = float(theirs[name].detach().std())
        assert float(tensor.std()) == pytest.approx(same, rel=0.35, abs=1e-9), name
        assert float(tensor.mean()) == pytest.approx(float(theirs[name].detach().mean()), abs=0.01), name


@pytest.mark.parametrize("case", ["llama", "gpt2", "opt, as its 350m", "gemma2", "gemma3_text", "qwen3_moe"])
def test_checkpointed_activations_give_the_same_bits(
    case: str, family_run: Callable[..., Manifest], dataset: Dataset, build_stages: Callable[..., Any],
    together: Callable[..., Any],
) -> None:  # fmt: skip
    manifest = family_run(case, SPLITS[1])
    batches = dataset.batch("train", range(4), 16).split(2)
    found = []
    for option in ("none", "layers", "selective"):
        models = build_stages(manifest)
        for model in models:
            model.checkpoint = option

        def work(stage: int, previous: Link | None, following: Link | None, models: Any = models) -> float | None:
            return run_step(models[stage], 0, batches, previous, following)

        loss = together(2, work)[1]
        found.append((loss, {name: p.grad for model in models for name, p in model.named_parameters()}))
    for loss, gradients in found[1:]:
        assert loss == found[0][0]
        assert all(torch.equal(gradients[name], gradient) for name, gradient in found[0][1].items())


@pytest.mark.parametrize(
    "case", ["llama", "gpt2", "gpt_neox", "olmo2", "gemma2", "gemma3_text", "qwen3_moe", "granite"]
)
def test_bfloat16_changes_the_products_and_not_the_interface(
    case: str, tiny_run: Callable[..., Manifest], dataset: Dataset, build_stages: Callable[..., Any],
    together: Callable[..., Any],
) -> None:  # fmt: skip
    batches = dataset.batch("train", range(4), 16).split(2)
    losses, gradients = {}, {}
    for precision in ("float32", "bfloat16"):
        manifest = tiny_run(SPLITS[1], model=Model(full(CASES[case][0])), precision=precision)
        models = build_stages(manifest)
        assert models[0](batches[0][:, :-1]).dtype == torch.float32
        losses[precision] = together(
            2, lambda stage, *links, models=models: run_step(models[stage], 0, batches, *links)
        )[1]
        gradients[precision] = torch.cat([p.grad.flatten() for model in models for p in model.parameters()])
        assert gradients[precision].dtype == torch.float32
    weights = {name: tensor for model in models for name, tensor in model.state_dict().items()}
    unsplit = _unsplit(case, weights)
    expected = 0.0
    for batch in batches:
        with torch.autocast("cpu", torch.bfloat16):
            logits = unsplit(batch[:, :-1]).logits.float()
        expected += functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).item() / 2
    assert losses["bfloat16"].item() == pytest.approx(expected, rel=1e-3) and losses["bfloat16"] != losses["float32"]
    difference = (gradients["bfloat16"] - gradients["float32"]).norm() / gradients["float32"].norm()
    assert 1e-4 < float(difference) < 0.05


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("gpt2", {"n_embd": 15}, "model.config.n_embd: expected a multiple of n_head (2), got 15"),
        ("gpt2", {"n_positions": 8}, "data.sequence_length: expected at most model.config.n_positions (8), got 16"),
        ("gpt2", {"attn_pdrop": 0.1}, "model.config.attn_pdrop: unknown key"),
        ("opt", {"num_attention_heads": 3}, "model.config.hidden_size: expected a multiple of num_attention_heads (3)"),
        ("gpt_neox", {"rotary_pct": 0.4}, "model.config.rotary_pct: expected to rotate an even number"),
        ("qwen3", {"head_dim": 7}, "model.config.head_dim: expected an even number"),
        ("qwen3_moe", {"num_experts_per_tok": 5}, "model.config.num_experts_per_tok: expected at most num_experts (4)"),
        (
            "llama, as 3.1",
            {"rope_scaling": _LLAMA3 | {"high_freq_factor": 1.0}},
            "model.config.rope_scaling.high_freq_factor: expected more than low_freq_factor (1), got 1.0",
        ),
        ("gemma3_text", {"head_dim": 7}, "model.config.head_dim: expected an even number"),
        ("llama", {"rope_scaling": "dynamic"}, "model.config.rope_scaling: expected a table"),
        ("llama", {"rope_scaling": {"rope_type": "dynamic"}}, "model.config.rope_scaling.rope_type: not a supported"),
        ("qwen3", {"rope_scaling": _LONGROPE}, "model.config.rope_scaling.rope_type: not a supported value"),
        ("phi3", {"rope_scaling": _YARN}, "model.config.rope_scaling.rope_type: not a supported value"),
        ("qwen3", {"rope_scaling": _YARN | {"mscale": 1.0}}, "model.config.rope_scaling.mscale: unknown key"),
        ("qwen3", {"rope_scaling": _YARN | {"beta_slow": 40.0}}, "model.config.rope_scaling.beta_fast: expected more"),
        ("qwen3", {"rope_scaling": _YARN, "rope_theta": 1.0}, "model.config.rope_theta: expected more than 1"),
        (
            "phi3, samples longer than its window",
            {"rope_scaling": _LONGROPE},
            "model.config.rope_scaling.short_factor: expected 4 factors, one for each pair of dimensions, got 3",
        ),
        (
            "phi3, scaled by longrope",
            {"rope_scaling": _LONGROPE | {"original_max_position_embeddings": 15}},
            "data.sequence_length: expected at most model.config.rope_scaling.original_max_position_embeddings (15)",
        ),
        ("gemma2", {"attn_logit_softcapping": -1.0}, "model.config.attn_logit_softcapping: expected a number >= 0.0"),
    ],
)
def test_a_config_that_cannot_be_names_the_key(
    case: str, changes: dict[str, Any], message: str, family_run: Callable[..., Manifest]
) -> None:
    with pytest.raises(ManifestError) as caught:
        draft = tiny_draft(SPLITS[1], model=Model(full(CASES[case][0] | changes)))
        check(draft, parse_model(draft.model))
    assert str(caught.value).startswith(message)
    assert json.dumps(str(caught.value)).isascii()
