"""Which parameters a model has: names and shapes as in the unsplit transformers model, from a family's config alone.

Written down here, so that who checks weights needs neither torch nor the model's code; a test compares every family
with transformers' own classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from dlx.training.recipe.families import Gpt2Config, GptNeoxConfig, OptConfig, Qwen3MoeConfig
from dlx.training.recipe.family import Config
from dlx.training.recipe.recipe import Recipe, parse_model

Shape = tuple[int, ...]
Parameters = list[tuple[str, Shape]]


def stage_shapes(recipe: Recipe, stage: int) -> dict[str, Shape]:
    """Shapes of what the stage trains (float32) by the unsplit model's parameter names, in the order of the pipeline:
    embeddings, layers, final norm, head. With an adapter those of its trained factors, by the names that PEFT gives
    them."""
    if recipe.adapter is None:
        return weight_shapes(recipe, stage)
    trained = ".lora_B.weight" if recipe.adapter.train == "b" else ".weight"
    return {name: shape for name, shape in factor_shapes(recipe, stage).items() if name.endswith(trained)}


def frozen_shapes(recipe: Recipe, stage: int) -> dict[str, Shape]:
    """Shapes of the stage's file of an adapter's base; none without an adapter. A head that is the embedding of another
    stage is there as a copy."""
    if recipe.adapter is None:
        return {}
    found, config = weight_shapes(recipe, stage), parse_model(recipe.model)
    if config.tie_word_embeddings and 0 < stage == len(recipe.stages) - 1:
        found[f"{config.layout.head}.weight"] = (config.vocab_size, config.embedding_width)
    return found


def factor_shapes(recipe: Recipe, stage: int) -> dict[str, Shape]:
    """Shapes of both factors of each matrix of the stage that the recipe's adapter is of: A [rank, inputs] and B
    [outputs, rank]."""
    adapter, layout = recipe.adapter, parse_model(recipe.model).layout
    assert adapter is not None
    targets = layout.linear if adapter.targets == "all-linear" else adapter.targets
    found: dict[str, Shape] = {}
    for name, shape in weight_shapes(recipe, stage).items():
        path, _, last = name.rpartition(".")
        if last == "weight" and path.startswith(f"{layout.layers}.") and path.rpartition(".")[2] in targets:
            outputs, inputs = reversed(shape) if layout.transposed else shape
            found |= {f"{path}.lora_A.weight": (adapter.rank, inputs), f"{path}.lora_B.weight": (outputs, adapter.rank)}
    return found


def weight_shapes(recipe: Recipe, stage: int) -> dict[str, Shape]:
    """Shapes of the stage's part of the model, trained or not; as `stage_shapes` without an adapter."""
    config, stages = parse_model(recipe.model), recipe.stages
    return {name: shape for name, shape in model_shapes(config) if config.layout.stage_of(name, stages) == stage}


def model_shapes(config: Config) -> Iterator[tuple[str, Shape]]:
    """Every parameter of the unsplit model, in the order of the pipeline."""
    layout = config.layout
    before, layer, after = _OTHERS.get(config.family, _llama_like)(config)
    for path, shape in before:
        yield f"{path}.weight", shape
    for index in range(config.layers):
        for name, shape in layer:
            yield f"{layout.layers}.{index}.{name}", shape
    yield from after
    if not config.tie_word_embeddings:
        yield f"{layout.head}.weight", (config.vocab_size, before[0][1][1])


def active(config: Config, shape: Shape) -> int:
    """How many weights of a layer's parameter one token is multiplied with; none of a norm or a bias."""
    if len(shape) == 3:
        return math.prod(shape[1:]) * config.experts_per_token
    return math.prod(shape) if len(shape) == 2 else 0


class Piece(NamedTuple):
    name: str  # in a Hugging Face folder
    place: tuple[int | slice, ...]  # in the parameter
    shape: Shape


def pieces(name: str, shape: Shape) -> list[Piece]:
    """What a Hugging Face folder holds of a parameter: each expert's matrices; of any other the parameter itself."""
    stem, found, kind = name.rpartition(".experts.")
    if not found:
        return [Piece(name, (), shape)]
    experts, rows, columns = shape
    if kind == "down_proj":
        return [Piece(f"{stem}.experts.{one}.down_proj.weight", (one,), (rows, columns)) for one in range(experts)]
    half = rows // 2
    return [
        Piece(f"{stem}.experts.{one}.{part}.weight", (one, slice(low, low + half)), (half, columns))
        for one in range(experts)
        for part, low in (("gate_proj", 0), ("up_proj", half))
    ]


Parts = tuple[Parameters, Parameters, Parameters]  # embeddings, one layer, final


def _llama_like(config: Any) -> Parts:
    layout, width = config.layout, config.hidden_size
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    size = config.attention_width // heads
    queries, keys = heads * size, groups * size
    out = _linear("self_attn.o_proj", queries, width, config.output_bias)
    if "qkv_proj" in layout.linear:
        attention = [*out, *_linear("self_attn.qkv_proj", width, queries + 2 * keys, config.query_bias)]
    else:
        sizes = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        parts = [_linear(f"self_attn.{name}", width, outputs, config.query_bias) for name, outputs in sizes.items()]
        attention = [*chain(*parts), *out]
    normed = {"": (0, 0), "each": (size, size), "all": (queries, keys)}[layout.normed_heads]
    layer = [
        *attention,
        *_scale("self_attn.q_norm", normed[0]),
        *_scale("self_attn.k_norm", normed[1]),
        *(_experts(config) if config.experts_per_token else _gated(config)),
        *chain(*(_scale(path, width) for path in layout.norms)),
    ]
    return [(layout.tokens, (config.vocab_size, width))], layer, _scale(layout.final[0], width)


def _gated(config: Any) -> Parameters:
    width, inner, bias = config.hidden_size, config.intermediate_size, getattr(config, "mlp_bias", False)
    gates = {"gate_proj": inner, "up_proj": inner}
    if "gate_up_proj" in config.layout.linear:
        gates = {"gate_up_proj": 2 * inner}
    parts = [_linear(f"mlp.{name}", width, outputs, bias) for name, outputs in gates.items()]
    return [*chain(*parts), *_linear("mlp.down_proj", inner, width, bias)]


def _experts(config: Qwen3MoeConfig) -> Parameters:
    """All of a layer's in two tensors, and the router's matrix."""
    width, inner, experts = config.hidden_size, config.moe_intermediate_size, config.num_experts
    return [
        ("mlp.experts.gate_up_proj", (experts, 2 * inner, width)),
        ("mlp.experts.down_proj", (experts, width, inner)),
        *_linear("mlp.gate", width, experts, False),
    ]


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


_OTHERS: dict[str, Callable[[Any], Parts]] = {"gpt2": _gpt2, "gpt_neox": _gpt_neox, "opt": _opt}


def _linear(path: str, inputs: int, outputs: int, bias: bool) -> Parameters:
    return [(f"{path}.weight", (outputs, inputs)), *([(f"{path}.bias", (outputs,))] if bias else [])]


def _transposed(path: str, inputs: int, outputs: int) -> Parameters:
    """GPT-2 writes its matrices the other way round."""
    return [(f"{path}.weight", (inputs, outputs)), (f"{path}.bias", (outputs,))]


def _norm(path: str, width: int) -> Parameters:
    return [(f"{path}.weight", (width,)), (f"{path}.bias", (width,))]


def _scale(path: str, width: int) -> Parameters:
    """A norm without bias; none of width 0."""
    return [(f"{path}.weight", (width,))] if width else []
