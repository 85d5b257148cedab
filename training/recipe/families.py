"""Model families: the configuration keys of each, and where its parts are in the unsplit transformers model.

Needs neither torch nor transformers. The keys are those of the family's config.json; every dropout is 0, because a step
has to be replayable, and attention is plain causal attention. 0 stands for null where a key allows it.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

_Layers = Annotated[int, Meta(ge=1, le=1024)]
_Heads = Annotated[int, Meta(ge=1, le=1024)]
_Width = Annotated[int, Meta(ge=1, le=1 << 16)]
_InnerWidth = Annotated[int, Meta(ge=1, le=1 << 18)]
_Positions = Annotated[int, Meta(ge=1, le=1 << 20)]
_Vocabulary = Annotated[int, Meta(ge=2, le=1 << 20)]
_Epsilon = Annotated[float, Meta(gt=0, le=0.1)]
_Deviation = Annotated[float, Meta(gt=0, le=1)]
_Theta = Annotated[float, Meta(ge=1, le=1e9)]
_Activation = Literal["silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu"]

Problem = tuple[str, str, object]  # key, what is expected, what is there


class Layout(Struct, frozen=True):
    """Paths of the parts in the unsplit model; the base model's own name comes first in all but the head's."""

    architecture: str  # the class that `transformers` loads such a model with
    tokens: str  # the embedding of token ids, on the first stage
    layers: str
    final: tuple[str, ...]  # applied in this order between the last layer and the head, where the model has them
    head: str = "lm_head"
    positions: str = ""  # a learnt embedding of positions, on the first stage
    positions_per_sample: bool = False  # looked up for every sample, not once for all: decides the gradient's last bits
    project_in: str = ""  # between the embedding of tokens and the first layer, where the model has it
    rotary: str = ""  # computes what every layer gets as `position_embeddings`
    residual_outputs: tuple[str, ...] = ()  # endings of weights that start smaller by sqrt(2 x layers)
    not_weights: tuple[str, ...] = (".rotary_emb.inv_freq",)  # endings of buffers that old checkpoints hold
    renamed: tuple[tuple[str, str], ...] = ()  # (beginning in old checkpoints, beginning now)

    @property
    def base(self) -> str:
        """The base model's name, which some checkpoints leave out."""
        return self.tokens.partition(".")[0]

    def stage_of(self, name: str, stages: list[tuple[int, int]]) -> int:
        """The stage that holds the parameter `name` of the unsplit model."""
        if name.startswith(f"{self.layers}."):
            layer = int(name[len(self.layers) + 1 :].partition(".")[0])
            return next(stage for stage, (_, high) in enumerate(stages) if layer < high)
        last = any(name.startswith(f"{part}.") for part in (*self.final, self.head))
        return len(stages) - 1 if last else 0


class Config(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The keys of a family's config that a manifest may, and must, state."""

    vocab_size: _Vocabulary
    tie_word_embeddings: bool = False

    # Every family has these, some under a key of its own.

    @property
    def family(self) -> str:
        return self.model_type  # type: ignore[attr-defined]

    @property
    def width(self) -> int:
        """Of the hidden states between layers."""
        return self.hidden_size  # type: ignore[attr-defined]

    @property
    def layers(self) -> int:
        return self.num_hidden_layers  # type: ignore[attr-defined]

    @property
    def heads(self) -> int:
        """Of the queries."""
        return self.num_attention_heads  # type: ignore[attr-defined]

    @property
    def attention_width(self) -> int:
        """Of all heads' queries together."""
        return self.width

    @property
    def deviation(self) -> float:
        """Of the normal distribution that weights start from."""
        return self.initializer_range  # type: ignore[attr-defined]

    @property
    def layout(self) -> Layout:
        return FAMILIES[self.family][1]

    def problems(self) -> Iterator[Problem]:
        """What single keys cannot say."""
        yield from ()

    def positions_problem(self, sequence_length: int) -> str | None:
        """Why samples of this length cannot be, or None."""
        name, limit = self.positions_limit
        return None if sequence_length <= limit else f"expected at most model.config.{name} ({limit})"

    @property
    def positions_limit(self) -> tuple[str, int]:
        return "max_position_embeddings", self.max_position_embeddings  # type: ignore[attr-defined]

    def transformers_options(self) -> dict[str, Any]:
        """Keywords of the transformers config class, beyond the keys of the same name."""
        return {}


class _LlamaLike(Config, frozen=True, kw_only=True):
    hidden_size: _Width
    intermediate_size: _InnerWidth
    num_hidden_layers: _Layers
    num_attention_heads: _Heads
    num_key_value_heads: _Heads
    max_position_embeddings: _Positions
    hidden_act: _Activation = "silu"
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


class _WithHeadDim(_LlamaLike, frozen=True, kw_only=True):
    head_dim: Annotated[int, Meta(ge=0, le=1024)] = 0  # 0: hidden_size / num_attention_heads

    @property
    def attention_width(self) -> int:
        return (self.head_dim or self.hidden_size // self.num_attention_heads) * self.num_attention_heads

    def transformers_options(self) -> dict[str, Any]:
        head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        return super().transformers_options() | {"head_dim": head_dim}


class LlamaConfig(_LlamaLike, frozen=True, kw_only=True):
    model_type: Literal["llama"] = "llama"
    attention_bias: bool = False
    mlp_bias: bool = False


class Qwen2Config(_LlamaLike, frozen=True, kw_only=True):
    model_type: Literal["qwen2"] = "qwen2"


class Qwen3Config(_WithHeadDim, frozen=True, kw_only=True):
    model_type: Literal["qwen3"] = "qwen3"
    attention_bias: bool = False


class MistralConfig(_WithHeadDim, frozen=True, kw_only=True):
    model_type: Literal["mistral"] = "mistral"
    sliding_window: Annotated[int, Meta(ge=0, le=1 << 20)] = 0  # 0: none; else samples have to be shorter

    def positions_problem(self, sequence_length: int) -> str | None:
        if self.sliding_window and sequence_length >= self.sliding_window:
            return f"expected less than model.config.sliding_window ({self.sliding_window}; 0 is none)"
        return super().positions_problem(sequence_length)

    def transformers_options(self) -> dict[str, Any]:
        return super().transformers_options() | {"sliding_window": self.sliding_window or None}


class OptConfig(Config, frozen=True, kw_only=True):
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
    def deviation(self) -> float:
        return self.init_std

    def problems(self) -> Iterator[Problem]:
        yield from _whole_heads("hidden_size", self.hidden_size, "num_attention_heads", self.num_attention_heads)

    def transformers_options(self) -> dict[str, Any]:
        return {"word_embed_proj_dim": self.word_embed_proj_dim or self.hidden_size}


class Gpt2Config(Config, frozen=True, kw_only=True):
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


def _whole_heads(key: str, width: int, heads_key: str, heads: int) -> Iterator[Problem]:
    if width % heads:
        yield key, f"expected a multiple of {heads_key} ({heads})", width


def _llama_like(architecture: str) -> Layout:
    return Layout(
        architecture=architecture,
        tokens="model.embed_tokens",
        layers="model.layers",
        final=("model.norm",),
        rotary="model.rotary_emb",
    )


FAMILIES: dict[str, tuple[type[Config], Layout]] = {
    "gpt2": (
        Gpt2Config,
        Layout(
            architecture="GPT2LMHeadModel",
            tokens="transformer.wte",
            positions="transformer.wpe",
            layers="transformer.h",
            final=("transformer.ln_f",),
            residual_outputs=(".c_proj.weight",),
            not_weights=(".attn.bias", ".attn.masked_bias"),
        ),
    ),
    "gpt_neox": (
        GptNeoxConfig,
        Layout(
            architecture="GPTNeoXForCausalLM",
            tokens="gpt_neox.embed_in",
            layers="gpt_neox.layers",
            final=("gpt_neox.final_layer_norm",),
            rotary="gpt_neox.rotary_emb",
            not_weights=(".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"),
            renamed=(("embed_out.", "lm_head."),),
        ),
    ),
    "llama": (LlamaConfig, _llama_like("LlamaForCausalLM")),
    "mistral": (MistralConfig, _llama_like("MistralForCausalLM")),
    "opt": (
        OptConfig,
        Layout(
            architecture="OPTForCausalLM",
            tokens="model.decoder.embed_tokens",
            positions="model.decoder.embed_positions",
            positions_per_sample=True,
            project_in="model.decoder.project_in",
            layers="model.decoder.layers",
            final=("model.decoder.final_layer_norm", "model.decoder.project_out"),
        ),
    ),
    "qwen2": (Qwen2Config, _llama_like("Qwen2ForCausalLM")),
    "qwen3": (Qwen3Config, _llama_like("Qwen3ForCausalLM")),
}


def config_class(config: Mapping[str, Any]) -> type[Config] | None:
    """The keys of the family that `model_type` (default llama) names; None where there is no such family."""
    found = FAMILIES.get(str(config.get("model_type", "llama")))
    return found[0] if found else None
