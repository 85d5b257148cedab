"""SOAP (arXiv 2409.11321) in Muon's place: AdamW in a basis in which the gradients' covariance is nearly diagonal.

For comparisons only, of stacked replicas (`benchmarks.batched`): no node has it. Of a matrix of r rows and c columns it
holds 2 (r c + r^2 + c^2) values, where Muon holds r c. Unlike the authors' code it begins at the identity, without an
eigendecomposition, and never sorts the basis.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from dlx.training.inner.muon import Muon

_SECOND = 0.99  # beta2; 0.95 is as good, within chance
_COVARIANCE = 0.95  # of the gradients' covariances; 0.99 is worse
_EVERY = 10  # steps from one basis to the next; 25 is much worse
_DAMPING = 1e-4  # of a covariance's mean eigenvalue, so that directions without gradients have a place in the basis


class Soap(Muon):
    """Of parameters [replicas, rows, columns]; momentum and rates are those that Muon would have."""

    def __init__(
        self, parameters: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(parameters, lr, momentum, weight_decay)
        self._steps = 0
        parameters = [one for group in self.param_groups for one in group["params"]]
        self._bases = {one: [_Basis(len(one), size) for size in one.shape[1:]] for one in parameters}
        for parameter in self._bases:
            self.state[parameter]["second"] = torch.zeros_like(parameter, requires_grad=False)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step along the parameters' gradients."""
        self._steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                self._step(parameter, group["lr"], group["momentum"], group["weight_decay"])

    def _step(self, parameter: Tensor, rate: float, first: float, decay: float) -> None:
        rows, columns = self._bases[parameter]
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        for basis, slope in ((rows, gradient), (columns, gradient.mT)):
            basis.add(slope @ slope.mT)
            if (self._steps - 1) % _EVERY == 0:
                basis.turn()
        momentum = state["momentum"].lerp_(gradient, 1 - first)
        turned = rows.vectors.mT @ gradient @ columns.vectors
        second = state["second"].mul_(_SECOND).addcmul_(turned, turned, value=1 - _SECOND)
        spread = (second / (1 - _SECOND**self._steps)).sqrt_().add_(1e-8)
        update = rows.vectors.mT @ momentum @ columns.vectors / spread / (1 - first**self._steps)
        parameter.mul_(1 - rate * decay)
        parameter.sub_(rows.vectors @ update @ columns.vectors.mT, alpha=rate)


class _Basis:
    """Orthonormal `vectors` [replicas, size, size], the columns, that come nearer to a covariance's eigenvectors."""

    def __init__(self, replicas: int, size: int) -> None:
        self._covariance = torch.zeros(replicas, size, size)
        self.vectors = torch.eye(size).repeat(replicas, 1, 1)

    def add(self, product: Tensor) -> None:
        self._covariance.lerp_(product, 1 - _COVARIANCE)

    def turn(self) -> None:
        """One step of orthogonal iteration."""
        mean = self._covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
        self.vectors = torch.linalg.qr(self._covariance @ self.vectors + _DAMPING * mean * self.vectors)[0]
