"""Model families: the configuration keys of each, and where its parts are in the unsplit transformers model.

Needs neither torch nor transformers. The keys are those of the family's config.json; every dropout is 0, because a step
has to be replayable, and attention is causal. 0 stands for null where a key allows it. What transformers nests in
`rope_parameters`, or writes out layer by layer, are plain keys here.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from dlx.training.recipe import positions
from dlx.training.recipe.family import Config, Layout
from dlx.training.recipe.positions import AnyLength, Factor, LongRope, Positions, Problem

_Layers = Annotated[int, Meta(ge=1, le=1024)]
_Heads = Annotated[int, Meta(ge=1, le=1024)]
_HeadWidth = Annotated[int, Meta(ge=1, le=1024)]
_Width = Annotated[int, Meta(ge=1, le=1 << 16)]
_InnerWidth = Annotated[int, Meta(ge=1, le=1 << 18)]
_Experts = Annotated[int, Meta(ge=1, le=1 << 12)]
_Epsilon = Annotated[float, Meta(gt=0, le=0.1)]
_Deviation = Annotated[float, Meta(gt=0, le=1)]
_Theta = Annotated[float, Meta(ge=1, le=1e9)]
_Part = Annotated[float, Meta(gt=0, le=1)]
_Window = Annotated[int, Meta(ge=1, le=1 << 20)]
_AnyWindow = Annotated[int, Meta(ge=0, le=1 << 20)]  # 0: none
_Cap = Annotated[float, Meta(ge=0, le=1e6)]  # 0: none
_Activation = Literal["silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu"]


def config_class(config: Mapping[str, Any]) -> type[Config] | None:
    """The keys of the family that `model_type` (default llama) names; None where there is no such family."""
    return FAMILIES.get(str(config.get("model_type", "llama")))


_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_GATED_IN_ONE = ("gate_up_proj", "down_proj")
_TWO_NORMS = ("input_layernorm", "post_attention_layernorm")
_NORMED_RESULTS: dict[str, Any] = {
    "norms": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "normed_heads": "all",
    "unsharded": ("self_attn",),
}


def _llama_like(architecture: str, **changes: Any) -> Layout:
    usual: dict[str, Any] = {"linear": (*_ATTENTION, "gate_proj", "up_proj", "down_proj")}
    return Layout(
        architecture=architecture,
        tokens="model.embed_tokens",
        layers="model.layers",
        final=("model.norm",),
        rotary="model.rotary_emb",
        **usual | changes,
    )


class _GroupedQueries(Config, frozen=True, kw_only=True):
    hidden_size: _Width
    num_hidden_layers: _Layers
    num_attention_heads: _Heads
    num_key_value_heads: _Heads
    max_position_embeddings: Positions
    rms_norm_eps: _Epsilon = 1e-6
    rope_theta: _Theta = 10000.0
    rope_scaling: AnyLength | None = None
    initializer_range: _Deviation = 0.02

    @property
    def rotated(self) -> int:
        """How many of a head's dimensions have positions."""
        return self.attention_width // self.num_attention_heads

    @property
    def query_bias(self) -> bool:
        """Of keys and values too."""
        return getattr(self, "attention_bias", False)

    @property
    def output_bias(self) -> bool:
        return self.query_bias

    def problems(self) -> Iterator[Problem]:
        head_dim = getattr(self, "head_dim", 0)
        if head_dim % 2:
            yield "head_dim", "expected an even number", head_dim
        if not head_dim and self.hidden_size % (2 * self.num_attention_heads):
            expected = f"expected a multiple of 2 x num_attention_heads ({2 * self.num_attention_heads})"
            yield "hidden_size", expected, self.hidden_size
        if self.num_attention_heads % self.num_key_value_heads:
            expected = f"expected a divisor of num_attention_heads ({self.num_attention_heads})"
            yield "num_key_value_heads", expected, self.num_key_value_heads
        yield from positions.problems(self.rope_scaling, self.rope_theta, self.rotated)

    def rope_parameters(self) -> dict[str, Any]:
        return {"rope_type": "default", "rope_theta": self.rope_theta} | positions.written(self.rope_scaling)

    def transformers_options(self) -> dict[str, Any]:
        return {"rope_parameters": self.rope_parameters()}

    def transformers4_options(self) -> dict[str, Any]:
        scaling = positions.written(self.rope_scaling)
        return {"rope_theta": self.rope_theta} | ({"rope_scaling": scaling} if scaling else {})

    @classmethod
    def from_transformers(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        rope = theirs["rope_parameters"]
        return {"rope_theta": rope["rope_theta"]} | positions.read(rope)


class _LlamaLike(_GroupedQueries, frozen=True, kw_only=True):
    intermediate_size: _InnerWidth
    hidden_act: _Activation = "silu"


class _WithHeadDim(_GroupedQueries, frozen=True, kw_only=True):
    hidden_act: _Activation = "silu"
    head_dim: Annotated[int, Meta(ge=0, le=1024)] = 0  # 0: hidden_size / num_attention_heads

    @property
    def attention_width(self) -> int:
        return (self.head_dim or self.hidden_size // self.num_attention_heads) * self.num_attention_heads

    def transformers_options(self) -> dict[str, Any]:
        head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        return super().transformers_options() | {"head_dim": head_dim}


# Of what follows a family may have several, behind the one base that has keys: msgspec allows no more.


class _PartlyRotary(_GroupedQueries, frozen=True, kw_only=True):
    """`partial_rotary_factor` of each head's dimensions have positions."""

    @property
    def part(self) -> float:
        return self.partial_rotary_factor  # type: ignore[attr-defined]

    @property
    def rotated(self) -> int:
        return int(super().rotated * self.part)

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        yield from _even("partial_rotary_factor", self.part, self.rotated)

    def rope_parameters(self) -> dict[str, Any]:
        return super().rope_parameters() | {"partial_rotary_factor": self.part}

    def transformers4_options(self) -> dict[str, Any]:
        return super().transformers4_options() | {"partial_rotary_factor": self.part}

    @classmethod
    def from_transformers(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        part = theirs["rope_parameters"]["partial_rotary_factor"]
        return super().from_transformers(theirs) | {"partial_rotary_factor": part}


class _Windowed(_GroupedQueries, frozen=True, kw_only=True):
    """Every layer has a `sliding_window`, or none has."""

    @property
    def window(self) -> int:
        return self.sliding_window  # type: ignore[attr-defined]

    def transformers_options(self) -> dict[str, Any]:
        return super().transformers_options() | {"sliding_window": self.window or None}


class _MostlyWindowed(_GroupedQueries, frozen=True, kw_only=True):
    """All layers but every `sliding_window_pattern`-th have a `sliding_window`."""

    @property
    def window(self) -> int:
        return self.sliding_window  # type: ignore[attr-defined]

    def is_sliding(self, layer: int) -> bool:
        return (layer + 1) % self.sliding_window_pattern != 0  # type: ignore[attr-defined]

    def transformers_options(self) -> dict[str, Any]:
        types = [_SLIDING if self.is_sliding(layer) else _FULL for layer in range(self.layers)]
        return super().transformers_options() | {"layer_types": types}

    @classmethod
    def from_transformers(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        pattern = [*theirs["layer_types"], _FULL].index(_FULL) + 1  # the first layer that sees everything
        return super().from_transformers(theirs) | {"sliding_window_pattern": pattern}


class _TwoRotaries(_MostlyWindowed, frozen=True, kw_only=True):
    """Layers with a window have positions of their own, which are not scaled."""

    @property
    def local_theta(self) -> float:
        return self.rope_theta

    def transformers_options(self) -> dict[str, Any]:
        local = {"rope_type": "default", "rope_theta": self.local_theta}
        rope = {_FULL: self.rope_parameters(), _SLIDING: local}
        return super().transformers_options() | {"rope_parameters": rope}

    @classmethod
    def from_transformers(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        return super().from_transformers({**theirs, "rope_parameters": theirs["rope_parameters"][_FULL]})


_FULL, _SLIDING = "full_attention", "sliding_attention"


class LlamaConfig(_LlamaLike, frozen=True, kw_only=True):
    layout = _llama_like("LlamaForCausalLM")
    model_type: Literal["llama"] = "llama"
    attention_bias: bool = False
    mlp_bias: bool = False


class Qwen2Config(_LlamaLike, frozen=True, kw_only=True):
    layout = _llama_like("Qwen2ForCausalLM")
    model_type: Literal["qwen2"] = "qwen2"

    @property
    def query_bias(self) -> bool:
        return True

    @property
    def output_bias(self) -> bool:
        return False


class Qwen3Config(_WithHeadDim, frozen=True, kw_only=True):
    layout = _llama_like("Qwen3ForCausalLM", normed_heads="each")
    model_type: Literal["qwen3"] = "qwen3"
    intermediate_size: _InnerWidth
    attention_bias: bool = False


class Qwen3MoeConfig(_WithHeadDim, frozen=True, kw_only=True):
    """Every layer has experts; no loss balances their load."""

    layout = _llama_like("Qwen3MoeForCausalLM", linear=_ATTENTION, normed_heads="each")
    unused = ("intermediate_size", "router_aux_loss_coef", "output_router_logits")
    model_type: Literal["qwen3_moe"] = "qwen3_moe"
    moe_intermediate_size: _InnerWidth
    num_experts: _Experts
    num_experts_per_tok: _Experts
    norm_topk_prob: bool = False
    attention_bias: bool = False

    @property
    def experts_per_token(self) -> int:
        return self.num_experts_per_tok

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        for key in ("hidden_size", "moe_intermediate_size"):  # transformers' grouped products take no other
            if getattr(self, key) % 8:
                yield key, "expected a multiple of 8", getattr(self, key)
        if self.num_experts_per_tok > self.num_experts:
            yield "num_experts_per_tok", f"expected at most num_experts ({self.num_experts})", self.num_experts_per_tok

    def transformers_options(self) -> dict[str, Any]:
        return super().transformers_options() | {"num_experts": self.num_experts}

    def transformers4_options(self) -> dict[str, Any]:
        return super().transformers4_options() | {"num_experts": self.num_experts}

    @classmethod
    def from_transformers(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        return super().from_transformers(theirs) | {"num_experts": theirs["num_local_experts"]}


class MistralConfig(_WithHeadDim, _Windowed, frozen=True, kw_only=True):
    layout = _llama_like("MistralForCausalLM")
    model_type: Literal["mistral"] = "mistral"
    intermediate_size: _InnerWidth
    sliding_window: _AnyWindow = 0


class MinistralConfig(_WithHeadDim, _MostlyWindowed, frozen=True, kw_only=True):
    """The first of every so many layers sees everything, not the last of them."""

    layout = _llama_like("MinistralForCausalLM")
    model_type: Literal["ministral"] = "ministral"
    intermediate_size: _InnerWidth
    sliding_window: _Window = 32768
    sliding_window_pattern: _Layers = 4

    def is_sliding(self, layer: int) -> bool:
        return super().is_sliding(layer - 1)

    @classmethod
    def from_transformers(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        return super().from_transformers({**theirs, "layer_types": theirs["layer_types"][1:]})


class Olmo2Config(_LlamaLike, frozen=True, kw_only=True):
    """Norms come after attention and MLP, and queries and keys are normed over all heads together."""

    layout = _llama_like("Olmo2ForCausalLM", **_NORMED_RESULTS)
    model_type: Literal["olmo2"] = "olmo2"
    attention_bias: bool = False
    rms_norm_eps: _Epsilon = 1e-5


class Olmo3Config(Olmo2Config, _TwoRotaries, frozen=True, kw_only=True):
    layout = _llama_like("Olmo3ForCausalLM", **_NORMED_RESULTS, rotary_by_type=True)
    model_type: Literal["olmo3"] = "olmo3"  # type: ignore[assignment]
    sliding_window: _Window = 4096
    sliding_window_pattern: _Layers = 4
    rope_theta: _Theta = 500000.0


class GraniteConfig(_LlamaLike, frozen=True, kw_only=True):
    """Embeddings, attention, what a layer adds and logits are scaled."""

    layout = _llama_like("GraniteForCausalLM")
    model_type: Literal["granite"] = "granite"
    attention_bias: bool = False
    mlp_bias: bool = False
    embedding_multiplier: Factor = 1.0
    attention_multiplier: Factor = 1.0
    residual_multiplier: Factor = 1.0
    logits_scaling: Factor = 1.0  # what they are divided by

    @property
    def embedding_factor(self) -> float:
        return self.embedding_multiplier

    @property
    def logits_divisor(self) -> float:
        return self.logits_scaling


class Phi3Config(_LlamaLike, _PartlyRotary, _Windowed, frozen=True, kw_only=True):
    """Phi-3 and Phi-4: queries, keys and values are one matrix, gate and up another."""

    layout = _llama_like(
        "Phi3ForCausalLM", linear=("qkv_proj", "o_proj", *_GATED_IN_ONE), unsharded=("self_attn", "mlp")
    )
    unused = ("original_max_position_embeddings",)  # of positions that are scaled, which say it themselves
    model_type: Literal["phi3"] = "phi3"
    rms_norm_eps: _Epsilon = 1e-5
    sliding_window: _AnyWindow = 0
    partial_rotary_factor: _Part = 1.0
    rope_scaling: LongRope | None = None  # type: ignore[assignment]

    @property
    def positions_limit(self) -> tuple[str, int]:
        if self.rope_scaling is None:
            return super().positions_limit
        return "rope_scaling.original_max_position_embeddings", self.rope_scaling.original_max_position_embeddings

    @property
    def context(self) -> int:
        return self.max_position_embeddings

    def transformers_options(self) -> dict[str, Any]:
        return super().transformers_options() | self._original

    def transformers4_options(self) -> dict[str, Any]:
        options = super().transformers4_options() | self._original
        if self.rope_scaling is not None:
            factors = {key: options["rope_scaling"][key] for key in ("short_factor", "long_factor")}
            options["rope_scaling"] = {"type": "longrope"} | factors
        return options

    @property
    def _original(self) -> dict[str, Any]:
        """It is beside the scaling there."""
        key = "original_max_position_embeddings"
        return {} if self.rope_scaling is None else {key: getattr(self.rope_scaling, key)}


class GlmConfig(_WithHeadDim, _PartlyRotary, frozen=True, kw_only=True):
    """GLM-4 of 2024: gate and up are one matrix; half of a head has positions, of neighbours in pairs."""

    layout = _llama_like("GlmForCausalLM", linear=(*_ATTENTION, *_GATED_IN_ONE), unsharded=("mlp",))
    model_type: Literal["glm"] = "glm"
    intermediate_size: _InnerWidth
    attention_bias: bool = True
    rms_norm_eps: _Epsilon = 1.5625e-07
    partial_rotary_factor: _Part = 0.5

    @property
    def output_bias(self) -> bool:
        return False


class Glm4Config(GlmConfig, frozen=True, kw_only=True):
    """GLM-4 of 2025: norms come before and after attention and MLP."""

    layout = _llama_like(
        "Glm4ForCausalLM",
        linear=(*_ATTENTION, *_GATED_IN_ONE),
        unsharded=("mlp",),
        norms=(*_TWO_NORMS, "post_self_attn_layernorm", "post_mlp_layernorm"),
    )
    model_type: Literal["glm4"] = "glm4"  # type: ignore[assignment]


class SmolLm3Config(_LlamaLike, frozen=True, kw_only=True):
    layout = _llama_like("SmolLM3ForCausalLM")
    model_type: Literal["smollm3"] = "smollm3"
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_theta: _Theta = 2000000.0
    no_rope_layer_interval: _Layers = 4  # every so many-th layer has no positions


class _Gemma(_MostlyWindowed, frozen=True, kw_only=True):
    """Norms multiply by 1 + weight and come before and after attention and MLP; embeddings are scaled."""

    intermediate_size: _InnerWidth
    head_dim: _HeadWidth = 256
    hidden_activation: _Activation = "gelu_pytorch_tanh"
    attention_bias: bool = False
    query_pre_attn_scalar: Annotated[int, Meta(ge=1, le=1 << 16)] = 256

    @property
    def attention_width(self) -> int:
        return self.head_dim * self.num_attention_heads

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        yield from _whole_heads("hidden_size", self.hidden_size, "num_attention_heads", self.num_attention_heads)


_GEMMA_NORMS: dict[str, Any] = {
    "norms": (*_TWO_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    "norms_from_zero": True,
}


class Gemma2Config(_Gemma, frozen=True, kw_only=True):
    """Scores of attention and logits are capped: x becomes cap x tanh(x / cap)."""

    layout = _llama_like("Gemma2ForCausalLM", **_GEMMA_NORMS, attention="eager")
    model_type: Literal["gemma2"] = "gemma2"
    sliding_window: _Window = 4096
    sliding_window_pattern: _Layers = 2
    attn_logit_softcapping: _Cap = 50.0
    final_logit_softcapping: _Cap = 30.0

    @property
    def logits_cap(self) -> float:
        return self.final_logit_softcapping

    def transformers_options(self) -> dict[str, Any]:
        caps = ("attn_logit_softcapping", "final_logit_softcapping")
        return super().transformers_options() | {key: getattr(self, key) or None for key in caps}


class Gemma3TextConfig(_Gemma, _TwoRotaries, frozen=True, kw_only=True):
    layout = _llama_like("Gemma3ForCausalLM", **_GEMMA_NORMS, normed_heads="each", rotary_by_type=True)
    unused = ("_sliding_window_pattern",)  # layer_types says it
    model_type: Literal["gemma3_text"] = "gemma3_text"
    sliding_window: _Window = 512
    sliding_window_pattern: _Layers = 6
    rope_theta: _Theta = 1000000.0
    rope_local_base_freq: _Theta = 10000.0

    @property
    def local_theta(self) -> float:
        return self.rope_local_base_freq

    def transformers4_options(self) -> dict[str, Any]:
        keys = ("rope_local_base_freq", "sliding_window_pattern")
        return super().transformers4_options() | {key: getattr(self, key) for key in keys}

    @classmethod
    def from_transformers(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        local = theirs["rope_parameters"][_SLIDING]["rope_theta"]
        return super().from_transformers(theirs) | {"rope_local_base_freq": local}


class OptConfig(Config, frozen=True, kw_only=True):
    layout = Layout(
        architecture="OPTForCausalLM",
        tokens="model.decoder.embed_tokens",
        positions="model.decoder.embed_positions",
        positions_per_sample=True,
        project_in="model.decoder.project_in",
        linear=("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
        unsharded=("self_attn", "fc1", "fc2"),  # its attention counts all heads
        layers="model.decoder.layers",
        final=("model.decoder.final_layer_norm", "model.decoder.project_out"),
    )
    model_type: Literal["opt"] = "opt"
    hidden_size: _Width
    ffn_dim: _InnerWidth
    num_hidden_layers: _Layers
    num_attention_heads: _Heads
    max_position_embeddings: Positions
    word_embed_proj_dim: Annotated[int, Meta(ge=0, le=1 << 16)] = 0  # 0: hidden_size
    do_layer_norm_before: bool = True
    enable_bias: bool = True
    layer_norm_elementwise_affine: bool = True
    activation_function: _Activation = "relu"
    init_std: _Deviation = 0.02

    @property
    def embedding_width(self) -> int:
        return self.word_embed_proj_dim or self.width

    @property
    def deviation(self) -> float:
        return self.init_std

    def problems(self) -> Iterator[Problem]:
        yield from _whole_heads("hidden_size", self.hidden_size, "num_attention_heads", self.num_attention_heads)

    def transformers_options(self) -> dict[str, Any]:
        return {"word_embed_proj_dim": self.word_embed_proj_dim or self.hidden_size}


class Gpt2Config(Config, frozen=True, kw_only=True):
    layout = Layout(
        architecture="GPT2LMHeadModel",
        tokens="transformer.wte",
        positions="transformer.wpe",
        layers="transformer.h",
        final=("transformer.ln_f",),
        linear=("c_attn", "c_proj", "c_fc"),
        transposed=True,
        residual_outputs=(".c_proj.weight",),
        not_weights=(".attn.bias", ".attn.masked_bias"),
    )
    model_type: Literal["gpt2"] = "gpt2"
    n_embd: _Width
    n_inner: Annotated[int, Meta(ge=0, le=1 << 18)] = 0  # 0: 4 x n_embd
    n_layer: _Layers
    n_head: _Heads
    n_positions: Positions
    activation_function: _Activation = "gelu_new"
    layer_norm_epsilon: _Epsilon = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    initializer_range: _Deviation = 0.02

    @property
    def width(self) -> int:
        return self.n_embd

    @property
    def layers(self) -> int:
        return self.n_layer

    @property
    def heads(self) -> int:
        return self.n_head

    @property
    def positions_limit(self) -> tuple[str, int]:
        return "n_positions", self.n_positions

    def problems(self) -> Iterator[Problem]:
        yield from _whole_heads("n_embd", self.n_embd, "n_head", self.n_head)

    def transformers_options(self) -> dict[str, Any]:
        return {"n_inner": self.n_inner or None}


class GptNeoxConfig(Config, frozen=True, kw_only=True):
    layout = Layout(
        architecture="GPTNeoXForCausalLM",
        tokens="gpt_neox.embed_in",
        layers="gpt_neox.layers",
        final=("gpt_neox.final_layer_norm",),
        rotary="gpt_neox.rotary_emb",
        linear=("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
        not_weights=(".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"),
        renamed=(("embed_out.", "lm_head."),),
    )
    model_type: Literal["gpt_neox"] = "gpt_neox"
    hidden_size: _Width
    intermediate_size: _InnerWidth
    num_hidden_layers: _Layers
    num_attention_heads: _Heads
    max_position_embeddings: Positions
    hidden_act: _Activation = "gelu"
    layer_norm_eps: _Epsilon = 1e-5
    rotary_emb_base: _Theta = 10000.0
    rotary_pct: _Part = 0.25
    use_parallel_residual: bool = True
    attention_bias: bool = True
    initializer_range: _Deviation = 0.02

    def problems(self) -> Iterator[Problem]:
        yield from _whole_heads("hidden_size", self.hidden_size, "num_attention_heads", self.num_attention_heads)
        rotated = int(self.hidden_size // self.num_attention_heads * self.rotary_pct)
        yield from _even("rotary_pct", self.rotary_pct, rotated)

    def transformers_options(self) -> dict[str, Any]:
        rope = {"rope_theta": self.rotary_emb_base, "partial_rotary_factor": self.rotary_pct}
        return {"rope_parameters": {"rope_type": "default", **rope}}

    def transformers4_options(self) -> dict[str, Any]:
        return {"rotary_emb_base": self.rotary_emb_base, "rotary_pct": self.rotary_pct}

    @classmethod
    def from_transformers(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        rope = theirs["rope_parameters"]
        return {"rotary_emb_base": rope["rope_theta"], "rotary_pct": rope["partial_rotary_factor"]}


def _even(key: str, part: float, rotated: int) -> Iterator[Problem]:
    if rotated < 2 or rotated % 2:
        yield key, f"expected to rotate an even number of each head's dimensions, 2 or more, not {rotated}", part


def _whole_heads(key: str, width: int, heads_key: str, heads: int) -> Iterator[Problem]:
    if width % heads:
        yield key, f"expected a multiple of {heads_key} ({heads})", width


FAMILIES: dict[str, type[Config]] = {
    "gemma2": Gemma2Config,
    "gemma3_text": Gemma3TextConfig,
    "glm": GlmConfig,
    "glm4": Glm4Config,
    "gpt2": Gpt2Config,
    "gpt_neox": GptNeoxConfig,
    "granite": GraniteConfig,
    "llama": LlamaConfig,
    "ministral": MinistralConfig,
    "mistral": MistralConfig,
    "olmo2": Olmo2Config,
    "olmo3": Olmo3Config,
    "opt": OptConfig,
    "phi3": Phi3Config,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "qwen3_moe": Qwen3MoeConfig,
    "smollm3": SmolLm3Config,
}
