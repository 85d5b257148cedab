"""What is known to go wrong with a draft's choices, before a run is made of it."""

import msgspec
from msgspec.structs import replace

from dlx.training.recipe.draft import Draft
from dlx.training.recipe.evaluation import LIARS, MOST_COST, MOST_ENDED, cost, ended_by_liars, evaluators
from dlx.training.recipe.family import Config
from dlx.training.recipe.presets import KINDS, LARGE_RATES
from dlx.training.recipe.recipe import Inner, Outer, parse_model

JUDGED = 3  # replicas of a stage: of fewer equal ones the others' weight convicts nobody

ROUNDS = 1000  # of the linear analysis: what has not grown by then does not grow

# As `python -m benchmarks.stability` measured with momentum: 0.36 diverges, 0.60 and 0.63 swing for 100 rounds.
UNSTABLE_BELOW = 0.65
_CURED = 0.9  # a setting that is advised has a margin

# Up to how many replicas which outer rate and momentum (Nesterov) were best in MuLoCo (arXiv 2505.23725), Muon inside.
PAIRS = ((4, 0.7, 0.6), (8, 0.9, 0.8), (64, 1.0, 0.9))
_TOO_FAR = 2.0  # times as far as such a pair goes

FINE_TUNING = msgspec.convert(KINDS["finetune"]["inner"], Inner)  # for a model that is trained already
_LORA = msgspec.convert(KINDS["lora"]["inner"], Inner)
_FACTORS = (1e-5, 0.04)  # rates of an adapter: large models' lie far below small ones', which diverge at 0.04
_MEASURED = "0.4M"  # parameters of the largest model with which the kinds' rates were measured
_LARGE = 100_000_000  # parameters of the layers, about
_OF_LARGE = {kind: msgspec.convert(rates, Inner) for kind, rates in LARGE_RATES.items()}
_TOO_FAST_FOR_LARGE = 5.0  # times those
_TOO_FAST = 3.5  # times the rates of fine-tuning
_TOO_SLOW = 50.0  # times less than the defaults, which suit small models: no drawn weights want that

# Where AdamW steps the matrices in bfloat16, honest replays on unlike machines passed the limits of level 3 where
# rate x sqrt(width) was 0.055 or more. At 0.039 and below they took a third of them (docs/threats.md).
_SPREADS_FROM = 0.04
_SPREAD = ("gemma2", "gemma3_text")  # families whose replays passed the limits with AdamW, in float32 too


def stable_below(outer: Outer) -> float:
    """The part of the error that a round may remove (0 to 1) before this outer optimiser lets the error grow.

    A linear analysis: the weights are one number, its error 1 at first, and the inner steps of a round take the part
    `removed` off the error they start from. If a replica's own change told all that the others found, every pair would
    be stable with `alpha` = outer rate, but trained so 0.7 and 0.9 swing: a part of it is its samples' noise. So what
    `alpha` adds counts whole, and by half up to the outer rate, and the worse is told. Half is a guess that agrees
    with three trained pairs (docs/convergence.md).
    """
    low, high = 0.0, 1.0
    if _stays_small(outer, high):
        return high
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if _stays_small(outer, middle) else (low, middle)
    return low


def is_unbounded(draft: Draft) -> bool:
    """Whether anybody may join a run in which one member moves the model as far as it likes."""
    return draft.outer.policy == "mean" and not draft.invited


def warnings(draft: Draft) -> list[str]:
    """What the run's creator should hear about, one line each."""
    found, outer, adaptive = [], draft.outer, draft.adaptive
    limit = stable_below(outer)
    if limit < UNSTABLE_BELOW:
        used = ["momentum"] * (outer.momentum > 0) + ["alpha"] * (outer.alpha > outer.lr) + ["lr"]
        values = ", ".join(f"outer.{key} {getattr(outer, key):g}" for key in used)
        found.append(
            f"{values} with outer.delay {outer.delay} swings or diverges once a round removes over {100 * limit:.0f}% "
            f"of the error, as it does early in a run or in a short one: {_cure(outer)}lower "
            + " or ".join(f"outer.{key}" for key in used)
        )
    if is_unbounded(draft):
        found.append(
            'outer.policy "mean" has no bound: in a run that anybody may join, one member can ruin the model in one '
            'round. Choose "clip+cosine", or invited = true'
        )
    if draft.max_replicas < JUDGED and not draft.invited:
        found.append(
            f"max_replicas {draft.max_replicas}: of fewer than {JUDGED} replicas nobody can be convicted of made-up "
            f"work. Choose {JUDGED} or more, or invited = true"
        )
    if draft.model.source and (large := _too_fast_for_large(draft)):
        found += large
    elif draft.adapter is not None:
        found += _unlike_factors(draft.inner)
    else:
        found += _too_fast(draft.inner) if draft.model.source else _too_slow(draft.inner)
    found += _spreads(draft)
    replicas, lr, momentum = next(pair for pair in PAIRS if draft.max_replicas <= pair[0])
    if outer.momentum and _reach(outer.lr, outer.momentum) > _TOO_FAR * _reach(lr, momentum):
        found.append(
            f"outer.lr {outer.lr:g} with outer.momentum {outer.momentum:g} carries the weights "
            f"{_reach(outer.lr, outer.momentum):.0f} times as far as the replicas' rounds went: up to {replicas} "
            f"replicas {lr:g} with {momentum:g} is usual; lower them, or the inner learning rates"
        )
    if adaptive and not outer.delay and adaptive.min_inner_steps < adaptive.max_inner_steps:
        found.append(
            "with outer.delay 0 the training waits for every exchange, and the inner steps adapt until that is half "
            "to nine tenths of its time: choose outer.delay 1, or adaptive.min_inner_steps = adaptive.max_inner_steps"
        )
    if adaptive and draft.rounds * adaptive.min_inner_steps < adaptive.inner_steps:
        needed = -(-adaptive.inner_steps // adaptive.min_inner_steps)
        found.append(
            f"rounds {draft.rounds} may end the run before adaptive.inner_steps {adaptive.inner_steps}, while its "
            f"learning rate is still high: rounds of adaptive.min_inner_steps {adaptive.min_inner_steps} take {needed}"
        )
    if draft.evaluation and (part := cost(draft, draft.evaluation)) > MOST_COST:
        found.append(
            f"evaluation.samples {draft.evaluation.samples} every {draft.evaluation.every} rounds take "
            f"{100 * part:.2g}% of the work, more than {100 * MOST_COST:.0f}%: evaluate fewer, or more rarely"
        )
    if draft.stop and draft.evaluation:
        versions = draft.rounds // draft.evaluation.every
        ended = ended_by_liars(draft, versions, draft.evaluation.replicas)
        if ended > MOST_ENDED:
            found.append(
                f"evaluation.replicas {draft.evaluation.replicas}: if {100 * LIARS:.0f}% of the replicas lie about the "
                f"held-out loss, they end up to {100 * min(1, ended):.0f}% of such runs early, by their stop: "
                f"{evaluators(draft, versions)} replicas would bear them"
            )
    return found


def _too_fast(inner: Inner) -> list[str]:
    """Rates that a trained model does not bear."""
    pairs = _rates(inner, FINE_TUNING)
    fast = [pair for pair in pairs if pair[1] > _TOO_FAST * pair[2]]
    if not fast:
        return []
    given, usual = (", ".join(f"{pair[0]} {pair[one]:.2g}" for pair in fast) for one in (1, 2))
    return [
        f"model.source is trained already, and {given} may undo that sooner than it learns: such rates suit drawn "
        f'weights; a trained model wants about {usual} (`kind = "finetune"`)'
    ]


def _too_slow(inner: Inner) -> list[str]:
    """Rates with which drawn weights learn nothing in the time."""
    slow = [pair for pair in _rates(inner, Inner()) if pair[1] * _TOO_SLOW < pair[2]]
    if not slow:
        return []
    given, usual = (", ".join(f"{pair[0]} {pair[one]:.2g}" for pair in slow) for one in (1, 2))
    return [f"{given} suits a trained model: drawn weights want about {usual}, or name the model as model.source"]


def is_large(config: Config) -> bool:
    """Whether a trained model of this shape wants lower rates than its kind's."""
    return 12 * config.layers * config.width**2 >= _LARGE


def _too_fast_for_large(draft: Draft) -> list[str]:
    """Rates that suit small models alone."""
    kind, what = ("lora", "an adapter") if draft.adapter is not None else ("finetune", "all weights")
    pairs = _rates(draft.inner, _OF_LARGE[kind])
    if not is_large(parse_model(draft.model)) or all(one <= _TOO_FAST_FOR_LARGE * usual for _, one, usual in pairs):
        return []
    given, usual = (", ".join(f"{pair[0]} {pair[one]:.2g}" for pair in pairs) for one in (1, 2))
    if draft.inner.optimiser == "adamw":
        return [f"{given} suits small models: about {usual} is usual for {what} of one this large"]
    return [
        f"{given} suit small models: with {draft.inner.optimiser} no trained model of more than {_MEASURED} parameters "
        f"was measured. Its steps are about as large as AdamW's, so begin with {usual} for {what} of one this large"
    ]


def _spreads(draft: Draft) -> list[str]:
    """What makes honest work look false."""
    width, lr = parse_model(draft.model).width, draft.inner.lr
    if draft.inner.optimiser != "adamw" or draft.adapter or not draft.audit.share:
        return []
    family = draft.model.config["model_type"]
    if family in _SPREAD:
        return [
            f"model_type {family} with AdamW: honest members with unlike machines may find each other's work false "
            "(level 3). Choose Muon"
        ]
    if draft.precision != "bfloat16" or lr * width**0.5 <= _SPREADS_FROM:
        return []
    return [
        f"inner.lr {lr:.2g} with AdamW in bfloat16 at width {width}: honest members with unlike machines may find each "
        f"other's work false (level 3). Lower it to {0.95 * _SPREADS_FROM / width**0.5:.2g}, or choose Muon or float32"
    ]


def _unlike_factors(inner: Inner) -> list[str]:
    """A rate at which an adapter learns nothing, or one with which it diverges."""
    if inner.optimiser != "adamw" or _FACTORS[0] <= inner.lr < _FACTORS[1]:
        return []
    return [f'inner.lr {inner.lr:.2g} is no rate for an adapter\'s factors: about {_LORA.lr:.2g} is (`kind = "lora"`)']


def _rates(inner: Inner, usual: Inner) -> list[tuple[str, float, float]]:
    """(key, the rate, the usual one) of those that the optimiser has."""
    keys = ("lr",) if inner.optimiser == "adamw" else ("lr", "matrix_lr")
    return [(f"inner.{key}", getattr(inner, key), getattr(usual, key)) for key in keys]


def _reach(lr: float, momentum: float) -> float:
    """How far a mean gradient moves the weights in the end, in all later steps, as a multiple of itself."""
    return lr / (1 - momentum)


def _cure(outer: Outer) -> str:
    """What measured runs have: `alpha` = outer rate, of at most 1."""
    other = replace(outer, alpha=outer.lr)
    helps = outer.alpha < outer.lr <= 1 and stable_below(other) >= _CURED
    return f"set outer.alpha = {outer.lr:g} (outer.lr), or " if helps else ""


def _stays_small(outer: Outer, removed: float) -> bool:
    return all(_settles(outer, removed, alpha) for alpha in (outer.alpha, min(outer.alpha, outer.lr) / 2))


def _settles(outer: Outer, removed: float, alpha: float) -> bool:
    errors, momentum, own = [1.0] * (outer.delay + 1), 0.0, 0.0
    for _ in range(ROUNDS):
        own = removed * (errors[0] - alpha * own)
        momentum = outer.momentum * momentum + own
        step = own + outer.momentum * momentum if outer.nesterov else momentum
        errors = [*errors, errors[-1] - outer.lr * step][1:]
        if abs(errors[-1]) > 1e3:
            return False
    return abs(errors[-1]) <= 1
