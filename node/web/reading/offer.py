"""What a run is and how to take part in it, for who sees it for the first time; plain data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dlx.ledger.view.run_view import RunView
from dlx.node.home import join_line
from dlx.node.home.join_line import JoinLine
from dlx.node.runs.slot_costs import NEWEST, Take, gas_in_words, in_words
from dlx.node.web.reading.totals import Totals
from dlx.training.data.shards import DataManifest
from dlx.training.models.shapes import Shape, frozen_shapes, stage_shapes
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Recipe


class Subject(NamedTuple):
    """What is trained, on what and how: in the manifest's words."""

    model: str
    parameters: int  # that are trained
    frozen: int  # of an adapter's base
    base: str  # its name, as the creator states it; "" without an adapter, and where none is stated
    data: str
    licence: str  # as the creator states it; "": not stated
    optimiser: str
    codec: str


class Pace(NamedTuple):
    """Of the newest rounds."""

    tokens_per_second: float
    seconds_left: float | None  # until the last round; None: the run is finished


class Offer(NamedTuple):
    """What is free, and how to take it."""

    free: int  # slots
    slots: int
    invited: bool  # whether the creator, or a steward, has to invite first
    bond: int  # wei that a slot locks
    command: str  # that joins; "": invited, or finished
    takes: list[tuple[str, str]]  # what of a slot's member, by name and in words; empty: finished


def subject(manifest: Manifest, data: DataManifest | None) -> Subject:
    """`data`: None where the data manifest is not here."""
    stages = range(len(manifest.stages))

    def count(shapes: Callable[[Recipe, int], dict[str, Shape]]) -> int:
        return sum(math.prod(shape) for stage in stages for shape in shapes(manifest, stage).values())

    adapter = manifest.adapter
    kind = str(manifest.model.config.get("model_type", "model"))
    inner, outer, plan = manifest.inner, manifest.outer, manifest.plan
    tokens = "" if data is None else f"{data.tokens('train'):,} tokens of "
    return Subject(
        model=kind if adapter is None else f"{kind}, an adapter of rank {adapter.rank}",
        parameters=count(stage_shapes),
        frozen=0 if adapter is None else count(frozen_shapes),
        base="" if adapter is None else adapter.base,
        data=tokens + ("conversations" if manifest.data.chat else "text"),
        licence=manifest.data.licence,
        optimiser=f"{inner.optimiser}, {plan.inner_steps:,} inner steps a round; outer {outer.optimiser}, "
        f"delay {outer.delay}",
        codec=f"{manifest.codec.name}, {plan.level} bits" + (f", rank {plan.rank}" if plan.rank else ""),
    )


def round_seconds(totals: Totals) -> float | None:
    """Of a round, the mean of the newest; None where fewer than two are sealed."""
    since = _since(totals)
    count = totals.rounds - 1 - since
    if count < 1 or totals.times[-1] <= totals.times[since]:
        return None
    return (totals.times[-1] - totals.times[since]) / count


def pace(totals: Totals, rounds: int, finished: bool) -> Pace | None:
    """By the newest sealed rounds of `rounds`; None where fewer than two are sealed."""
    each, since = round_seconds(totals), _since(totals)
    if each is None:
        return None
    left = None if finished else (rounds - totals.rounds) * each
    return Pace((totals.tokens[-1] - totals.tokens[since]) / (totals.times[-1] - totals.times[since]), left)


def offer(view: RunView, chain_id: int, ledger: str, rpc_url: Sequence[str], take: Take) -> Offer:
    """`rpc_url`: of chain nodes that whoever reads the page can ask; none: they bring their own."""
    config = view.config
    slots = config.stages * config.max_replicas
    command = ""
    if not config.invited and not view.finished:
        command = join_line.command(JoinLine(chain_id, ledger, view.run, tuple(rpc_url), ()))
    takes = []
    if not view.finished:
        gas = gas_in_words(take.gas, take.gas_unknown, chain_id)
        takes = [*in_words(take, "the line below says it of a machine"), ("gas", gas)]
    return Offer(slots - len(view.members()), slots, config.invited, config.bond, command, takes)


def _since(totals: Totals) -> int:
    """The round after which the newest are."""
    return max(0, totals.rounds - 1 - NEWEST)
