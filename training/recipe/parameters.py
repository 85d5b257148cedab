"""Per parameter a rule: who steps it, whether it decays, which matrices it is, how it is compressed and sharded.

Needs neither torch nor transformers. A rule goes by the module that holds the parameter, whose name means the same in
every family.
"""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from dlx.training.recipe.strict import ManifestError

# How tensor parallelism cuts a matrix: its outputs apart, its inputs apart, tokens or experts apart where their number
# allows it, or not at all. Each head has the same norm.
Sharding = Literal["colwise", "rowwise", "rows", "replicated", "per head"]
# Several matrices in one tensor: queries, keys and values as blocks of columns; the same as rows, head by head; gate
# and up as blocks of rows. A tensor of three dimensions is a matrix (or such blocks) per expert besides.
Fused = Literal["", "columns", "heads", "rows"]


class Rule(Struct, frozen=True):
    matrix: bool  # whether it is one of the layers' matrices, or several, that Muon or Shampoo step; AdamW all else
    decays: bool  # whether weight decay applies; it does to all matrices
    factored: bool  # whether a codec of low rank may send it as two factors, each expert on its own
    sharding: Sharding = "replicated"
    fused: Fused = ""


def rule(name: str) -> Rule:
    """The rule of the parameter `name` of an unsplit model. Raises ManifestError, which names it, where none fits."""
    *path, last = name.split(".")
    found = _RULES.get((path or [""])[-1] if last in ("weight", "bias") else ".".join([*path[-1:], last]))
    if found is None:
        raise ManifestError(f"{name}: no rule says how such a parameter is stepped and sent")
    return replace(_NORM, sharding=_BIAS_SHARDING[found.sharding]) if last == "bias" else found


def matrix_shape(shape: tuple[int, ...], fused: Fused, heads: int) -> tuple[int, int, int]:
    """How many matrices a tensor of that shape is, and their rows and columns.

    Examples:
        >>> matrix_shape((8, 24), "columns", 2), matrix_shape((24, 8), "heads", 2)
        ((3, 8, 8), (3, 8, 8))
        >>> matrix_shape((5, 12, 8), "rows", 2), matrix_shape((5, 12, 8), "", 2)
        ((10, 6, 8), (5, 12, 8))
    """
    *experts, rows, columns = shape
    match fused:
        case "columns":
            return 3, rows, columns // 3
        case "heads":
            return 3, heads * (rows // (3 * heads)), columns
        case "rows":
            return 2 * math.prod(experts), rows // 2, columns
        case "":
            return math.prod(experts), rows, columns


_BIAS_SHARDING: dict[Sharding, Sharding] = {
    "colwise": "colwise",
    "rowwise": "replicated",
    "replicated": "replicated",
    "per head": "per head",
    "rows": "replicated",
}

_EMBEDDING = Rule(matrix=False, decays=False, factored=False)  # a step moves few rows, each its own way
_HEAD = Rule(matrix=False, decays=True, factored=False)  # its rows are tokens too
_NORM = Rule(matrix=False, decays=False, factored=False)
_ROUTER = Rule(matrix=False, decays=True, factored=False)  # a row per expert
_PROJECTION = Rule(matrix=False, decays=True, factored=True)  # outside of the layers
_MATRIX = Rule(matrix=True, decays=True, factored=True)
_OUTPUTS = replace(_MATRIX, sharding="colwise")
_INPUTS = replace(_MATRIX, sharding="rowwise")

_RULES: dict[str, Rule] = {
    module: found
    for found, modules in (
        (replace(_EMBEDDING, sharding="rows"), "embed_tokens embed_in wte"),
        (_EMBEDDING, "embed_positions wpe"),
        (replace(_HEAD, sharding="rows"), "lm_head"),
        (_PROJECTION, "project_in project_out"),
        (_NORM, "norm input_layernorm post_attention_layernorm"),
        (_NORM, "pre_feedforward_layernorm post_feedforward_layernorm post_self_attn_layernorm post_mlp_layernorm"),
        (_NORM, "ln_1 ln_2 ln_f self_attn_layer_norm final_layer_norm final_layernorm"),
        (replace(_NORM, sharding="per head"), "q_norm k_norm"),
        (_ROUTER, "gate"),
        (_OUTPUTS, "q_proj k_proj v_proj gate_proj up_proj fc1 dense_h_to_4h"),
        (_INPUTS, "o_proj out_proj down_proj fc2 dense dense_4h_to_h"),
        (_MATRIX, "c_proj c_fc qkv_proj lora_A lora_B"),
        (replace(_MATRIX, fused="rows"), "gate_up_proj"),
        (replace(_MATRIX, sharding="rows"), "experts.down_proj"),
        (replace(_MATRIX, fused="columns"), "c_attn"),
        (replace(_OUTPUTS, fused="heads"), "query_key_value"),
        (replace(_MATRIX, fused="rows", sharding="rows"), "experts.gate_up_proj"),
    )
    for module in modules.split()
}
