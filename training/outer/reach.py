"""How far one inner step can move a stage's weights, whoever takes it: what the policy holds payloads against.

It follows from the manifest alone, so a round with one or two contributions has this bound too. It goes by the
manifest's rates, not by the schedule's factor: what a codec left out of earlier rounds is sent later, when the rates
are lower.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from dlx.training.inner.states import divide
from dlx.training.models.shapes import stage_shapes
from dlx.training.recipe.recipe import InnerOptimiser, Recipe

# Root mean square of an update at rate 1, at most. Muon brings singular values to 1.2 at most, times 0.2 (its size);
# Shampoo scales a longer update down to 1. AdamW's is 1 in its first step and where gradients change their signs less.
_OF_MATRICES: Mapping[InnerOptimiser, float] = {"muon": 0.25, "shampoo": 1.0}
_ADAMW = 1.0


def reach_of_a_step(recipe: Recipe, stage: int) -> float:
    """The Euclidean norm, float64, of the longest change of a stage's trainable weights in one inner step at the
    manifest's rates, without its weight decay. Raises ManifestError for a model that no rule fits.

    Honest rounds of several steps move a good deal less far: steps differ in direction, and rates fall.
    """
    inner = recipe.inner
    matrices, others = divide(stage_shapes(recipe, stage), inner)
    of_matrix = _OF_MATRICES.get(inner.optimiser, 0.0) * inner.matrix_lr
    squares = of_matrix**2 * sum(map(math.prod, matrices.values()))
    return math.sqrt(squares + (_ADAMW * inner.lr) ** 2 * sum(map(math.prod, others.values())))
