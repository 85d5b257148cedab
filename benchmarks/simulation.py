"""R replicas of a run in one process: the nodes' own slots and outer step, with their files, without a network.

Every replica is one pipeline of one stage, and every contribution is counted in its round.
"""

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
from msgspec.structs import replace
from torch import Tensor

from dlx.ground.constants import UNIT
from dlx.node.round.rules.pace import trial_steps
from dlx.training import codecs
from dlx.training.codecs import codec
from dlx.training.codecs.base import Codec, Decoder, count
from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import InnerLoop
from dlx.training.models import evaluate, weights
from dlx.training.outer import step as outer
from dlx.training.outer.adaptive import ends_window, next_rank
from dlx.training.outer.arithmetic import rounded
from dlx.training.outer.policy import multipliers
from dlx.training.outer.step import SealedPayload, apply_round, measure_round
from dlx.training.recipe.ladders import ladders
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Plan
from dlx.training.slot.rounds import RoundInputs, Trained
from dlx.training.slot.slot import Slot
from dlx.training.slot.undecided import Undecided


def _by_steps(steps: Sequence[int], multipliers: Sequence[int]) -> list[float]:
    total = sum(steps) * UNIT
    return [rounded(count * by / total) for count, by in zip(steps, multipliers, strict=True)]


def _fednova(steps: Sequence[int], multipliers: Sequence[int]) -> list[float]:
    return [rounded(by * max(steps) / (sum(steps) * UNIT)) for by in multipliers]


def _squares(steps: Sequence[int], multipliers: Sequence[int]) -> list[float]:
    total = sum(count * count for count in steps) * UNIT
    return [rounded(count * by * max(steps) / total) for count, by in zip(steps, multipliers, strict=True)]


# What a contribution may weigh in the sum: as much as it took steps (FedAvg, arXiv 1602.05629); that, the sum as long
# as the longest; or its mean step as much as it took steps, times the longest's (FedNova, arXiv 2007.07481).
PARTS: dict[str, Callable[[Sequence[int], Sequence[int]], list[float]]] = {
    "steps": _by_steps,
    "squares": _squares,
    "fednova": _fednova,
}


class Point(NamedTuple):
    """The shared model after some inner steps; bytes are what one replica has sent so far."""

    steps: int
    bytes: int
    version: Mapping[str, Tensor]


def diloco(
    manifest: Manifest,
    replicas: int,
    dataset: Dataset,
    genesis: Mapping[str, Tensor],
    *,
    compressed: bool = True,
    steps: Sequence[int] = (),
    stated: Sequence[int] = (),
    parts: str = "",
    base: Path | None = None,
    sealed: Callable[[Sequence[InnerLoop], Sequence[Path]], None] = lambda loops, payloads: None,
) -> Iterator[Point]:
    """The shared model after every round. Where the manifest's plan adapts, its rank does: there is no link here whose
    time the inner steps could follow. `steps`: how many of the plan's inner steps each replica has time for after the
    first round, in XX a name of PARTS, in place of
    the own rule. `base`: the file of an adapter's. `sealed` hears of each round the replicas' loops and
    payloads."""
    with tempfile.TemporaryDirectory(prefix="dlx-simulation-") as folder, contextlib.ExitStack() as patches:
        if not compressed:
            chosen = {manifest.codec.name: Uncompressed(manifest.codec.name)}
            patches.enter_context(patch.dict(codecs._CODECS, chosen))
        if parts:
            patches.enter_context(patch.object(outer, "parts", PARTS[parts]))
        run, plans = _Run(manifest, Path(folder), genesis), [manifest.plan] * (manifest.outer.delay + 1)  # t .. t+delay
        if base is not None:
            shutil.copy(base, run.blobs)
        slots = [
            _Member(
                run,
                (replica, replicas),
                dataset,
                steps[replica] if steps else None,
                stated[replica] if stated else None,
            )
            for replica in range(replicas)
            if not steps or steps[replica]
        ]
        ranks, sent = Ranks(manifest), 0
        for round in range(manifest.rounds):
            trained = [slot.round(round, plans[0]) for slot in slots]
            run.seal(trained, [slot.stated(round, plans[0]) for slot in slots], plans[0])
            sealed([slot.loop for slot in slots], [run.blobs / one.payload.hex() for one in trained])
            plans = [*plans[1:], ranks.next(round, plans, [one.kept for one in trained])]
            sent += trained[0].payload_size
            yield Point((round + 1) * manifest.plan.inner_steps, sent, run.newest())


def all_reduce(manifest: Manifest, dataset: Dataset, genesis: Mapping[str, Tensor], every: int) -> Iterator[Point]:
    """The model after each `every` steps whose gradients are averaged over all replicas, in float32.

    The manifest's one replica does the work of all: its micro-batches are the replicas' batches.
    """
    loop = InnerLoop(manifest, 0, dataset)
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


class Ranks:
    """The rank of later rounds, as a node would propose it."""

    def __init__(self, manifest: Manifest) -> None:
        self._adaptive = manifest.adaptive
        self._rungs = ladders(manifest.codec.name, manifest.plan, manifest.adaptive).ranks

    def next(self, round: int, plans: list[Plan], kept: list[int]) -> Plan:
        """After `round`, which had the first of `plans`, comes another one behind the last; `kept`: see Trained."""
        if self._adaptive is None or not ends_window(self._adaptive, round):
            return plans[-1]
        measured = kept if plans[0].rank == plans[-1].rank else []
        return replace(plans[-1], rank=next_rank(self._rungs, plans[-1].rank, measured, self._adaptive.energy))


class _Run:
    """What all replicas share: the versions, and the payloads as long as a round needs them."""

    def __init__(self, manifest: Manifest, folder: Path, genesis: Mapping[str, Tensor]) -> None:
        self.manifest, self.folder, self.blobs = manifest, folder, folder / "blobs"
        self.blobs.mkdir()
        self._shapes = weights.shapes_of(genesis)
        self.versions = [weights.write_blob(genesis, self.blobs)]  # V[0] .. V[t]
        self._momentum: Path | None = None
        self._rounds: list[list[Path]] = []  # blobs of each: who needs more than the newest few?

    def seal(self, trained: list[Trained], steps: list[int], plan: Plan) -> None:
        """Make the next version of all that was trained, by the manifest's policy."""
        paths = [self.blobs / one.payload.hex() for one in trained]
        sealed = [SealedPayload(path, count, UNIT, plan) for path, count in zip(paths, steps, strict=True)]
        if self.manifest.outer.policy != "mean":
            found = multipliers(measure_round(self.manifest, 0, sealed))
            sealed = [dataclasses.replace(one, multiplier=by) for one, by in zip(sealed, found, strict=True)]
        newest = self.blobs / self.versions[-1].hex()
        made = apply_round(self.manifest, 0, newest, self._momentum, sealed, self.blobs)
        self.versions.append(made.weights)
        traces = [self.blobs / one.trace.hex() for one in trained]
        old = [newest, *([] if self._momentum is None else [self._momentum])]
        self._rounds.append([*paths, *traces, *old])
        self._momentum = self.blobs / made.momentum.hex() if any(made.momentum) else None
        needed = {path for blobs in self._rounds[-2:] for path in blobs}
        for path in {path for blobs in self._rounds[:-2] for path in blobs} - needed:
            path.unlink()
        del self._rounds[:-2]

    def newest(self) -> Mapping[str, Tensor]:
        return weights.tensors(weights.Stored(self.blobs / self.versions[-1].hex(), self._shapes))


class _Member:
    """One replica."""

    def __init__(
        self, run: _Run, place: tuple[int, int], dataset: Dataset, steps: int | None, stated: int | None
    ) -> None:
        self._run, self._place, self._steps, self._stated = run, place, steps, stated
        folder = run.folder / f"slot-{place[0]}"
        self.loop = InnerLoop(run.manifest, 0, dataset, blobs=run.blobs)
        self._slot = Slot(run.manifest, self.loop, 0, folder, run.blobs)
        self._undecided = Undecided(folder)

    def steps(self, t: int, plan: Plan) -> int:
        """Of the plan's inner steps, those that it takes in round t."""
        return self._within(self._steps, t, plan)

    def stated(self, t: int, plan: Plan) -> int:
        """How many it says it took."""
        return self._within(self._steps if self._stated is None else self._stated, t, plan)

    def _within(self, steps: int | None, t: int, plan: Plan) -> int:
        if steps is None:
            return plan.inner_steps
        is_trial = t <= self._run.manifest.outer.delay
        return min(trial_steps(plan.inner_steps), steps) if is_trial else steps

    def round(self, t: int, plan: Plan) -> Trained:
        manifest, base = self._run.manifest, max(0, t - self._run.manifest.outer.delay)
        (replica, replicas), lot = self._place, plan.inner_steps * manifest.data.batch_size
        first = (t * replicas + replica) * lot  # one lot behind the other, as all are counted
        steps = self.steps(t, plan)
        need = steps * manifest.data.batch_size
        inputs = RoundInputs(
            round=t,
            plan=replace(plan, inner_steps=steps),
            steps_before=t * manifest.plan.inner_steps,
            total_steps=manifest.rounds * manifest.plan.inner_steps,
            base_version=base,
            base_weights=self._run.versions[base],
            samples=((first, first + need),),
        )
        trained = self._slot.train(inputs, None, None)
        self._undecided.decide(t, (), self._run.blobs)  # nobody audits
        return trained


class Uncompressed(Codec):
    """Float32 as it is, in the place of the manifest's codec and under its plan."""

    def __init__(self, place: str) -> None:
        self.info = codec(place).info

    def _size(self, name: str, shape: tuple[int, ...], plan: Plan) -> int:
        return 4 * count(shape)

    def _encode(
        self, name: str, tensor: np.ndarray, plan: Plan, out: np.ndarray, previous: tuple[np.ndarray, Plan] | None
    ) -> None:
        out[...] = tensor.reshape(-1).view(np.uint8)

    def decoder(self, name: str, data: np.ndarray, shape: tuple[int, ...], plan: Plan) -> Decoder:
        return _Float32(data)


class _Float32(Decoder):
    block = 1 << 16

    def __init__(self, data: np.ndarray) -> None:
        self._values = np.frombuffer(data.tobytes(), np.float32)

    def into(self, out: np.ndarray, start: int) -> None:
        out[...] = self._values[start : start + len(out)]
