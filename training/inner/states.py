"""Names and shapes of the inner optimiser's state, and the hash of one that was never used.

Without torch, because who audits has none.
"""

from __future__ import annotations

from dlx.training.models import weights
from dlx.training.models.shapes import stage_shapes
from dlx.training.models.weights import Shapes
from dlx.training.recipe.parameters import rule
from dlx.training.recipe.recipe import Inner, Recipe

ADAMW_MOMENTS = ("exp_avg", "exp_avg_sq")
ADAMW_KINDS = (*ADAMW_MOMENTS, "step")
MUON_KINDS = ("muon.momentum",)
STATE_KINDS = (*ADAMW_KINDS, *MUON_KINDS)  # of the optimiser state: a name is a kind, or "kind.parameter"


def unused(recipe: Recipe, stage: int) -> bytes:
    """sha256 of the file of a stage's state of zeros: what a slot begins with."""
    return weights.weights_hash(weights.Zeros(optimiser_shapes(recipe, stage)))


def optimiser_shapes(recipe: Recipe, stage: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the optimiser state of a stage."""
    matrices, others = divide(stage_shapes(recipe, stage), recipe.inner)
    shapes = {f"{kind}.{name}": shape for kind in MUON_KINDS for name, shape in matrices.items()}
    if others:
        shapes |= {f"{moment}.{name}": shape for moment in ADAMW_MOMENTS for name, shape in others.items()}
        shapes["step"] = (1,)
    return shapes


def parameter_of(name: str) -> str | None:
    """Whose state the tensor `name` of a stage's optimiser state is; a parameter is its own."""
    if name in STATE_KINDS:
        return None
    return next((name.removeprefix(f"{kind}.") for kind in STATE_KINDS if name.startswith(f"{kind}.")), name)


def divide(shapes: Shapes, inner: Inner) -> tuple[Shapes, Shapes]:
    """Which parameters Muon steps and which AdamW: with `muon`, what its rule gives to each."""
    if inner.optimiser == "adamw":
        return {}, shapes
    matrices = {name: shape for name, shape in shapes.items() if rule(name).optimiser == "muon"}
    return matrices, {name: shape for name, shape in shapes.items() if name not in matrices}
