"""Names and shapes of the inner optimiser's state, and the hash of one that was never used.

Without torch, because who audits has none.
"""

from __future__ import annotations

from dlx.training.models import weights
from dlx.training.models.shapes import stage_shapes
from dlx.training.models.weights import Shapes
from dlx.training.recipe.parameters import matrix_shape, rule
from dlx.training.recipe.recipe import Inner, Recipe, parse_model

ADAMW_MOMENTS = ("exp_avg", "exp_avg_sq")
_ADAMW_KINDS = (*ADAMW_MOMENTS, "step")
_MUON_KINDS = ("muon.momentum",)
COVARIANCES = ("shampoo.rows", "shampoo.columns")  # of a parameter's matrices, so not of its shape
_SHAMPOO_KINDS = ("shampoo.momentum", *COVARIANCES)
STATE_KINDS = (*_ADAMW_KINDS, *_MUON_KINDS, *_SHAMPOO_KINDS)  # of the state: a name is a kind, or "kind.parameter"


def unused(recipe: Recipe, stage: int) -> bytes:
    """sha256 of the file of a stage's state of zeros: what a slot begins with."""
    return weights.weights_hash(weights.Zeros(optimiser_shapes(recipe, stage)))


def optimiser_shapes(recipe: Recipe, stage: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the optimiser state of a stage."""
    matrices, others = divide(stage_shapes(recipe, stage), recipe.inner)
    shapes: dict[str, tuple[int, ...]] = {}
    if recipe.inner.optimiser == "muon":
        shapes |= {f"muon.momentum.{name}": shape for name, shape in matrices.items()}
    elif recipe.inner.optimiser == "shampoo":
        shapes |= {f"shampoo.momentum.{name}": shape for name, shape in matrices.items()}
        shapes |= covariance_shapes(recipe, matrices)
    if others:
        shapes |= {f"{moment}.{name}": shape for moment in ADAMW_MOMENTS for name, shape in others.items()}
        shapes["step"] = (1,)
    return shapes


def covariance_shapes(recipe: Recipe, matrices: Shapes) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the covariances that Shampoo keeps of these parameters; none with another optimiser."""
    if recipe.inner.optimiser != "shampoo":
        return {}
    heads, found = parse_model(recipe.model).heads, dict[str, tuple[int, ...]]()
    for name, shape in matrices.items():
        count, rows, columns = matrix_shape(tuple(shape), rule(name).fused, heads)
        found |= {f"shampoo.rows.{name}": (count, rows, rows), f"shampoo.columns.{name}": (count, columns, columns)}
    return found


def parameter_of(name: str) -> str | None:
    """Whose shape the tensor `name` of a stage's optimiser state has; a parameter is its own. None: nobody's."""
    if name in STATE_KINDS or name.startswith(tuple(f"{kind}." for kind in COVARIANCES)):
        return None
    return next((name.removeprefix(f"{kind}.") for kind in STATE_KINDS if name.startswith(f"{kind}.")), name)


def divide(shapes: Shapes, inner: Inner) -> tuple[Shapes, Shapes]:
    """The layers' matrices, which Muon or Shampoo steps, and what AdamW steps: with `adamw` all."""
    if inner.optimiser == "adamw":
        return {}, shapes
    matrices = {name: shape for name, shape in shapes.items() if rule(name).matrix}
    return matrices, {name: shape for name, shape in shapes.items() if name not in matrices}
