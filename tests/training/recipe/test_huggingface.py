"""The config.json of well-known models, as they are published, are read as runs of their family."""

import json
from pathlib import Path
from typing import Any

import pytest

from dlx.training.models.shapes import model_shapes
from dlx.training.recipe.huggingface import read_config
from dlx.training.recipe.recipe import Model, parse_model
from dlx.training.recipe.strict import ManifestError

_LLAMA3 = {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3"}
_ALL = {"attention_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02, "torch_dtype": "bfloat16"}
_SILU = _ALL | {"hidden_act": "silu"}
PUBLISHED: dict[str, tuple[dict[str, Any], int, dict[str, Any]]] = {  # config.json, parameters, some of our keys
    "Llama 3.2 1B": (
        _SILU | {
            "architectures": ["LlamaForCausalLM"], "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64,
            "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": False,
            "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
            "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": True,
            "rope_scaling": _LLAMA3 | {"original_max_position_embeddings": 8192}, "vocab_size": 128256,
        },
        1_235_814_400,
        {"rope_type": "llama3", "rope_factor": 32.0, "rope_theta": 500000.0},
    ),
    "Gemma 3 1B": (
        _ALL | {
            "architectures": ["Gemma3ForCausalLM"], "attn_logit_softcapping": None, "bos_token_id": 2,
            "cache_implementation": "hybrid", "eos_token_id": 1, "final_logit_softcapping": None, "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
            "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
            "num_hidden_layers": 26, "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000,
            "sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": 262144,
        },
        999_885_952,
        {"sliding_window": 512, "sliding_window_pattern": 6, "rope_local_base_freq": 10000.0},
    ),
    "OLMo 2 7B": (
        _SILU | {
            "architectures": ["Olmo2ForCausalLM"], "eos_token_id": 100257, "hidden_size": 4096,
            "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "olmo2",
            "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 100277,
            "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 500000, "tie_word_embeddings": False,
            "use_cache": False, "vocab_size": 100352,
        },
        7_298_617_344,
        {"rms_norm_eps": 1e-6, "rope_theta": 500000.0},
    ),
    "SmolLM3 3B": (
        _SILU | {
            "architectures": ["SmolLM3ForCausalLM"], "bos_token_id": 128000, "eos_token_id": 128001,
            "hidden_size": 2048, "intermediate_size": 11008, "layer_types": ["full_attention"] * 36,
            "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": False, "model_type": "smollm3",
            "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9, "num_attention_heads": 16,
            "num_hidden_layers": 36, "num_key_value_heads": 4, "pretraining_tp": 2, "rms_norm_eps": 1e-06,
            "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None, "use_sliding_window": False,
            "vocab_size": 128256,
        },
        3_075_098_624,
        {"no_rope_layer_interval": 4, "tie_word_embeddings": True},
    ),
    "Qwen3 30B-A3B": (
        _SILU | {
            "architectures": ["Qwen3MoeForCausalLM"], "bos_token_id": 151643, "decoder_sparse_step": 1,
            "eos_token_id": 151645, "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144,
            "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
            "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": True,
            "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
            "num_key_value_heads": 4, "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_scaling": None,
            "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": None,
            "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151936,
        },
        30_532_122_624,
        {"head_dim": 128, "num_experts": 128, "norm_topk_prob": True},
    ),
}  # fmt: skip


def _read(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    (folder / "config.json").write_text(json.dumps(config))
    return read_config(folder, untie=False)


@pytest.mark.parametrize("model", PUBLISHED)
def test_a_published_config_is_read(model: str, tmp_path: Path) -> None:
    config, parameters, keys = PUBLISHED[model]
    found = _read(config, tmp_path)
    assert keys.items() <= found.items()
    count = 0
    for _, shape in model_shapes(parse_model(Model(found))):
        size = 1
        for side in shape:
            size *= side
        count += size
    assert count == parameters


@pytest.mark.parametrize(
    ("model", "change", "message"),
    [
        ("Gemma 3 1B", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: expected null, got 50.0"),
        ("Gemma 3 1B", {"layer_types": ["full_attention"] * 26}, None),
        ("Gemma 3 1B", {"layer_types": ["full_attention", "sliding_attention"] * 13}, "layer_types: expected ["),
        ("Gemma 3 1B", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, "rope_parameters: expected {"),
        ("Gemma 3 1B", {"use_bidirectional_attention": True}, "use_bidirectional_attention: expected false, got true"),
        ("SmolLM3 3B", {"no_rope_layers": [1] * 36}, "no_rope_layers: expected [1,1,1,0,"),
        ("SmolLM3 3B", {"use_sliding_window": True, "sliding_window": 9}, "sliding_window: expected null, got 9"),
        ("Qwen3 30B-A3B", {"mlp_only_layers": [3]}, "mlp_only_layers: expected [], got [3]"),
        ("Qwen3 30B-A3B", {"decoder_sparse_step": 2}, "decoder_sparse_step: expected 1, got 2"),
        ("Qwen3 30B-A3B", {"head_dim": None}, None),
        ("Llama 3.2 1B", {"rope_scaling": _LLAMA3 | {"rope_type": "yarn"}}, "rope_parameters: expected {"),
    ],
)
def test_what_would_compute_otherwise_is_refused(
    model: str, change: dict[str, Any], message: str | None, tmp_path: Path
) -> None:
    config = PUBLISHED[model][0] | change
    if message is None:
        _read(config, tmp_path)
        return
    with pytest.raises(ManifestError) as caught:
        _read(config, tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: {message}")
