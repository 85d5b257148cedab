"""AdamW over named parameters, with its state as named tensors."""

from collections.abc import Mapping

import torch
from torch import Tensor

from dlx.training.inner.states import ADAMW_MOMENTS
from dlx.training.recipe.recipe import Inner


class AdamW:
    """State: `exp_avg.<name>` and `exp_avg_sq.<name>`, and `step` of shape [1]; zero until loaded."""

    def __init__(self, parameters: Mapping[str, Tensor], inner: Inner) -> None:
        self._parameters, self._lr = parameters, inner.lr
        self._optimiser = torch.optim.AdamW(
            list(parameters.values()),
            lr=inner.lr,
            betas=(inner.beta1, inner.beta2),
            eps=inner.eps,
            weight_decay=inner.weight_decay,
            foreach=False,
            fused=True,  # one kernel per tensor: the fastest on a CPU
        )
        for parameter in parameters.values():
            self._optimiser.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                **{moment: torch.zeros_like(parameter) for moment in ADAMW_MOMENTS},
            }
        self._counts = [self._optimiser.state[parameter]["step"] for parameter in parameters.values()]

    def state(self) -> dict[str, Tensor]:
        """The tensors themselves, which may be loaded."""
        state = self._optimiser.state
        moments = {
            f"{moment}.{name}": state[parameter][moment]
            for moment in ADAMW_MOMENTS
            for name, parameter in self._parameters.items()
        }
        return moments | {"step": self._counts[0].reshape(1)}

    def step(self, factor: float) -> None:
        """One step along the parameters' gradients at `factor` times the manifest's rate."""
        self._optimiser.param_groups[0]["lr"] = self._lr * factor
        torch._foreach_copy_(self._counts, [self._counts[0]] * len(self._counts))  # one may have been loaded
        self._optimiser.step()
