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
        self.load({})

    def state(self) -> dict[str, Tensor]:
        """Clones."""
        state = self._optimiser.state
        moments = {
            f"{moment}.{name}": state[parameter][moment].clone()
            for moment in ADAMW_MOMENTS
            for name, parameter in self._parameters.items()
        }
        count = state[next(iter(self._parameters.values()))]["step"]  # the same for every parameter
        return moments | {"step": count.clone().reshape(1)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """The counterpart of `state`; {} stands for zeros."""
        for name, parameter in self._parameters.items():
            steps = tensors["step"].reshape(()) if tensors else torch.zeros(())
            moments = {
                one: tensors[f"{one}.{name}"] if tensors else torch.zeros(parameter.shape) for one in ADAMW_MOMENTS
            }
            state = {"step": steps} | moments
            self._optimiser.state[parameter] = {
                one: tensor.to(parameter.device, copy=True) for one, tensor in state.items()
            }

    def step(self, factor: float) -> None:
        """One step along the parameters' gradients at `factor` times the manifest's rate."""
        self._optimiser.param_groups[0]["lr"] = self._lr * factor
        self._optimiser.step()
