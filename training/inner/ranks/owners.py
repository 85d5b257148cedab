"""Which rank works on which whole tensor, where one cannot be worked on by rows."""

import heapq
import math
from collections.abc import Mapping
from itertools import zip_longest

from dlx.training.inner.states import covariance_shapes, divide
from dlx.training.models.weights import Shapes
from dlx.training.recipe.recipe import Recipe


def owners(shapes: Shapes, ranks: int) -> dict[str, int]:
    """Name -> rank, so that all own about as many values: the largest first, each to whom has least."""
    owned = [(0, rank) for rank in range(ranks)]
    found = {}
    for name in sorted(shapes, key=lambda name: (-math.prod(shapes[name]), name)):
        values, rank = owned[0]
        found[name] = rank
        heapq.heapreplace(owned, (values + math.prod(shapes[name]), rank))
    return found


def stepping(recipe: Recipe, shapes: Shapes, ranks: int) -> dict[str, int]:
    """Name -> the rank that steps this parameter of a stage, where it is stepped whole, and has its covariances."""
    held = _covariances(recipe, shapes)
    return owners({name: (math.prod(shape) + held.get(name, 0),) for name, shape in shapes.items()}, ranks)


def most_covariances(recipe: Recipe, shapes: Shapes, ranks: int) -> int:
    """Values of them, at the rank that has most."""
    owner, held = stepping(recipe, shapes, ranks), _covariances(recipe, shapes)
    return max(sum(values for name, values in held.items() if owner[name] == rank) for rank in range(ranks))


def _covariances(recipe: Recipe, shapes: Shapes) -> dict[str, int]:
    """Values of each matrix's."""
    matrices, _ = divide(shapes, recipe.inner)
    return {
        name: sum(map(math.prod, covariance_shapes(recipe, {name: shape}).values())) for name, shape in matrices.items()
    }


def turns(owner: Mapping[str, int]) -> list[list[str]]:
    """All names in turns that have at most one of each owner, an owner's in their order: what all may do at once."""
    each: dict[int, list[str]] = {}
    for name in sorted(owner):
        each.setdefault(owner[name], []).append(name)
    return [[name for name in turn if name is not None] for turn in zip_longest(*each.values())]
