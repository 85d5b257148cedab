"""The config.json of well-known models, as they are published, are read as runs of their family."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from dlx.training.models.shapes import model_shapes
from dlx.training.recipe.huggingface import read_config
from dlx.training.recipe.recipe import Model, parse_model
from dlx.training.recipe.strict import ManifestError

_LLAMA3 = {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3"}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
_LONG = [1.0, 1.1875, 1.5625, *[2.0] * 45]
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
        {"rope_scaling": _LLAMA3 | {"original_max_position_embeddings": 8192}, "rope_theta": 500000.0},
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
    "Phi-4": (
        _SILU | {
            "architectures": ["Phi3ForCausalLM"], "bos_token_id": 100257, "embd_pdrop": 0.0, "eos_token_id": 100265,
            "hidden_size": 5120, "intermediate_size": 17920, "max_position_embeddings": 16384, "model_type": "phi3",
            "num_attention_heads": 40, "num_hidden_layers": 40, "num_key_value_heads": 10,
            "original_max_position_embeddings": 16384, "pad_token_id": 100349, "resid_pdrop": 0.0,
            "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 250000, "sliding_window": None,
            "tie_word_embeddings": False, "vocab_size": 100352,
        },
        14_659_507_200,
        {"rope_theta": 250000.0, "partial_rotary_factor": 1.0, "sliding_window": 0},
    ),
    "Phi-4-mini": (
        _SILU | {
            "architectures": ["Phi3ForCausalLM"], "auto_map": {}, "bos_token_id": 199999, "embd_pdrop": 0.0,
            "eos_token_id": 199999, "full_attn_mod": 1, "hidden_size": 3072, "intermediate_size": 8192,
            "interpolate_factor": 1, "lm_head_bias": False, "max_position_embeddings": 131072, "mlp_bias": False,
            "model_type": "phi3", "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
            "original_max_position_embeddings": 4096, "pad_token_id": 199999, "partial_rotary_factor": 0.75,
            "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 262144,
            "rope_scaling": {"long_factor": _LONG, "short_factor": [1.0] * 48, "type": "longrope"},
            "tie_word_embeddings": True, "use_cache": True, "vocab_size": 200064,
        },
        3_836_021_760,
        {
            "rope_scaling": {
                "rope_type": "longrope", "long_factor": _LONG, "short_factor": [1.0] * 48,
                "original_max_position_embeddings": 4096,
            },
        },
    ),
    "OLMo 3 7B": (
        _SILU | {
            "architectures": ["Olmo3ForCausalLM"], "eos_token_id": 100257, "hidden_size": 4096,
            "intermediate_size": 11008, "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 8,
            "max_position_embeddings": 65536, "model_type": "olmo3", "num_attention_heads": 32,
            "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 100277, "rms_norm_eps": 1e-06,
            "rope_scaling": {
                "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
                "original_max_position_embeddings": 8192, "rope_type": "yarn",
            },
            "rope_theta": 500000, "sliding_window": 4096, "tie_word_embeddings": False, "use_cache": False,
            "vocab_size": 100278,
        },
        7_298_011_136,
        {"sliding_window_pattern": 4, "rope_theta": 500000.0},
    ),
    "Gemma 2 2B": (
        _ALL | {
            "architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": 50.0, "bos_token_id": 2,
            "cache_implementation": "hybrid", "eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 256,
            "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304,
            "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2",
            "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0,
            "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096,
            "vocab_size": 256000,
        },
        2_614_341_888,
        {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "sliding_window_pattern": 2},
    ),
    "Ministral 8B": (
        _SILU | {
            "architectures": ["MinistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "head_dim": 128,
            "hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 32768,
            "layer_types": ["full_attention", *["sliding_attention"] * 3] * 9, "model_type": "ministral",
            "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
            "rope_theta": 100000000.0, "sliding_window": 32768, "tie_word_embeddings": False, "vocab_size": 131072,
        },
        8_019_808_256,
        {"sliding_window_pattern": 4, "sliding_window": 32768},
    ),
    "GLM-4 9B of 2024": (
        {
            "architectures": ["GlmForCausalLM"], "attention_bias": True, "attention_dropout": 0.0,
            "eos_token_id": [151329, 151336, 151338], "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
            "initializer_range": 0.02, "intermediate_size": 13696, "max_position_embeddings": 131072,
            "model_type": "glm", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2,
            "pad_token_id": 151329, "rms_norm_eps": 1.5625e-07, "rope_theta": 10000.0,
            "tie_word_embeddings": False, "use_cache": True, "vocab_size": 151552,
        },
        9_399_951_360,
        {"partial_rotary_factor": 0.5, "head_dim": 128},
    ),
    "Granite 3.1 8B": (
        _SILU | {
            "architectures": ["GraniteForCausalLM"], "attention_multiplier": 0.0078125, "embedding_multiplier": 12.0,
            "hidden_size": 4096, "intermediate_size": 12800, "logits_scaling": 16.0,
            "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "granite", "num_attention_heads": 32,
            "num_hidden_layers": 40, "num_key_value_heads": 8, "residual_multiplier": 0.22, "rms_norm_eps": 1e-05,
            "rope_scaling": None, "rope_theta": 10000000.0, "tie_word_embeddings": True, "vocab_size": 49155,
        },
        8_170_848_256,
        {"embedding_multiplier": 12.0, "logits_scaling": 16.0, "tie_word_embeddings": True},
    ),
    "GLM-4 9B": (
        {
            "architectures": ["Glm4ForCausalLM"], "attention_bias": True, "attention_dropout": 0.0,
            "eos_token_id": [151329, 151336, 151338], "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
            "initializer_range": 0.02, "intermediate_size": 13696, "max_position_embeddings": 32768,
            "model_type": "glm4", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2,
            "pad_token_id": 151329, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
            "tie_word_embeddings": False, "use_cache": True, "vocab_size": 151552,
        },
        9_400_279_040,
        {"partial_rotary_factor": 0.5, "head_dim": 128},
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


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_config_is_read_as_an_editor_wrote_it(encoding: str, tmp_path: Path) -> None:
    config, _, _ = PUBLISHED["Llama 3.2 1B"]
    plain = _read(config, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config, indent=2), encoding=encoding)
    assert read_config(tmp_path, untie=False) == plain


@pytest.mark.parametrize("model", PUBLISHED)
def test_a_published_config_is_read(model: str, tmp_path: Path) -> None:
    config, parameters, keys = PUBLISHED[model]
    found = _read(config, tmp_path)
    assert found == found | keys
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
        ("Ministral 8B", {"layer_types": ["sliding_attention"] * 36}, "layer_types: expected ["),
        ("Gemma 3 1B", {"layer_types": ["full_attention", "sliding_attention"] * 13}, "layer_types: expected ["),
        ("Gemma 3 1B", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, None),
        (
            "Gemma 3 1B",
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 10000.0}}},
            "rope_parameters.sliding_attention.factor: expected null, got 8.0",
        ),
        ("Gemma 3 1B", {"use_bidirectional_attention": True}, "use_bidirectional_attention: expected false, got true"),
        (
            "Gemma 3 1B",
            {"rope_parameters": {"sliding_attention": {"rope_type": "default"}, "chunked_attention": 7}},
            "rope_parameters.chunked_attention: expected null, got 7",
        ),
        ("Phi-4", {"rope_scaling": {"type": "longrope", "long_factor": [1] * 64, "short_factor": [1] * 64}}, None),
        (
            "Phi-4",
            {"rope_scaling": {"type": "longrope", "long_factor": [1] * 64, "short_factor": [1] * 64, "factor": 2.0}},
            "rope_scaling.factor: unknown key",
        ),
        ("Phi-4", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "not a config of phi3 ("),
        (
            "Granite 3.1 8B",
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            'rope_scaling.rope_type: not a supported value, got "dynamic"',
        ),
        ("SmolLM3 3B", {"no_rope_layers": [1] * 36}, "no_rope_layers: expected [1, 1, 1, 0,"),
        ("SmolLM3 3B", {"use_sliding_window": True, "sliding_window": 9}, "sliding_window: expected null, got 9"),
        ("Qwen3 30B-A3B", {"mlp_only_layers": [3]}, "mlp_only_layers: expected [], got [3]"),
        ("Qwen3 30B-A3B", {"decoder_sparse_step": 2}, "decoder_sparse_step: expected 1, got 2"),
        ("Qwen3 30B-A3B", {"head_dim": None}, None),
        ("Llama 3.2 1B", {"rope_scaling": _LLAMA3 | {"rope_type": "yarn"}}, "rope_scaling.high_freq_factor: unknown"),
        ("Llama 3.2 1B", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": None}}, None),
        ("Qwen3 30B-A3B", {"rope_scaling": _YARN | {"beta_fast": 32, "beta_slow": 1}}, None),
        (
            "Qwen3 30B-A3B",
            {"rope_scaling": _YARN | {"mscale_all_dim": 1.0}},
            "rope_scaling.mscale_all_dim: unknown key",
        ),
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


@pytest.mark.parametrize(
    ("family", "reasons"),
    [
        ("gpt_oss", ["num_local_experts = 128: there are no experts but", "swiglu_limit = 7.0: there are no bounded"]),
        (
            "deepseek_v2",
            ["kv_lora_rank = 512: there is no attention through latent", "n_routed_experts = 64: there are"],
        ),
        ("deepseek_v3", ["kv_lora_rank = 512: ", "n_routed_experts = 256: ", "n_shared_experts = 1: "]),
        ("deepseek_v32", ["kv_lora_rank = 512: ", "n_routed_experts = 256: ", "index_topk = 2048: there is no sparse"]),
        ("mixtral", ["num_local_experts = 8: "]),
        ("qwen2_moe", ["num_experts = 60: ", "shared_expert_intermediate_size = 5632: there are no experts for all"]),
        ("qwen3_next", ["num_experts = 512: ", "linear_num_key_heads = 16: there are no recurrent"]),
        ("qwen3_5_text", ["linear_num_key_heads = 16: "]),
        ("glm4_moe", ["n_routed_experts = 128: "]),
        ("granitemoehybrid", ["num_local_experts = 8: ", "mamba_d_state = 256: "]),
        ("olmoe", ["num_experts = 64: "]),
        ("phimoe", ["num_local_experts = 16: "]),
        ("jamba", ["num_experts = 16: ", "mamba_d_state = 16: "]),
        ("mamba2", ["state_size = 128: "]),
        ("lfm2", ["conv_L_cache = 3: "]),
        ("kimi_linear", ["kv_lora_rank = 512: ", "num_experts = 256: ", "linear_num_heads = 32: "]),
        ("minicpm3", ["kv_lora_rank = 256: "]),
        ("llama4_text", ["num_local_experts = 16: ", "attention_chunk_size = 8192: "]),
        (
            "gemma3n_text",
            ["num_kv_shared_layers = 15: there are no keys and", "hidden_size_per_layer_input = 256: there"],
        ),
        ("gemma3", ['vision_config = {"']),
        ("cohere2", ["logit_scale = 0.0625: logits are not multiplied"]),
        ("falcon", ["parallel_attn = true: there is no attention beside"]),
        ("t5", ["is_encoder_decoder = true: there are no encoders"]),
        ("ministral3", []),
    ],
)
def test_another_family_is_refused_by_its_parameters(family: str, reasons: list[str], tmp_path: Path) -> None:
    with pytest.raises(ManifestError) as caught:
        _read(json.loads(CONFIG_MAPPING[family]().to_json_string(use_diff=False)), tmp_path)
    message = str(caught.value)
    for reason in reasons:
        assert reason in message
    assert "\n" not in message and message.endswith(f', smollm3, got "{family}"')
    assert message.startswith(f"{tmp_path / 'config.json'}: {reasons[0] if reasons else 'model_type: expected one of'}")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("auto_map", {"AutoConfig": "c.Phi3"}, """auto_map = {"AutoConfig": "c.Phi3"}: code of the folder's own is"""),
        ("quantization_config", {"bits": 4}, 'quantization_config = {"bits": 4}: quantised weights are not read'),
        ("is_causal", False, "is_causal = false: no token sees those behind it here"),
    ],
)
def test_code_and_quantised_weights_and_encoders_are_refused_in_every_family(
    key: str, value: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ManifestError, match=re.escape(message)):
        _read(PUBLISHED["Phi-4-mini"][0] | {key: value}, tmp_path)
