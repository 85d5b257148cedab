"""Which parameters a model has: names and shapes as in the unsplit transformers model, from a family's config alone.

Written down here, so that who checks weights needs neither torch nor the model's code; a test compares every family
with transformers' own classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dlx.training.recipe.families import Config, Gpt2Config, GptNeoxConfig, OptConfig
from dlx.training.recipe.recipe import Recipe, parse_model

Shape = tuple[int, ...]
Parameters = list[tuple[str, Shape]]


def stage_shapes(recipe: Recipe, stage: int) -> dict[str, Shape]:
    """Shapes of the stage's weights (float32) by the unsplit model's parameter names, in the order of the pipeline:
    embeddings, layers, final norm, head."""
    config, stages = parse_model(recipe.model), recipe.stages
    return {name: shape for name, shape in model_shapes(config) if config.layout.stage_of(name, stages) == stage}


def model_shapes(config: Config) -> Iterator[tuple[str, Shape]]:
    """Every parameter of the unsplit model, in the order of the pipeline."""
    layout = config.layout
    before, layer, after = _FAMILIES[config.family](config)
    for path, shape in before:
        yield f"{path}.weight", shape
    for index in range(config.layers):
        for name, shape in layer:
            yield f"{layout.layers}.{index}.{name}", shape
    yield from after
    if not config.tie_word_embeddings:
        yield f"{layout.head}.weight", (config.vocab_size, before[0][1][1])


Parts = tuple[Parameters, Parameters, Parameters]  # embeddings, one layer, final


def _llama_like(config: Any) -> Parts:
    width, inner, heads, groups = (
        config.hidden_size, config.intermediate_size, config.num_attention_heads, config.num_key_value_heads,
    )  # fmt: skip
    size = config.attention_width // heads
    query_bias = config.family == "qwen2" or getattr(config, "attention_bias", False)
    out_bias = config.family != "qwen2" and query_bias
    norms = [("self_attn.q_norm.weight", (size,)), ("self_attn.k_norm.weight", (size,))]
    layer = [
        *_linear("self_attn.q_proj", width, heads * size, query_bias),
        *_linear("self_attn.k_proj", width, groups * size, query_bias),
        *_linear("self_attn.v_proj", width, groups * size, query_bias),
        *_linear("self_attn.o_proj", heads * size, width, out_bias),
        *(norms if config.family == "qwen3" else []),
        *_linear("mlp.gate_proj", width, inner, getattr(config, "mlp_bias", False)),
        *_linear("mlp.up_proj", width, inner, getattr(config, "mlp_bias", False)),
        *_linear("mlp.down_proj", inner, width, getattr(config, "mlp_bias", False)),
        ("input_layernorm.weight", (width,)),
        ("post_attention_layernorm.weight", (width,)),
    ]
    return [(config.layout.tokens, (config.vocab_size, width))], layer, [(f"{config.layout.final[0]}.weight", (width,))]


def _gpt2(config: Gpt2Config) -> Parts:
    width, inner = config.n_embd, config.n_inner or 4 * config.n_embd
    layer = [
        *_norm("ln_1", width),
        *_transposed("attn.c_attn", width, 3 * width),
        *_transposed("attn.c_proj", width, width),
        *_norm("ln_2", width),
        *_transposed("mlp.c_fc", width, inner),
        *_transposed("mlp.c_proj", inner, width),
    ]
    layout = config.layout
    embeddings: Parameters = [
        (layout.tokens, (config.vocab_size, width)),
        (layout.positions, (config.n_positions, width)),
    ]
    return embeddings, layer, _norm(layout.final[0], width)


def _gpt_neox(config: GptNeoxConfig) -> Parts:
    width, inner, bias = config.hidden_size, config.intermediate_size, config.attention_bias
    layer = [
        *_norm("input_layernorm", width),
        *_norm("post_attention_layernorm", width),
        *_linear("attention.query_key_value", width, 3 * width, bias),
        *_linear("attention.dense", width, width, bias),
        *_linear("mlp.dense_h_to_4h", width, inner, True),
        *_linear("mlp.dense_4h_to_h", inner, width, True),
    ]
    return [(config.layout.tokens, (config.vocab_size, width))], layer, _norm(config.layout.final[0], width)


def _opt(config: OptConfig) -> Parts:
    width, bias, affine = config.hidden_size, config.enable_bias, config.layer_norm_elementwise_affine
    outer, layout = config.word_embed_proj_dim or width, config.layout
    layer = [
        *_linear("self_attn.k_proj", width, width, bias),
        *_linear("self_attn.v_proj", width, width, bias),
        *_linear("self_attn.q_proj", width, width, bias),
        *_linear("self_attn.out_proj", width, width, bias),
        *(_norm("self_attn_layer_norm", width) if affine else []),
        *_linear("fc1", width, config.ffn_dim, bias),
        *_linear("fc2", config.ffn_dim, width, bias),
        *(_norm("final_layer_norm", width) if affine else []),
    ]
    positions = config.max_position_embeddings + 2  # they start at 2
    embeddings: Parameters = [(layout.tokens, (config.vocab_size, outer)), (layout.positions, (positions, width))]
    norm, project_out = layout.final
    after = _norm(norm, width) if config.do_layer_norm_before and affine else []
    if outer != width:
        embeddings.append((layout.project_in, (width, outer)))
        after += _linear(project_out, width, outer, False)
    return embeddings, layer, after


_FAMILIES: dict[str, Callable[[Any], Parts]] = {
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "llama": _llama_like,
    "mistral": _llama_like,
    "opt": _opt,
    "qwen2": _llama_like,
    "qwen3": _llama_like,
}


def _linear(path: str, inputs: int, outputs: int, bias: bool) -> Parameters:
    return [(f"{path}.weight", (outputs, inputs)), *([(f"{path}.bias", (outputs,))] if bias else [])]


def _transposed(path: str, inputs: int, outputs: int) -> Parameters:
    """GPT-2 writes its matrices the other way round."""
    return [(f"{path}.weight", (inputs, outputs)), (f"{path}.bias", (outputs,))]


def _norm(path: str, width: int) -> Parameters:
    return [(f"{path}.weight", (width,)), (f"{path}.bias", (width,))]
