"""How much of an update's energy its best approximations of low rank keep: what the adaptive plan is decided by.

An estimate, and never the same bits on two machines: it steers a proposal, which others check to within a rung.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dlx.training.codecs.lowrank import factored
from dlx.training.models.weights import Shapes
from dlx.training.recipe.recipe import Plan

_MATRICES = 12  # looked at: they are alike, and the outer step has to stay cheap
_EXACT = 256  # the largest smaller side whose whole spectrum is computed


class Spectrum:
    """Sees an update tensor by tensor, and keeps no more than some energies.

    Of float32 tensors of `shapes` it looks at those that `lowrank` sends as factors, at most twelve, spread evenly over
    the names.
    """

    def __init__(self, shapes: Shapes, ranks: Sequence[int]) -> None:
        self._ranks, self._highest = tuple(ranks), max(ranks, default=0)
        plan = Plan(rank=self._highest)
        names = [name for name in sorted(shapes) if self._highest and factored(name, shapes[name], plan)]
        self.names = tuple(names[:: -(-len(names) // _MATRICES) or 1])
        self._kept, self._total = torch.zeros(self._highest, dtype=torch.float64), 0.0

    def see(self, name: str, mean: np.ndarray | Tensor) -> None:
        """The next of `names`."""
        matrix = torch.as_tensor(mean)
        matrix = matrix if matrix.dim() == 2 else matrix[0]  # experts are alike
        matrix = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
        self._kept += _energies(matrix, self._highest).cumsum(0)
        self._total += float(torch.linalg.vector_norm(matrix, dtype=torch.float64)) ** 2

    def kept(self) -> dict[int, float]:
        """The part of the matrices' squared norm that each rank keeps, by rank. Empty where there is no matrix, or all
        of them are zero."""
        if self._total == 0:
            return {}
        return {rank: min(1.0, float(self._kept[rank - 1]) / self._total) for rank in self._ranks}


def _energies(matrix: Tensor, count: int) -> Tensor:
    """The largest `count` squared singular values of a wide matrix, descending, float64."""
    rows, columns = matrix.shape[0], 2 * count + 8  # with fewer the last wanted directions would be missed
    if rows > max(_EXACT, columns):
        # One step of subspace iteration from a fixed random range (Halko, Martinsson and Tropp, 2011).
        start = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
        basis = torch.linalg.qr(matrix @ (matrix.T @ start))[0]
        matrix = basis.T @ matrix
    matrix = matrix.double()
    return torch.linalg.eigvalsh(matrix @ matrix.T).flip(0)[:count].clamp(min=0)
