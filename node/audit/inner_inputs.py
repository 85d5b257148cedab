"""What a check of a drawn contribution rests on: its statement and trace, those of its replica's other stages, and all
that the ledger says about the round, put together for the checking process.

The blobs come through `Get`, from wherever the caller has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dlx.ground.constants import NO_HASH
from dlx.ledger.typed import CONTRIBUTION_SIZE, PRIVATE_DATA, Contribution, TypedError
from dlx.ledger.view.run_view import RunView
from dlx.node.round.challenges.draw import Drawn
from dlx.node.round.rules.continuity import LOOKED_BACK
from dlx.node.round.rules.deals import Deals
from dlx.node.round.rules.plans import Terms, manifest_plan, plan_of, steps_before
from dlx.node.round.rules.round_rules import base_version
from dlx.node.trainer.checks import Work
from dlx.training.data.dealing import Intervals, cut
from dlx.training.data.shards import DataManifest, Shard, sample_order
from dlx.training.models.placement import Placement
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Plan as ManifestPlan
from dlx.training.recipe.recipe import step_bytes
from dlx.training.slot.segments import segment, segment_steps, segments_in
from dlx.training.slot.trace import Trace, TraceError, decode, neighbours_faults, size

Get = Callable[[bytes, int], Path]  # a blob's name and the bytes that it may have -> its file


class Absent(Exception):
    """Nobody gives a blob that the contribution's maker has to serve. `blobs`: their names; `came`: the seconds for
    which they came, and still did when they were left for other work."""

    def __init__(self, blobs: Sequence[bytes], came: float = 0.0) -> None:
        super().__init__(", ".join(one.hex() for one in blobs))
        self.blobs, self.came = tuple(blobs), came


class Lie(Exception):
    """What the contribution's maker signed is none of what it has to be; the message says how."""


class Unknown(Exception):
    """Nothing can be said of the contribution here, and its maker is not to blame; the message says why."""


class Inner:
    """The inner rounds of one run. `view` has the seals of the rounds asked for, and of those before that plan them."""

    def __init__(self, manifest: Manifest, view: RunView, deals: Deals) -> None:
        self.manifest, self.view, self.terms, self._deals = manifest, view, Terms.of(manifest), deals

    def work(self, drawn: Drawn, get: Get, blobs: Path, placement: Placement) -> Work:
        """Everything but the files that the check itself asks for. `get` raises Absent; so does this, and Unknown and
        Lie."""
        said = self._statement(drawn, drawn.stage, get)
        trace = self._trace(said, get)
        plan, terms = self._plan(drawn.stage, drawn.round), self.terms
        try:
            before = steps_before(terms, self.view, drawn.round)
        except KeyError:
            raise Unknown("the seals that say which inner steps these were are not at hand") from None
        return Work(
            manifest=self.view.config.manifest,
            blobs=str(blobs),
            stage=drawn.stage,
            segment=drawn.segment,
            statement=said.encode(),
            trace=trace,
            plan=plan,
            steps_before=before,
            total_steps=terms.total_steps,
            samples=self._samples(drawn, said),
            own_plans=self._own_plans(said, drawn.segment, get),
            next_trace=self._neighbour(drawn, drawn.stage + 1, get),
            placement=placement,
        )

    def shards(self, work: Work, data: DataManifest) -> list[Shard]:
        """The shards that the drawn segment's samples lie in: none where the stage read no data of the run's."""
        if not work.samples:
            return []
        terms, steps = self.manifest.data, Contribution.decode(work.statement).inner_steps
        first, length = segment(work.segment, 0, steps, segment_steps(self.manifest))
        order = sample_order(data, terms.seed, terms.sequence_length)
        places = cut(work.samples, first * terms.batch_size, length * terms.batch_size)
        return [data.train[index] for index in order.shards(places)]

    def disputed(self, drawn: Drawn, get: Get) -> bool:
        """Whether the traces of the replica's stages, as far as they are to be had, contradict each other."""
        traces: list[Trace | None] = []
        for stage in range(self.view.config.stages):
            try:
                said = self._statement(drawn, stage, get)
                traces.append(decode(self._trace(said, get), said.segments, said.inner_steps))
            except (StopIteration, Absent, Lie, TraceError):
                traces.append(None)
        return bool(neighbours_faults(traces))

    def base(self, drawn: Drawn) -> int:
        """The version that the round began with."""
        return base_version(self.terms, drawn.round)

    def most(self, stage: int) -> int:
        """Bytes of the largest file that a check of the stage takes."""
        weights = self.manifest.genesis[stage].size
        tensors = segment_steps(self.manifest) * step_bytes(self.manifest)
        return max(3 * weights + (1 << 20), tensors)

    def _statement(self, drawn: Drawn, stage: int, get: Get) -> Contribution:
        """All that the replica's contribution of a stage states. Raises Absent, Lie; StopIteration where the stage's
        seal does not count it."""
        sealed = self.view.sealed[stage, drawn.round]
        record = next(one for one in sealed.records if one.replica == drawn.replica)
        try:
            found = Contribution.decode(get(record.statement, CONTRIBUTION_SIZE).read_bytes())
        except TypedError as error:
            raise Lie(f"the statement is none: {error}") from None
        if (sealed.run, sealed.round, stage) != (found.run, found.round, found.stage):
            raise Lie("the statement is about another round")
        if found.record(record.multiplier) != record:
            raise Lie("the statement says something else than the seal's record of it")
        if found.segments != segments_in(found.inner_steps, segment_steps(self.manifest)):
            raise Lie(f"it states {found.inner_steps} steps in {found.segments} segments")
        return found

    def _samples(self, drawn: Drawn, said: Contribution) -> Intervals:
        if drawn.stage not in (0, len(self.manifest.stages) - 1) or said.flags & PRIVATE_DATA:
            return ()
        try:
            return self._deals.lot(self.view, drawn.round, drawn.replica)
        except KeyError:
            raise Unknown("the seals that deal its samples are not at hand") from None

    def _trace(self, said: Contribution, get: Get) -> bytes:
        return get(said.trace, size(said.segments, said.inner_steps)).read_bytes()

    def _neighbour(self, drawn: Drawn, stage: int, get: Get) -> bytes | None:
        """The trace of another stage's contribution to the replica's round, where it is to be had."""
        if stage >= self.view.config.stages:
            return None
        try:
            return self._trace(self._statement(drawn, stage, get), get)
        except (StopIteration, Absent, Lie):
            return None

    def _plan(self, stage: int, round: int) -> ManifestPlan:
        plan = plan_of(self.terms, self.view, stage, round)
        if plan is None:
            raise Unknown(f"the seals that plan round {round} are not at hand")
        return manifest_plan(plan)

    def _own_plans(self, said: Contribution, segment: int, get: Get) -> dict[bytes, ManifestPlan]:
        """The plans of the own payloads that a check of the segment takes, which the account's earlier statements place
        in their rounds. Raises Absent: without them its maker could hide what its residual was."""
        named = {said.start_payload, said.folded_payload, said.folded_payload2} - {NO_HASH}
        if segment == said.segments - 1 or self.terms.ahead:
            named |= {said.payload_before} - {NO_HASH}
        if self.terms.adaptive is None:
            return dict.fromkeys(named, manifest_plan(self.terms.plan))
        found: dict[bytes, ManifestPlan] = {}
        for _ in range(LOOKED_BACK):
            if named <= found.keys() or said.previous == NO_HASH:
                break
            try:
                said = Contribution.decode(get(said.previous, CONTRIBUTION_SIZE).read_bytes())
            except TypedError:
                break
            if said.payload in named:
                found[said.payload] = self._plan(said.stage, said.round)
        return found
