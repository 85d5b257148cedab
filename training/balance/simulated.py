"""What a stage's inner step asks of memory: the step itself, on tensors that have none.

So the figures follow the code: what autograd keeps, what a layer, the loss or an optimiser needs for a moment. All
layers of a model are equal, so two and three of them tell about any number.
"""

from __future__ import annotations

import weakref
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dlx.training.inner.optimisers import Optimisers
from dlx.training.models.parallel import part_shape
from dlx.training.models.placement import Checkpoint, Placement
from dlx.training.models.stages import StageModel
from dlx.training.recipe.recipe import Recipe


class Simulated(NamedTuple):
    """Bytes of a stage beside its weights and its optimiser's state."""

    retained: int  # by a micro-batch between its forward and its backward pass
    busy: int  # the most while micro-batches pass through one at a time: gradients too
    stepping: int  # the most while the optimisers take their step: gradients too


class Simulation:
    """Of stages of any number of layers, in about half a second each. `parallel` ranks share every matrix product; then
    nothing is said of the optimisers, who take their steps on whole matrices."""

    def __init__(self, recipe: Recipe, checkpoint: Checkpoint, device: str = "cpu", parallel: int = 1) -> None:
        self._recipe, self._checkpoint, self._device, self._parallel = recipe, checkpoint, device, parallel
        self._known: dict[tuple[bool, bool, int], Simulated] = {}

    def of(self, stage: int) -> Simulated:
        low, high = self._recipe.stages[stage]
        layers = high - low
        if layers <= 3:
            return self._short(stage, layers)
        two, three = (self._short(stage, count) for count in (2, 3))
        return Simulated(*(high + (layers - 3) * (high - low) for low, high in zip(two, three, strict=True)))

    def _short(self, stage: int, layers: int) -> Simulated:
        kind = stage == 0, stage == len(self._recipe.stages) - 1, layers
        if kind not in self._known:
            self._known[kind] = _simulate(self._recipe, stage, self._checkpoint, layers, self._device, self._parallel)
        return self._known[kind]


def _simulate(
    recipe: Recipe, stage: int, checkpoint: Checkpoint, layers: int, device: str = "cpu", parallel: int = 1
) -> Simulated:
    recipe, stage = shortened(recipe, stage, layers)
    model = StageModel(recipe, stage, Placement(device="meta", checkpoint=checkpoint))
    model.computes_on = device
    samples, length, width = model.activation_shape
    with FakeTensorMode(), _Live() as live:
        _without_memory(model, parallel)
        optimisers = Optimisers(model.trained(), recipe) if parallel == 1 else None
        resting = live.bytes - sum(buffer.nbytes for buffer in model.buffers())
        if recipe.data.micro_batches > 1:  # another's gradients are there already
            for parameter in model.trained().values():
                parameter.grad = torch.empty(parameter.shape)
        ids = torch.zeros(samples, length, dtype=torch.int64)
        before = live.bytes - ids.nbytes
        source = ids if model.is_first else torch.empty(samples, length, width, requires_grad=True)
        live.peak = live.bytes
        begins = ids > 0 if model.has_rows else None
        output = model(source, ids, begins) if model.is_last else model(source, begins=begins)
        retained = live.bytes - before
        output.backward(None if model.is_last else torch.empty_like(output))
        del source, output, ids
        busy, live.peak = live.peak - resting, live.bytes
        if optimisers is not None:
            optimisers.step(1.0)
        return Simulated(retained, busy, live.peak - resting)


def shortened(recipe: Recipe, stage: int, layers: int) -> tuple[Recipe, int]:
    """A run whose second stage (the first, if `stage` is) is that stage with so many layers."""
    before, after = stage > 0, stage < len(recipe.stages) - 1
    ends = [0, *([1] if before else []), before + layers, *([before + layers + 1] if after else [])]
    stages = list(pairwise(ends))
    key = next(key for key in ("num_hidden_layers", "n_layer") if key in recipe.model.config)
    model = msgspec.structs.replace(recipe.model, config=recipe.model.config | {key: ends[-1]})
    return msgspec.structs.replace(recipe, model=model, stages=stages), int(before)


def _without_memory(model: StageModel, parallel: int) -> None:
    """Parameters and buffers as the fake tensors of the mode that is on, of which a rank has its part."""
    for path, part in model.named_modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                cut = part_shape(model.layout, f"{path}.{name}", tuple(parameter.shape), parallel)
                part._parameters[name] = nn.Parameter(torch.empty(cut), parameter.requires_grad)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, requires_grad=buffer.requires_grad)
    if model.tied_head is not None and model.rows_cut(parallel) is not None:
        model.tied_head = torch.empty_like(model.tied_head[: model.vocabulary // parallel]).requires_grad_()


class _Live(TorchDispatchMode):
    """Counts the bytes of the storages that are alive, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = operation(*args, **(kwargs or {}))
        for one in tree_leaves(found):
            if isinstance(one, Tensor):
                self._count(one.untyped_storage())
        return found

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self._known:
            self._known.add(storage._cdata)
            self.bytes += storage.nbytes()
            self.peak = max(self.peak, self.bytes)
            weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes())

    def _forget(self, storage: int, size: int) -> None:
        self._known.discard(storage)
        self.bytes -= size
