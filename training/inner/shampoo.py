"""KL-Shampoo over matrices: the momentum, whitened by the covariances of the gradients' rows and of their columns.

Each covariance is one of gradients that the other has whitened (arXiv 2509.03378), so no second moment of single values
is needed. What whitens changes slowly, so a step is nearly in proportion to the gradients. A mean of steps that
replicas took loses less than with Muon, which brings every direction of a momentum to one length.

The roots are taken by products of matrices alone (Newton-Schulz, as in Higham's "Functions of Matrices", 6.7, scaled):
quick on a GPU, and repeated to rounding by every machine. They are taken anew where a segment begins, so they are no
state.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dlx.training.inner.muon import matrices
from dlx.training.recipe.parameters import matrix_shape

EVERY = 5  # steps with the same roots, at most; with 10 a short training ends 1% higher
_MEMORY = 0.9  # of the covariances, from one step to the next
_DAMPING = 3e-4  # of the root mean square of a covariance's eigenvalues, added to each of them
_LEAST = 1e-16  # and this, so that the roots of zeros are finite
_EXACT = 1e-5  # of a root, by how much it may be wrong where nothing is rounded
_MOST = 1.0  # root mean square of an update at rate 1, which is 0.2 to 0.3 unless gradients grow a lot at once


class Shampoo(torch.optim.Optimizer):
    """Of float32 parameters. The state of each: its `momentum`, and of the n matrices that it is (see Muon, `fused` and
    `heads`) `rows` [n, rows, rows] and `columns` [n, columns, columns]; all zero at first."""

    def __init__(
        self, parameters: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float, momentum: float, weight_decay: float
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "fused": "", "heads": 1}
        super().__init__(parameters, defaults)
        self._roots: dict[Tensor, _Sides] = {}
        self._taken = 0  # steps since the segment's start
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter, requires_grad=False)
                self._hold(parameter, parameter.shape, group)

    def begin_segment(self) -> None:
        """The next step takes the roots anew, as a replay that begins with it does."""
        self._roots.clear()
        self._taken = 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step along the parameters' gradients; those without one stay."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                momentum = self.state[parameter]["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                update = self._whitened(parameter, parameter.grad, momentum, group)
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=group["lr"])
        self._taken += 1

    def _hold(self, parameter: Tensor, shape: Sequence[int], group: dict[str, Any]) -> None:
        """The covariances of a parameter that is whole of this shape."""
        count, rows, columns = matrix_shape(tuple(shape), group["fused"], group["heads"])
        self.state[parameter]["rows"] = torch.zeros(count, rows, rows, device=parameter.device)
        self.state[parameter]["columns"] = torch.zeros(count, columns, columns, device=parameter.device)

    def _whitened(self, parameter: Tensor, gradient: Tensor, momentum: Tensor, group: dict[str, Any]) -> Tensor:
        """The update of a whole parameter at rate 1, from its whole gradient and momentum; the covariances follow."""
        state, slope = self.state[parameter], _stacked(gradient, group)
        covariances = _Sides(state["rows"], state["columns"])
        if self._taken % EVERY == 0 or parameter not in self._roots:
            _balance(covariances)
            self._roots[parameter] = _Sides(*map(inverse_root, covariances))
        roots = self._roots[parameter]
        size = slope.square().mean((-2, -1), keepdim=True).sqrt_()
        _begin(covariances, roots, size)
        left, right = slope @ roots.columns, roots.rows @ slope
        follows = (1 - _MEMORY) * (size > 0)  # what no token met tells nothing
        covariances.rows.lerp_(left @ left.mT / slope.size(-1), follows)
        covariances.columns.lerp_(right.mT @ right / slope.size(-2), follows)
        moved = roots.rows @ _stacked(momentum, group) @ roots.columns
        moved /= (moved.square().mean((-2, -1), keepdim=True).sqrt_() / _MOST).clamp_(min=1)
        update = torch.empty_like(gradient)
        for values, one in zip(matrices(update, group["fused"], group["heads"]), moved, strict=True):
            values.copy_(one.view(values.shape))
        return update


class _Sides(NamedTuple):
    """Of the rows and of the columns of n matrices."""

    rows: Tensor
    columns: Tensor


def inverse_root(covariances: Tensor) -> Tensor:
    """Of each of the symmetric matrices [n, size, size], damped: the inverse of its square root."""
    size = covariances.size(-1)
    one = torch.eye(size, device=covariances.device)
    spread = covariances.flatten(1).norm(dim=-1)[:, None, None] / math.sqrt(size)
    damped = covariances + (_DAMPING * spread + _LEAST) * one
    norm = damped.flatten(1).norm(dim=-1)[:, None, None]
    root, inverse = damped / norm, one.expand_as(damped)
    for scale in root_scales(size):
        turn = scale * (1.5 * one - 0.5 * scale**2 * (inverse @ root))
        root, inverse = root @ turn, turn @ inverse
    return inverse / norm.sqrt()


@cache
def root_scales(size: int) -> tuple[float, ...]:
    """Of the steps, three products each, from the least eigenvalue that the damping leaves until all are one.

    A step takes the root x of each eigenvalue to scale * x * (3 - (scale * x)**2) / 2. This scale gives the least and
    the largest, 1, the same value, which no x between is below. So the least grows up to 2.6 times a step (Chen and
    Chow, "A Stable Scaling of Newton-Schulz", 2014) where it grew 1.5 times without.
    """
    least, scales = math.sqrt(_DAMPING / math.sqrt(size) / (1 + _DAMPING)), list[float]()
    while least < 1 - _EXACT:
        scale = math.sqrt(3 / (1 + least + least**2))
        least = scale * least * (3 - (scale * least) ** 2) / 2
        scales.append(scale)
    return tuple(scales)


def _balance(covariances: _Sides) -> None:
    """Give both sides the same mean variance: their product alone is what the gradients tell, and one side of a matrix
    that is not square would grow without bound, the other vanish."""
    rows, columns = (_variance(one) for one in covariances)
    factor = torch.where(rows > 0, (columns / rows).sqrt(), 1.0)
    covariances.rows.mul_(factor)
    covariances.columns.div_(factor)


def _begin(covariances: _Sides, roots: _Sides, size: Tensor) -> None:
    """Where nothing is known yet and there is a gradient, of this root mean square: as if its values were alike."""
    first = (_variance(covariances.rows) == 0) & (size > 0)
    for covariance, root in zip(covariances, roots, strict=True):
        covariance.diagonal(dim1=-2, dim2=-1).add_((size * first)[..., 0])
        one = torch.eye(root.size(-1), device=root.device)
        root.copy_(torch.where(first, one * ((1 + _DAMPING) * size + _LEAST).rsqrt(), root))


def _variance(covariances: Tensor) -> Tensor:
    """The mean of each [n, 1, 1]."""
    return covariances.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]


def _stacked(tensor: Tensor, group: dict[str, Any]) -> Tensor:
    """The n matrices [n, rows, columns] that a parameter, or what has its shape, is made of."""
    return torch.stack([one.flatten(0, -2) for one in matrices(tensor, group["fused"], group["heads"])])
