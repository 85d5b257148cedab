"""Level 3: was it trained? What was drawn and is still served is replayed, one stage after the other."""

from __future__ import annotations

import dataclasses
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from msgspec.structs import replace

from dlx.ledger.view.run_view import RunView
from dlx.node.audit.inner_inputs import FalseStatement, InnerInputs, MissingInputs, Undecidable
from dlx.node.audit.outer_replay import Replay, ReplayError
from dlx.node.audit.replay_choice import ReplayChoice
from dlx.node.audit.report import Report, Training, Verdict
from dlx.node.audit.sources.blobs import BlobMissing, Blobs, Source
from dlx.node.home.formatting import bar
from dlx.node.round.challenges import turns
from dlx.node.round.challenges.draw import Drawing, Drawn, drawable
from dlx.node.round.challenges.turns import Case
from dlx.node.round.challenges.verdicts import Finding, ReportedVerdict
from dlx.node.round.rules.deals import Deals
from dlx.node.trainer.checks import Outcome
from dlx.training.data import shards
from dlx.training.models.placement import Placement
from dlx.training.recipe.manifest import MAX_BYTES, Manifest, parse
from dlx.training.recipe.strict import ManifestError
from dlx.training.slot.directions import Directions
from dlx.training.slot.segments import segment_steps, segments_in

LEVEL = 3
_PASSES = 4  # each has what the one before found missing

Told = Callable[[Drawing], bytes | None]  # the hash that draws; None while that is to come


@dataclass(frozen=True)
class Replayed:
    """What a replay of one drawn segment came to. `finding` is None where nothing can be said: `reasons` say why."""

    finding: Finding | None
    reasons: tuple[str, ...] = ()
    outcome: Outcome | None = None
    direction: tuple[str, ...] = ()  # what of its account's deviations so far adds up

    def verdict(self, convicted: bool = False) -> Verdict:
        """`convicted`: the members convicted its maker of withholding it."""
        match self.finding:
            case None:
                return "SKIP"
            case Finding.FALSE:
                return "FAIL"
            case Finding.WITHHELD:
                return "FAIL" if convicted else "WARN"
            case Finding.HONEST:
                return "PASS"


class Replayer:
    """Replays drawn segments of a run with blobs from anywhere.

    Working copies lie in `blobs.work` until another round's turn: what drawn segments have in common is fetched once.
    They are no more than the drawn segments of one round take.

    Raises BlobMissing where the list of the run's data is gone, DataError where it is none.
    """

    def __init__(self, manifest: Manifest, blobs: Blobs, placement: Placement) -> None:
        self._manifest, self._blobs, self._placement = manifest, blobs, placement
        named = manifest.data.manifest
        path = blobs.get(bytes.fromhex(named.sha256), min(named.size, shards.MAX_MANIFEST_BYTES))
        self._data, self._deals = shards.parse_data_manifest(path.read_bytes()), Deals.of(manifest)
        self._permanent = {entry.name for entry in blobs.work.iterdir()}
        self._round: int | None = None  # whose working copies are there
        self._key = secrets.token_bytes(32)
        self.directions: dict[tuple[str, int], Directions] = defaultdict(Directions)  # by account and stage

    def check(self, view: RunView, drawn: Drawn) -> Replayed:
        """`view` has the seals of the round, and of those that plan it."""
        inner = InnerInputs(self._manifest, view, self._deals)
        self._begin(drawn.round)
        self._blobs.get(view.config.manifest, MAX_BYTES)
        try:
            return self._check(inner, drawn)
        except MissingInputs as error:
            return Replayed(Finding.WITHHELD, (f"nobody gives {error}",))
        except Undecidable as error:
            return Replayed(None, (str(error),))
        except FalseStatement as error:
            return Replayed(Finding.FALSE, (str(error),))

    def _begin(self, round: int) -> None:
        """Without the working copies of another round."""
        if round != self._round:
            self._round = round
            for entry in self._blobs.work.iterdir():
                if entry.name not in self._permanent:
                    entry.unlink()

    def _check(self, inner: InnerInputs, drawn: Drawn) -> Replayed:
        from dlx.node.trainer.checking import carry_out  # torch

        work = inner.work(drawn, self._get, self._blobs.work, self._placement)
        if not self._manifest.is_exact:  # else nothing honest deviates
            work = replace(work, key=self._key)
        limit = inner.largest_file(drawn.stage)
        for name in work.sent():
            try:
                self._get(name, limit)
            except MissingInputs:  # its neighbour's to serve: then that is not compared
                continue
        read = {one.sha256: one.size for one in inner.shards(work, self._data)}
        read |= {one.sha256: one.size for one in self._manifest.base[drawn.stage : drawn.stage + 1]}
        for digest, size in read.items():
            try:
                self._blobs.get(bytes.fromhex(digest), size)
            except BlobMissing as error:
                raise Undecidable(f"a part of its data or its base is gone: {error.reason}") from None
        for _ in range(_PASSES):
            outcome = carry_out(work)
            if outcome.refusal:
                raise Undecidable(outcome.refusal)
            if not outcome.missing:
                finding = Finding.FALSE if outcome.reasons else Finding.HONEST
                return Replayed(finding, outcome.reasons, outcome, self._direction(drawn, outcome))
            for name in outcome.missing:
                if name == work.base_weights:
                    self._rebuild(inner, drawn)
                else:
                    self._get(name, limit)
        raise Undecidable("it asks for more and more")

    def _direction(self, drawn: Drawn, outcome: Outcome) -> tuple[str, ...]:
        """With this one, unless it is false by itself."""
        if self._manifest.is_exact:
            return ()
        directions = self.directions[drawn.account, drawn.stage]
        if not outcome.reasons:
            directions.add(outcome.sketches)
        return directions.faults()

    def _get(self, name: bytes, limit: int) -> Path:
        try:
            return self._blobs.get(name, limit)
        except BlobMissing:
            raise MissingInputs([name]) from None

    def _rebuild(self, inner: InnerInputs, drawn: Drawn) -> None:
        """The version that the round began with, which anybody can compute."""
        try:
            Replay(self._manifest, inner.view, self._blobs).rebuild(drawn.stage, inner.base(drawn), lambda line: None)
        except ReplayError as error:
            raise Undecidable(str(error)) from None


def audit_inner(
    report: Report,
    view: RunView,
    told: Told,
    sources: Sequence[Source],
    work: Path,
    choice: ReplayChoice,
    verdicts: Iterable[ReportedVerdict],
    progress: Callable[[str], None],
) -> None:
    """Add the checks of level 3, and fill the report's numbers. `verdicts`: the members', as far as they are to be had;
    their signatures were verified."""
    training = report.training
    training.chosen, training.required = 0, choice.required
    blobs = Blobs(sources, work)
    try:
        manifest = parse(blobs.get(view.config.manifest, MAX_BYTES).read_bytes())
        replayer = Replayer(manifest, blobs, choice.placement)
    except (BlobMissing, ManifestError, shards.DataError) as error:
        report.add(LEVEL, "training", "SKIP", f"nothing can be replayed without manifest and list of the data: {error}")
        return
    training.exact = manifest.is_exact
    rounds = drawable(view, manifest.audit.window) if choice.rounds is None else choice.rounds
    found = _drawn(report, view, manifest, told, rounds, asked=choice.rounds is not None)
    chosen = _chosen(found, choice)
    reported: dict[bytes, list[ReportedVerdict]] = {}
    for verdict in verdicts:
        reported.setdefault(verdict.report.statement, []).append(verdict)
    training.drawn = len({_place(drawn) for drawn in found})
    training.chosen = len({_place(drawn) for drawn in chosen})
    training.replica_rounds, training.segments = _counted(view, segment_steps(manifest))
    if not chosen:
        what = "was chosen of what was drawn" if found else f"was drawn of {_named(rounds)}"
        report.add(LEVEL, "training", "SKIP", f"nothing {what}")
        report.cannot_establish(f"anything about the training: nothing {what}")
    findings: dict[tuple[int, int, int], list[Replayed]] = {}
    for number, drawn in enumerate(chosen):
        where = f"round {drawn.round}, replica {drawn.replica}, segment {drawn.segment}, stage {drawn.stage}"
        progress(f"{bar(number, len(chosen))} training: {number} of {len(chosen)}, {where}")
        replayed = replayer.check(view, drawn)
        findings.setdefault(_place(drawn), []).append(replayed)
        _add(report, view, drawn, replayed, reported.get(drawn.statement, []))
    for each in findings.values():
        _count(training, each)
    for (account, stage), directions in sorted(replayer.directions.items()):
        _add_direction(report, account, stage, directions.faults())
    if choice.required:
        met = f"{training.required} honest segments are required, and all that was drawn: {training}"
        report.add(LEVEL, "required segments", "PASS" if training.met else "WARN", met)


def _drawn(report: Report, view: RunView, manifest: Manifest, told: Told, rounds: range, asked: bool) -> list[Drawn]:
    """What was drawn of `rounds`. That not all of them are drawn leaves a question open where they were `asked` for."""
    found: list[Drawn] = []
    end = max(rounds.start, min(rounds.stop, _sealed_rounds(view)))
    for round in range(rounds.start, end):
        drawing = Drawing.of(view, manifest, round)
        hash_ = None if drawing is None else told(drawing)
        if drawing is None or hash_ is None:
            end = round  # those after it were sealed later
            break
        found += drawing.drawn(hash_)
    if missing := range(end, rounds.stop):
        if asked:
            report.add(LEVEL, "training", "SKIP", f"not sealed, or not drawn yet: {_named(missing)}")
            report.cannot_establish(f"whether {_named(missing)} were trained: they are not sealed, or not drawn yet")
        else:
            report.note(f"not drawn yet, as the block that draws is still to come: {_named(missing)}")
    return found


def _chosen(found: list[Drawn], choice: ReplayChoice) -> list[Drawn]:
    places = sorted({_place(drawn) for drawn in found if choice.replica in (None, drawn.replica)})
    chance = Random()
    taken = {place for place in places if chance.random() < choice.sample}
    return [drawn for drawn in found if _place(drawn) in taken]


def _add(report: Report, view: RunView, drawn: Drawn, replayed: Replayed, verdicts: list[ReportedVerdict]) -> None:
    """`verdicts`: the members' on all segments of the contribution."""
    detail = f"replica {drawn.replica}, segment {drawn.segment}, of {drawn.account}"
    if replayed.reasons:
        detail += f": {'; '.join(replayed.reasons)}"
    convicted = view.is_convicted(drawn.account) or bool(turns.conviction(view, _cases(drawn, verdicts)))
    verdict = replayed.verdict(convicted)
    check = "training" if replayed.finding is not Finding.WITHHELD else "withheld"
    report.add(LEVEL, check, verdict, detail, round=drawn.round, stage=drawn.stage, hash=drawn.statement)
    if replayed.finding is not None:
        _compare(report, drawn, replayed.finding, verdicts)


def _cases(drawn: Drawn, verdicts: list[ReportedVerdict]) -> list[Case]:
    """What the members found of each segment of the contribution, the first verdict of each."""
    said: dict[int, dict[str, ReportedVerdict]] = {}
    for one in verdicts:
        said.setdefault(one.report.segment, {}).setdefault(one.checker, one)
    return [Case(dataclasses.replace(drawn, segment=segment), 0.0, by) for segment, by in said.items()]


def _add_direction(report: Report, account: str, stage: int, faults: Sequence[str]) -> None:
    """Never FAIL: two kinds of machines that nobody compared yet may differ in one direction too."""
    report.add(LEVEL, "direction", "WARN" if faults else "PASS", f"{account}: {'; '.join(faults)}", stage=stage)
    if faults:
        report.cannot_establish(
            f"whether {account} steers the model by deviations that are each too small to be false: replay on the "
            "maker's kind of machine, where honest work deviates by next to nothing"
        )


def _compare(report: Report, drawn: Drawn, finding: Finding, verdicts: list[ReportedVerdict]) -> None:
    """The members' verdicts beside our own, which holds whatever they say: one liar among them must not fail a run."""
    for verdict in verdicts:
        if not verdict.report.is_about(drawn):
            continue
        if verdict.finding is finding:
            report.add(LEVEL, "members' verdicts", "PASS", round=drawn.round, stage=drawn.stage, hash=verdict.name)
        else:
            where = f"round {drawn.round}, replica {drawn.replica}, segment {drawn.segment}, stage {drawn.stage}"
            report.note(f"{where}: {verdict.checker} says {verdict.finding.word}, the replay here {finding.word}")


def _count(training: Training, stages: list[Replayed]) -> None:
    """A segment is as honest as the worst of its stages."""
    findings = {found.finding for found in stages}
    if Finding.FALSE in findings:
        training.false += 1
    elif Finding.WITHHELD in findings:
        training.withheld += 1
        return
    elif None in findings:
        training.unknown += 1
        return
    else:
        training.honest += 1
    training.replayed += 1


def _counted(view: RunView, length: int) -> tuple[int, int]:
    """The replica-rounds that some seal counts, and their segments of `length` inner steps."""
    replica_rounds, segments = 0, 0
    for round in range(_sealed_rounds(view)):
        steps: dict[int, int] = {}
        for stage in range(view.config.stages):
            for record in view.sealed[stage, round].records:
                steps[record.replica] = max(record.inner_steps, steps.get(record.replica, 0))
        replica_rounds += len(steps)
        segments += sum(segments_in(inner_steps, length) for inner_steps in steps.values())
    return replica_rounds, segments


def _sealed_rounds(view: RunView) -> int:
    """The rounds that all stages have sealed."""
    return min(map(view.next_round, range(view.config.stages)))


def _named(rounds: range) -> str:
    return f"rounds {rounds[0]} to {rounds[-1]}" if rounds else "a run without a sealed round"


def _place(drawn: Drawn) -> tuple[int, int, int]:
    return drawn.round, drawn.replica, drawn.segment
