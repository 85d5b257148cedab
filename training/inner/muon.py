"""Muon over named matrices: the momentum's singular values are all brought near one before it is taken as the step.

Momentum, Nesterov and the Newton-Schulz steps are Keller Jordan's (https://kellerjordan.github.io/posts/muon/). The
size of the step is that of "Muon is Scalable for LLM Training" (arXiv 2502.16982): 0.2 * sqrt(the longer side), which
gives every matrix an update as large as AdamW's. So `muon_lr` is in the unit of `lr`, weight decay is as strong as
there at any width, and it does not matter whether a family keeps its matrices transposed (GPT-2 does).

Not torch.optim.Muon: it takes the Newton-Schulz steps in bfloat16, whose rounding no replay on another machine repeats.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from dlx.training.recipe.recipe import Inner

_A, _B, _C = 3.4445, -4.7750, 2.0315  # of the quintic that grows small singular values fastest
_STEPS = 5
_UPDATE_SIZE = 0.2  # root mean square of an update at rate 1


class Muon:
    """State: `muon.momentum.<name>`; zero until loaded. Parameters are float32 of two dimensions."""

    def __init__(self, parameters: Mapping[str, Tensor], inner: Inner) -> None:
        self._parameters, self._inner = parameters, inner
        self._momentum = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}

    def state(self) -> dict[str, Tensor]:
        """The tensors themselves, which may be loaded."""
        return {f"muon.momentum.{name}": momentum for name, momentum in self._momentum.items()}

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """One step along the parameters' gradients at `factor` times the manifest's rate."""
        rate, decay = self._inner.muon_lr * factor, self._inner.muon_momentum
        for name, parameter in self._parameters.items():
            if parameter.grad is None:
                continue
            momentum = self._momentum[name].lerp_(parameter.grad, 1 - decay)
            direction = orthogonal(parameter.grad.lerp(momentum, decay))
            parameter.mul_(1 - rate * self._inner.weight_decay)
            parameter.add_(direction, alpha=-rate * _UPDATE_SIZE * math.sqrt(max(parameter.shape)))


def orthogonal(matrix: Tensor) -> Tensor:
    """`matrix` (float32, two dimensions) with its singular values brought to between about 0.7 and 1.2; those that are
    tiny beside the largest stay small, and zeros stay zeros."""
    tall = matrix.size(0) > matrix.size(1)
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(_STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x.T if tall else x
