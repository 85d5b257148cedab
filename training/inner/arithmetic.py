"""How a run computes what decides weights: what the manifest's `arithmetic` names."""

from contextlib import AbstractContextManager, nullcontext

from dlx.training.exact.mode import Exact
from dlx.training.recipe.recipe import Recipe


def arithmetic(recipe: Recipe) -> AbstractContextManager[object]:
    """Of torch's operators in this thread, as long as it is open."""
    return Exact(recipe.exact_bits) if recipe.is_exact else nullcontext()
