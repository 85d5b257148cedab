"""What is known to go wrong with a draft's choices, before a run is made of it."""

from msgspec.structs import replace

from dlx.training.recipe.draft import Draft
from dlx.training.recipe.recipe import Inner, Outer

ROUNDS = 1000  # of the linear analysis: what has not grown by then does not grow

# As `python -m benchmarks.stability` measured with momentum: 0.36 diverges, 0.60 and 0.63 swing for 100 rounds.
UNSTABLE_BELOW = 0.65
_CURED = 0.9  # a setting that is advised has a margin

# Up to how many replicas which outer rate and momentum (Nesterov) were best in MuLoCo (arXiv 2505.23725), Muon inside.
PAIRS = ((4, 0.7, 0.6), (8, 0.9, 0.8), (64, 1.0, 0.9))
_TOO_FAR = 2.0  # times as far as such a pair goes

# Rates for a model that is trained already: a thirtieth of those for drawn weights (docs/operator.md, section 7.2, has
# what they do). What is warned of is more than three times as much.
FINE_TUNING = Inner(lr=1.3e-4, matrix_lr=3.3e-4)
_TOO_FAST = 3.5


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
    found += _too_fast(draft.inner) if draft.model.source else []
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
    return found


def _too_fast(inner: Inner) -> list[str]:
    """Rates that a trained model does not bear."""
    keys = ("lr",) if inner.optimiser == "adamw" else ("lr", "matrix_lr")
    pairs = [(f"inner.{key}", getattr(inner, key), getattr(FINE_TUNING, key)) for key in keys]
    fast = [pair for pair in pairs if pair[1] > _TOO_FAST * pair[2]]
    if not fast:
        return []
    given, usual = (", ".join(f"{pair[0]} {pair[one]:.2g}" for pair in fast) for one in (1, 2))
    return [
        f"model.source is trained already, and {given} may undo that sooner than it learns: such rates suit drawn "
        f"weights; a trained model wants about {usual}"
    ]


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
