"""What it takes of a holder that its work can be checked, and of its seconds to check others'."""

from __future__ import annotations

import msgspec

from dlx.training.balance.costs import FLOAT, StageCost
from dlx.training.recipe.recipe import Recipe
from dlx.training.slot.segments import segment_steps, segments_in


class Upkeep(msgspec.Struct, frozen=True, kw_only=True):
    """Of one stage's holder; sizes in bytes."""

    undecided: int  # a round until its draw is known
    drawn: int  # a drawn contribution, served for the manifest's window
    served: int  # of these at a time, as expected, all together
    replay_share: float  # of the seconds trained, that replays take of it, as expected


def upkeep(recipe: Recipe, cost: StageCost) -> Upkeep:
    """With weights of W bytes, an optimiser state of O, n segments a round and B of received tensors in one: a round
    takes n (W + O + B) + W, a drawn contribution at most 2 (W + O) + B, and 2 W more where n is above 1."""
    weights, optimiser = FLOAT * cost.parameters, FLOAT * cost.optimiser
    steps, length = recipe.plan.inner_steps, segment_steps(recipe)
    segments = segments_in(steps, length)
    received = min(steps, length) * cost.pipes  # as much as is sent
    drawn = 2 * (weights + optimiser) + received + (2 * weights if segments > 1 else 0)
    return Upkeep(
        undecided=segments * (weights + optimiser + received) + weights,
        drawn=drawn,
        served=round(recipe.audit.share * recipe.audit.window * drawn),
        replay_share=recipe.audit.share / segments,
    )
