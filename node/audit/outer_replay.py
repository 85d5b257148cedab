"""The outer replay: a stage carried from version to version through its sealed payloads, bit for bit.

Both who audits a history and who rebuilds a version that nobody keeps any more go through `Replay`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dlx.ground.blobs import BlobError
from dlx.ground.constants import NO_HASH
from dlx.ground.limits import cores
from dlx.ledger.events import Sealed
from dlx.ledger.typed import CONTRIBUTION_SIZE, Contribution, Plan, Record, TypedError
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.sources.blobs import BlobMissing, Blobs
from dlx.node.home.program import line
from dlx.node.round.rules.plans import Terms, manifest_plan, plan_of
from dlx.training import codecs
from dlx.training.models import weights
from dlx.training.models.shapes import stage_shapes
from dlx.training.outer.average import fold, members
from dlx.training.outer.inner_products import InnerProducts
from dlx.training.outer.policy import Measured
from dlx.training.outer.reach import reach_of_a_step
from dlx.training.outer.step import OuterError, SealedPayload, Version, apply_round, measure_round, start_hash
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Plan as ManifestPlan
from dlx.training.slot.trace import size as trace_size

_THREADS = min(4, cores())  # of the arithmetic, beside those that hash and write


class PayloadError(Exception):
    """A payload that a seal counts and that cannot be used: nobody can tell which it is, it is too long, or does not
    decode."""

    def __init__(self, record: Record, reason: str) -> None:
        super().__init__(f"payload of replica {record.replica}, statement {record.statement.hex()}: {reason}")


class StatementError(Exception):
    """A blob that a record names as its statement, and that is none of it."""


@dataclass(frozen=True)
class State:
    """A version of one stage: the paths of its weights and (None where there is none) its outer momentum."""

    stage: int
    version: int
    weights: Path
    momentum: Path | None

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.weights,) if self.momentum is None else (self.weights, self.momentum)


class Replay:
    """Versions and rounds of one run. `view` holds the seals; `blobs` gives and keeps the working copies."""

    def __init__(self, manifest: Manifest, view: RunView, blobs: Blobs) -> None:
        self.manifest = manifest
        self.view = view
        self._blobs = blobs
        self.terms = Terms.of(manifest)
        self._statements: dict[bytes, Contribution] = {}  # of rounds whose payloads are among the working copies
        self._codec = codecs.codec(manifest.codec.name)
        self._shapes = [stage_shapes(manifest, stage) for stage in range(len(manifest.stages))]
        self._products = [InnerProducts(self._codec, shapes, _THREADS) for shapes in self._shapes]

    def plan(self, stage: int, round: int) -> Plan:
        """The plan that binds a round whose seal, or the one before it, every stage has."""
        plan = plan_of(self.terms, self.view, stage, round)
        if plan is None:
            raise KeyError((stage, round))
        return plan

    def version(self, stage: int, version: int) -> State:
        """A stored version, by its sealed hashes. Raises BlobMissing (also where only its momentum is)."""
        limit, path = weights.file_size(self._shapes[stage]), self._weights(stage, version)
        momentum = self.view.momentum(stage, version)
        return State(stage, version, path, None if momentum == NO_HASH else self._blobs.get(momentum, limit))

    def check_version(self, state: State) -> None:
        """Raises WeightsError unless the weights are the canonical file of the stage's tensors."""
        weights.weights_hash(weights.Stored(state.weights, self._shapes[state.stage]))

    def statement(self, sealed: Sealed, record: Record) -> Contribution:
        """All that a counted contribution states. Raises BlobMissing or StatementError."""
        found = self.statement_named(record.statement)
        place, stated = (sealed.run, sealed.round, sealed.stage), (found.run, found.round, found.stage)
        if place != stated or found.record(record.multiplier) != record:
            raise StatementError("it says something else than the seal's record of it")
        self._statements[record.statement] = found
        return found

    def statement_named(self, name: bytes) -> Contribution:
        """The statement of this name, whoever's it is. Raises BlobMissing or StatementError."""
        if (kept := self._statements.get(name)) is not None:
            return kept
        data = self._blobs.get(name, CONTRIBUTION_SIZE).read_bytes()
        self._blobs.drop(name)
        try:
            return Contribution.decode(data)
        except TypedError as error:
            raise StatementError(f"it is no statement: {error}") from error

    def trace(self, statement: Contribution) -> bytes:
        """The bytes of a contribution's trace, at most as many as its statement makes. Raises BlobMissing."""
        data = self._blobs.get(statement.trace, trace_size(statement.segments, statement.inner_steps)).read_bytes()
        self._blobs.drop(statement.trace)
        return data

    def payload(self, sealed: Sealed, record: Record) -> Path:
        """The checked blob of a counted payload. Raises BlobMissing or PayloadError."""
        try:
            return self._payload(sealed.stage, sealed.round, self.statement(sealed, record).payload)
        except StatementError as error:
            raise PayloadError(record, str(error)) from error
        except codecs.CodecError as error:  # a quorum sealed a plan that the codec does not have
            raise PayloadError(record, str(error)) from error

    def start(self, base: State, own: bytes) -> bytes:
        """The hash of the start of round `base.version` + 1 that has the payload `own` of the round before it.

        Raises BlobMissing; CodecError, BlobError for what is no such payload.
        """
        stage, round = base.stage, base.version
        payload = self._payload(stage, round, own)
        try:
            return start_hash(self.manifest, stage, base.weights, payload, manifest_plan(self.plan(stage, round)))
        finally:
            if own not in {one.payload for one in self._statements.values()}:
                self._blobs.drop(own)  # nobody comes to it any more

    def check_payload(self, sealed: Sealed, record: Record, payload: Path) -> None:
        """Raises PayloadError unless the payload decodes."""
        try:
            self._products[sealed.stage].norms([(payload, self._plan_of(sealed))])
        except (codecs.CodecError, BlobError) as error:
            raise PayloadError(record, str(error)) from error

    def step(self, state: State) -> Version:
        """What the payloads sealed after `state` make of it; its files lie among the working copies.

        Raises as `payload` does, or what `training.outer.step.apply_round` raises.
        """
        sealed = self.view.sealed[state.stage, state.version]
        counted = self._counted(sealed)
        try:
            files = state.weights, state.momentum
            return apply_round(self.manifest, state.stage, *files, counted, self._blobs.work, threads=_THREADS)
        except codecs.CodecError:
            for record, payload in zip(sealed.records, counted, strict=True):
                self.check_payload(sealed, record, payload.payload)  # names the one that does not decode
            raise

    def measure(self, stage: int, round: int) -> Measured:
        """What the run's aggregation policy needs to know of the payloads that a seal counts. Raises as `step`."""
        counted = self._counted(self.view.sealed[stage, round])
        return measure_round(self.manifest, stage, counted, self._products[stage])

    def norms(self, stage: int, round: int) -> list[float]:
        """Of the decoded payloads that a seal counts. Raises as `step`."""
        blobs = [(one.payload, one.plan) for one in self._counted(self.view.sealed[stage, round])]
        return [math.sqrt(one) for one in self._products[stage].norms(blobs)]

    def reach(self, stage: int) -> float:
        """How far a step of the run's inner optimiser moves the stage at most."""
        return reach_of_a_step(self.manifest, stage)

    def after(self, state: State, made: Version) -> State:
        """The state after `step`."""
        momentum = None if made.momentum == NO_HASH else self._blobs.work / made.momentum.hex()
        return State(state.stage, state.version + 1, self._blobs.work / made.weights.hex(), momentum)

    def forget(self, state: State | None, *needed: State | None) -> None:
        """Drop the working copies of a version, except for files that another one needs."""
        keep = {path for one in needed if one is not None for path in one.files}
        for path in state.files if state is not None else ():
            if path not in keep:
                path.unlink(missing_ok=True)

    def forget_payloads(self, stage: int, round: int) -> None:
        """Drop the working copies of a round's payloads."""
        sealed = self.view.sealed.get((stage, round))
        for record in sealed.records if sealed is not None else ():
            if (statement := self._statements.pop(record.statement, None)) is not None:
                self._blobs.drop(statement.payload)

    def rebuild(self, stage: int, version: int, progress: Callable[[str], None]) -> Path:
        """The version's weights where somebody keeps them, else recomputed from the newest older version that is kept
        with its momentum.

        Raises ReplayError where that cannot be done, saying which blob is gone or wrong.
        """
        try:
            return self._weights(stage, version)
        except BlobMissing as error:
            state = self._newest(stage, version, error)
        while state.version < version:
            round = state.version
            progress(f"stage {stage}: nobody has version {version}, replaying round {round}")
            try:
                made = self.step(state)
            except (BlobMissing, PayloadError, OuterError, weights.WeightsError) as error:
                raise ReplayError(f"stage {stage}, round {round}: a sealed payload cannot be had: {error}") from error
            self.forget_payloads(stage, round)
            sealed = self.view.weights(stage, round + 1)
            if outcome_fault(made, self.view, self.view.sealed[stage, round]):
                raise ReplayError(
                    f"stage {stage}, round {round}: the payloads give {made.weights.hex()}, "
                    f"sealed is {sealed.hex()}: run `{line('audit', f'0x{self.view.run.hex()}', of_ledger=True)}`"
                )
            before, state = state, self.after(state, made)
            self.forget(before, state)
        return state.weights

    def mean(self, stage: int, version: int, progress: Callable[[str], None]) -> Path:
        """What the run publishes as that version where its manifest has an average (see training.outer.average).

        Raises as `rebuild`; WeightsError where a quorum sealed what is no weights.
        """
        path, shapes = self._blobs.work / f"mean-{stage}.safetensors", self._shapes[stage]
        for number, member in enumerate(members(self.manifest.average, version), 1):
            found = self.rebuild(stage, member, progress)
            if number == 1:
                found.rename(path)
                continue
            progress(f"stage {stage}: version {member} goes into the mean")
            fold(path, number, found, shapes)
            found.unlink()
        return path

    def _weights(self, stage: int, version: int) -> Path:
        return self._blobs.get(self.view.weights(stage, version), weights.file_size(self._shapes[stage]))

    def _newest(self, stage: int, version: int, failure: BlobMissing) -> State:
        """Before a version that cannot be had."""
        for candidate in range(version - 1, -1, -1):
            with suppress(BlobMissing):
                return self.version(stage, candidate)
        raise ReplayError(f"stage {stage}: no source has version {version} or an older one: {failure}")

    def _counted(self, sealed: Sealed) -> list[SealedPayload]:
        plan = self._plan_of(sealed)
        return [
            SealedPayload(self.payload(sealed, record), record.inner_steps, record.multiplier, plan)
            for record in sealed.records
        ]

    def _payload(self, stage: int, round: int, name: bytes) -> Path:
        plan = manifest_plan(self.plan(stage, round))
        return self._blobs.get(name, self._codec.size(self._shapes[stage], plan))

    def _plan_of(self, sealed: Sealed) -> ManifestPlan:
        return manifest_plan(self.plan(sealed.stage, sealed.round))


def outcome_fault(made: Version, view: RunView, sealed: Sealed) -> str:
    """Where what the payloads give is not what the seal says; empty where it is. An empty seal says nothing."""
    stage, version = sealed.stage, sealed.round + 1
    pairs = [
        ("weights", made.weights, view.weights(stage, version)),
        ("momentum", made.momentum, view.momentum(stage, version)),
    ]
    if sealed.records:
        outcome = sealed.outcome
        pairs.append(("a Merkle root of the weights", made.weights_root, outcome.weights_root))
        pairs.append(("a Merkle root of the momentum", made.momentum_root, outcome.momentum_root))
    wrong = [(what, given, stated) for what, given, stated in pairs if given != stated]
    return "; ".join(
        f"the payloads give {what} {given.hex()}, sealed is {stated.hex()}" for what, given, stated in wrong
    )


class ReplayError(Exception):
    """A version that can be neither fetched nor rebuilt."""
