"""What a member keeps on its disk, so that its work can be checked and the run's history read; and what checks cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from dlx.training.balance.history import FLOAT, history, version_bytes
from dlx.training.inner.states import optimiser_shapes
from dlx.training.models.shapes import stage_shapes
from dlx.training.models.weights import Shapes
from dlx.training.recipe.recipe import Recipe, max_inner_steps, step_bytes
from dlx.training.slot.segments import segment_steps, segments_in

if TYPE_CHECKING:
    from dlx.training.balance.costs import StageCost

WAITING = 2  # rounds on disk whole: the one under way, and the one before it until its draw is known


class Upkeep(msgspec.Struct, frozen=True, kw_only=True):
    """Of one stage's member; sizes in bytes. Of these a member has on disk at the run's end, at most: `waiting`,
    `served`, `slot`, `versions` and `payloads`."""

    undecided: int  # a round until its draw is known
    waiting: int  # of these at a time, of the most inner steps that a round may have
    drawn: int  # a drawn contribution, served for the manifest's window
    served: int  # of these at a time, as expected, all together
    slot: int  # change and optimiser state
    versions: int  # weights and outer momentum
    payloads: int
    replay_share: float  # of the seconds trained, that replays take of it, as expected

    @property
    def disk(self) -> int:
        return self.waiting + self.served + self.slot + self.versions + self.payloads


def upkeep(recipe: Recipe, cost: StageCost, replicas: int) -> Upkeep:
    """With weights of W bytes, an optimiser state of O, n segments a round and B of received tensors in one.

    A round takes n (W + O + B) + W. A drawn contribution takes at most 2 (W + O) + B, W more where n is above 1, and
    with `ahead` another W where n is above 2. These are a middle segment's start, end, change and change before.
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
        served=round(recipe.audit.share * recipe.audit.window * drawn),
        slot=weights + optimiser,
        versions=old.versions,
        payloads=old.payloads,
        replay_share=recipe.audit.share / segments,
    )


def checked(recipe: Recipe, costs: Sequence[StageCost], replicas: int, site: bool) -> int:
    """Bytes of drawn work that a replica serves in a round through one link, as expected and to one checker each.

    The link is that of the stage which serves most, or of a `site` for all its stages.
    """
    if replicas == 1:
        return 0  # nobody else checks
    each = [upkeep(recipe, cost, replicas).drawn for cost in costs]
    return round(recipe.audit.share * (sum(each) if site else max(each)))


def undecided(recipe: Recipe, cost: StageCost, inner_steps: int) -> int:
    """Bytes of a round of so many inner steps until its draw is known: the states at all segments' ends, what came
    over the pipes, and the change before."""
    return _undecided(recipe, cost.parameters, cost.optimiser, cost.pipes, inner_steps)


def round_bytes(recipe: Recipe, stage: int, inner_steps: int) -> int:
    """What such a round of a stage writes that is no blob: `undecided`, without torch."""
    parameters, optimiser = (_count(one(recipe, stage)) for one in (stage_shapes, optimiser_shapes))
    neighbours = (stage > 0) + (stage < len(recipe.stages) - 1)
    return _undecided(recipe, parameters, optimiser, neighbours * step_bytes(recipe), inner_steps)


def most_inner_steps(recipe: Recipe, cost: StageCost, most: int) -> int:
    """Of a round, so that those which wait for their draw take at most so many bytes; 0: one step is too much."""
    steps = 0
    while steps < max_inner_steps(recipe) and WAITING * undecided(recipe, cost, steps + 1) <= most:
        steps += 1
    return steps


def _undecided(recipe: Recipe, parameters: int, optimiser: int, pipes: int, inner_steps: int) -> int:
    weights, segments = FLOAT * parameters, segments_in(inner_steps, segment_steps(recipe))
    return segments * (weights + FLOAT * optimiser) + inner_steps * pipes + weights


def _count(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())
