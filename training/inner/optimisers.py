"""The optimisers of a stage: Muon or Shampoo for the layers' matrices, AdamW for the rest, and their named state."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from dlx.training.inner.muon import Muon
from dlx.training.inner.shampoo import Shampoo
from dlx.training.inner.states import ADAMW_MOMENTS, divide
from dlx.training.recipe.parameters import rule
from dlx.training.recipe.recipe import Inner, Recipe, parse_model

OF_MATRICES: Mapping[str, Callable[..., torch.optim.Optimizer]] = {"muon": Muon, "shampoo": Shampoo}


class Optimisers:
    """Those that step these parameters, a whole model's or a stage's, all float32; fresh until a state is loaded.

    `state` holds their live tensors, always the same ones, into which another state may be copied. They are, of the
    layers' matrices, `muon.momentum.<name>`, or `shampoo.momentum.<name>`, `shampoo.rows.<name>` and
    `shampoo.columns.<name>`; and of what AdamW steps `exp_avg.<name>`, `exp_avg_sq.<name>` and one `step` of shape [1].
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        recipe: Recipe,
        of_matrices: Mapping[str, Callable[..., torch.optim.Optimizer]] = OF_MATRICES,
    ) -> None:
        matrices, others = divide({name: tuple(one.shape) for name, one in parameters.items()}, recipe.inner)
        self.state: dict[str, Tensor] = {}
        self._each: list[torch.optim.Optimizer] = []
        self._counts: list[Tensor] = []  # AdamW's own of its steps, one for each parameter
        if matrices:
            made = of_matrices[recipe.inner.optimiser]
            self._add_of_matrices({name: parameters[name] for name in matrices}, recipe, made)
        if others:
            self._add_adamw({name: parameters[name] for name in others}, recipe.inner)
        for group in self._groups():
            group["initial_lr"] = group["lr"]

    def begin_segment(self) -> None:
        """What is made of the state and kept beside it is made anew by the next step."""
        for one in self._each:
            if isinstance(one, Shampoo):
                one.begin_segment()

    def step(self, factor: float) -> None:
        """One step along the parameters' gradients at `factor` times the manifest's rates."""
        for group in self._groups():
            group["lr"] = group["initial_lr"] * factor
        for count in self._counts[1:]:
            count.copy_(self._counts[0])  # which is `step`, and may have been copied in
        for one in self._each:
            one.step()

    def _add_of_matrices(
        self, parameters: Mapping[str, Tensor], recipe: Recipe, made: Callable[..., torch.optim.Optimizer]
    ) -> None:
        inner, heads = recipe.inner, parse_model(recipe.model).heads
        groups: dict[str, Any] = {}
        for name, parameter in parameters.items():
            fused = rule(name).fused
            groups.setdefault(fused, {"params": [], "fused": fused, "heads": heads})["params"].append(parameter)
        one = made(groups.values(), inner.matrix_lr, inner.matrix_momentum, inner.weight_decay)
        self._each.append(one)
        for name, parameter in parameters.items():
            self.state |= {f"{inner.optimiser}.{kind}.{name}": held for kind, held in one.state[parameter].items()}

    def _add_adamw(self, parameters: Mapping[str, Tensor], inner: Inner) -> None:
        exempt = [parameter for name, parameter in parameters.items() if not rule(name).decays]
        others = [parameter for name, parameter in parameters.items() if rule(name).decays]
        groups: list[dict[str, Any]] = [{"params": others}, {"params": exempt, "weight_decay": 0.0}]
        one = torch.optim.AdamW(
            groups,
            lr=inner.lr,
            betas=(inner.beta1, inner.beta2),
            eps=inner.eps,
            weight_decay=inner.weight_decay,
            fused=True,  # one kernel per tensor: the fastest on a CPU too
        )
        self._each.append(one)
        for name, parameter in parameters.items():
            state = {"step": torch.zeros((), device=parameter.device)}
            state |= {moment: torch.zeros_like(parameter, requires_grad=False) for moment in ADAMW_MOMENTS}
            one.state[parameter] = state
            self._counts.append(state["step"])
            self.state |= {f"{moment}.{name}": state[moment] for moment in ADAMW_MOMENTS}
        self.state["step"] = self._counts[0].view(1)

    def _groups(self) -> Iterator[dict[str, Any]]:
        for one in self._each:
            yield from one.param_groups
