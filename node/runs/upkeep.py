"""What a member keeps on its disk, so that its work can be checked and the run's history read; and what checks cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from dlx.node.home.settings import Settings
from dlx.node.round.challenges import turns
from dlx.training.balance.history import FLOAT, history, version_bytes
from dlx.training.codecs import payload_sizes
from dlx.training.inner.states import optimiser_shapes
from dlx.training.models.shapes import stage_shapes
from dlx.training.models.weights import Shapes
from dlx.training.recipe.recipe import Audit, Recipe, max_inner_steps, step_bytes
from dlx.training.slot.segments import segment_steps, segments_in

WAITING = 2  # rounds on disk whole: the one under way, and the one before it until its draw is known


class Sizes(Protocol):
    """Of a stage, as `training.balance.costs.StageCost` has them."""

    @property
    def parameters(self) -> int: ...
    @property
    def optimiser(self) -> int: ...
    @property
    def payload(self) -> int: ...
    @property
    def pipes(self) -> int: ...


class StageSizes(NamedTuple):
    parameters: int
    optimiser: int  # values of the inner optimiser's state
    payload: int  # bytes of one contribution, the largest that the plan can come to
    pipes: int  # bytes sent to the stage neighbours in one inner step


class Upkeep(msgspec.Struct, frozen=True, kw_only=True):
    """Of one stage's member; sizes in bytes. Of these a member has on disk at the run's end, at most: `waiting`,
    `served`, `slot`, `versions` and `payloads`."""

    undecided: int  # a round until its draw is known
    waiting: int  # of these at a time, of the most inner steps that a round may have
    drawn: int  # a drawn segment, served for the manifest's window
    served: int  # all that is drawn and served at a time, as expected; what segments share is there once
    slot: int  # change and optimiser state
    versions: int  # weights and outer momentum
    payloads: int

    @property
    def disk(self) -> int:
        return self.waiting + self.served + self.slot + self.versions + self.payloads


def stage_sizes(recipe: Recipe, stage: int) -> StageSizes:
    """Without torch."""
    shapes, neighbours = stage_shapes(recipe, stage), (stage > 0) + (stage < len(recipe.stages) - 1)
    return StageSizes(
        parameters=_count(shapes),
        optimiser=_count(optimiser_shapes(recipe, stage)),
        payload=max(payload_sizes(recipe, shapes).values()),
        pipes=neighbours * step_bytes(recipe),
    )


def upkeep(recipe: Recipe, cost: Sizes, replicas: int) -> Upkeep:
    """With weights of W bytes, an optimiser state of O, n segments a round and B of received tensors in one.

    A round takes n (W + O + B) + W. A drawn segment takes at most 2 (W + O) + B, W more where n is above 1, and with
    `ahead` another W where n is above 2. These are a middle segment's start, end, change and change before.
    """
    weights, optimiser = FLOAT * cost.parameters, FLOAT * cost.optimiser
    steps, length = recipe.plan.inner_steps, segment_steps(recipe)
    segments = segments_in(steps, length)
    received = min(steps, length) * cost.pipes  # as much as is sent
    drawn = (
        2 * (weights + optimiser) + received + weights * ((segments > 1) + (segments > 2 and recipe.outer.ahead > 0))
    )
    version = version_bytes(recipe, cost.parameters)
    old = history(recipe.retention, recipe.rounds, version, replicas * cost.payload)
    return Upkeep(
        undecided=undecided(recipe, cost, steps),
        waiting=WAITING * undecided(recipe, cost, max_inner_steps(recipe)),
        drawn=drawn,
        served=round(recipe.audit.window * _served(recipe, cost)),
        slot=weights + optimiser,
        versions=old.versions,
        payloads=old.payloads,
    )


def unpaid(audit: Audit) -> list[str]:
    """That members whose nodes are set as they come do not pay for all checks: a line, or none."""
    found = turns.unpaid(audit.share, Settings().audit_share)
    return [] if found is None else [found]


def checked(recipe: Recipe, costs: Sequence[Sizes], replicas: int, site: bool) -> int:
    """Bytes of drawn work that a replica serves in a round through one link, as expected.

    Each drawn segment goes to a checker of its own, who needs all of it.

    The link is that of the stage which serves most, or of a `site` for all its stages.
    """
    if replicas == 1:
        return 0  # nobody else checks
    each = [_fetched(recipe, cost) for cost in costs]
    return round(recipe.audit.share * (sum(each) if site else max(each)))


def undecided(recipe: Recipe, cost: Sizes, inner_steps: int) -> int:
    """Bytes of a round of so many inner steps until its draw is known: the states at all segments' ends, what came
    over the pipes, and the change before."""
    weights, segments = FLOAT * cost.parameters, segments_in(inner_steps, segment_steps(recipe))
    return segments * (weights + FLOAT * cost.optimiser) + inner_steps * cost.pipes + weights


def round_bytes(recipe: Recipe, stage: int, inner_steps: int) -> int:
    """What such a round of a stage writes that is no blob: `undecided`, without torch."""
    return undecided(recipe, stage_sizes(recipe, stage), inner_steps)


def most_inner_steps(recipe: Recipe, cost: Sizes, most: int) -> int:
    """Of a round, so that those which wait for their draw take at most so many bytes; 0: one step is too much."""
    steps = 0
    while steps < max_inner_steps(recipe) and WAITING * undecided(recipe, cost, steps + 1) <= most:
        steps += 1
    return steps


def _served(recipe: Recipe, cost: Sizes) -> float:
    """Bytes that a contribution's drawn segments take of a disk, as expected."""
    weights, optimiser, steps = FLOAT * cost.parameters, FLOAT * cost.optimiser, recipe.plan.inner_steps
    share, segments = recipe.audit.share, segments_in(steps, segment_steps(recipe))
    between = (segments - 1) * (1 - (1 - share) ** 2)  # states that a segment before or after them shows
    some = 1 - (1 - share) ** segments
    changes = some + (some if recipe.outer.ahead else share)  # the round's, and the one before
    return weights * (between + changes) + optimiser * (between + 2 * share) + share * steps * cost.pipes


def _fetched(recipe: Recipe, cost: Sizes) -> int:
    """Bytes that checkers would fetch of a contribution if all of its segments were drawn, each for itself."""
    weights, optimiser, steps = FLOAT * cost.parameters, FLOAT * cost.optimiser, recipe.plan.inner_steps
    segments = segments_in(steps, segment_steps(recipe))
    changes = segments + (segments if recipe.outer.ahead else 1)
    return weights * (2 * (segments - 1) + changes) + optimiser * 2 * segments + steps * cost.pipes


def _count(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())
