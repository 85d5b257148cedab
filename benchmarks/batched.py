"""R replicas of a run in one computation, for searches: the weights of all are stacked, and every step is one pass.

The model, the optimisers, the codec and the outer step are the nodes' own; what is left out is what costs time and
changes no number: files, hashes, traces. `benchmarks.simulation` has the nodes' whole slot. For a `rough` training the
model is compiled, and products of matrices are taken in bfloat16 where the CPU has instructions for that.
"""

import contextlib
from collections.abc import Iterator, Mapping
from functools import cache
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.simulation import Point, Ranks, Uncompressed
from dlx.ground.constants import UNIT
from dlx.training.codecs import codec
from dlx.training.codecs.base import Codec
from dlx.training.codecs.lowrank import factored
from dlx.training.data.shards import Dataset
from dlx.training.inner import muon, schedule
from dlx.training.inner.loop import clipping
from dlx.training.inner.optimisers import Optimisers
from dlx.training.models.stages import StageModel
from dlx.training.models.weights import array
from dlx.training.outer.step import outer_step
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Plan
from dlx.training.slot.segments import segment_steps

Arrays = dict[str, np.ndarray]
# What a rough training's products of matrices are taken in: a CPU without instructions for bfloat16 takes ten times as
# long for them.
ROUGH = torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32


def diloco(
    manifest: Manifest,
    replicas: int,
    dataset: Dataset,
    genesis: Mapping[str, Tensor],
    *,
    compressed: bool = True,
    rough: bool = False,
) -> Iterator[Point]:
    """The shared model after every round, as `simulation.diloco` gives it, of a run of one stage. Raises TrainingError,
    CodecError."""
    steps, outer = manifest.plan.inner_steps, manifest.outer
    total = manifest.rounds * steps
    trainer = _Replicas(manifest, replicas, dataset, rough)
    chosen = codec(manifest.codec.name) if compressed else Uncompressed(manifest.codec.name)
    exchange = _Exchange(manifest, chosen, replicas, genesis)
    versions: list[Arrays] = [{name: array(tensor).copy() for name, tensor in genesis.items()}]  # the newest
    ranks, plans = Ranks(manifest), [manifest.plan] * (outer.delay + 1)
    momentum, sent = None, 0
    for round in range(manifest.rounds):
        starts = [exchange.start(versions[0], replica) for replica in range(replicas)]
        trainer.load(starts)
        for step in range(round * steps, (round + 1) * steps):
            if (step - round * steps) % segment_steps(manifest) == 0:
                trainer.begin_segment()
            # As the nodes' lots lie when all are counted: one behind the other.
            lots = [(round * replicas + replica) * steps for replica in range(replicas)]
            trainer.step(step, total, [lot + step - round * steps for lot in lots])
        ends = trainer.weights()
        sent += exchange.size(plans[0])
        decoded = [exchange.exchange(replica, starts[replica], ends[replica], plans[0]) for replica in range(replicas)]
        plans = [*plans[1:], ranks.next(round, plans, exchange.kept)]
        newest = {name: values.copy() for name, values in versions[-1].items()}
        momentum = outer_step(newest, momentum, decoded, [1 / replicas] * replicas, outer)
        versions = [*versions, newest][-1 - outer.delay :]
        yield Point((round + 1) * steps, sent, _tensors(newest))


def all_reduce(
    manifest: Manifest,
    dataset: Dataset,
    genesis: Mapping[str, Tensor],
    every: int,
    *,
    rough: bool = False,
) -> Iterator[Point]:
    """The model after each `every` steps, as `simulation.all_reduce` gives it: the one replica's batch is that of all.
    Raises TrainingError."""
    trainer = _Replicas(manifest, 1, dataset, rough)
    size = 4 * sum(tensor.numel() for tensor in genesis.values())
    trainer.load([{name: array(tensor) for name, tensor in genesis.items()}])
    total = manifest.rounds * manifest.plan.inner_steps
    for step in range(total):
        trainer.step(step, total, [step])
        if (step + 1) % every == 0 or step + 1 == total:
            (weights,) = trainer.weights()
            shaped = {name: weights[name].reshape(tensor.shape) for name, tensor in genesis.items()}
            yield Point(step + 1, (step + 1) * size, _tensors(shaped))


def _tensors(arrays: Arrays) -> dict[str, Tensor]:
    return {name: torch.from_numpy(values) for name, values in arrays.items()}


class _Replicas:
    """The weights and optimiser states of all, and their steps."""

    def __init__(self, manifest: Manifest, replicas: int, dataset: Dataset, rough: bool) -> None:
        self._manifest, self._dataset, self._replicas, self._rough = manifest, dataset, replicas, rough
        self._model = _Stacked(manifest, 0)
        _stack(self._model, replicas, ROUGH if rough else torch.float32)
        self._parameters = dict(self._model.named_parameters())
        self._optimisers = Optimisers(self._parameters, manifest)
        if rough:
            torch.compiler.reset()  # or, of all that one process trains, only the first few are compiled
        self._losses = torch.compile(self._losses_of, dynamic=False) if rough else self._losses_of

    def load(self, starts: list[Arrays]) -> None:
        for name, parameter in self._parameters.items():
            for values, start in zip(parameter.detach(), starts, strict=True):
                values.copy_(torch.from_numpy(start[name]).view_as(values))

    def begin_segment(self) -> None:
        self._optimisers.begin_segment()

    def weights(self) -> list[Arrays]:
        """Copies, of each replica; norms as [1, 1, width]."""
        held = {name: one.detach().numpy() for name, one in self._parameters.items()}
        return [{name: one[replica].copy() for name, one in held.items()} for replica in range(self._replicas)]

    def step(self, index: int, total: int, batches: list[int]) -> None:
        """The run's inner step; each replica's batch is the so many-th of the run's order."""
        data, inner = self._manifest.data, self._manifest.inner
        positions = [batch * data.batch_size + row for batch in batches for row in range(data.batch_size)]
        ids = self._dataset.ids(data.seed, positions, data.sequence_length)
        batch = self._dataset.batch("train", ids, data.sequence_length)
        means = self._losses(batch[:, :-1], batch[:, 1:])
        parameters = list(self._parameters.values())
        gradients = torch.autograd.grad(means.sum(), parameters)
        norms = sum(one.flatten(1).square().sum(1) for one in gradients)
        assert isinstance(norms, Tensor)
        pairs = zip(norms.sqrt().tolist(), means.tolist(), strict=True)
        factors = torch.tensor([clipping(inner, index, norm, loss) for norm, loss in pairs])
        for parameter, gradient in zip(parameters, gradients, strict=True):
            # Laid out as its parameter, which AdamW's kernel takes for granted.
            parameter.grad = (gradient * factors.view(-1, *[1] * (gradient.dim() - 1))).contiguous()
        with _rough_muon() if self._rough else contextlib.nullcontext():
            self._optimisers.step(schedule.factor(inner, index, total))

    def _losses_of(self, ids: Tensor, wanted: Tensor) -> Tensor:
        """Of each replica, in nats a token."""
        losses = functional.cross_entropy(self._model(ids).flatten(0, 1), wanted.flatten(), reduction="none")
        return losses.view(self._replicas, -1).mean(1)


@contextlib.contextmanager
def _rough_muon() -> Iterator[None]:
    exact = muon.orthogonal
    with (
        patch.object(muon, "orthogonal", lambda matrices: exact(matrices.to(ROUGH)).float()),
        patch.dict(muon._TOGETHER, cpu=1 << 20),
    ):
        yield


class _Stacked(StageModel):
    """A whole model of which each parameter is that of all replicas, and each batch the replicas' batches in turn."""

    def _head(self, hidden: Tensor) -> Tensor:
        assert self.head is not None
        return self.head(hidden)


def _stack(model: nn.Module, replicas: int, products: torch.dtype) -> None:
    """Put layers of stacked weights in the place of those that have weights."""
    for name, part in model.named_children():
        if isinstance(part, nn.Linear):
            setattr(model, name, _Linear(replicas, part.out_features, part.in_features, products))
        elif isinstance(part, nn.Embedding):
            setattr(model, name, _Embedding(replicas, part.num_embeddings, part.embedding_dim))
        elif list(part.parameters(recurse=False)):
            setattr(model, name, _Norm(replicas, part))
        else:
            _stack(part, replicas, products)


class _Linear(nn.Module):
    def __init__(self, replicas: int, outputs: int, inputs: int, products: torch.dtype) -> None:
        super().__init__()
        self._products = products
        self.weight = nn.Parameter(torch.zeros(replicas, outputs, inputs))

    def forward(self, hidden: Tensor) -> Tensor:
        rows = hidden.reshape(len(self.weight), -1, hidden.size(-1)).to(self._products)
        return torch.bmm(rows, self.weight.to(self._products).mT).to(hidden.dtype).view(*hidden.shape[:-1], -1)


class _Embedding(nn.Module):
    def __init__(self, replicas: int, tokens: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(replicas, tokens, width))

    def forward(self, ids: Tensor) -> Tensor:
        replicas, tokens, _ = self.weight.shape
        first = torch.arange(replicas).repeat_interleave(len(ids) // replicas) * tokens
        return functional.embedding(ids + first[:, None], self.weight.flatten(0, 1))


class _Norm(nn.Module):
    """A root mean square norm of the model's own class, whose weights are [replicas, 1, 1, width]."""

    def __init__(self, replicas: int, norm: nn.Module) -> None:
        super().__init__()
        (own,) = norm.parameters()
        self.weight = nn.Parameter(torch.zeros(replicas, 1, 1, *own.shape))
        del norm._parameters["weight"]
        self._norm = [norm]  # not registered: its weights are these

    def forward(self, hidden: Tensor) -> Tensor:
        (norm,) = self._norm
        norm.__dict__["weight"] = self.weight
        return norm(hidden.unflatten(0, (len(self.weight), -1))).flatten(0, 1)


class _Exchange:
    """Each replica's residual and last payload. `kept`: what each replica's last payload keeps of its update, as its
    contribution would state it."""

    def __init__(self, manifest: Manifest, chosen: Codec, replicas: int, genesis: Mapping[str, Tensor]) -> None:
        self._outer, self._codec = manifest.outer, chosen
        self._shapes = {name: tuple(one.shape) for name, one in genesis.items()}
        self._parts = cache(lambda plan: chosen.parts(self._shapes, plan))
        self.size = cache(lambda plan: chosen.size(self._shapes, plan))  # bytes of a payload
        self._residual: list[Arrays] = [{} for _ in range(replicas)]
        self._last: list[tuple[np.ndarray, Plan] | None] = [None] * replicas
        self._decoded: list[Arrays] = [{} for _ in range(replicas)]
        self.kept = [UNIT] * replicas

    def start(self, version: Arrays, replica: int) -> Arrays:
        """Where a replica's round begins: with a delay its own last change is not in the version yet."""
        own, residual = self._decoded[replica] if self._outer.delay else {}, self._residual[replica]
        start = dict(version)
        for factor, less in ((self._outer.alpha, own), (self._outer.ahead, residual)):
            if factor:
                start |= {name: start[name] - np.float32(factor) * values for name, values in less.items()}
        return start

    def exchange(self, replica: int, start: Arrays, end: Arrays, plan: Plan) -> Arrays:
        """What the others get of a replica's round."""
        payload, last, residual = np.zeros(self.size(plan), np.uint8), self._last[replica], self._residual[replica]
        decoded, whole, left = {}, 0.0, 0.0
        for name, part in self._parts(plan).items():
            change = start[name] - end[name].reshape(start[name].shape)
            if name in residual:
                change += residual[name]
            before = None if last is None else (last[0][self._parts(last[1])[name]], last[1])
            self._codec.encode_part(name, change, plan, payload[part], before)
            decoded[name] = self._codec.decode_part(name, payload[part], self._shapes[name], plan)
            residual[name] = change - decoded[name]
            if factored(name, self._shapes[name], plan):
                whole, left = whole + _square(change), left + _square(residual[name])
        self._last[replica], self._decoded[replica] = (payload, plan), decoded
        self.kept[replica] = max(0, round(UNIT * (1 - left / whole))) if whole else UNIT
        return {name: values.copy() for name, values in decoded.items()}


def _square(values: np.ndarray) -> float:
    return float(np.square(values, dtype=np.float64).sum())
