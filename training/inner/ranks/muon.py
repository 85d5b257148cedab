"""Muon where each rank has some rows of every matrix: a matrix is orthogonalised whole, by the rank that owns it."""

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from dlx.training.inner.muon import UPDATE_SIZE, Muon, matrices, orthogonal
from dlx.training.inner.ranks.cuts import Cut
from dlx.training.inner.ranks.group import Group


class Whole:
    """What a parameter is of which a rank has a piece, and whose."""

    def __init__(self, cut: Cut, owner: int) -> None:
        self.cut, self.owner = cut, owner


class RankedMuon(Muon):
    """`whole` tells of every parameter what it is a part of. All ranks step together, each on its own matrices."""

    def __init__(
        self, parameters: Iterable[dict[str, Any]], *rates: float, ranks: Group, whole: Callable[[Tensor], Whole]
    ) -> None:
        super().__init__(parameters, *rates)
        self._ranks, self._whole = ranks, whole

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            owned = [
                [one for one in group["params"] if self._whole(one).owner == rank] for rank in range(self._ranks.size)
            ]
            for turn in zip_longest(*owned):
                self._step_each([one for one in turn if one is not None], group)

    def _step_each(self, parameters: list[Tensor], group: Mapping[str, Any]) -> None:
        """Of matrices of different owners, so that all work at the same time."""
        rate, decay, update = group["lr"], group["momentum"], None
        for parameter in parameters:
            whole, gradient = self._whole(parameter), parameter.grad
            assert gradient is not None
            momentum = self.state[parameter]["momentum"].lerp_(gradient, 1 - decay)
            mine = self._ranks.gather(gradient.lerp(momentum, decay), whole.cut, whole.owner)
            update = mine if mine is not None else update
        if update is not None:
            for one in matrices(update, group["fused"], group["heads"]):
                direction = orthogonal(one.flatten(0, -2))
                one.copy_(direction.mul_(UPDATE_SIZE * math.sqrt(max(direction.shape))).view(one.shape))
        for parameter in parameters:
            whole, step = self._whole(parameter), torch.empty_like(parameter)
            self._ranks.scatter(update if whole.owner == self._ranks.rank else None, step, whole.cut, whole.owner)
            parameter.mul_(1 - rate * group["weight_decay"]).add_(step, alpha=-rate)
