"""Which rank works on which whole tensor, where one cannot be worked on by rows."""

import heapq
import math
from collections.abc import Mapping
from itertools import zip_longest

from dlx.training.models.weights import Shapes


def owners(shapes: Shapes, ranks: int) -> dict[str, int]:
    """Name -> rank, so that all own about as many values: the largest first, each to whom has least."""
    owned = [(0, rank) for rank in range(ranks)]
    found = {}
    for name in sorted(shapes, key=lambda name: (-math.prod(shapes[name]), name)):
        values, rank = owned[0]
        found[name] = rank
        heapq.heapreplace(owned, (values + math.prod(shapes[name]), rank))
    return found


def turns(owner: Mapping[str, int]) -> list[list[str]]:
    """All names in turns that have at most one of each owner, an owner's in their order: what all may do at once."""
    each: dict[int, list[str]] = {}
    for name in sorted(owner):
        each.setdefault(owner[name], []).append(name)
    return [[name for name in turn if name is not None] for turn in zip_longest(*each.values())]
