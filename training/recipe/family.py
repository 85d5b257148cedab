"""What every model family has: where its parts are in the unsplit transformers model, and what its config says."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from dlx.training.recipe.parameters import Sharding, rule
from dlx.training.recipe.positions import Problem

_Vocabulary = Annotated[int, Meta(ge=2, le=1 << 20)]


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
    rotary_by_type: bool = False  # other tables for layers with a sliding window
    attention: Literal["sdpa", "eager"] = "sdpa"  # transformers' function for it; eager adds masks to scores
    linear: tuple[str, ...] = ()  # modules of a layer that are one plain matrix each: what an adapter can be of
    transposed: bool = False  # those matrices are kept as [inputs, outputs]
    unsharded: tuple[str, ...] = ()  # modules of a layer that tensor parallelism leaves whole, whatever the rules say
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")  # of a layer with grouped queries
    normed_heads: Literal["", "each", "all"] = ""  # queries and keys have a norm: of each head, or of all together
    norms_from_zero: bool = False  # a norm multiplies by 1 + its weight
    residual_outputs: tuple[str, ...] = ()  # endings of weights that start smaller by sqrt(2 x layers)
    not_weights: tuple[str, ...] = (".rotary_emb.inv_freq",)  # endings of buffers that old checkpoints hold
    renamed: tuple[tuple[str, str], ...] = ()  # (beginning in checkpoints of transformers 4, which 5 reads too; now)

    @property
    def base(self) -> str:
        """The base model's name, which some checkpoints leave out."""
        return self.tokens.partition(".")[0]

    def exported(self, name: str) -> str:
        """A tensor's name in a Hugging Face folder that transformers 4 and 5 can read."""
        pairs = ((old, new) for old, new in self.renamed if name.startswith(new))
        return next((old + name[len(new) :] for old, new in pairs), name)

    def sharding(self, name: str) -> Sharding:
        """How tensor parallelism cuts the parameter `name`: as its rule says, but for what this family leaves whole."""
        module = name.removeprefix(f"{self.layers}.").partition(".")[2].partition(".")[0]
        return "replicated" if module in self.unsharded else rule(name).sharding

    def stage_of(self, name: str, stages: list[tuple[int, int]]) -> int:
        """The stage that holds the parameter `name` of the unsplit model."""
        if name.startswith(f"{self.layers}."):
            layer = int(name[len(self.layers) + 1 :].partition(".")[0])
            return next(stage for stage, (_, high) in enumerate(stages) if layer < high)
        last = any(name.startswith(f"{part}.") for part in (*self.final, self.head))
        return len(stages) - 1 if last else 0


class Config(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The keys of a family's config that a manifest may, and must, state."""

    layout: ClassVar[Layout]
    unused: ClassVar[tuple[str, ...]] = ()  # keys of its transformers config that no logit depends on

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
    def embedding_width(self) -> int:
        """Of a token's embedding."""
        return self.width

    @property
    def embedding_factor(self) -> float:
        """What the embeddings are multiplied with before the first layer, beside what their own module does."""
        return 1.0

    @property
    def logits_divisor(self) -> float:
        return 1.0

    @property
    def logits_cap(self) -> float:
        """Above which no logit comes: x becomes cap x tanh(x / cap); 0: there is none."""
        return 0.0

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
    def experts_per_token(self) -> int:
        """Of those of a layer, where it has any."""
        return 0

    @property
    def deviation(self) -> float:
        """Of the normal distribution that weights start from."""
        return self.initializer_range  # type: ignore[attr-defined]

    @property
    def window(self) -> int:
        """How many tokens, itself among them, one sees in the layers that have a sliding window; 0: there are none."""
        return 0

    def is_sliding(self, layer: int) -> bool:
        """Whether the layer has a sliding window."""
        return self.window > 0

    def problems(self) -> Iterator[Problem]:
        """What single keys cannot say."""
        yield from ()

    def positions_problem(self, sequence_length: int) -> str | None:
        """Why samples of this length cannot be, or None."""
        name, limit = self.positions_limit
        return None if sequence_length <= limit else f"expected at most model.config.{name} ({limit})"

    @property
    def context(self) -> int:
        """How many tokens a text may have for who uses the model."""
        return self.positions_limit[1]

    @property
    def positions_limit(self) -> tuple[str, int]:
        """How many tokens a sample may have, behind the key that says so."""
        return "max_position_embeddings", self.max_position_embeddings  # type: ignore[attr-defined]

    def transformers_options(self) -> dict[str, Any]:
        """Keywords of the transformers config class, beyond the keys of the same name."""
        return {}

    def transformers4_options(self) -> dict[str, Any]:
        """What a config.json says besides for transformers 4, in whose words for the same."""
        return {}

    @classmethod
    def from_transformers(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """The counterpart of `transformers_options`: our keys from a transformers config, of unknown origin."""
        return {}
