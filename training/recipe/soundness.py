"""What a manifest's keys must be together: single keys are their types' business."""

from __future__ import annotations

import msgspec

from dlx.training.recipe.codec_info import CODECS
from dlx.training.recipe.evaluation import MOST_COST, chosen, stop_rounds
from dlx.training.recipe.family import Config
from dlx.training.recipe.recipe import (
    EXACT_BITS,
    MAX_TOKENS,
    Adapter,
    Adaptive,
    Codec,
    Plan,
    Recipe,
    Stop,
    max_inner_steps,
)
from dlx.training.recipe.strict import ManifestError, fail, refuse_absent


def check(recipe: Recipe, config: Config) -> None:
    """Raises ManifestError unless the keys fit each other; `config` is its model."""
    _check_model(recipe, config)
    _check_stages(recipe, config.layers)
    _check_arithmetic(recipe)
    data, timing, outer = recipe.data, recipe.timing, recipe.outer
    if data.batch_size % data.micro_batches:
        fail("data.micro_batches", f"expected a divisor of data.batch_size ({data.batch_size})", data.micro_batches)
    too_long = config.positions_problem(data.sequence_length)
    if too_long:
        fail("data.sequence_length", too_long, data.sequence_length)
    tokens = data.batch_size * data.sequence_length
    if recipe.tokens_per_step != tokens:
        expected = f"expected data.batch_size x data.sequence_length = {tokens}"
        fail("tokens_per_step", expected, recipe.tokens_per_step)
    if timing.straggler_grace + timing.proposal_timeout > timing.round_timeout:
        expected = f"expected at least straggler_grace + proposal_timeout ({timing.straggler_grace:g}"
        fail("timing.round_timeout", f"{expected} + {timing.proposal_timeout:g})", timing.round_timeout)
    if timing.min_round_time > timing.round_timeout:
        fail("timing.min_round_time", f"expected at most round_timeout ({timing.round_timeout})", timing.min_round_time)
    _check_plan(recipe.codec, recipe.plan)
    if recipe.adapter is not None:
        _check_targets(recipe.adapter, config)
    if recipe.adaptive is not None:
        _check_adaptive(recipe.codec, recipe.plan, recipe.adaptive)
    if outer.nesterov and not outer.momentum:
        fail("outer.nesterov", "expected false, or outer.momentum > 0", True)
    if outer.alpha and not outer.delay:
        fail("outer.alpha", "expected 0 where outer.delay is 0 (nothing is in flight then)", outer.alpha)
    _check_retention(recipe)
    if recipe.evaluation and recipe.evaluation.every > recipe.rounds:
        fail("evaluation.every", f"expected at most rounds ({recipe.rounds}), or 0: none", recipe.evaluation.every)
    if recipe.stop is not None:
        _check_stop(recipe, recipe.stop)
    if recipe.quorum.numerator > recipe.quorum.denominator:
        limit = f"at most quorum.denominator ({recipe.quorum.denominator})"
        fail("quorum.numerator", f"expected {limit}", recipe.quorum.numerator)
    if 2 * recipe.quorum.numerator <= recipe.quorum.denominator:
        limit = f"more than half of quorum.denominator ({recipe.quorum.denominator})"
        fail("quorum.numerator", f"expected {limit}", recipe.quorum.numerator)
    if recipe.min_replicas > recipe.max_replicas:
        fail("min_replicas", f"expected at most max_replicas ({recipe.max_replicas})", recipe.min_replicas)
    replicas, steps = recipe.max_replicas, max_inner_steps(recipe)
    if recipe.rounds * replicas * steps * tokens > MAX_TOKENS:
        expected = (
            f"expected at most {MAX_TOKENS // (replicas * steps * tokens)}, as a run counts less than 2^63 tokens"
        )
        fail(
            "rounds", f"{expected} ({replicas} replicas x {steps} inner steps x {tokens} tokens a round)", recipe.rounds
        )


def _check_stop(recipe: Recipe, stop: Stop) -> None:
    every = recipe.evaluation.every if recipe.evaluation else 1
    if not every:
        fail("evaluation.every", "expected 1 or more where there is a stop: held-out losses decide it", every)
    rounds = 2 * stop.patience * every
    most = stop_rounds(recipe)
    if rounds > most:
        expected = f"expected 2 x patience x evaluation.every ({rounds} rounds) to be at most {most}"
        fail("stop.patience", f"{expected}, the rounds that can tell", stop.patience)
    if recipe.evaluation is None and not chosen(recipe, 1).every:
        raise ManifestError(
            f"evaluation: missing: held-out losses decide a stop, and {MOST_COST:.0%} of the work, which a run gives "
            "them by itself, pays for no sample as often as that needs them"
        )


def _check_retention(recipe: Recipe) -> None:
    retention, average = recipe.retention, recipe.average
    if average is not None and average.every % retention.every:
        expected = f"expected a multiple of retention.every ({retention.every}): others are not kept"
        fail("average.every", expected, average.every)
    if isinstance(retention.checkpoints, str):
        return
    if not isinstance(retention.payloads, str) and retention.checkpoints < retention.payloads:
        expected = (
            f"expected at least retention.payloads ({retention.payloads}): a replay of them begins with a version"
        )
        fail("retention.checkpoints", expected, retention.checkpoints)
    if average is not None and retention.checkpoints < (rounds := average.versions * average.every):
        expected = f"expected at least average.versions x average.every ({rounds}): it is the mean of these"
        fail("retention.checkpoints", expected, retention.checkpoints)


def _check_model(recipe: Recipe, config: Config) -> None:
    refuse_absent(recipe.model.config, msgspec.to_builtins(config), "model.config")
    for key, expected, value in config.problems():
        fail(f"model.config.{key}", expected, value)


def _check_arithmetic(recipe: Recipe) -> None:
    if not recipe.is_exact:
        if recipe.exact_bits != EXACT_BITS:
            fail("exact_bits", f'expected {EXACT_BITS} unless arithmetic is "exact"', recipe.exact_bits)
        return
    if recipe.precision != "float32":
        fail("precision", 'expected "float32" where arithmetic is "exact"', recipe.precision)
    if recipe.inner.optimiser == "shampoo":
        fail("inner.optimiser", 'expected "muon" or "adamw" where arithmetic is "exact"', recipe.inner.optimiser)
    if recipe.codec.name == "lowrank":  # whose payloads are compared with a tolerance
        fail("codec.name", 'expected "int4", "ternary" or "topk" where arithmetic is "exact"', recipe.codec.name)


def _check_plan(codec: Codec, plan: Plan) -> None:
    info = CODECS[codec.name]
    if plan.level not in info.levels:
        fail("plan.level", f"expected {' or '.join(map(str, info.levels))} for {codec.name}", plan.level)
    low, high = info.ranks
    if not low <= plan.rank <= high:
        fail("plan.rank", f"expected {low} to {high} for {codec.name}", plan.rank)


def _check_targets(adapter: Adapter, config: Config) -> None:
    linear = config.layout.linear
    expected = f"expected some of {', '.join(linear)}, the plain matrices of a layer of {config.family}, each once"
    if not linear:
        fail("adapter", f"a layer of {config.family} has no plain matrix that an adapter could be of", "one")
    if adapter.targets != "all-linear" and (
        unfit := [one for one in adapter.targets if one not in linear or adapter.targets.count(one) > 1]
    ):
        fail("adapter.targets", expected, unfit[0])


def _check_adaptive(codec: Codec, plan: Plan, adaptive: Adaptive) -> None:
    adapts = ("rank", "inner_steps") if codec.name == "lowrank" else ("inner_steps",)
    for key in adapts:
        low, high, value = getattr(adaptive, f"min_{key}"), getattr(adaptive, f"max_{key}"), getattr(plan, key)
        if low > high:
            fail(f"adaptive.min_{key}", f"expected at most adaptive.max_{key} ({high})", low)
        if not low <= value <= high:
            fail(f"plan.{key}", f"expected adaptive.min_{key} to adaptive.max_{key} ({low} to {high})", value)


def _check_stages(recipe: Recipe, layers: int) -> None:
    expected_low = 0
    for index, (low, high) in enumerate(recipe.stages):
        if low != expected_low or high <= low:
            fail(f"stages[{index}]", f"expected layers from {expected_low} to a higher one", [low, high])
        expected_low = high
    if expected_low != layers:
        fail("stages", f"expected to end at the model's number of layers ({layers})", expected_low)
