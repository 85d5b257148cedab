"""What a manifest's keys must be together: single keys are their types' business."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from training.codec_info import CODECS
from training.strict import ManifestError, fail

if TYPE_CHECKING:
    from training.draft import Draft
    from training.families import Config
    from training.manifest import Adaptive, Codec, Manifest, Plan


def check(manifest: Manifest | Draft, config: Config) -> None:
    """Raises ManifestError unless the keys fit each other; `config` is the manifest's model."""
    _check_model(manifest, config)
    _check_stages(manifest, config.layers)
    data, timing, outer = manifest.data, manifest.timing, manifest.outer
    if data.batch_size % data.micro_batches:
        fail("data.micro_batches", f"expected a divisor of data.batch_size ({data.batch_size})", data.micro_batches)
    too_long = config.positions_problem(data.sequence_length)
    if too_long:
        fail("data.sequence_length", too_long, data.sequence_length)
    tokens = data.batch_size * data.sequence_length
    if manifest.tokens_per_step != tokens:
        expected = f"expected data.batch_size x data.sequence_length = {tokens}"
        fail("tokens_per_step", expected, manifest.tokens_per_step)
    if timing.straggler_grace + timing.proposal_timeout > timing.round_timeout:
        expected = f"expected at least straggler_grace + proposal_timeout ({timing.straggler_grace}"
        fail("timing.round_timeout", f"{expected} + {timing.proposal_timeout})", timing.round_timeout)
    _check_plan(manifest.codec, manifest.plan)
    if manifest.adaptive is not None:
        _check_adaptive(manifest.codec, manifest.plan, manifest.adaptive)
    if outer.nesterov and not outer.momentum:
        fail("outer.nesterov", "expected false, or outer.momentum > 0", True)
    if outer.alpha and not outer.delay:
        fail("outer.alpha", "expected 0 where outer.delay is 0 (nothing is in flight then)", outer.alpha)
    if manifest.quorum.numerator > manifest.quorum.denominator:
        limit = f"at most quorum.denominator ({manifest.quorum.denominator})"
        fail("quorum.numerator", f"expected {limit}", manifest.quorum.numerator)
    if manifest.min_replicas > manifest.max_replicas:
        fail("min_replicas", f"expected at most max_replicas ({manifest.max_replicas})", manifest.min_replicas)


def _check_model(manifest: Manifest | Draft, config: Config) -> None:
    absent = msgspec.to_builtins(config).keys() - manifest.model.config.keys()
    if absent:
        raise ManifestError(f"model.config.{min(absent)}: missing")
    for key, expected, value in config.problems():
        fail(f"model.config.{key}", expected, value)
    if config.tie_word_embeddings and len(manifest.stages) > 1:
        # The first and the last stage would each seal a copy of one tensor, and their codecs would drive them apart.
        fail("model.config.tie_word_embeddings", "expected false where the model has more than one stage", True)


def _check_plan(codec: Codec, plan: Plan) -> None:
    info = CODECS[codec.name]
    if plan.level not in info.levels:
        fail("plan.level", f"expected {' or '.join(map(str, info.levels))} for {codec.name}", plan.level)
    low, high = info.ranks
    if not low <= plan.rank <= high:
        fail("plan.rank", f"expected {low} to {high} for {codec.name}", plan.rank)


def _check_adaptive(codec: Codec, plan: Plan, adaptive: Adaptive) -> None:
    adapts = ("rank", "inner_steps") if codec.name == "lowrank" else ("inner_steps",)
    for key in adapts:
        low, high, value = getattr(adaptive, f"min_{key}"), getattr(adaptive, f"max_{key}"), getattr(plan, key)
        if low > high:
            fail(f"adaptive.min_{key}", f"expected at most adaptive.max_{key} ({high})", low)
        if not low <= value <= high:
            fail(f"plan.{key}", f"expected adaptive.min_{key} to adaptive.max_{key} ({low} to {high})", value)


def _check_stages(manifest: Manifest | Draft, layers: int) -> None:
    expected_low = 0
    for index, (low, high) in enumerate(manifest.stages):
        if low != expected_low or high <= low:
            fail(f"stages[{index}]", f"expected layers from {expected_low} to a higher one", [low, high])
        expected_low = high
    if expected_low != layers:
        fail("stages", f"expected to end at the model's number of layers ({layers})", expected_low)
