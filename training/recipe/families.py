"""Model families: the configuration keys of each, and where its parts are in the unsplit transformers model.

Needs neither torch nor transformers. The keys are those of the family's config.json; every dropout is 0, because a step
has to be replayable, and attention is causal. 0 stands for null where a key allows it. What transformers nests in
`rope_parameters`, or writes out layer by layer, are plain keys here.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from dlx.training.recipe.family import Config, Layout, Problem

_Layers = Annotated[int, Meta(ge=1, le=1024)]
_Heads = Annotated[int, Meta(ge=1, le=1024)]
_HeadWidth = Annotated[int, Meta(ge=1, le=1024)]
_Width = Annotated[int, Meta(ge=1, le=1 << 16)]
_InnerWidth = Annotated[int, Meta(ge=1, le=1 << 18)]
_Positions = Annotated[int, Meta(ge=1, le=1 << 20)]
_Experts = Annotated[int, Meta(ge=1, le=1 << 12)]
_Epsilon = Annotated[float, Meta(gt=0, le=0.1)]
_Deviation = Annotated[float, Meta(gt=0, le=1)]
_Theta = Annotated[float, Meta(ge=1, le=1e9)]
_Factor = Annotated[float, Meta(gt=0, le=1e6)]
_Activation = Literal["silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu"]


def config_class(config: Mapping[str, Any]) -> type[Config] | None:
    """The keys of the family that `model_type` (default llama) names; None where there is no such family."""
    return FAMILIES.get(str(config.get("model_type", "llama")))


def _llama_like(architecture: str, **changes: Any) -> Layout:
    return Layout(
        architecture=architecture,
        tokens="model.embed_tokens",
        layers="model.layers",
        final=("model.norm",),
        rotary="model.rotary_emb",
        **changes,
    )


class _GroupedQueries(Config, frozen=True, kw_only=True):
    hidden_size: _Width
    num_hidden_layers: _Layers
    num_attention_heads: _Heads
    num_key_value_heads: _Heads
    max_position_embeddings: _Positions
    rms_norm_eps: _Epsilon = 1e-6
    rope_theta: _Theta = 10000.0
    initializer_range: _Deviation = 0.02

    def problems(self) -> Iterator[Problem]:
        head_dim = getattr(self, "head_dim", 0)
        if head_dim % 2:
            yield "head_dim", "expected an even number, or 0 for hidden_size / num_attention_heads", head_dim
        if not head_dim and self.hidden_size % (2 * self.num_attention_heads):
            expected = f"expected a multiple of 2 x num_attention_heads ({2 * self.num_attention_heads})"
            yield "hidden_size", expected, self.hidden_size
        if self.num_attention_heads % self.num_key_value_heads:
            expected = f"expected a divisor of num_attention_heads ({self.num_attention_heads})"
            yield "num_key_value_heads", expected, self.num_key_value_heads

    def transformers_options(self) -> dict[str, Any]:
        return {"rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta}}

    def transformers4_options(self) -> dict[str, Any]:
        return {"rope_theta": self.rope_theta}

    @classmethod
    def from_transformers(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        return {"rope_theta": theirs["rope_parameters"]["rope_theta"]}


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


class LlamaConfig(_LlamaLike, frozen=True, kw_only=True):
    layout = _llama_like("LlamaForCausalLM")
    model_type: Literal["llama"] = "llama"
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_type: Literal["default", "llama3"] = "default"  # llama3: long wavelengths are stretched, by the keys below
    rope_factor: _Factor = 8.0
    rope_low_freq_factor: _Factor = 1.0
    rope_high_freq_factor: _Factor = 4.0
    rope_original_max_position_embeddings: _Positions = 8192

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.rope_high_freq_factor <= self.rope_low_freq_factor:
            expected = f"expected more than rope_low_freq_factor ({self.rope_low_freq_factor:g})"
            yield "rope_high_freq_factor", expected, self.rope_high_freq_factor

    def transformers_options(self) -> dict[str, Any]:
        options = super().transformers_options()
        options["rope_parameters"] |= self._scaling
        return options

    def transformers4_options(self) -> dict[str, Any]:
        return super().transformers4_options() | {"rope_scaling": self._scaling or None}

    @property
    def _scaling(self) -> dict[str, Any]:
        if self.rope_type == "default":
            return {}
        return {"rope_type": self.rope_type} | {key: getattr(self, f"rope_{key}") for key in _SCALING}

    @classmethod
    def from_transformers(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        rope = theirs["rope_parameters"]
        scaled = rope["rope_type"] == "llama3"  # any other is found to differ from "default"
        found = {"rope_type": "llama3"} | {f"rope_{key}": rope[key] for key in _SCALING} if scaled else {}
        return super().from_transformers(theirs) | found


_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


class Qwen2Config(_LlamaLike, frozen=True, kw_only=True):
    layout = _llama_like("Qwen2ForCausalLM")
    model_type: Literal["qwen2"] = "qwen2"


class Qwen3Config(_WithHeadDim, frozen=True, kw_only=True):
    layout = _llama_like("Qwen3ForCausalLM")
    model_type: Literal["qwen3"] = "qwen3"
    intermediate_size: _InnerWidth
    attention_bias: bool = False


class Qwen3MoeConfig(_WithHeadDim, frozen=True, kw_only=True):
    """Every layer has experts; no loss balances their load."""

    layout = _llama_like("Qwen3MoeForCausalLM")
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


class MistralConfig(_WithHeadDim, frozen=True, kw_only=True):
    layout = _llama_like("MistralForCausalLM")
    model_type: Literal["mistral"] = "mistral"
    intermediate_size: _InnerWidth
    sliding_window: Annotated[int, Meta(ge=0, le=1 << 20)] = 0  # of every layer; 0: none

    @property
    def window(self) -> int:
        return self.sliding_window

    def transformers_options(self) -> dict[str, Any]:
        return super().transformers_options() | {"sliding_window": self.sliding_window or None}


class Olmo2Config(_LlamaLike, frozen=True, kw_only=True):
    """Norms come after attention and MLP, and queries and keys are normed over all heads together."""

    layout = _llama_like("Olmo2ForCausalLM", unsharded=("self_attn",))
    model_type: Literal["olmo2"] = "olmo2"
    attention_bias: bool = False
    rms_norm_eps: _Epsilon = 1e-5


class SmolLm3Config(_LlamaLike, frozen=True, kw_only=True):
    layout = _llama_like("SmolLM3ForCausalLM")
    model_type: Literal["smollm3"] = "smollm3"
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_theta: _Theta = 2000000.0
    no_rope_layer_interval: _Layers = 4  # every so many-th layer has no positions


class Gemma3TextConfig(_GroupedQueries, frozen=True, kw_only=True):
    """Most layers see a window with positions of their own; norms multiply by 1 + weight; embeddings are scaled."""

    layout = _llama_like("Gemma3ForCausalLM", rotary_by_type=True, norms_from_zero=True)
    unused = ("_sliding_window_pattern",)  # layer_types says it
    model_type: Literal["gemma3_text"] = "gemma3_text"
    intermediate_size: _InnerWidth
    head_dim: _HeadWidth = 256
    hidden_activation: _Activation = "gelu_pytorch_tanh"
    attention_bias: bool = False
    query_pre_attn_scalar: Annotated[int, Meta(ge=1, le=1 << 16)] = 256
    sliding_window: Annotated[int, Meta(ge=1, le=1 << 20)] = 512
    sliding_window_pattern: Annotated[int, Meta(ge=1, le=1024)] = 6  # every so many-th layer sees everything
    rope_theta: _Theta = 1000000.0  # of those
    rope_local_base_freq: _Theta = 10000.0  # of the others

    @property
    def attention_width(self) -> int:
        return self.head_dim * self.num_attention_heads

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        yield from _whole_heads("hidden_size", self.hidden_size, "num_attention_heads", self.num_attention_heads)

    @property
    def window(self) -> int:
        return self.sliding_window

    def is_sliding(self, layer: int) -> bool:
        return (layer + 1) % self.sliding_window_pattern != 0

    def transformers_options(self) -> dict[str, Any]:
        return {
            "layer_types": [_LAYER_TYPES[self.is_sliding(layer)] for layer in range(self.layers)],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": self.rope_theta},
                "sliding_attention": {"rope_type": "default", "rope_theta": self.rope_local_base_freq},
            },
        }

    def transformers4_options(self) -> dict[str, Any]:
        keys = ("rope_theta", "rope_local_base_freq", "sliding_window_pattern")
        return {key: getattr(self, key) for key in keys}

    @classmethod
    def from_transformers(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        types, rope = theirs["layer_types"], theirs["rope_parameters"]
        return {
            "sliding_window_pattern": [*types, _LAYER_TYPES[False]].index(_LAYER_TYPES[False]) + 1,
            "rope_theta": rope["full_attention"]["rope_theta"],
            "rope_local_base_freq": rope["sliding_attention"]["rope_theta"],
        }


_LAYER_TYPES = ("full_attention", "sliding_attention")


class OptConfig(Config, frozen=True, kw_only=True):
    layout = Layout(
        architecture="OPTForCausalLM",
        tokens="model.decoder.embed_tokens",
        positions="model.decoder.embed_positions",
        positions_per_sample=True,
        project_in="model.decoder.project_in",
        unsharded=("self_attn", "fc1", "fc2"),  # its attention counts all heads
        layers="model.decoder.layers",
        final=("model.decoder.final_layer_norm", "model.decoder.project_out"),
    )
    model_type: Literal["opt"] = "opt"
    hidden_size: _Width
    ffn_dim: _InnerWidth
    num_hidden_layers: _Layers
    num_attention_heads: _Heads
    max_position_embeddings: _Positions
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
        residual_outputs=(".c_proj.weight",),
        not_weights=(".attn.bias", ".attn.masked_bias"),
    )
    model_type: Literal["gpt2"] = "gpt2"
    n_embd: _Width
    n_inner: Annotated[int, Meta(ge=0, le=1 << 18)] = 0  # 0: 4 x n_embd
    n_layer: _Layers
    n_head: _Heads
    n_positions: _Positions
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
        not_weights=(".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"),
        renamed=(("embed_out.", "lm_head."),),
    )
    model_type: Literal["gpt_neox"] = "gpt_neox"
    hidden_size: _Width
    intermediate_size: _InnerWidth
    num_hidden_layers: _Layers
    num_attention_heads: _Heads
    max_position_embeddings: _Positions
    hidden_act: _Activation = "gelu"
    layer_norm_eps: _Epsilon = 1e-5
    rotary_emb_base: _Theta = 10000.0
    rotary_pct: Annotated[float, Meta(gt=0, le=1)] = 0.25
    use_parallel_residual: bool = True
    attention_bias: bool = True
    initializer_range: _Deviation = 0.02

    def problems(self) -> Iterator[Problem]:
        yield from _whole_heads("hidden_size", self.hidden_size, "num_attention_heads", self.num_attention_heads)
        rotated = int(self.hidden_size // self.num_attention_heads * self.rotary_pct)
        if rotated < 2 or rotated % 2:
            expected = f"expected to rotate an even number of each head's dimensions, 2 or more, not {rotated}"
            yield "rotary_pct", expected, self.rotary_pct

    def transformers_options(self) -> dict[str, Any]:
        rope = {"rope_theta": self.rotary_emb_base, "partial_rotary_factor": self.rotary_pct}
        return {"rope_parameters": {"rope_type": "default", **rope}}

    def transformers4_options(self) -> dict[str, Any]:
        return {"rotary_emb_base": self.rotary_emb_base, "rotary_pct": self.rotary_pct}

    @classmethod
    def from_transformers(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        rope = theirs["rope_parameters"]
        return {"rotary_emb_base": rope["rope_theta"], "rotary_pct": rope["partial_rotary_factor"]}


def _whole_heads(key: str, width: int, heads_key: str, heads: int) -> Iterator[Problem]:
    if width % heads:
        yield key, f"expected a multiple of {heads_key} ({heads})", width


FAMILIES: dict[str, type[Config]] = {
    "gemma3_text": Gemma3TextConfig,
    "gpt2": Gpt2Config,
    "gpt_neox": GptNeoxConfig,
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "olmo2": Olmo2Config,
    "opt": OptConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "qwen3_moe": Qwen3MoeConfig,
    "smollm3": SmolLm3Config,
}
