"""A run's recipe: all that its draft and its manifest say in the same words.

Needs neither torch nor transformers, so that every part of the node can read one cheaply.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from dlx.training.recipe.families import FAMILIES, config_class
from dlx.training.recipe.family import Config
from dlx.training.recipe.presets import INNER_STEPS, MIN_INNER_STEPS
from dlx.training.recipe.strict import convert, fail

Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Licence = Annotated[str, Meta(max_length=200, pattern=r"^[ -~]*\Z")]
Targets = Annotated[list[Annotated[str, Meta(pattern=r"^[a-z0-9_]{1,64}\Z")]], Meta(min_length=1, max_length=64)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
_Size = Annotated[int, Meta(ge=1, le=1 << 40)]
Count = Annotated[int, Meta(ge=1, le=1 << 16)]
MOST_SECONDS = 30 * 86400  # that a time of the ledger's can be
_Seconds = Annotated[int, Meta(ge=1, le=MOST_SECONDS)]
_Duration = Annotated[float, Meta(ge=0.1, le=MOST_SECONDS)]  # seconds
Stages = Annotated[list[tuple[int, int]], Meta(min_length=1, max_length=64)]  # layers [low, high) of each
Precision = Literal["float32", "bfloat16"]
Arithmetic = Literal["device", "exact"]  # rounded as each device does, or to the same bits on all: see training.exact
EXACT_BITS = 21  # of each factor of a product, unless a draft says fewer
InnerOptimiser = Literal["adamw", "muon", "shampoo"]
Packing = Literal["float32", "bfloat16", "int8"]  # of activations and their gradients between stages
Rounds = Annotated[int, Meta(ge=1, le=1_000_000)]
Tokens = Annotated[int, Meta(ge=1, lt=1 << 40)]
MAX_TOKENS = (1 << 63) - 1  # that a whole run can count: what the ledger takes
Replicas = Annotated[int, Meta(ge=1, le=64)]
Confirmations = Annotated[int, Meta(ge=0, le=1000)]
Seed = Annotated[int, Meta(ge=0, lt=1 << 53)]
_Fraction = Annotated[float, Meta(ge=0, le=1)]
_BelowOne = Annotated[float, Meta(ge=0, lt=1)]
_Rate = Annotated[float, Meta(gt=0, le=100)]


class BlobRef(Struct, frozen=True, forbid_unknown_fields=True):
    """A blob by name (lowercase hex sha256) and size in bytes."""

    sha256: Sha256
    size: _Size


class WeightsRef(BlobRef, frozen=True, forbid_unknown_fields=True):
    """A file of weights, and the root of its Merkle tree (lowercase hex): by that one value of it can be shown."""

    root: Sha256


class Model(Struct, frozen=True, forbid_unknown_fields=True):
    config: dict[str, Any]  # of the family that it names: recipe/families.py has the keys


class Samples(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a replica cuts its data into steps, whatever data it is."""

    sequence_length: Count
    batch_size: Count  # samples of one replica per inner step
    micro_batches: Count = 1
    seed: Seed = 0  # of the sample order and of the genesis
    private: bool = False  # whether a replica may train on a folder of its own, which never leaves it
    chat: bool = False  # samples are rows of conversations: see training.data.rows
    licence: Licence = ""  # of the data, as the creator states it


class Inner(Struct, frozen=True, forbid_unknown_fields=True):
    """Muon or Shampoo for the layers' matrices and AdamW for the rest (embeddings, norms, head), or AdamW for every
    tensor."""

    optimiser: InnerOptimiser = "muon"
    lr: _Rate = 4e-3
    beta1: _BelowOne = 0.9
    beta2: _BelowOne = 0.95
    eps: Annotated[float, Meta(gt=0, le=0.1)] = 1e-8
    weight_decay: _Fraction = 0.1
    matrix_lr: _Rate = 0.01
    matrix_momentum: _BelowOne = 0.95
    clip: Annotated[float, Meta(gt=0, le=1e6)] = 1.0  # of the whole replica's gradient norm
    warmup: _Fraction = 0.05  # fraction of the run's inner steps
    schedule: Literal["cosine", "wsd"] = "cosine"
    decay: _Fraction = 0.2  # last fraction of the run's inner steps, in which `wsd` goes down
    final: _Fraction = 0.1  # lr at the end of the run as a fraction of lr


class Outer(Struct, frozen=True, forbid_unknown_fields=True):
    optimiser: Literal["sgd"] = "sgd"
    lr: _Rate = 1.0
    momentum: _BelowOne = 0.0
    nesterov: bool = False
    delay: Literal[0, 1] = 0
    alpha: Annotated[float, Meta(ge=0, le=100)] = 0.0
    ahead: Annotated[float, Meta(ge=0, le=1)] = 0.0  # the part of its residual that a slot's round starts from
    policy: Literal["mean", "clip", "clip+cosine"] = "clip+cosine"  # how a seal weighs contributions, beyond tokens


class Codec(Struct, frozen=True, forbid_unknown_fields=True):
    name: Literal["int4", "lowrank", "ternary", "topk"] = "int4"


class Plan(Struct, frozen=True, forbid_unknown_fields=True):
    """What the codec and the inner loop do in a round. Level: bits of a value. Rank: of `lowrank`; values kept of each
    4,096 of `topk`; 0 for the others."""

    level: Annotated[int, Meta(ge=2, le=8)] = 4
    rank: Annotated[int, Meta(ge=0, le=4096)] = 0
    inner_steps: Annotated[int, Meta(ge=1, le=100_000)] = INNER_STEPS


class Adaptive(Struct, frozen=True, forbid_unknown_fields=True):
    """The plan of later rounds follows what was measured; a manifest without this keeps its plan to the end."""

    inner_steps: Annotated[int, Meta(ge=1, le=1 << 40)]  # of the whole run, which ends with the round that reaches it
    window: Annotated[int, Meta(ge=1, le=1000)] = 5  # rounds between two changes
    energy: Annotated[float, Meta(gt=0, le=0.6)] = 0.5  # part of an update's energy that its payload has to keep
    min_rank: Annotated[int, Meta(ge=1, le=4096)] = 4
    max_rank: Annotated[int, Meta(ge=1, le=4096)] = 128
    min_inner_steps: Annotated[int, Meta(ge=1, le=100_000)] = MIN_INNER_STEPS
    max_inner_steps: Annotated[int, Meta(ge=1, le=100_000)] = 500


class Timing(Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds: whole ones where the ledger counts them too."""

    start_time: Annotated[int, Meta(ge=0, lt=1 << 36)] = 0  # Unix time before which round 0 does not open; 0: at once
    min_round_time: _Seconds = 1  # before which the ledger takes no seal of a round
    round_timeout: _Seconds = 120
    straggler_grace: _Duration = 20.0
    proposal_timeout: _Duration = 10.0  # how long one proposer may stay silent
    eviction_time: _Seconds = 60


class Quorum(Struct, frozen=True, forbid_unknown_fields=True):
    numerator: Annotated[int, Meta(ge=1, le=65535)] = 5  # two of three equal members are a quorum, whatever chance
    denominator: Annotated[int, Meta(ge=1, le=65535)] = 8  # does to their weights: they are not of exactly two thirds


class Retention(Struct, frozen=True, forbid_unknown_fields=True):
    payloads: Literal["run"] | Annotated[int, Meta(ge=1, le=1_000_000)] = "run"  # of the whole run, or the last rounds
    versions: Annotated[int, Meta(ge=1, le=10_000)] = 3  # newest versions kept
    every: Annotated[int, Meta(ge=1, le=1_000_000)] = 10  # and every so many-th
    checkpoints: Literal["run"] | Annotated[int, Meta(ge=1, le=1_000_000)] = "run"  # of these those of the last rounds


class Average(Struct, frozen=True, forbid_unknown_fields=True):
    """What `pull` gives of a version is the mean of it and of the newest ones before it that are multiples of `every`;
    a manifest without this publishes the versions themselves. Training never sees the mean."""

    versions: Annotated[int, Meta(ge=2, le=64)] = 8
    every: Annotated[int, Meta(ge=1, le=1_000_000)] = 10  # rounds


class Audit(Struct, frozen=True, forbid_unknown_fields=True):
    """Which work is replayed (level 3 of the audit)."""

    share: _Fraction = 0.0625  # probability with which a segment of a replica's round is drawn
    draw_after: Annotated[int, Meta(ge=1, le=1000)] = 2  # blocks after the round's last seal: whose hash draws
    window: Annotated[int, Meta(ge=1, le=1_000_000)] = 20  # rounds for which the drawn states are served


class Adapter(Struct, frozen=True, forbid_unknown_fields=True):
    """The run trains low-rank factors of some matrices of a base, whose weights stay as they are: see
    training.models.adapters."""

    rank: Annotated[int, Meta(ge=1, le=1024)] = 8
    alpha: Annotated[float, Meta(gt=0, le=1e6)] = 16.0  # the factors' product counts alpha / rank times
    targets: Literal["all-linear"] | Targets = "all-linear"  # modules of the layers, by the last part of their names
    train: Literal["b", "both"] = "both"  # both factors; or B alone, A as it was drawn
    base: Licence = ""  # the name that others know the base by, such as org/model, as the creator states it


class Evaluation(Struct, frozen=True, forbid_unknown_fields=True):
    """How often drawn replicas compute the loss of a version on samples of the held-out data; see
    training.recipe.evaluation."""

    every: Annotated[int, Meta(ge=0, le=1_000_000)] = 0  # rounds: versions that are multiples of it; 0: none
    samples: Annotated[int, Meta(ge=1, le=65536)] = 64  # of one version, drawn anew for each
    replicas: Replicas = 3  # that compute it, each all of it


class Stop(Struct, frozen=True, forbid_unknown_fields=True):
    """The run ends before its last round where its held-out loss no longer falls: where the median of the newest
    `patience` evaluated versions is not `min_improvement` nats below that of as many before them."""

    patience: Annotated[int, Meta(ge=2, le=100)] = 5
    min_improvement: Annotated[float, Meta(ge=0, le=100)] = 0.0


class Recipe(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What drafts and manifests share; a draft leaves out what is at its default, a manifest states everything."""

    version: Literal[4] = 4
    name: Name
    model: Model
    stages: Stages
    data: Samples
    precision: Precision = "float32"
    arithmetic: Arithmetic = "device"
    exact_bits: Annotated[int, Meta(ge=7, le=EXACT_BITS)] = EXACT_BITS
    pipe: Literal["precision", "int8"] = "precision"
    inner: Inner = Inner()
    outer: Outer = Outer()
    codec: Codec = Codec()
    plan: Plan = Plan()
    adaptive: Adaptive | None = None
    rounds: Rounds
    tokens_per_step: Tokens | None = None  # of one replica; a draft has it computed when it is left out
    timing: Timing = Timing()
    quorum: Quorum = Quorum()
    min_replicas: Replicas = 1
    max_replicas: Replicas = 8
    invited: bool = False  # only whom the run's creator or a steward invites gets a slot
    bond: Annotated[int, Meta(ge=0, lt=1 << 53)] = 0  # gwei that a slot locks, at stake on exact evidence; 0: none
    confirmations: Confirmations = 1
    retention: Retention = Retention()
    average: Average | None = None
    audit: Audit = Audit()
    adapter: Adapter | None = None  # None: all weights are trained
    evaluation: Evaluation | None = None  # a draft has it chosen, by the held-out data, when it is left out
    stop: Stop | None = None

    @property
    def is_exact(self) -> bool:
        """Whether its inner steps give the same bits on every machine."""
        return self.arithmetic == "exact"


def reads_data(recipe: Recipe, stage: int) -> bool:
    """Whether the stage reads the run's samples: the first one token ids, the last one labels, and every one where
    the documents of a row begin."""
    return recipe.data.chat or stage in (0, len(recipe.stages) - 1)


def max_inner_steps(recipe: Recipe) -> int:
    """The most inner steps of a round that the recipe allows: its plan's, or those that an adapting plan may reach."""
    return recipe.plan.inner_steps if recipe.adaptive is None else recipe.adaptive.max_inner_steps


def first_plan_rounds(recipe: Recipe) -> int:
    """How many rounds the run has if every round has the first plan. A plan that adapts may come to more, up to the
    recipe's `rounds`, or to fewer."""
    if recipe.adaptive is None:
        return recipe.rounds
    return min(recipe.rounds, -(-recipe.adaptive.inner_steps // recipe.plan.inner_steps))


def packing(recipe: Recipe) -> Packing:
    """How activations and their gradients go from stage to stage: as precise as the matrix products, or in 8 bits."""
    return recipe.precision if recipe.pipe == "precision" else recipe.pipe


def row_bytes(packing: Packing, width: int) -> int:
    """Of one token's hidden values in a pipe."""
    return {"float32": 4 * width, "bfloat16": 2 * width, "int8": 4 + width}[packing]


def activation_bytes(recipe: Recipe) -> int:
    """Bytes of one activation or gradient message between two stages: what a link must be able to carry."""
    tokens = recipe.data.batch_size // recipe.data.micro_batches * recipe.data.sequence_length
    return tokens * row_bytes(packing(recipe), parse_model(recipe.model).width)


def embedding_shape(recipe: Recipe) -> tuple[int, int] | None:
    """[vocabulary, width] of the first stage's embedding where it is the head of another, the last one; else None. A
    base does not change, so there the last stage has a copy."""
    config = parse_model(recipe.model)
    if recipe.adapter or not config.tie_word_embeddings or len(recipe.stages) == 1:
        return None
    return config.vocab_size, config.embedding_width


def embedding_bytes(recipe: Recipe) -> int:
    """Of that tensor, which every inner step takes from stage to stage, and of its gradient on the way back."""
    shape = embedding_shape(recipe)
    return 4 * shape[0] * shape[1] if shape else 0


def step_bytes(recipe: Recipe) -> int:
    """Bytes of the tensors that one inner step brings from one stage to the next, and as many back."""
    return recipe.data.micro_batches * activation_bytes(recipe) + embedding_bytes(recipe)


def parse_model(model: Model) -> Config:
    """The model's config as its family's. Raises ManifestError; what depends on several keys is not checked again."""
    kind = config_class(model.config)
    if kind is None:
        fail("model.config.model_type", f"expected one of {', '.join(FAMILIES)}", model.config["model_type"])
    return convert(model.config, kind, "model.config.")  # type: ignore[arg-type]
