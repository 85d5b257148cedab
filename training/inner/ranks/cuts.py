"""Which piece of a tensor each rank has: the rows that FSDP gives it, of what tensor parallelism leaves of the tensor.

Ranks that compute a matrix product together are neighbours; each of them has the same samples, and its part of what is
cut. The groups of such neighbours share the rows of that part.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class Cut:
    """Of a tensor of `shape` among so many ranks, `parallel` of which share it along `dim` (None: each has all of it).

    All pieces are alike: where rows cannot be shared evenly, the last ones have zeros at their end.
    """

    def __init__(self, shape: Sequence[int], ranks: int, parallel: int = 1, dim: int | None = None) -> None:
        self.shape, self._ranks, self._parallel, self._dim = tuple(shape), ranks, parallel, dim
        part = [size // parallel if here == dim else size for here, size in enumerate(shape)]
        self._rows = part[0]
        self.piece = (-(-part[0] * parallel // ranks), *part[1:])

    @property
    def is_shared_out(self) -> bool:
        """Whether no two ranks have the same values."""
        return self._parallel == 1 or self._dim is not None

    def part(self, whole: Tensor, rank: int) -> Tensor:
        """What tensor parallelism leaves of it to a rank, a view; which is then shared by rows."""
        return whole if self._dim is None else whole.chunk(self._parallel, self._dim)[rank % self._parallel]

    def place(self, rank: int) -> tuple[slice, ...]:
        """Where a rank's piece lies in the whole tensor, without what fills it up."""
        index, neighbour = divmod(rank, self._parallel)
        low = min(index * self.piece[0], self._rows)
        high = min(low + self.piece[0], self._rows)
        first = neighbour * self._rows if self._dim == 0 else 0
        rows = slice(first + low, first + high)
        if self._dim in (None, 0):
            return (rows,)
        width = self.piece[1]
        return rows, slice(neighbour * width, (neighbour + 1) * width)

    def pieces(self, whole: Tensor) -> list[Tensor]:
        """One for each rank."""
        parts = [self.part(whole, rank) for rank in range(self._parallel)]
        found = [padded(one, self._ranks // self._parallel * self.piece[0]).split(self.piece[0]) for one in parts]
        return [found[rank % self._parallel][rank // self._parallel] for rank in range(self._ranks)]

    def joined(self, pieces: Tensor) -> Tensor:
        """The whole tensor, contiguous, from the pieces [ranks, *piece]."""
        parts = [pieces[place :: self._parallel].flatten(0, 1)[: self._rows] for place in range(self._parallel)]
        return parts[0].contiguous() if self._dim is None else torch.cat(parts, self._dim)


def padded(tensor: Tensor, rows: int) -> Tensor:
    """Contiguous, with zeros at the end."""
    if len(tensor) == rows:
        return tensor.contiguous()
    found = tensor.new_zeros(rows, *tensor.shape[1:])
    found[: len(tensor)] = tensor
    return found
