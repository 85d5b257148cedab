"""What the evaluation of held-out loss costs, and which one a run gets that names none.

A forward pass is a third of the work of training on the same tokens. Needs no torch.
"""

from __future__ import annotations

from math import comb
from typing import NamedTuple

from dlx.training.recipe.recipe import Evaluation, Precision, Recipe, Retention, parse_model, row_bytes

MOST_COST = 0.01  # part of a run's work


class Tolerance(NamedTuple):
    """How far two honest computations may be apart, relative."""

    loss: float
    activations: float  # of all values of a stage's output together


TOLERANCE: dict[Precision, Tolerance] = {  # measured: benchmarks/held_out.py
    "float32": Tolerance(1e-5, 1e-3),
    "bfloat16": Tolerance(1e-3, 5e-2),
}
LIARS = 0.25  # part of a run's replicas that may lie about its held-out loss
MOST_ENDED = 0.05  # part of the runs that they may end early
_STOP_ROUNDS = 10_000  # whose seals a node keeps in memory to tell whether the run is over
_SAMPLES = 256  # that are wanted: more tell little more of a version, and of fewer chance tells too much
_POINTS = 4, 400  # versions of a run that are evaluated: at least, where that leaves a sample for each, and at most
_BEFORE, MOST_BEFORE = 4, 64  # samples that the loss of a run's genesis is the mean of: at least and at most
_BEFORE_WORK = 50e12  # floating point operations that it may take beyond the least: minutes of a CPU
_FORWARD, _TRAINING = 1, 3  # work on a token: a backward pass is twice a forward one


def cost(recipe: Recipe, evaluation: Evaluation) -> float:
    """The work of the evaluation as a part of that of training, 0 to 1 and more. It is the most that it may come to:
    with the fewest replicas and inner steps."""
    if not evaluation.every:
        return 0.0
    steps = recipe.plan.inner_steps if recipe.adaptive is None else recipe.adaptive.min_inner_steps
    evaluated = evaluation.samples * min(evaluation.replicas, recipe.min_replicas)
    trained = evaluation.every * steps * recipe.data.batch_size * recipe.min_replicas
    return _FORWARD * evaluated / (_TRAINING * trained)


def activations_size(recipe: Recipe, samples: int) -> int:
    """Bytes of what a stage but the last gives the next one for so many samples."""
    return samples * recipe.data.sequence_length * row_bytes(recipe.precision, parse_model(recipe.model).width)


def spread(held_out: int, most: int) -> list[int]:
    """At most so many of the held-out samples, spread over them, ascending."""
    count = min(held_out, most)
    return [place * held_out // count for place in range(count)]


def samples_before(recipe: Recipe, parameters: int) -> int:
    """How many held-out samples tell how good a run's genesis is, by the work of a forward pass."""
    return min(MOST_BEFORE, max(_BEFORE, int(_BEFORE_WORK / (2 * parameters * recipe.data.sequence_length))))


def chosen(recipe: Recipe, held_out: int) -> Evaluation:
    """What a run with so many held-out samples gets: at most MOST_COST of its work, on versions that are kept where it
    has many. Its stop says how often at least, and by how many replicas. None of it where that pays for no sample."""
    fewest, most = _POINTS
    replicas = evaluators(recipe, min(recipe.rounds, most))
    one = Evaluation(every=1, samples=1, replicas=replicas)
    a_round = MOST_COST / cost(recipe, one)  # samples that a round's work pays for
    points = min(max(fewest, a_round * recipe.rounds / _SAMPLES), most)
    every = _kept(max(1, round(recipe.rounds / points), -int(-1 // a_round)), recipe.retention)
    if recipe.stop is not None:
        longest = stop_rounds(recipe) // (2 * recipe.stop.patience)
        every = every if every <= longest else _kept_before(longest, recipe.retention)
    samples = min(int(a_round * every), 4 * _SAMPLES, held_out)
    if not samples or every > recipe.rounds:
        return Evaluation()
    return Evaluation(every=every, samples=samples, replicas=replicas)


def stop_rounds(recipe: Recipe) -> int:
    """Over how many rounds the losses may lie, at most, that tell whether the run stops."""
    return min(recipe.rounds - 1, _STOP_ROUNDS)


def ended_by_liars(recipe: Recipe, versions: int, replicas: int) -> float:
    """The most that the chance of an early end may be, 0 and more, where `LIARS` of a run's replicas lie about its
    loss: with so many evaluated versions, each by so many `replicas`. 0 without a stop.

    A median is theirs where half of what it is of is, as they may lie in either direction. So they need half of those
    that are drawn for half of a window's versions. The chance of each window counts as if no two overlapped.
    """
    if recipe.stop is None:
        return 0.0
    counts = range(recipe.min_replicas, recipe.max_replicas + 1)
    lied = max(_at_least_half(int(LIARS * count), count, min(replicas, count)) for count in counts)
    patience = recipe.stop.patience
    window = sum(
        comb(patience, lies) * lied**lies * (1 - lied) ** (patience - lies)
        for lies in range((patience + 1) // 2, patience + 1)
    )
    return versions * window


def evaluators(recipe: Recipe, versions: int) -> int:
    """How many replicas have to evaluate each of so many versions: more than the default where a stop has to bear
    liars."""
    fewest = Evaluation().replicas
    return next(
        count
        for count in range(fewest, fewest + recipe.max_replicas, 2)  # an even number bears no more than the odd before
        if ended_by_liars(recipe, versions, count) <= MOST_ENDED
    )


def _at_least_half(liars: int, count: int, drawn: int) -> float:
    """The chance that half or more of those `drawn` from `count` are among the liars."""
    ways = sum(comb(liars, lies) * comb(count - liars, drawn - lies) for lies in range((drawn + 1) // 2, drawn + 1))
    return ways / comb(count, drawn)


def _kept(every: int, retention: Retention) -> int:
    """The next number of rounds whose versions are kept, where they are so many."""
    return every if every < retention.every else -(-every // retention.every) * retention.every


def _kept_before(every: int, retention: Retention) -> int:
    """The number of rounds before it, or it, whose versions are kept, where they are so many."""
    return every if every < retention.every else every // retention.every * retention.every
