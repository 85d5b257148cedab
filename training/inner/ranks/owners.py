"""Which rank works on which whole tensor, where one cannot be worked on by rows."""

import heapq
import math

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
