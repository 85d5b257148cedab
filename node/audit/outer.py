"""Level 2: do the sealed payloads give every sealed weights hash, from genesis to now?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dlx.ground.constants import UNIT
from dlx.ground.merkle import file_root
from dlx.ledger.errors import Contradiction
from dlx.ledger.events import Sealed
from dlx.ledger.typed import Contribution, Plan, Record
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.continuity import Continuity
from dlx.node.audit.displacement import Displacement
from dlx.node.audit.manifest import audit_data, audit_lineage, audit_manifest, manifest_of
from dlx.node.audit.outer_replay import PayloadError, Replay, State, StatementError, outcome_fault
from dlx.node.audit.repeats import Repeats
from dlx.node.audit.report import Report, Verdict
from dlx.node.audit.resets import Resets
from dlx.node.audit.sources.blobs import BlobMissing, Blobs, Source, WrongCopy
from dlx.node.audit.traces import Traces
from dlx.node.home.formatting import bar
from dlx.node.home.program import line
from dlx.node.round.rules import stopping
from dlx.node.round.rules.pace import fewest_steps
from dlx.node.round.rules.plans import finished, has_round, plan_fault
from dlx.node.round.rules.round_rules import base_version, most_steps, statement_fault, unit_multipliers
from dlx.training import selftest
from dlx.training.codecs import CodecError, codec
from dlx.training.models.weights import WeightsError
from dlx.training.outer.policy import disagreement
from dlx.training.outer.step import OuterError
from dlx.training.recipe.manifest import Lineage

LEVEL = 2

_FAULTS = {
    "wrong_plan": "states another plan than {plan}",
    "wrong_steps": "states {counted.inner_steps} inner steps, its plan allows {fewest} to {most}",
    "wrong_segments": "commits to {counted.segments} segments, not what its inner steps make",
    "wrong_kept": "says that its payload keeps {counted.kept} of {unit} parts of its update",
    "private_data": "says that it comes from private data, which the manifest does not allow",
}
Progress = Callable[[str], None]


def audit_outer(
    report: Report,
    view: RunView,
    sources: Sequence[Source],
    work: Path,
    progress: Progress,
    parent_of: Callable[[Lineage], RunView | None],
    block_hash: Callable[[int], bytes | None],
) -> None:
    """Add the checks of level 2. `view` holds the events that level 1 accepted; `work` is an empty folder. `parent_of`
    gives the run that this one says it starts from, None where it is on another ledger. `block_hash` is of blocks that
    draw, by number."""

    def note_wrong(digest: bytes, copy: WrongCopy, own: bool) -> None:
        if own and copy.differs:
            report.add(LEVEL, "own blobs", "FAIL", f"{copy.where} {copy.what}", hash=digest)
        else:
            report.note(f"{digest.hex()}: {copy.where} {copy.what}, and is not used")

    try:
        selftest.run()
    except selftest.SelfTestError as error:
        report.add(LEVEL, "arithmetic", "SKIP", f"this machine does not compute as the run demands: {error}")
        report.cannot_establish("the outer replay (level 2): this machine's arithmetic is not the canonical one")
        return
    blobs = Blobs(sources, work, note_wrong)
    manifest = audit_manifest(report, view, blobs)
    if manifest is not None:
        if manifest.lineage is not None:
            try:
                parent = parent_of(manifest.lineage)
                audit_lineage(report, manifest, parent, None if parent is None else manifest_of(parent, blobs))
            except Contradiction as error:
                report.add(LEVEL, "lineage", "FAIL", str(error))
        audit_data(report, manifest, blobs, progress)
        _OuterAudit(report, Replay(manifest, view, blobs), progress, block_hash).run()


class _OuterAudit:
    """Walks all stages round by round; a stage without a state waits for a stored version to go on from."""

    def __init__(
        self, report: Report, replay: Replay, progress: Progress, block_hash: Callable[[int], bytes | None]
    ) -> None:
        self._report, self._block_hash = report, block_hash
        self._replay = replay
        self._view = replay.view
        self._progress = progress
        self._states: dict[int, State | None] = {}
        self._bases: dict[int, State | None] = {}  # the version before, where the next round's starts need it
        self._continuity = Continuity(report, replay)
        self._repeats, self._resets = Repeats(report), Resets(report)
        self._traces = Traces(report, replay)
        self._displacement = Displacement(report, replay.view.config.stages)

    def run(self) -> None:
        stages = range(self._view.config.stages)
        for stage in stages:
            self._states[stage] = self._genesis(stage)
        # A round without all of the rounds before it has no known plan: level 1 has said what is missing.
        rounds = min(min(map(self._view.next_round, stages)) + 1, self._view.config.rounds)
        for round in range(rounds):
            for stage in stages:
                if (stage, round) in self._view.sealed:
                    self._progress(f"{bar(round, rounds)} replay: round {round}, stage {stage}, of {rounds} rounds")
                    self._round(stage, round)
        if finished(self._replay.terms, self._view):
            self._report.facts["state"] = "complete"  # perhaps by its inner steps, of which the ledger knows nothing
        for stage in stages:
            self._replay.forget(self._bases.pop(stage, None), self._states[stage])
            self._replay.forget_payloads(stage, self._view.next_round(stage) - 1)
        self._repeats.close()
        self._resets.close()

    def _genesis(self, stage: int) -> State | None:
        digest = self._view.genesis[stage]
        try:
            state = self._replay.version(stage, 0)
            self._replay.check_version(state)
            if (root := file_root(state.weights).hex()) != (stated := self._replay.manifest.genesis[stage].root):
                raise WeightsError(f"the manifest says that its Merkle root is {stated}, it is {root}")
        except BlobMissing as error:
            self._add("genesis", "WARN", stage, None, digest, f"it is gone: {error.reason}")
            return None
        except WeightsError as error:
            self._add("genesis", "FAIL", stage, None, digest, str(error))
            return None
        self._add("genesis", "PASS", stage, None, digest)
        return state

    def _round(self, stage: int, round: int) -> None:
        sealed = self._view.sealed[stage, round]
        statements = [self._statement(sealed, record) for record in sealed.records]
        self._terms(sealed, statements)
        self._repeats.check(sealed, statements)
        self._resets.check(sealed, statements)
        state = self._states[stage] or self._restart(stage, round)
        usable = self._payloads(sealed, statements, decode=state is None)
        self._continuity.check(sealed, statements, self._bases.get(stage))
        self._traces.check(sealed, statements)
        self._multipliers(sealed, usable)
        if usable:
            with suppress(PayloadError, CodecError):  # the replay says so
                self._displacement.check(sealed, self._replay.norms(stage, round), self._replay.reach(stage))
        self._displacement.see_loss(sealed)
        if state is None or not usable:
            reason = "a payload cannot be used" if state is not None else f"V[{stage},{round}] is not at hand"
            self._add("replay", "SKIP", stage, round, self._view.weights(stage, round + 1), reason)
            self._report.cannot_establish(
                f"what the payloads of round {round} make of stage {stage} (its hash was sealed, not recomputed)"
            )
            after = None
        else:
            after = self._step(state, sealed)
        self._advance(stage, state, after)
        self._replay.forget_payloads(stage, round - 1)  # those of this round may be in the next one's starts

    def _advance(self, stage: int, before: State | None, after: State | None) -> None:
        """From now on `after` is the stage's state, and `before` what the next round starts from where the delay is 1;
        working copies of others go away."""
        base = None
        if before is not None and self._continuity.needs_base:
            base = replace(before, momentum=None)
        self._replay.forget(before, base, after)
        self._replay.forget(self._bases.get(stage), base, after)
        self._states[stage], self._bases[stage] = after, base

    def _terms(self, sealed: Sealed, statements: Sequence[Contribution | None]) -> None:
        """May the seal change the plan in this way, and does the run still have this round?"""
        terms, outcome = self._replay.terms, sealed.outcome
        parts = [statement.kept for statement in statements if statement is not None]
        known = parts if len(parts) == len(statements) else None
        over = self._is_over(sealed.round) if terms.may_stop and not outcome.plan.inner_steps else False
        wrong = [plan_fault(terms, self._view, sealed.stage, sealed.round, outcome.plan, known, over)]
        plan = self._replay.plan(sealed.stage, sealed.round)
        if outcome.inner_steps != plan.inner_steps:
            wrong.append(f"says that the round has {outcome.inner_steps} inner steps, its plan has {plan.inner_steps}")
        fewest = fewest_steps(plan.inner_steps)
        for record, account in zip(sealed.records, sealed.accounts, strict=True):
            most = self._most(sealed, account, plan)
            if not fewest <= record.inner_steps <= most:
                stated = f"{record.inner_steps} inner steps of replica {record.replica}"
                wrong.append(f"counts {stated}, its plan allows {fewest} to {most}")
        if not has_round(terms, self._view, sealed.round):
            wrong.append("the run had ended before this round")
        multipliers = _multipliers(sealed)
        if self._replay.manifest.outer.policy == "mean" and multipliers != unit_multipliers(len(multipliers)):
            wrong.append(f"seals the multipliers {multipliers}, all must be {UNIT}")
        detail = "; ".join(filter(None, wrong))
        self._add("terms", "FAIL" if detail else "PASS", sealed.stage, sealed.round, sealed.digest, detail)

    def _most(self, sealed: Sealed, account: str, plan: Plan) -> int:
        return most_steps(self._replay.terms, self._view, sealed.stage, account, sealed.round, plan)

    def _is_over(self, round: int) -> bool:
        """Whether a seal of the round may end the run, or nobody can tell."""
        found = stopping.is_over(self._view, self._replay.manifest, round, self._block_hash)
        if found is None:
            self._report.cannot_establish(f"that the run had to stop with round {round}: a chain node lacks a block")
        return found is not False

    def _multipliers(self, sealed: Sealed, usable: bool) -> None:
        """Where the run's policy weighs contributions by their norms: are the multipliers those of the payloads?"""
        stage, round, multipliers = sealed.stage, sealed.round, _multipliers(sealed)
        if self._replay.manifest.outer.policy == "mean" or not multipliers:
            return
        if not usable:
            self._add("multipliers", "SKIP", stage, round, sealed.digest, "a payload cannot be used")
            return
        try:
            detail = disagreement(self._replay.measure(stage, round), multipliers) or ""
        except (PayloadError, CodecError) as error:
            detail = f"cannot be measured: {error}"
        self._add("multipliers", "FAIL" if detail else "PASS", stage, round, sealed.digest, detail)

    def _statement(self, sealed: Sealed, record: Record) -> Contribution | None:
        """What the contribution states in full, where somebody has it: did it start from the right version, and does it
        say what its plan gives?"""
        stage, round, replay = sealed.stage, sealed.round, self._replay
        account = sealed.accounts[sealed.records.index(record)]
        where = f"contribution of {account}"
        try:
            counted = replay.statement(sealed, record)
        except BlobMissing as error:
            detail = f"the statement of {account} is gone: {error.reason}"
            self._add("base and plan", "WARN", stage, round, record.statement, detail)
            self._report.cannot_establish(
                f"what {account} stated of its contribution to round {round} beyond the seal's record of it"
            )
            return None
        except StatementError as error:
            self._add("base and plan", "FAIL", stage, round, record.statement, f"{where}: {error}")
            return None
        base, plan, wrong = self._view.weights(stage, base_version(replay.terms, round)), replay.plan(stage, round), []
        if counted.account != account:
            wrong.append(f"names {counted.account} as its account")
        if counted.base_weights != base:
            wrong.append(f"starts from {counted.base_weights.hex()}, the round's base is {base.hex()}")
        most = self._most(sealed, account, plan)
        if fault := statement_fault(replay.terms, counted, plan, most):
            fewest = fewest_steps(plan.inner_steps)
            wrong.append(_FAULTS[fault].format(plan=plan, counted=counted, fewest=fewest, most=most, unit=UNIT))
        detail = ": ".join([where, *(["; ".join(wrong)] if wrong else [])])
        self._add("base and plan", "FAIL" if wrong else "PASS", stage, round, record.statement, detail)
        return counted

    def _payloads(self, sealed: Sealed, statements: Sequence[Contribution | None], decode: bool) -> bool:
        """Fetch every counted payload; whether all can be used. `decode` where no replay will."""
        usable = True
        for record, account, statement in zip(sealed.records, sealed.accounts, statements, strict=True):
            if statement is None:
                usable = False
                detail = f"nobody can tell which the payload of {account} is: its statement cannot be used"
                self._add("payload", "SKIP", sealed.stage, sealed.round, record.statement, detail)
                continue
            here, verdict, detail = self._payload(sealed, record, account, statement, decode)
            usable = usable and here
            self._add("payload", verdict, sealed.stage, sealed.round, statement.payload, detail)
        return usable

    def _payload(
        self, sealed: Sealed, record: Record, account: str, statement: Contribution, decode: bool
    ) -> tuple[bool, Verdict, str]:
        """Whether it can be used, and what is to be said of it."""
        try:
            path = self._replay.payload(sealed, record)
            if decode:
                self._replay.check_payload(sealed, record, path)
        except BlobMissing as error:
            return False, "WARN", f"the payload of {account} is gone: {error.reason}"
        except PayloadError as error:
            return False, "FAIL", str(error)
        if (size := path.stat().st_size) != statement.payload_size:
            return True, "FAIL", f"the payload of {account} has {size} bytes, it states {statement.payload_size}"
        if (root := file_root(path)) != statement.payload_root:
            stated = statement.payload_root.hex()
            return True, "FAIL", f"the payload of {account} has the Merkle root {root.hex()}, it states {stated}"
        return True, "PASS", ""

    def _step(self, state: State, sealed: Sealed) -> State | None:
        stage, round = sealed.stage, sealed.round
        weights = self._view.weights(stage, round + 1)
        try:
            made = self._replay.step(state)
        except (PayloadError, OuterError, WeightsError, CodecError) as error:
            self._add("replay", "FAIL", stage, round, weights, f"cannot be computed: {error}")
            return self._restart(stage, round + 1)
        after = self._replay.after(state, made)
        fault = outcome_fault(made, self._view, sealed)
        if fault and codec(self._replay.manifest.codec.name).info.contract:
            prove = line("prove", f"0x{self._view.run.hex()}", "--round", round, "--stage", stage, of_ledger=True)
            fault += f"; a contract can be shown: {prove}"
        self._add("replay", "FAIL" if fault else "PASS", stage, round, weights, fault)
        if not fault:
            return after
        # The rest is judged from what was sealed, where that is stored: one wrong seal must not hide the next.
        self._replay.forget(after, state)
        return self._restart(stage, round + 1)

    def _restart(self, stage: int, version: int) -> State | None:
        """The stored version to go on from, if there is one; at the very end nothing is left to go on to."""
        if version == 0 or (stage, version) not in self._view.sealed:
            return None
        digest = self._view.weights(stage, version)
        try:
            state = self._replay.version(stage, version)
            self._replay.check_version(state)
        except BlobMissing:
            return None
        except WeightsError as error:
            self._add("stored version", "WARN", stage, None, digest, f"version {version} cannot be used: {error}")
            return None
        self._add("stored version", "PASS", stage, None, digest, f"the replay goes on from version {version}")
        return state

    def _add(
        self, check: str, verdict: Verdict, stage: int, round: int | None, digest: bytes, detail: str = ""
    ) -> None:
        self._report.add(LEVEL, check, verdict, detail, round=round, stage=stage, hash=digest)


def _multipliers(sealed: Sealed) -> tuple[int, ...]:
    return tuple(record.multiplier for record in sealed.records)
