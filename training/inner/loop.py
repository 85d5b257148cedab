"""The inner loop of one slot: optimiser steps of its stage on the replica's own data."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from msgspec import Struct
from torch import Tensor

from dlx.ground.constants import MOST_LOSS
from dlx.training.data.shards import Dataset
from dlx.training.inner import schedule
from dlx.training.inner.arithmetic import arithmetic
from dlx.training.inner.optimisers import Optimisers
from dlx.training.inner.pipeline import Link, Norms, add_norms, run_step, squares_and_loss
from dlx.training.inner.states import optimiser_shapes
from dlx.training.models.placement import ONE_THREAD, Placement
from dlx.training.models.stages import StageModel, stage_shapes
from dlx.training.models.transfers import to_device
from dlx.training.models.weights import Shapes
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Inner, reads_data


class TrainingError(RuntimeError):
    """The inner loop cannot go on: unfitting data or state, or a loss that has gone to infinity."""


class Step(Struct, frozen=True):
    """An inner step, at `factor` times the manifest's rates."""

    index: int
    factor: float


class Pipes(NamedTuple):
    """Of a stage; None where it has none."""

    previous: Link | None
    next: Link | None


class Conclusion(NamedTuple):
    """What is found of a step: the replica's."""

    norm: float
    loss: float


# From the squared norm of each gradient of the stage, and on the last stage the loss.
Conclude = Callable[[Sequence[float], float | None], Conclusion]


class InnerLoop:
    """Weights and optimiser state of slot (replica, stage), and the steps that change them.

    `dataset` is needed on stages that read data. Weights and state are zero until loaded. On a CPU a step
    gives the same bits in every process with the same number of threads on the same kind of machine, and on every
    machine where the manifest's arithmetic is exact. `placement`
    (settled) says what is computed where, see StageModel; what is loaded may be on any device. With an adapter the
    weights of its base are read from their file in `blobs`; raises Damaged where that has to be had again.
    """

    def __init__(
        self,
        manifest: Manifest,
        stage: int,
        dataset: Dataset | None,
        placement: Placement = ONE_THREAD,
        blobs: Path | None = None,
    ) -> None:
        self.shapes: dict[str, tuple[int, ...]] = stage_shapes(manifest, stage)
        self.optimiser_shapes = optimiser_shapes(manifest, stage)
        self._manifest, self._dataset = manifest, dataset
        self.norms = Norms(0.0, 0.0, 0.0)  # of the last step
        self._needs_data = reads_data(manifest, stage)
        if self._needs_data:
            self._check_data()
        self._hold(stage, placement)
        if manifest.adapter is not None:
            assert blobs is not None
            self._model.load_base(manifest, blobs)

    def _hold(self, stage: int, placement: Placement) -> None:
        """Make the stage's tensors."""
        with arithmetic(self._manifest):
            self._model = StageModel(self._manifest, stage, placement)
            self._parameters: dict[str, Tensor] = dict(self._model.trained())
            self._optimisers = Optimisers(self._parameters, self._manifest)
            for tensor in self.weights().values():
                tensor.zero_()

    @property
    def data(self) -> bytes | None:
        """sha256 of the data manifest that this stage trains on; None where it reads none."""
        return self._dataset.identity if self._needs_data and self._dataset else None

    @property
    def is_private(self) -> bool:
        """Whether this stage trains on data of the replica's own."""
        return self._needs_data and self._dataset is not None and self._dataset.private

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy in float32 tensors with exactly the names and shapes of `.shapes`, which are asked for one after the
        other in the order of their names. Raises TrainingError."""
        targets = self.weights()
        for name, tensor in expect(weights, self.shapes, "weights"):
            targets[name].copy_(tensor)

    def weights(self) -> Mapping[str, Tensor]:
        """The weights themselves, on their device, not copies: whoever keeps one clones it."""
        return {name: parameter.detach() for name, parameter in self._parameters.items()}

    @property
    def in_place(self) -> bool:
        """Whether `weights()` may be filled where they lie: all of them, in main memory."""
        return self._model.device == "cpu"

    def optimiser_state(self) -> Mapping[str, Tensor]:
        """The float32 state itself, on its device, named as in `optimiser_shapes`."""
        return self._optimisers.state

    def load_optimiser_state(self, tensors: Mapping[str, Tensor]) -> None:
        """As `load_weights`; {} stands for a fresh optimiser. A segment begins. Raises TrainingError."""
        self.begin_segment()
        state = self.optimiser_state()
        if tensors:
            for name, tensor in expect(tensors, self.optimiser_shapes, "optimiser state"):
                state[name].copy_(tensor)
        else:
            for unused in state.values():
                unused.zero_()

    def begin_segment(self) -> None:
        """The next step is the first of a segment: it takes what a replay would have, weights and state."""
        self._optimisers.begin_segment()

    def free_gradients(self) -> None:
        """Give back their memory until the next step."""
        self._model.zero_grad(set_to_none=True)

    def idle(self) -> None:
        """To be called now and then while nothing else is."""

    def positions(self, index: int) -> range:
        """Where the batch of inner step `index` lies in the order of whoever shares the data with nobody."""
        size = self._manifest.data.batch_size
        return range(index * size, (index + 1) * size)

    def step(
        self,
        index: int,
        total_steps: int,
        samples: Sequence[int] | None,
        previous: Link | None,
        next: Link | None,
        stop: Callable[[], bool] = lambda: False,
        ready: Callable[[], None] = lambda: None,
    ) -> float:
        """The run's inner step `index` of `total_steps` on the samples at these positions of the run's order, one batch
        (None on a stage without data); returns the replica's loss in nats per token. Raises PipeBroken (Stopped after
        `stop()`), which leaves weights and state as they were, and TrainingError when the gradients are not finite or
        the loss is above MOST_LOSS. `ready()` is waited for before weights or state change: until then other threads
        may read them."""
        batch = self._batch(samples)
        factor = schedule.factor(self._manifest.inner, index, total_steps)

        def conclude(squares: Sequence[float], mean: float | None) -> Conclusion:
            self.norms, loss = add_norms(squares, mean, index, previous, next)
            return Conclusion(self.norms.replica, loss)

        with arithmetic(self._manifest):
            return self._advance(Step(index, factor), batch, Pipes(previous, next), stop, conclude, ready)

    def _advance(
        self,
        step: Step,
        batch: Tensor | None,
        pipes: Pipes,
        stop: Callable[[], bool],
        conclude: Conclude,
        ready: Callable[[], None],
    ) -> float:
        """The replica's loss, once the stage's tensors have taken the step."""
        data, micro_batches = self._manifest.data, None
        if batch is not None:
            micro_batches = to_device(batch, self._model.device).split(data.batch_size // data.micro_batches)
        self.free_gradients()
        mean = run_step(self._model, step.index, micro_batches, *pipes, stop)
        gradients = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        found = conclude(*squares_and_loss(gradients, mean))
        apply(self._optimisers, self._manifest.inner, step, gradients, found, ready)
        return found.loss

    def _batch(self, samples: Sequence[int] | None) -> Tensor | None:
        """Words int64 [batch size, length + 1] in main memory; None on a stage without data."""
        if not self._needs_data:
            return None
        assert self._dataset is not None and samples is not None
        size = self._manifest.data.batch_size
        if len(samples) != size:
            raise TrainingError(f"an inner step got {len(samples)} samples for a batch of {size}")
        data = self._manifest.data
        return self._dataset.batch(
            "train", self._dataset.ids(data.seed, samples, data.sequence_length), data.sequence_length
        )

    def _check_data(self) -> None:
        if self._dataset is None:
            raise TrainingError("this stage needs the run's data")
        if self._manifest.data.chat != (self._dataset.manifest.rows is not None):
            raise TrainingError(f"the data has {self._dataset.manifest.kind}, and data.chat says otherwise")
        if self._dataset.vocab_size > int(self._manifest.model.config["vocab_size"]):
            raise TrainingError(f"the data has {self._dataset.vocab_size} tokens, more than the model's vocab_size")
        if not self._dataset.len_samples("train", self._manifest.data.sequence_length):
            raise TrainingError("the training data is shorter than one sample; lower data.sequence_length")


def apply(
    optimisers: Optimisers,
    inner: Inner,
    step: Step,
    gradients: Sequence[Tensor],
    found: Conclusion,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """What ends every inner step: the gradients, clipped, change the weights. Raises TrainingError; then nothing has
    changed."""
    factor = clipping(inner, step.index, *found)
    if factor < 1:
        torch._foreach_mul_(list(gradients), factor)
    ready()
    optimisers.step(step.factor)


def clipping(inner: Inner, index: int, norm: float, loss: float) -> float:
    """What the gradients of a replica's step are multiplied by. Raises TrainingError where it has diverged."""
    if not (math.isfinite(norm) and loss <= MOST_LOSS):  # nor NaN
        values = f"the loss is {loss:g} and the gradient norm {norm:g}"
        raise TrainingError(f"inner step {index}: {values}; the run has diverged")
    return inner.clip / (norm + 1e-6) if norm > inner.clip else 1.0


def expect(given: Mapping[str, Tensor], targets: Shapes, what: str) -> Iterator[tuple[str, Tensor]]:
    """`given` in the order of its names, each when it is asked for. Raises TrainingError where it does not fit."""
    if given.keys() != targets.keys():
        differing = min(given.keys() ^ targets.keys())
        raise TrainingError(f"{what}: {differing} is {'missing' if differing in targets else 'not part of this stage'}")
    for name, shape in sorted(targets.items()):
        tensor = given[name]
        if tuple(tensor.shape) != shape or tensor.dtype != torch.float32:
            raise TrainingError(f"{what}: {name} is not float32 of shape {list(shape)}")
        yield name, tensor
