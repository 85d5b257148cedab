"""What each lie does to the shared model: replicas in one process, some of which lie, under each policy.

The nodes' own engine (inner steps, codec, policy, outer step), as in `benchmarks.simulation`, without network or
ledger: nobody is found out here, so this is what the policy alone prevents.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path

import torch
from msgspec.structs import replace
from torch import Tensor

from benchmarks import simulation
from benchmarks.trainings import Job, Method, Setting, manifest_of
from dlx.ground.constants import UNIT
from dlx.node.round.rules.pace import trial_steps
from dlx.training.codecs import CodecError, codec
from dlx.training.data.shards import Dataset
from dlx.training.inner import loop, schedule
from dlx.training.inner.loop import InnerLoop, TrainingError
from dlx.training.models.stages import initialise
from dlx.training.outer.inner_products import Plain, gram
from dlx.training.outer.policy import measure, multipliers
from dlx.training.outer.reach import reach_of_a_step
from dlx.training.outer.step import outer_step, parts
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import InnerOptimiser
from tests.attacks.acts import NeverLied, distance
from tests.attacks.lies import Lie, Tensors, last_segment, lying_passes

POLICIES = ("mean", "clip", "clip+cosine")
HELDOUT_SAMPLES = 128
PLANS = {"int4": {"level": 4}, "topk": {"level": 2, "rank": 128}, "lowrank": {"level": 4, "rank": 8}}


@dataclass(frozen=True)
class Company:
    """Among whom liars lie, and in which run."""

    replicas: int = 4
    liars: int = 0  # 0: as many as the lie has
    until: int = 0  # rounds after which the liars are found out, and gone; 0: nobody finds them out
    delay: int = 0
    codec: str = "int4"
    optimiser: InnerOptimiser = "muon"

    def lies(self, lie: Lie) -> list[Lie]:
        """Of each replica."""
        slow = Lie(name="honest", about="", precision=lie.precision, beside=lie.beside)
        quick = changed(slow, beside=0)
        honest = self.replicas - (self.liars or lie.liars)
        others = [quick if replica < lie.quick else slow for replica in range(honest)]
        liar = lie if lie.is_honest else changed(lie, ends=self.until)
        return [*others, *[liar] * (self.replicas - honest)]

    def method(self, policy: str, steps: int) -> Method:
        outer = {"policy": policy} | ({"lr": 0.8, "delay": 1, "alpha": 0.8} if self.delay else {})
        plan = PLANS[self.codec] | {"inner_steps": steps}
        return Method("attack", inner={"optimiser": self.optimiser}, plan=plan, outer=outer, codec=self.codec)


def heldout(
    lie: Lie, policy: str, setting: Setting, rounds: int, steps: int, out: Path, company: Company, seed: int = 0
) -> float:
    """The held-out loss after so many rounds, in nats per token; infinite where training broke down."""
    manifest = manifest_of(Job(company.method(policy, steps), setting, 1e-2, seed, rounds * steps), out)
    dataset = Dataset.open(out / "blobs" / manifest.data.manifest.sha256, out / "blobs")
    try:
        *_, last = rounds_of(manifest, dataset, company.lies(lie), rounds)
        loss = simulation.loss(manifest, last.version, dataset, HELDOUT_SAMPLES)
    except (TrainingError, CodecError):
        return math.inf
    return loss if math.isfinite(loss) else math.inf


@dataclass(frozen=True)
class Round:
    """What became of one: the steps that each states, the inner products of the payloads, and the version after it."""

    steps: list[int]
    products: list[list[float]]
    version: Tensors


def rounds_of(manifest: Manifest, dataset: Dataset, lies: Sequence[Lie], rounds: int) -> Iterator[Round]:
    """Train so many, a replica for each of `lies`. Raises TrainingError, CodecError."""
    members = [Member(manifest, replica, dataset, one, len(lies)) for replica, one in enumerate(lies)]
    version, total = initialise(manifest, 0), rounds * manifest.plan.inner_steps
    bases = [version] * (1 + manifest.outer.delay)  # the versions that the rounds to come start from
    for round in range(rounds):
        payloads: list[Tensors] = []
        members = [one for one in members if one.stays(round)]
        for member in members:  # liars last: they see what the others sent
            payloads.append(member.round(bases[0], round, total, payloads))
        stated = [member.stated(round) for member in members]
        arrays = [{name: tensor.numpy() for name, tensor in one.items()} for one in payloads]
        shapes = {name: tensor.shape for name, tensor in version.items()}
        products = gram([Plain(one) for one in arrays], shapes).tolist()
        weights = (UNIT,) * len(members)
        if manifest.outer.policy != "mean":
            weights = multipliers(measure(manifest.outer.policy, stated, products, reach_of_a_step(manifest, 0)))
        copies = ({name: values.copy() for name, values in one.items()} for one in arrays)  # the step uses them up
        version = _copied(version)
        moved = {name: tensor.numpy() for name, tensor in version.items()}
        outer_step(moved, None, copies, parts(stated, weights), manifest.outer)
        bases = [*bases[1:], version]
        yield Round(stated, products, version)


def proven(lie: Lie, setting: Setting, steps: int, out: Path) -> None:
    """Raises NeverLied where what the liar sends in its first two rounds is what it would send without its lie."""
    if lie.is_honest or (lie.update is lie.end is None and (lie.node or lie.loss != 1.0)):
        return  # what it sends is honest work
    company = Company()
    manifest = manifest_of(Job(company.method("mean", steps), setting, 1e-2, 0, 2 * steps), out)
    dataset = Dataset.open(out / "blobs" / manifest.data.manifest.sha256, out / "blobs")
    honest, last = company.lies(lie)[0], company.replicas - 1
    others = [Member(manifest, replica, dataset, honest, company.replicas) for replica in range(last)]
    liar, twin = (Member(manifest, last, dataset, one, company.replicas) for one in (lie, honest))
    version, found = initialise(manifest, 0), list[float]()
    for round in range(2):
        payloads = [one.round(version, round, 2 * steps, ()) for one in others]
        sent, true = (one.round(version, round, 2 * steps, payloads) for one in (liar, twin))
        found.append(distance(sent, true))
    if max(found) <= lie.differs:
        raise NeverLied(f"{lie.name}: what it sends is {max(found):.3g} from its honest work, not {lie.differs:g}")


class Member:
    """One replica of one stage, of so many, which may lie."""

    _residual: dict[str, Tensor]

    def __init__(self, manifest: Manifest, replica: int, dataset: Dataset, lie: Lie, replicas: int) -> None:
        manifest = replace(manifest, precision="bfloat16" if lie.bfloat16 else lie.precision)
        self._manifest, self._replica, self._replicas, self._lie = manifest, replica, replicas, lie
        self._loop = InnerLoop(manifest, 0, dataset)
        self._codec, self._plan = codec(manifest.codec.name), manifest.plan
        self._begin_anew()
        self._before: Tensors | None = None

    def stays(self, round: int) -> bool:
        """Whether it still takes part in a round."""
        return not self._lie.ends or round < self._lie.ends

    def most(self, round: int) -> int:
        """Inner steps that it may state: its first rounds are a trial."""
        steps = self._plan.inner_steps
        return trial_steps(steps) if round <= self._manifest.outer.delay else steps

    def taken(self, round: int) -> int:
        """Inner steps that it takes."""
        return min(self._lie.beside or self._plan.inner_steps, self.most(round))

    def stated(self, round: int) -> int:
        """Inner steps that it says it took."""
        return self.most(round) if self._lie.overstates else self.taken(round)

    def round(self, base: Tensors, round: int, total_steps: int, others: Sequence[Tensors]) -> Tensors:
        """The decoded payload of a round."""
        lie, start, outer = self._lie, _copied(base), self._manifest.outer
        if outer.delay and self._before is not None:
            for name, tensor in start.items():
                tensor -= outer.alpha * self._before[name]
        if lie.resets(round):
            self._begin_anew()
        self._loop.load_weights(start)
        begun = start  # of what the lie calls its end
        lot = round * self._replicas + self._replica + lie.lots(round, self._replicas)
        for done in range(self.taken(round)):
            if lie.last_segment and done == last_segment(self._manifest):
                begun = _copied(self._loop.weights())
            if not lie.skips(done):
                frozen = _copied({name: one for name, one in self._loop.weights().items() if lie.frozen(name)})
                with _lying(lie):
                    index = round * self._plan.inner_steps + done
                    samples = self._loop.positions(lot * self._plan.inner_steps + done)
                    self._loop.step(index, total_steps, samples, None, None)
                for name, tensor in frozen.items():
                    self._loop.weights()[name].copy_(tensor)
        end = self._loop.weights() if lie.end is None else lie.end(begun, self._loop.weights(), round)
        kept = self._residual
        update: Mapping[str, Tensor] = {name: start[name] - end[name] + kept[name] for name in start}
        if lie.update is not None:
            update = {name: tensor.clone() for name, tensor in lie.update(update, others, self._before).items()}
        decoded = self._codec.decode(self._codec.encode(dict(update), self._plan, None), self._loop.shapes, self._plan)
        if lie.update is None:  # else what is left of it would be lied about again, and grow
            self._residual = {name: tensor - decoded[name] for name, tensor in update.items()}
        copied = others[0] if lie.copies == "mate" else self._before if lie.copies == "own" else None
        self._before = decoded
        return {name: tensor.clone() for name, tensor in (copied or decoded).items()}

    def _begin_anew(self) -> None:
        self._residual = {name: torch.zeros(shape) for name, shape in self._loop.shapes.items()}
        self._loop.load_optimiser_state({})


def _copied(tensors: Tensors) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


@contextmanager
def _lying(lie: Lie) -> Iterator[None]:
    """The inner learning rate and the passes are the lie's."""
    factor, run_step = schedule.factor, loop.run_step
    schedule.factor = lambda *known: factor(*known) * lie.rate
    loop.run_step = lying_passes(lie, run_step)  # type: ignore[assignment]
    try:
        yield
    finally:
        schedule.factor, loop.run_step = factor, run_step
