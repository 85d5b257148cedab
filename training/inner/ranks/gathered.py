"""Muon and Shampoo where each rank has some rows of every matrix: a matrix steps whole, by the rank that owns it."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from dlx.training.inner.muon import UPDATE_SIZE, Muon, matrices, orthogonal
from dlx.training.inner.ranks.cuts import Cut
from dlx.training.inner.ranks.group import Group
from dlx.training.inner.shampoo import Shampoo


class Whole:
    """What a parameter is of which a rank has a piece, and whose."""

    def __init__(self, cut: Cut, owner: int) -> None:
        self.cut, self.owner = cut, owner


class _Ranked(torch.optim.Optimizer):
    """`whole` tells of every parameter what it is a part of. All ranks step together, each on its own matrices."""

    def __init__(
        self, parameters: Iterable[dict[str, Any]], *rates: float, ranks: Group, whole: Callable[[Tensor], Whole]
    ) -> None:
        self._ranks, self._whole = ranks, whole
        super().__init__(parameters, *rates)  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            owned = [
                [one for one in group["params"] if self._whole(one).owner == rank] for rank in range(self._ranks.size)
            ]
            for turn in zip_longest(*owned):
                self._step_each([one for one in turn if one is not None], group)

    def _step_each(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Of matrices of different owners, so that all work at the same time."""
        mine, update = None, None
        for parameter in parameters:
            whole = self._whole(parameter)
            gathered = [self._ranks.gather(one, whole.cut, whole.owner) for one in self._pieces(parameter, group)]
            if whole.owner == self._ranks.rank:
                mine = parameter, [one for one in gathered if one is not None]
        if mine is not None:
            update = self._update(*mine, group)
        for parameter in parameters:
            whole, step = self._whole(parameter), torch.empty_like(parameter)
            self._ranks.scatter(update if whole.owner == self._ranks.rank else None, step, whole.cut, whole.owner)
            parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(step, alpha=group["lr"])

    def _pieces(self, parameter: Tensor, group: dict[str, Any]) -> list[Tensor]:
        """This rank's of what the owner takes, once the momentum has followed the gradient."""
        raise NotImplementedError

    def _update(self, parameter: Tensor, taken: list[Tensor], group: dict[str, Any]) -> Tensor:
        """The owner's, of the whole parameter at rate 1; `parameter` is its own piece."""
        raise NotImplementedError


class RankedMuon(_Ranked, Muon):
    def _pieces(self, parameter: Tensor, group: dict[str, Any]) -> list[Tensor]:
        gradient, decay = parameter.grad, group["momentum"]
        assert gradient is not None
        momentum = self.state[parameter]["momentum"].lerp_(gradient, 1 - decay)
        return [gradient.lerp(momentum, decay)]

    def _update(self, parameter: Tensor, taken: list[Tensor], group: dict[str, Any]) -> Tensor:
        (update,) = taken
        for one in matrices(update, group["fused"], group["heads"]):
            direction = orthogonal(one.flatten(0, -2))
            one.copy_(direction.mul_(UPDATE_SIZE * math.sqrt(max(direction.shape))).view(one.shape))
        return update


class RankedShampoo(_Ranked, Shampoo):
    """The covariances of a parameter are its owner's alone."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step()
        self._taken += 1

    def _hold(self, parameter: Tensor, shape: Sequence[int], group: dict[str, Any]) -> None:
        whole = self._whole(parameter)
        if whole.owner == self._ranks.rank:
            super()._hold(parameter, whole.cut.shape, group)

    def _pieces(self, parameter: Tensor, group: dict[str, Any]) -> list[Tensor]:
        gradient = parameter.grad
        assert gradient is not None
        return [gradient, self.state[parameter]["momentum"].lerp_(gradient, 1 - group["momentum"])]

    def _update(self, parameter: Tensor, taken: list[Tensor], group: dict[str, Any]) -> Tensor:
        gradient, momentum = taken
        return self._whitened(parameter, gradient, momentum, group)
