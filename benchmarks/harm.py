"""What each lie does to the shared model: four replicas in one process, some of which lie, under each policy.

The nodes' own engine (inner steps, codec, policy, outer step), as in `benchmarks.simulation`, without network or
ledger: nobody is found out here, so this is what the policy alone prevents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from msgspec.structs import replace
from torch import Tensor

from benchmarks import simulation
from benchmarks.trainings import Job, Method, Setting, manifest_of
from dlx.ground.constants import UNIT
from dlx.training.codecs import CodecError, codec
from dlx.training.data.shards import Dataset
from dlx.training.inner import schedule
from dlx.training.inner.loop import InnerLoop, TrainingError
from dlx.training.models.stages import initialise
from dlx.training.outer.inner_products import Plain, gram
from dlx.training.outer.policy import measure, multipliers
from dlx.training.outer.step import outer_step, parts
from dlx.training.recipe.manifest import Manifest
from tests.attacks.lies import Lie, Tensors

REPLICAS = 4
POLICIES = ("mean", "clip", "clip+cosine")
HELDOUT_SAMPLES = 128


def heldout(lie: Lie, policy: str, setting: Setting, rounds: int, steps: int, out: Path) -> float:
    """The held-out loss after so many rounds, in nats per token; infinite where training broke down."""
    method = Method("attack", inner={"optimiser": "muon"}, plan={"inner_steps": steps}, outer={"policy": policy})
    manifest = manifest_of(Job(method, setting, 1e-2, 0, rounds * steps), out)
    dataset = Dataset.open(out / "blobs" / manifest.data.manifest.sha256, out / "blobs")
    honest = Lie(name="honest", about="")
    lies = [lie if replica >= REPLICAS - lie.liars else honest for replica in range(REPLICAS)]
    members = [Member(manifest, replica, dataset, one) for replica, one in enumerate(lies)]
    version = initialise(manifest, 0)
    try:
        for round in range(rounds):
            payloads: list[Tensors] = []
            for member in members:  # liars last: they see what the others sent
                payloads.append(member.round(version, round, rounds * steps, payloads))
            arrays = [{name: tensor.numpy() for name, tensor in one.items()} for one in payloads]
            weights = [UNIT] * REPLICAS
            if policy != "mean":
                products = gram(
                    [Plain(one) for one in arrays], {name: tensor.shape for name, tensor in version.items()}
                )
                weights = list(multipliers(measure(policy, [steps] * REPLICAS, products.tolist())))
            weighed = parts([steps] * REPLICAS, weights)
            copies = ({name: values.copy() for name, values in one.items()} for one in arrays)  # the step uses them up
            outer_step(
                {name: tensor.numpy() for name, tensor in version.items()}, None, copies, weighed, manifest.outer
            )
        loss = simulation.loss(manifest, version, dataset, HELDOUT_SAMPLES)
    except (TrainingError, CodecError):
        return math.inf
    return loss if math.isfinite(loss) else math.inf


class Member:
    """One replica of one stage, which may lie."""

    def __init__(self, manifest: Manifest, replica: int, dataset: Dataset, lie: Lie) -> None:
        if lie.bfloat16:
            manifest = replace(manifest, precision="bfloat16")
        self._manifest, self._replica, self._lie = manifest, replica, lie
        self._loop = InnerLoop(manifest, 0, dataset)
        self._codec, self._plan = codec(manifest.codec.name), manifest.plan
        self._residual = {name: torch.zeros(shape) for name, shape in self._loop.shapes.items()}
        self._before: Tensors | None = None

    def round(self, base: Tensors, round: int, total_steps: int, others: Sequence[Tensors]) -> Tensors:
        """The decoded payload of a round."""
        lie, start = self._lie, {name: tensor.clone() for name, tensor in base.items()}
        self._loop.load_weights(start)
        lot = round * REPLICAS + self._replica + lie.lots(round, REPLICAS)
        for done in range(self._plan.inner_steps):
            if not lie.skips(done):
                with _rate(lie.rate):
                    index = round * self._plan.inner_steps + done
                    samples = self._loop.positions(lot * self._plan.inner_steps + done)
                    self._loop.step(index, total_steps, samples, None, None)
        end = self._loop.weights() if lie.end is None else lie.end(start, self._loop.weights(), round)
        kept = self._residual
        update: Mapping[str, Tensor] = {name: start[name] - end[name] + kept[name] for name in start}
        if lie.update is not None:
            update = {name: tensor.clone() for name, tensor in lie.update(update, others, self._before).items()}
        decoded = self._codec.decode(self._codec.encode(dict(update), self._plan, None), self._loop.shapes, self._plan)
        self._residual = {name: tensor - decoded[name] for name, tensor in update.items()}
        copied = others[0] if lie.copies == "mate" else self._before if lie.copies == "own" else None
        self._before = decoded
        return {name: tensor.clone() for name, tensor in (copied or decoded).items()}


class _rate:
    """The inner learning rate is that many times the manifest's."""

    def __init__(self, factor: float) -> None:
        self._factor, self._honest = factor, schedule.factor

    def __enter__(self) -> None:
        honest, factor = self._honest, self._factor
        schedule.factor = lambda *known: honest(*known) * factor

    def __exit__(self, *_: object) -> None:
        schedule.factor = self._honest
