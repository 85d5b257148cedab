"""How much of an update's energy its best approximations of low rank keep: what the adaptive plan is decided by.

An estimate, and never the same bits on two machines: it steers a proposal, which others check to within a rung.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dlx.training.codecs.lowrank import factored
from dlx.training.models.weights import Values
from dlx.training.recipe.recipe import Plan

_MATRICES = 12  # looked at: they are alike, and the outer step has to stay cheap
_EXACT = 256  # the largest smaller side whose whole spectrum is computed


def kept_energy(update: Values, ranks: Sequence[int]) -> dict[int, float]:
    """The part of the matrices' squared norm that each rank keeps, by rank.

    Of float32 values of any shape it looks at those that `lowrank` sends as factors, at most twelve, spread evenly over
    the names. Empty where there is none, or where all of them are zero.
    """
    highest = max(ranks, default=0)
    names = [
        name for name in sorted(update) if highest and factored(name, tuple(update[name].shape), Plan(rank=highest))
    ]
    chosen = names[:: -(-len(names) // _MATRICES) or 1]
    kept, total = torch.zeros(highest, dtype=torch.float64), 0.0
    for name in chosen:
        matrix = torch.as_tensor(update[name]).double()
        matrix = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
        kept += _energies(matrix, highest).cumsum(0)
        total += float(matrix.square().sum())
    return {rank: min(1.0, float(kept[rank - 1]) / total) for rank in ranks} if total > 0 else {}


def _energies(matrix: Tensor, count: int) -> Tensor:
    """The largest `count` squared singular values of a wide float64 matrix, descending."""
    rows, columns = matrix.shape[0], 2 * count + 8  # with fewer the last wanted directions would be missed
    if rows > max(_EXACT, columns):
        # One step of subspace iteration from a fixed random range (Halko, Martinsson and Tropp, 2011).
        start = torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        basis = torch.linalg.qr(matrix @ (matrix.T @ start))[0]
        matrix = basis.T @ matrix
    return torch.linalg.eigvalsh(matrix @ matrix.T).flip(0)[:count].clamp(min=0)
