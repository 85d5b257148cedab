"""The model of one rank: parameters divided among all, samples among groups of neighbours, and what is cut by tensor
parallelism among the neighbours of a group, who have the same samples."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

from dlx.training.inner.ranks.rows import Rows
from dlx.training.models.batches import IGNORED
from dlx.training.models.loss import chunk_rows, cross_entropy
from dlx.training.models.placement import Placement
from dlx.training.models.stages import StageModel
from dlx.training.recipe.family import Layout
from dlx.training.recipe.manifest import Manifest


class RankModel(StageModel):
    """A stage that has some of a micro-batch's samples; the sum of all groups' losses is the micro-batch's."""

    def __init__(self, rows: Rows, manifest: Manifest, stage: int, placement: Placement, mesh: DeviceMesh) -> None:
        super().__init__(manifest, stage, placement, partial(_shard, mesh=mesh))
        self._rows, self._neighbours = rows, mesh["parallel"]
        if self.tied_head is not None and self.rows_cut(rows.parallel) is not None:  # as if it were a parameter
            mine = torch.empty_like(self.tied_head[: self.vocabulary // rows.parallel])
            self.tied_head = mine.requires_grad_()

    def loss(self, hidden: Tensor, labels: Tensor, count: Tensor | int | None) -> Tensor:
        here, weight = self._rows.here, self.head_weight
        if isinstance(weight, DTensor):  # cut among neighbours
            weight = weight.to_local()
        if not here:
            return functional.linear(hidden[:0], weight).sum()  # the head has a gradient on every rank
        hidden, labels = hidden[:here].flatten(0, 1), labels[:here].flatten()
        head = partial(self.logits, weight=weight), (weight,), chunk_rows(self.device, len(weight))
        if len(weight) == self.vocabulary:
            return cross_entropy(*head, hidden, labels, count)
        with loss_parallel():
            return cross_entropy(*head, _alike(hidden, self._neighbours), labels, count, self._summed_apart)

    def _summed_apart(self, logits: Tensor, labels: Tensor) -> Tensor:
        """`loss.summed` where each neighbour has its tokens' logits."""
        whole = DTensor.from_local(logits, self._neighbours, [Shard(1)], run_check=False)
        found = functional.cross_entropy(whole, labels, reduction="sum", ignore_index=IGNORED)
        assert isinstance(found, DTensor)
        return found.to_local()


def _shard(model: StageModel, mesh: DeviceMesh) -> None:
    """Each layer's parameters come together for its own work only, all others for the whole step's; and of what tensor
    parallelism cuts, nothing but this rank's part."""
    for layer in model.layers:
        if mesh["parallel"].size() > 1:
            _cut_layer(model.layout, layer, mesh["parallel"])
        fully_shard(layer, mesh=mesh["data"])
    if mesh["parallel"].size() > 1:
        _cut_ends(model, mesh["parallel"])
    fully_shard(model, mesh=mesh["data"])
    for module in model.modules():
        if isinstance(module, FSDPModule):  # gradients are added: each rank's is a part of the mean already
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _cut_layer(layout: Layout, layer: nn.Module, neighbours: DeviceMesh) -> None:
    styles = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
    found = {name: layout.sharding(f"{layout.layers}.0.{name}") for name, _ in layer.named_parameters()}
    plan: dict[str, ParallelStyle] = {
        name.removesuffix(".weight"): styles[how]()
        for name, how in found.items()
        if how in styles and name.endswith(".weight")
    }
    parallelize_module(layer, neighbours, plan)
    for module in layer.modules():
        experts: Any = getattr(module, "gate_up_proj", None)
        if isinstance(experts, Tensor) and len(experts) % neighbours.size() == 0:
            _keep_rows(module, neighbours)
            module.forward = partial(_own_experts, module, neighbours)


def _cut_ends(model: StageModel, neighbours: DeviceMesh) -> None:
    """What is outside of the layers."""
    if model.rows_cut(neighbours.size()) is None:
        return
    if model.is_first:
        parallelize_module(model, neighbours, {model.layout.tokens: RowwiseParallel(input_layouts=Replicate())})
    if model.head is not None:
        _keep_rows(model.head, neighbours)


def _keep_rows(module: nn.Module, neighbours: DeviceMesh) -> None:
    """Of its parameters."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        mine = distribute_tensor(parameter, neighbours, [Shard(0)], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(mine))


def _own_experts(experts: Any, neighbours: DeviceMesh, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Of [tokens, width] what this rank's experts make, and with that of its neighbours'."""
    own = {name: parameter.to_local() for name, parameter in experts.named_parameters()}
    count = len(own["gate_up_proj"])
    first = neighbours.get_local_rank() * count
    mine = (chosen >= first) & (chosen < first + count)
    them = SimpleNamespace(config=experts.config, act_fn=experts.act_fn, num_experts=count, **own)
    chosen = torch.where(mine, chosen - first, count)  # which is nobody's number
    found = type(experts).forward(them, _alike(hidden, neighbours), chosen, _alike(weights, neighbours))
    found = found + sum(one[:0].sum() for one in own.values())  # all have a gradient, whether or not a token came
    whole = DTensor.from_local(found, neighbours, [Partial()], run_check=False).redistribute(placements=[Replicate()])
    assert isinstance(whole, DTensor)
    return whole.to_local()


def _alike(tensor: Tensor, neighbours: DeviceMesh) -> Tensor:
    """The same, which every neighbour has; their gradients are added."""
    return DTensor.from_local(tensor, neighbours, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])
