"""One rank's share of a stage: a piece of every parameter and of the optimiser's state, samples of every batch."""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from dlx.training.inner import loop
from dlx.training.inner.loop import Conclude, Conclusion, Pipes
from dlx.training.inner.optimisers import Optimisers
from dlx.training.inner.packing import packed_bytes
from dlx.training.inner.pipeline import Link, PipeBroken, run_step
from dlx.training.inner.ranks import orders
from dlx.training.inner.ranks.cuts import Cut
from dlx.training.inner.ranks.gathered import RankedMuon, RankedShampoo, Whole
from dlx.training.inner.ranks.group import Group
from dlx.training.inner.ranks.model import RankModel
from dlx.training.inner.ranks.owners import stepping
from dlx.training.inner.ranks.rows import Rows, RowsLink
from dlx.training.inner.ranks.tied import Tie
from dlx.training.inner.states import COVARIANCES, STATE_KINDS, covariance_shapes, divide, optimiser_shapes
from dlx.training.models.batches import counted
from dlx.training.models.parallel import dimension
from dlx.training.models.placement import Placement
from dlx.training.models.shapes import stage_shapes
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import reads_data


class Share:
    """Every method is a collective. The stage's state is one set of named tensors: its weights, and its optimisers'."""

    def __init__(self, group: Group, manifest: Manifest, stage: int, placement: Placement) -> None:
        self._group, self._manifest = group, manifest
        data, parallel = manifest.data, placement.tensor_parallel
        self._counts = group.rank % parallel == 0  # whether no other rank has the same samples and goes before it
        self._rows = Rows(group, data.batch_size // data.micro_batches, parallel)
        self._mesh = group.mesh(parallel)
        self._model = RankModel(self._rows, manifest, stage, replace(placement, device=str(group.device)), self._mesh)
        self._micro_batch = self._model.activation_shape
        self._model.activation_shape = (self._rows.each, *self._micro_batch[1:])
        self._parameters = dict(self._model.named_parameters())
        tied, self._model.tied_shape = self._model.tied_shape, None  # it goes by the tie here
        embedding = self._model.embedding if tied and self._model.is_first else None
        self._embedding = next((name for name, one in self._parameters.items() if one is embedding), None)
        weights = {name: _mine(one).zero_() for name, one in self._parameters.items()}
        self.shapes, self.optimiser_shapes = stage_shapes(manifest, stage), optimiser_shapes(manifest, stage)
        cuts = {name: self._cut(name, shape) for name, shape in self.shapes.items()}
        shaped_alike = [kind for kind in STATE_KINDS if kind not in COVARIANCES]
        self._cuts = cuts | {f"{kind}.{name}": cut for kind in shaped_alike for name, cut in cuts.items()}
        owner = stepping(manifest, self.shapes, group.size)
        whole = {tensor: Whole(self._cuts[name], owner[name]) for name, tensor in weights.items()}
        ranked = {"muon": RankedMuon, "shampoo": RankedShampoo}
        of_matrices = {name: partial(one, ranks=group, whole=whole.__getitem__) for name, one in ranked.items()}
        self._optimisers = Optimisers(weights, manifest, of_matrices)
        # What one rank has, whole, and the others nothing of.
        self._owner = {
            name: owner[one]
            for one, shape in divide(self.shapes, manifest.inner)[0].items()
            for name in covariance_shapes(manifest, {one: shape})
        }
        self._weights, self._state = weights, {**weights, **self._optimisers.state}
        mine = weights[self._embedding] if self._embedding else None
        cut = Cut(tied, group.size, parallel, self._model.rows_cut(parallel)) if tied else None
        self._tie = Tie(group, cut, mine, self._model.tied_head, counts=self._counts) if cut else None
        self._by_head = [
            name for name in self._parameters if parallel > 1 and self._model.layout.sharding(name) == "per head"
        ]

    def piece(self, name: str) -> tuple[Tensor, tuple[slice, ...]]:
        """This rank's of a parameter, to be filled, and its place in the whole one. No collective."""
        return self._weights[name], self._cuts[name].place(self._group.rank)

    @torch.no_grad()
    def load(self, name: str, whole: Tensor | None) -> None:
        """`whole` is rank 0's."""
        if name in self._owner:
            self._group.pass_on(whole, self._state.get(name), 0, self._owner[name])
            return
        mine = self._state[name]
        if name == "step":
            mine.copy_(self._group.share(torch.zeros(1) if whole is None else whole.cpu().clone()))
        else:
            self._group.scatter(whole, mine, self._cuts[name], 0)

    def clear(self) -> None:
        """Of the optimisers' state."""
        for tensor in self._optimisers.state.values():
            tensor.zero_()

    @torch.no_grad()
    def collect(self, name: str, to: int) -> Tensor | None:
        """The whole tensor on rank `to`."""
        if name in self._owner:
            found = torch.empty(self.optimiser_shapes[name]) if self._group.rank == to else None
            self._group.pass_on(self._state.get(name), found, self._owner[name], to)
            return found
        mine = self._state[name]
        if name == "step":  # every rank's is whole
            return mine.clone() if self._group.rank == to else None
        return self._group.gather(mine, self._cuts[name], to)

    def begin_segment(self) -> None:
        """As of an inner loop. No rank waits for another."""
        self._optimisers.begin_segment()

    def free_gradients(self) -> None:
        """Give back their memory until the next step."""
        self._model.zero_grad(set_to_none=True)
        for tensor in self._weights.values():
            tensor.grad = None

    def step(
        self,
        order: orders.Step,
        batch: Tensor | None,
        pipes: Pipes,
        stop: Callable[[], bool],
        conclude: Conclude,
    ) -> float:
        """The replica's loss. `batch`, `pipes`, `stop` and `conclude` are rank 0's.

        Raises PipeBroken on all ranks where it happens on rank 0, and TrainingError; then nothing is changed."""
        group, data = self._group, self._manifest.data
        micro_batches = count = None
        if reads_data(self._manifest, self._model.stage):
            if batch is None:
                batch = torch.empty(data.batch_size, data.sequence_length + 1, dtype=torch.int64)
            group.share(batch)
            whole = batch.to(group.device)
            count = counted(whole)
            micro_batches = [self._rows.of(one) for one in whole.split(self._rows.samples)]
        previous = self._link(order.previous, pipes.previous)
        next = self._link(order.next, pipes.next)
        self.free_gradients()
        try:
            if self._tie is not None:
                self._tie.hand_on(order.index, *pipes)
            mean = run_step(
                self._model, order.index, micro_batches, previous, next, lambda: self._is_stopped(stop), count
            )
            if self._tie is not None:
                own = self._parameters[self._embedding].grad if self._embedding else None
                self._tie.hand_back(order.index, *pipes, None if own is None else _mine(own))
            found_here = {name: _mine(one.grad) for name, one in self._parameters.items() if one.grad is not None}
            for name in self._by_head:  # of which this rank has seen its own alone
                dist.all_reduce(found_here[name], group=self._mesh.get_group("parallel"))
            gradients = [*found_here.values()]
            squares = torch.stack([torch.linalg.vector_norm(one, dtype=torch.float64) ** 2 for one in gradients]).cpu()
            squares *= torch.tensor([self._counts or self._cuts[name].is_shared_out for name in found_here])
            mine = torch.tensor([mean or 0.0 if self._counts else 0.0], dtype=torch.float64)
            sums = group.add(torch.cat([squares, mine])).tolist()
            last = sums[-1] if self._model.is_last else None
            found = Conclusion(*group.decide(2, lambda: conclude(sums[:-1], last)))
        except PipeBroken:
            self._forget()
            raise
        for name, weight in self._weights.items():
            weight.grad = found_here.get(name)
        step = loop.Step(order.index, order.factor)
        loop.apply(self._optimisers, self._manifest.inner, step, gradients, found)
        return found.loss

    def _cut(self, name: str, shape: tuple[int, ...]) -> Cut:
        parallel = self._rows.parallel
        return Cut(shape, self._group.size, parallel, dimension(self._model.layout, name, shape, parallel))

    def _link(self, is_there: bool, link: Link | None) -> RowsLink | None:
        packed = self._rows.samples, packed_bytes(self._micro_batch[1:], self._model.packing)
        return RowsLink(self._group, self._rows, packed, link) if is_there else None

    def _is_stopped(self, stop: Callable[[], bool]) -> bool:
        return bool(self._group.decide(1, lambda: [stop()])[0])

    def _forget(self) -> None:
        """What a step that was broken off has left."""
        self.free_gradients()
        assert isinstance(self._model, FSDPModule)
        self._model.reset_iter_state()


def _mine(tensor: Tensor) -> Tensor:
    """This rank's piece, in the same memory."""
    assert isinstance(tensor, DTensor)
    return tensor.to_local().detach()
