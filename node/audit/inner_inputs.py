"""What a check of a drawn segment rests on: its statement and trace, those of its replica's other stages, and all
that the ledger says about the round, put together for the checking process.

The blobs come through `Get`, from wherever the caller has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from dlx.ground.constants import NO_HASH
from dlx.ledger.typed import CONTRIBUTION_SIZE, PRIVATE_DATA, Contribution, TypedError
from dlx.ledger.view.run_view import RunView
from dlx.node.round.challenges.agreements import agreement_faults, answerable
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
from dlx.training.recipe.recipe import reads_data, step_bytes
from dlx.training.slot.segments import segment, segment_steps, segments_in
from dlx.training.slot.trace import TraceError, decode, size

Get = Callable[[bytes, int], Path]  # a blob's name and the bytes that it may have -> its file


class MissingInputs(Exception):
    """Nobody gives blobs that the contribution's maker has to serve. `blobs`: their names; `arriving_s`: the seconds
    for which they arrived, and still did when they were left for other work."""

    def __init__(self, blobs: Sequence[bytes], arriving_s: float = 0.0) -> None:
        super().__init__(", ".join(blob.hex() for blob in blobs))
        self.blobs, self.arriving_s = tuple(blobs), arriving_s


class FalseStatement(Exception):
    """What the contribution's maker signed is none of what it has to be; the message says how."""


class Undecidable(Exception):
    """Nothing can be said of the contribution here, and its maker is not to blame; the message says why."""


class InnerInputs:
    """Of one run. `view` has the seals of the rounds asked for, and of those before that plan them."""

    def __init__(self, manifest: Manifest, view: RunView, deals: Deals) -> None:
        self.manifest, self.view, self.terms, self._deals = manifest, view, Terms.of(manifest), deals

    def work(self, drawn: Drawn, get: Get, blobs: Path, placement: Placement) -> Work:
        """Everything but the files that the check itself asks for.

        Raises MissingInputs, as `get` does, FalseStatement and Undecidable.
        """
        statement = self._statement(drawn, drawn.stage, get)
        trace = self._trace(statement, get)
        self._require_agreed(drawn, statement, trace, get)
        plan, terms = self._plan(drawn.stage, drawn.round), self.terms
        try:
            before = steps_before(terms, self.view, drawn.round)
        except KeyError:
            raise Undecidable("the seals that say which inner steps these were are not at hand") from None
        return Work(
            manifest=self.view.config.manifest,
            blobs=str(blobs),
            stage=drawn.stage,
            segment=drawn.segment,
            statement=statement.encode(),
            trace=trace,
            plan=plan,
            steps_before=before,
            total_steps=terms.total_steps,
            samples=self._samples(drawn, statement),
            own_plans=self._own_plans(statement, drawn.segment, get),
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

    def base(self, drawn: Drawn) -> int:
        """The version that the round began with."""
        return base_version(self.terms, drawn.round)

    def largest_file(self, stage: int) -> int:
        """Bytes of the largest file that a check of the stage takes."""
        weights = self.manifest.genesis[stage].size
        tensors = segment_steps(self.manifest) * step_bytes(self.manifest)
        return max(3 * weights + (1 << 20), tensors)

    def _statement(self, drawn: Drawn, stage: int, get: Get) -> Contribution:
        """All that the replica's contribution of a stage states.

        Raises MissingInputs, FalseStatement; StopIteration where the stage's seal does not count it.
        """
        sealed = self.view.sealed[stage, drawn.round]
        record = next(record for record in sealed.records if record.replica == drawn.replica)
        try:
            found = Contribution.decode(get(record.statement, CONTRIBUTION_SIZE).read_bytes())
        except TypedError as error:
            raise FalseStatement(f"the statement is none: {error}") from None
        if (sealed.run, sealed.round, stage) != (found.run, found.round, found.stage):
            raise FalseStatement("the statement is about another round")
        if found.record(record.multiplier) != record:
            raise FalseStatement("the statement says something else than the seal's record of it")
        if found.segments != segments_in(found.inner_steps, segment_steps(self.manifest)):
            raise FalseStatement(f"it states {found.inner_steps} steps in {found.segments} segments")
        return found

    def _samples(self, drawn: Drawn, statement: Contribution) -> Intervals:
        if not reads_data(self.manifest, drawn.stage) or statement.flags & PRIVATE_DATA:
            return ()
        try:
            return self._deals.lot(self.view, drawn.round, drawn.replica)
        except KeyError:
            raise Undecidable("the seals that deal its samples are not at hand") from None

    def _trace(self, statement: Contribution, get: Get) -> bytes:
        return get(statement.trace, size(statement.segments, statement.inner_steps)).read_bytes()

    def _require_agreed(self, drawn: Drawn, statement: Contribution, data: bytes, get: Get) -> None:
        """Raises FalseStatement where the trace is not what its maker and its neighbours signed."""
        makers = dict[int, str]()
        for stage in range(self.view.config.stages):
            sealed = self.view.sealed[stage, drawn.round]
            for record, account in zip(sealed.records, sealed.accounts, strict=True):
                if record.replica == drawn.replica:
                    makers[stage] = account
        try:
            traces = {drawn.stage: decode(data, statement.segments, statement.inner_steps)}
        except TraceError as error:
            raise FalseStatement(str(error)) from None
        for stage in (drawn.stage - 1, drawn.stage + 1):
            with suppress(MissingInputs, FalseStatement, TraceError):
                if stage in makers:
                    its = self._statement(drawn, stage, get)
                    traces[stage] = decode(self._trace(its, get), its.segments, its.inner_steps)
        place = self.view.run, drawn.round, drawn.replica, drawn.stage
        bound = answerable(self.view, drawn.round, self.manifest.outer.delay, drawn.stage, makers)
        if faults := agreement_faults(self.view.domain, place, bound, traces):
            raise FalseStatement("; ".join(faults))

    def _plan(self, stage: int, round: int) -> ManifestPlan:
        plan = plan_of(self.terms, self.view, stage, round)
        if plan is None:
            raise Undecidable(f"the seals that plan round {round} are not at hand")
        return manifest_plan(plan)

    def _own_plans(self, statement: Contribution, segment: int, get: Get) -> dict[bytes, ManifestPlan]:
        """The plans of the own payloads that a check of the segment takes, which the account's earlier statements place
        in their rounds. Raises MissingInputs: without them its maker could hide what its residual was."""
        named = {statement.start_payload, statement.folded_payload, statement.folded_payload2} - {NO_HASH}
        if segment == statement.segments - 1 or self.terms.ahead:
            named |= {statement.payload_before} - {NO_HASH}
        if self.terms.adaptive is None:
            return dict.fromkeys(named, manifest_plan(self.terms.plan))
        found: dict[bytes, ManifestPlan] = {}
        for _ in range(LOOKED_BACK):
            if named <= found.keys() or statement.previous == NO_HASH:
                break
            try:
                statement = Contribution.decode(get(statement.previous, CONTRIBUTION_SIZE).read_bytes())
            except TypedError:
                break
            if statement.payload in named:
                found[statement.payload] = self._plan(statement.stage, statement.round)
        return found
