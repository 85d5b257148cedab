"""Names and shapes of the inner optimiser's state, and the hashes of states that were never used.

Without torch, because who audits has none.
"""

from __future__ import annotations

from typing import NamedTuple

from dlx.training.models import weights
from dlx.training.models.shapes import stage_shapes
from dlx.training.models.weights import Shapes
from dlx.training.recipe.parameters import rule
from dlx.training.recipe.recipe import Inner, Recipe

ADAMW_MOMENTS = ("exp_avg", "exp_avg_sq")
ADAMW_KINDS = (*ADAMW_MOMENTS, "step")
MUON_KINDS = ("muon.momentum",)
STATE_KINDS = (*ADAMW_KINDS, *MUON_KINDS)  # of the optimiser state: a name is a kind, or "kind.parameter"


class Unused(NamedTuple):
    """sha256 of the files of a state of zeros: what a slot begins with."""

    optimiser: bytes
    residual: bytes


def unused(recipe: Recipe, stage: int) -> Unused:
    """Of a stage's slot."""
    return Unused(_hash_of_zeros(optimiser_shapes(recipe, stage)), _hash_of_zeros(stage_shapes(recipe, stage)))


def optimiser_shapes(recipe: Recipe, stage: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the optimiser state of a stage."""
    matrices, others = divide(stage_shapes(recipe, stage), recipe.inner)
    shapes = {f"{kind}.{name}": shape for kind in MUON_KINDS for name, shape in matrices.items()}
    if others:
        shapes |= {f"{moment}.{name}": shape for moment in ADAMW_MOMENTS for name, shape in others.items()}
        shapes["step"] = (1,)
    return shapes


def divide(shapes: Shapes, inner: Inner) -> tuple[Shapes, Shapes]:
    """Which parameters Muon steps and which AdamW: with `muon`, what its rule gives to each."""
    if inner.optimiser == "adamw":
        return {}, shapes
    matrices = {name: shape for name, shape in shapes.items() if rule(name).optimiser == "muon"}
    return matrices, {name: shape for name, shape in shapes.items() if name not in matrices}


def _hash_of_zeros(shapes: Shapes) -> bytes:
    return weights.weights_hash(weights.Zeros(shapes))
