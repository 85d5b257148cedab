"""Muon over matrices: the momentum's singular values are all brought near one before it is taken as the step.

Momentum, Nesterov and the Newton-Schulz steps are Keller Jordan's (https://kellerjordan.github.io/posts/muon/). The
size of the step is that of "Muon is Scalable for LLM Training" (arXiv 2502.16982): 0.2 * sqrt(the longer side), which
gives every matrix an update as large as AdamW's. So `matrix_lr` is in the unit of `lr`, weight decay is as strong as
there at any width, and it does not matter whether a family keeps its matrices transposed (GPT-2 does).

Not torch.optim.Muon: it takes the Newton-Schulz steps in bfloat16, whose rounding no replay on another machine repeats.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from dlx.training.recipe.parameters import Fused

_A, _B, _C = 3.4445, -4.7750, 2.0315  # of the quintic that grows small singular values fastest
_STEPS = 5
# Values of matrices of one shape that are multiplied in one call. On a CPU that saves 40% where they are 32 wide,
# 10% at 64 and nothing from 128 on; elsewhere each call is a kernel to launch.
_TOGETHER = {"cpu": 1 << 15}
_TOGETHER_ELSEWHERE = 1 << 22
UPDATE_SIZE = 0.2  # root mean square of an update at rate 1


class Muon(torch.optim.Optimizer):
    """Of float32 parameters; the state of each is its `momentum`, zero at first.

    A group may say how its tensors are several matrices in one (`fused`, and `heads` where that needs it).
    """

    def __init__(
        self, parameters: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float, momentum: float, weight_decay: float
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "fused": "", "heads": 1}
        super().__init__(parameters, defaults)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter, requires_grad=False)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step along the parameters' gradients; those without one stay."""
        for group in self.param_groups:
            waiting: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
            for values, update in self._updates(group):
                alike = waiting.setdefault(update.shape, [])
                alike.append((values, update))
                if len(alike) * update.numel() >= _TOGETHER.get(update.device.type, _TOGETHER_ELSEWHERE):
                    _move(waiting.pop(update.shape), group["lr"])
            for alike in waiting.values():
                _move(alike, group["lr"])

    def _updates(self, group: dict[str, Any]) -> Iterator[tuple[Tensor, Tensor]]:
        """Of each matrix its values, which have decayed, and where its momentum points, two-dimensional."""
        rate, decay = group["lr"], group["momentum"]
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            momentum = self.state[parameter]["momentum"].lerp_(parameter.grad, 1 - decay)
            parameter.mul_(1 - rate * group["weight_decay"])
            together = [matrices(one, group["fused"], group["heads"]) for one in (parameter, parameter.grad, momentum)]
            for values, slope, average in zip(*together, strict=True):
                yield values, slope.lerp(average, decay).flatten(0, -2)


def _move(alike: list[tuple[Tensor, Tensor]], rate: float) -> None:
    """Matrices of one shape, in one computation."""
    updates = [update for _, update in alike]
    directions = orthogonal(torch.stack(updates)).unbind() if len(updates) > 1 else [orthogonal(updates[0])]
    size = UPDATE_SIZE * math.sqrt(max(updates[0].shape))
    for (values, _), direction in zip(alike, directions, strict=True):
        values.add_(direction.view(values.shape), alpha=-rate * size)


def matrices(tensor: Tensor, fused: Fused, heads: int) -> list[Tensor]:
    """The matrices that a parameter is made of, as views: [rows, columns], or [heads, rows, columns] where the rows of
    a head lie together and those of a matrix do not."""
    if fused == "columns":
        return list(tensor.unflatten(1, (3, -1)).unbind(1))
    if fused == "heads":
        return list(tensor.unflatten(0, (heads, 3, -1)).unbind(1))
    blocks = tensor.chunk(2, dim=-2) if fused == "rows" else (tensor,)
    return [one for block in blocks for one in block.unbind()] if tensor.dim() == 3 else list(blocks)


def orthogonal(matrices: Tensor) -> Tensor:
    """`matrices` (float32, [rows, columns] or [n, rows, columns]), each with its singular values brought to between
    about 0.7 and 1.2; those that are tiny beside the largest stay small, and zeros stay zeros."""
    tall = matrices.size(-2) > matrices.size(-1)
    x = matrices.mT if tall else matrices
    x = x / x.flatten(-2).norm(dim=-1)[..., None, None].clamp(min=1e-7)
    add_product = torch.addmm if x.dim() == 2 else torch.baddbmm
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = add_product(x, add_product(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x.mT if tall else x
