"""R replicas of a run in one process: the nodes' own engine (inner steps, codec, outer step) without a network.

Every replica is one pipeline of one stage, and every contribution is counted in its round.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

import torch
from msgspec.structs import replace
from torch import Tensor

from dlx.training.codecs import Codec, codec
from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import InnerLoop
from dlx.training.models import evaluate
from dlx.training.outer.adaptive import ends_window, mean_energy, next_rank, watched_ranks
from dlx.training.outer.spectrum import kept_energy
from dlx.training.outer.step import Arrays, outer_step, pseudo_gradient, start_weights
from dlx.training.recipe.ladders import ladders
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Plan

Tensors = dict[str, Tensor]


class Point(NamedTuple):
    """The shared model after some inner steps; bytes are what one replica has sent so far."""

    steps: int
    bytes: int
    version: Mapping[str, Tensor]


def diloco(
    manifest: Manifest, replicas: int, dataset: Dataset, genesis: Mapping[str, Tensor], *, compressed: bool = True
) -> Iterator[Point]:
    """The shared model after every round. Where the manifest's plan adapts, its rank does: there is no link here whose
    time the inner steps could follow."""
    outer, rounds, inner_steps = manifest.outer, manifest.rounds, manifest.plan.inner_steps
    members = [_Member(manifest, replica, dataset, compressed) for replica in range(replicas)]
    version = {name: tensor.clone() for name, tensor in genesis.items()}
    bases = [{name: tensor.clone() for name, tensor in genesis.items()}]  # V[max(0, t - delay)] .. V[t]
    plans = [manifest.plan] * (outer.delay + 1)  # those of rounds t .. t + delay
    ranks = _Ranks(manifest)
    momentum: Arrays | None = None
    sent = 0
    for round in range(rounds):
        size, payloads = 0, []
        for member in members:
            payload, size = member.round(bases[0], round, rounds * inner_steps, plans[0])
            payloads.append(payload)
        watched = partial(ranks.watch, plans[-1])
        gradients = map(_arrays, payloads)
        momentum = outer_step(_arrays(version), momentum, gradients, [1 / replicas] * replicas, outer, watched)
        plans = [*plans[1:], ranks.next(round, plans[-1])]
        bases = [*bases, {name: tensor.clone() for name, tensor in version.items()}][-1 - outer.delay :]
        sent += size
        yield Point((round + 1) * inner_steps, sent, version)


def all_reduce(manifest: Manifest, dataset: Dataset, genesis: Mapping[str, Tensor], every: int) -> Iterator[Point]:
    """The model after each `every` steps whose gradients are averaged over all replicas, in float32.

    The manifest's one replica does the work of all: its micro-batches are the replicas' batches.
    """
    loop = InnerLoop(manifest, 0, 0, dataset)
    loop.load_weights(genesis)
    size = 4 * sum(tensor.numel() for tensor in genesis.values())
    total = manifest.rounds * manifest.plan.inner_steps
    for step in range(total):
        loop.step(step, total, loop.positions(step), None, None)
        if (step + 1) % every == 0 or step + 1 == total:
            yield Point(step + 1, (step + 1) * size, loop.weights())


def loss(manifest: Manifest, version: Mapping[str, Tensor], dataset: Dataset, samples: int) -> float:
    """Held-out loss in nats per token."""
    return evaluate.heldout_loss_of_weights(manifest, [version], dataset, samples)


class _Member:
    """One replica: what a slot keeps between rounds."""

    def __init__(self, manifest: Manifest, replica: int, dataset: Dataset, compressed: bool) -> None:
        self._loop = InnerLoop(manifest, 0, replica, dataset)
        self._codec: Codec | None = codec(manifest.codec.name) if compressed else None
        self._outer = manifest.outer
        self._residual = {name: torch.zeros(shape) for name, shape in self._loop.shapes.items()}
        self._own: Tensors | None = None  # decoded, where the next start takes it up
        self._previous: tuple[bytes, Plan] | None = None

    def round(self, base: Mapping[str, Tensor], round: int, total_steps: int, plan: Plan) -> tuple[Tensors, int]:
        """The decoded payload of a round, and its bytes."""
        start = start_weights(base, self._own, self._outer.alpha)
        self._loop.load_weights(start)
        first = round * plan.inner_steps
        for step in range(first, first + plan.inner_steps):
            self._loop.step(step, total_steps, self._loop.positions(step), None, None)
        decay = 1.0 if self._codec is None else self._codec.info.decay
        update = pseudo_gradient(start, self._loop.weights(), self._residual, decay, [])
        if self._codec is None:
            decoded, size = update, 4 * sum(tensor.numel() for tensor in update.values())
        else:
            payload = self._codec.encode(update, plan, self._previous)
            decoded, size = self._codec.decode(payload, self._loop.shapes, plan), len(payload)
            self._residual = {name: tensor.sub_(decoded[name]) for name, tensor in update.items()}
            self._previous = payload, plan
        if self._outer.delay and self._outer.alpha:
            self._own = {name: tensor.clone() for name, tensor in decoded.items()}  # the outer step uses up its input
        return decoded, size


class _Ranks:
    """The rank of later rounds, as a node would propose it."""

    def __init__(self, manifest: Manifest) -> None:
        self._adaptive = manifest.adaptive
        self._rungs = ladders(manifest.codec.name, manifest.plan, manifest.adaptive).ranks
        self._energy: list[Mapping[int, float]] = []

    def watch(self, plan: Plan, update: Arrays) -> None:
        self._energy.append(kept_energy(update, watched_ranks(self._rungs, plan.rank)))

    def next(self, round: int, plan: Plan) -> Plan:
        if self._adaptive is None or not ends_window(self._adaptive, round):
            return plan
        energy = mean_energy(self._energy)
        self._energy = []
        return replace(plan, rank=next_rank(self._rungs, plan.rank, energy, self._adaptive.energy))


def _arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    """The same memory."""
    return {name: tensor.numpy() for name, tensor in tensors.items()}
