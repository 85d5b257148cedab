"""The inner loop of one slot: AdamW steps of its stage on the replica's own data."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from training.data import Dataset, sample_ids
from training.manifest import Inner, Manifest
from training.pipeline import Link, norm_and_loss, run_step
from training.stages import build_stage, stage_shapes


class TrainingError(RuntimeError):
    """The inner loop cannot go on: unfitting data or state, or a loss that is no longer finite."""


class InnerLoop:
    """Weights and AdamW moments of slot (replica, stage), and the steps that change them.

    `dataset` is needed on the first and on the last stage. Weights and moments are zero until loaded. With one torch
    thread a step gives the same bits in every process on the same kind of machine.
    """

    def __init__(self, manifest: Manifest, stage: int, replica: int, dataset: Dataset | None) -> None:
        self.shapes: dict[str, tuple[int, ...]] = stage_shapes(manifest, stage)
        self._manifest, self._replica, self._dataset = manifest, replica, dataset
        self._model = build_stage(manifest, stage)
        self._needs_data = self._model.is_first or self._model.is_last
        self._samples = self._count_samples() if self._needs_data else 0
        self._parameters: dict[str, Tensor] = dict(self._model.named_parameters())
        self._optimiser = _adamw(list(self._parameters.values()), manifest.inner)
        self.load_weights({name: torch.zeros(shape) for name, shape in self.shapes.items()})
        self.load_optimiser_state({})

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy in float32 tensors with exactly the names and shapes of `.shapes`. Raises TrainingError."""
        _expect(weights, self.shapes, "weights")
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(weights[name])

    def weights(self) -> dict[str, Tensor]:
        """Clones of the weights."""
        return {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    def optimiser_state(self) -> dict[str, Tensor]:
        """Clones of AdamW's float32 state: `exp_avg.<name>`, `exp_avg_sq.<name>`, and `step` of shape [1]."""
        state = self._optimiser.state
        moments = {
            f"{moment}.{name}": state[parameter][moment].clone()
            for moment in _MOMENTS
            for name, parameter in self._parameters.items()
        }
        return moments | {"step": self._step_count().clone().reshape(1)}

    def load_optimiser_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The counterpart of `optimiser_state`; {} stands for a fresh optimiser. Raises TrainingError."""
        if tensors:
            _expect(tensors, self.optimiser_shapes, "optimiser state")
        for name, parameter in self._parameters.items():
            self._optimiser.state[parameter] = {
                "step": tensors["step"].clone().reshape(()) if tensors else torch.zeros(()),
                **{
                    moment: tensors[f"{moment}.{name}"].clone() if tensors else torch.zeros_like(parameter)
                    for moment in _MOMENTS
                },
            }

    @property
    def optimiser_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of `optimiser_state`."""
        moments = {f"{moment}.{name}": shape for moment in _MOMENTS for name, shape in self.shapes.items()}
        return moments | {"step": (1,)}

    def step(
        self,
        index: int,
        total_steps: int,
        previous: Link | None,
        next: Link | None,
        stop: Callable[[], bool] = lambda: False,
    ) -> float:
        """The run's inner step `index` of `total_steps` on this replica's own batch; returns the replica's loss in nats
        per token. Raises PipeBroken (Stopped after `stop()`), which leaves weights and moments as they were, and
        TrainingError when the loss or the gradients are not finite."""
        data = self._manifest.data
        micro_batches = None
        if self._needs_data:
            assert self._dataset is not None
            ids = sample_ids(
                data.seed, index, self._replica, self._manifest.max_replicas, data.batch_size, self._samples
            )
            batch = self._dataset.batch("train", ids, data.sequence_length)
            micro_batches = batch.split(data.batch_size // data.micro_batches)
        self._optimiser.zero_grad(set_to_none=True)
        mean = run_step(self._model, index, micro_batches, previous, next, stop)
        gradients = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        norm, loss = norm_and_loss(gradients, mean, index, previous, next)
        if not (math.isfinite(norm) and math.isfinite(loss)):
            values = f"the loss is {loss:g} and the gradient norm {norm:g}"
            raise TrainingError(f"inner step {index}: {values}; the run has diverged")
        inner = self._manifest.inner
        if norm > inner.clip:
            torch._foreach_mul_(gradients, inner.clip / (norm + 1e-6))
        self._optimiser.param_groups[0]["lr"] = learning_rate(inner, index, total_steps)
        self._optimiser.step()
        return loss

    def _step_count(self) -> Tensor:
        return self._optimiser.state[next(iter(self._parameters.values()))]["step"]

    def _count_samples(self) -> int:
        if self._dataset is None:
            raise TrainingError("the first and the last stage need the run's data")
        if self._dataset.vocab_size > int(self._manifest.model.config["vocab_size"]):
            raise TrainingError(f"the data has {self._dataset.vocab_size} tokens, more than the model's vocab_size")
        samples = self._dataset.len_samples("train", self._manifest.data.sequence_length)
        if not samples:
            raise TrainingError("the training data is shorter than one sample; lower data.sequence_length")
        return samples


def learning_rate(inner: Inner, index: int, total_steps: int) -> float:
    """The rate at inner step `index`: linear warm-up from lr / steps to lr, then a cosine down to lr * final."""
    warmup = int(inner.warmup * total_steps)
    if index < warmup:
        return inner.lr * (index + 1) / warmup
    progress = min(1.0, (index - warmup) / max(1, total_steps - warmup))
    return inner.lr * (inner.final + (1 - inner.final) * 0.5 * (1 + math.cos(math.pi * progress)))


_MOMENTS = ("exp_avg", "exp_avg_sq")


def _adamw(parameters: list[Tensor], inner: Inner) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        parameters,
        lr=inner.lr,
        betas=(inner.beta1, inner.beta2),
        eps=inner.eps,
        weight_decay=inner.weight_decay,
        foreach=False,
        fused=True,  # one kernel per tensor: the fastest on a CPU
    )


def _expect(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], what: str) -> None:
    if tensors.keys() != shapes.keys():
        differing = min(tensors.keys() ^ shapes.keys())
        raise TrainingError(f"{what}: {differing} is {'missing' if differing in shapes else 'not part of this stage'}")
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != shape or tensors[name].dtype != torch.float32:
            raise TrainingError(f"{what}: {name} is not float32 of shape {list(shape)}")
