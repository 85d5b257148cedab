"""Level 3: was it trained? What was drawn and is still served is replayed, one stage after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from dlx.ledger.view.run_view import RunView
from dlx.node.audit.inner_inputs import FalseStatement, InnerInputs, MissingInputs, Undecidable
from dlx.node.audit.outer_replay import Replay, ReplayError
from dlx.node.audit.report import Report, Training, Verdict
from dlx.node.audit.request import ReplayChoice
from dlx.node.audit.sources.blobs import BlobMissing, Blobs, Source
from dlx.node.home.formatting import bar
from dlx.node.round.challenges import turns
from dlx.node.round.challenges.draw import Drawn, draw_block, drawable, drawn_of, seals_of
from dlx.node.round.challenges.turns import Case
from dlx.node.round.challenges.verdicts import Finding, ReportedVerdict
from dlx.node.round.rules.deals import Deals
from dlx.node.trainer.checks import Outcome
from dlx.training.data import shards
from dlx.training.models.placement import Placement
from dlx.training.recipe.manifest import MAX_BYTES, Manifest, parse
from dlx.training.recipe.strict import ManifestError
from dlx.training.slot.segments import segment_steps, segments_in

LEVEL = 3
_PASSES = 4  # each has what the one before found missing

BlockHash = Callable[[int], bytes | None]


@dataclass(frozen=True)
class Replayed:
    """What a replay of one contribution came to. `finding` is None where nothing can be said: `reasons` say why."""

    finding: Finding | None
    reasons: tuple[str, ...] = ()
    outcome: Outcome | None = None
    disputed: bool = False

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
                return "WARN" if self.disputed else "PASS"


class Replayer:
    """Replays drawn contributions of a run with blobs from anywhere; working copies lie in `blobs.work`.

    Raises BlobMissing where the list of the run's data is gone, DataError where it is none.
    """

    def __init__(self, manifest: Manifest, blobs: Blobs, placement: Placement) -> None:
        self._manifest, self._blobs, self._placement = manifest, blobs, placement
        named = manifest.data.manifest
        path = blobs.get(bytes.fromhex(named.sha256), min(named.size, shards.MAX_MANIFEST_BYTES))
        self._data, self._deals = shards.parse_data_manifest(path.read_bytes()), Deals.of(manifest)
        self._permanent = {entry.name for entry in blobs.work.iterdir()}

    def check(self, view: RunView, drawn: Drawn) -> Replayed:
        """`view` has the seals of the round, and of those that plan it."""
        inner = InnerInputs(self._manifest, view, self._deals)
        self._blobs.get(view.config.manifest, MAX_BYTES)
        try:
            return self._check(inner, drawn)
        except MissingInputs as error:
            return Replayed(Finding.WITHHELD, (f"nobody gives {error}",))
        except Undecidable as error:
            return Replayed(None, (str(error),))
        except FalseStatement as error:
            return Replayed(Finding.FALSE, (str(error),))
        finally:
            for entry in self._blobs.work.iterdir():
                if entry.name not in self._permanent:
                    entry.unlink()

    def _check(self, inner: InnerInputs, drawn: Drawn) -> Replayed:
        from dlx.node.trainer.checking import carry_out  # torch

        work = inner.work(drawn, self._get, self._blobs.work, self._placement)
        limit = inner.largest_file(drawn.stage)
        for name in work.sent():
            try:
                self._get(name, limit)
            except MissingInputs:  # its neighbour's to serve: then that is not compared
                continue
        for shard in inner.shards(work, self._data):
            try:
                self._blobs.get(bytes.fromhex(shard.sha256), shard.size)
            except BlobMissing as error:
                raise Undecidable(f"a shard of its data is gone: {error.reason}") from None
        for _ in range(_PASSES):
            outcome = carry_out(work)
            if outcome.refusal:
                raise Undecidable(outcome.refusal)
            if not outcome.missing:
                finding = Finding.FALSE if outcome.reasons else Finding.HONEST
                disputed = outcome.disputed or inner.disputed(drawn, self._get)
                return Replayed(finding, outcome.reasons, outcome, disputed)
            for name in outcome.missing:
                if name == work.base_weights:
                    self._rebuild(inner, drawn)
                else:
                    self._get(name, limit)
        raise Undecidable("it asks for more and more")

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
    block_hash: BlockHash,
    sources: Sequence[Source],
    work: Path,
    choice: ReplayChoice,
    verdicts: Iterable[ReportedVerdict],
    progress: Callable[[str], None],
) -> None:
    """Add the checks of level 3, and fill the report's numbers. `verdicts`: the members', as far as they are to be had;
    their signatures were verified."""
    training = report.training
    training.chosen = 0
    blobs = Blobs(sources, work)
    try:
        manifest = parse(blobs.get(view.config.manifest, MAX_BYTES).read_bytes())
        replayer = Replayer(manifest, blobs, choice.placement)
    except (BlobMissing, ManifestError, shards.DataError) as error:
        report.add(LEVEL, "training", "SKIP", f"nothing can be replayed without manifest and list of the data: {error}")
        return
    rounds = drawable(view, manifest.audit.window) if choice.rounds is None else choice.rounds
    found = _drawn(report, view, manifest, block_hash, rounds, asked=choice.rounds is not None)
    chosen = _chosen(found, choice)
    reported = _by_statement(verdicts)
    training.drawn = len({_place(drawn) for drawn in found})
    training.chosen = len({_place(drawn) for drawn in chosen})
    training.total, training.segments = _counted(view, segment_steps(manifest))
    if not chosen:
        what = "was chosen of what was drawn" if found else f"was drawn of {_named(rounds)}"
        report.add(LEVEL, "training", "SKIP", f"nothing {what}")
        report.cannot_establish(f"anything about the training: nothing {what}")
    findings: dict[tuple[int, int], list[tuple[Drawn, Replayed]]] = {}
    for number, drawn in enumerate(chosen):
        where = f"round {drawn.round}, replica {drawn.replica}, stage {drawn.stage}"
        progress(f"{bar(number, len(chosen))} training: {number} of {len(chosen)}, {where}")
        replayed = replayer.check(view, drawn)
        findings.setdefault(_place(drawn), []).append((drawn, replayed))
        _add(report, view, drawn, replayed, reported.get(drawn.statement, {}))
    for each in findings.values():
        _count(training, each)


def _drawn(
    report: Report, view: RunView, manifest: Manifest, block_hash: BlockHash, rounds: range, asked: bool
) -> list[Drawn]:
    """What was drawn of `rounds`. That not all of them are drawn leaves a question open where they were `asked` for."""
    found: list[Drawn] = []
    end = max(rounds.start, min(rounds.stop, _sealed_rounds(view)))
    for round in range(rounds.start, end):
        seals = seals_of(view, round)
        hash_ = None if seals is None else block_hash(draw_block(seals, manifest.audit.draw_after))
        if seals is None or hash_ is None:
            end = round  # those after it were sealed later
            break
        found += drawn_of(seals, hash_, manifest.audit.share, segment_steps(manifest))
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


def _add(report: Report, view: RunView, drawn: Drawn, replayed: Replayed, verdicts: dict[str, ReportedVerdict]) -> None:
    detail = f"replica {drawn.replica}, of {drawn.account}"
    if replayed.reasons:
        detail += f": {'; '.join(replayed.reasons)}"
    if replayed.disputed:
        detail += " (disputed: its replica's traces contradict each other)"
        report.cannot_establish(
            f"who of replica {drawn.replica} misstates what its stages gave each other in round {drawn.round}, and so "
            "whether its update is what honest training gives"
        )
    convicted = bool(turns.conviction(view, Case(drawn, 0.0, verdicts))) or view.is_convicted(drawn.account)
    verdict = replayed.verdict(convicted)
    check = "training" if replayed.finding is not Finding.WITHHELD else "withheld"
    report.add(LEVEL, check, verdict, detail, round=drawn.round, stage=drawn.stage, hash=drawn.statement)
    if replayed.finding is not None:
        _compare(report, drawn, replayed.finding, verdicts)


def _compare(report: Report, drawn: Drawn, finding: Finding, verdicts: dict[str, ReportedVerdict]) -> None:
    """The members' verdicts beside our own, which holds whatever they say: one liar among them must not fail a run."""
    for checker, verdict in verdicts.items():
        if not verdict.report.is_about(drawn):
            continue
        if verdict.finding is finding:
            report.add(LEVEL, "members' verdicts", "PASS", round=drawn.round, stage=drawn.stage, hash=verdict.name)
        else:
            where = f"round {drawn.round}, replica {drawn.replica}, stage {drawn.stage}"
            report.note(f"{where}: {checker} says {verdict.finding.word}, the replay here {finding.word}")


def _count(training: Training, stages: list[tuple[Drawn, Replayed]]) -> None:
    """A replica-round is as honest as the worst of its stages."""
    findings = {found.finding for _, found in stages}
    if Finding.FALSE in findings:
        training.false += 1
    elif Finding.WITHHELD in findings:
        training.withheld += 1
        return
    elif None in findings:
        training.unknown += 1
        return
    elif any(found.disputed for _, found in stages):
        training.disputed += 1
    else:
        training.honest += 1
    training.replayed += 1
    training.replayed_segments += len({drawn.segment for drawn, _ in stages})


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


def _by_statement(verdicts: Iterable[ReportedVerdict]) -> dict[bytes, dict[str, ReportedVerdict]]:
    found: dict[bytes, dict[str, ReportedVerdict]] = {}
    for verdict in verdicts:
        found.setdefault(verdict.report.statement, {}).setdefault(verdict.checker, verdict)
    return found


def _place(drawn: Drawn) -> tuple[int, int]:
    return drawn.round, drawn.replica
