"""A ledger as its pages need it: the index, brought up to the chain's head, and for each run what was summed of it."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerUnavailable
from dlx.ledger.events import Convicted
from dlx.ledger.index import seal_rows
from dlx.ledger.index.event_index import EventIndex, Head
from dlx.ledger.index.log_reader import Unsettled
from dlx.ledger.index.rebuild import RunReplay
from dlx.ledger.view.run_view import RunView
from dlx.node.checkpoints import evaluation_store
from dlx.node.checkpoints.evaluation_store import Evaluation
from dlx.node.home.errors import Failure
from dlx.node.round.challenges.verdicts import ReportedVerdict
from dlx.node.runs import find
from dlx.node.runs.find import RunDetails, RunSummary, UnreadableRun
from dlx.node.web.reading import page
from dlx.node.web.reading.chart import AXES, Axis, Chart, chart
from dlx.node.web.reading.coverage import Coverage
from dlx.node.web.reading.drawn_work import Drawn, Draws, Verdicts
from dlx.node.web.reading.page import Bucket, GridRow, MemberLine, SealPage, Window
from dlx.node.web.reading.totals import PayloadSize, Share, Totals
from dlx.training import codecs
from dlx.training.models.shapes import stage_shapes
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Plan

RUNS = 50  # on a page
_FRESH_SECONDS = 1.0  # that the index is believed to be at the head
_PATIENCE = 2.0  # with a silent chain node; what was read before is shown
_DRAW_SECONDS, _FILE_SECONDS = 0.3, 20.0  # to ask for the blocks that draw, for one page, and for a file
_OPEN_RUNS = 64  # replayed and kept in memory
_TRIES = 5
_FORMER = 50  # members that hold no slot any more
_VERSIONS = 10


class Origin(NamedTuple):
    """Whose word a page is, and of when."""

    chain_id: int
    ledger: str
    reach: str  # the options by which a command finds it
    head: Head | None
    silence: str | None  # why nothing newer is known


class RunLine(NamedTuple):
    summary: RunSummary
    share: Share
    loss: float | None


class RunsPage(NamedTuple):
    source: Origin
    lines: list[RunLine]  # newest first
    unreadable: list[UnreadableRun]
    total: int
    first: int


class VersionLine(NamedTuple):
    number: int
    weights: tuple[str, ...]  # of each stage, hex
    here: tuple[bool, ...]  # whether a folder of this page's has the blob
    evaluation: float | None  # held-out loss
    average: float | None  # that of the mean that is published as the version


class RunPage(NamedTuple):
    source: Origin
    details: RunDetails
    axis: Axis
    axes: tuple[Axis, ...]  # that there are numbers for
    chart: Chart | None
    loss: float | None  # of the newest round that has one
    tokens: int
    bytes: int | None  # of counted payloads
    share: Share
    shown_share: Share  # of the rounds in the grid
    strip: list[Bucket]
    window: Window
    rows: list[GridRow]
    findings: dict[str, int]  # of the verdicts on the rounds in the grid
    has_manifest: bool
    members: list[MemberLine]
    unlisted: int  # accounts that held a slot once and are not among them
    versions: list[VersionLine]
    convictions: list[Convicted]


class RoundPage(NamedTuple):
    source: Origin
    summary: RunSummary
    number: int
    newest: int
    row: GridRow
    seals: list[SealPage]
    convictions: list[Convicted]


class VersionPage(NamedTuple):
    source: Origin
    summary: RunSummary
    version: VersionLine
    newest: int
    files: list[Path | None]  # of each stage's weights; None: not here
    checkpoints: list[find.Checkpoint]


class NotThere(Failure):
    """No such run, round or version."""


class _Shown(NamedTuple):
    """Some rounds: what the grid has of them, newest first, the verdicts on their work, and what was drawn."""

    rows: list[GridRow]
    verdicts: list[ReportedVerdict]
    drawn: Drawn


class _Run:
    """One run in memory: its view, and what its events and rows add up to."""

    def __init__(self, index: EventIndex, run: bytes, folders: Sequence[Path]) -> None:
        """Raises NotThere for a run that the ledger does not know."""
        self._index, self._folders = index, folders
        self._replay = RunReplay(index, run)
        self._replay_on()
        if not self.view.created:
            raise NotThere(f"the ledger has no run 0x{run.hex()}")
        self.manifest: Manifest | None = None
        self._begin()

    @property
    def view(self) -> RunView:
        return self._replay.view

    def advance(self) -> None:
        """Reads what is new in the index; sums anew after a reorg, and once the manifest is there."""
        reorg = self._replay_on()
        found = find.read_manifest(self.view, self._folders) if self.manifest is None else None
        if reorg or found is not None:
            self.manifest = found or self.manifest
            self._begin()
        for event in self._index.deeds(self.view.run, self.coverage.after):
            self.coverage.apply(event)
        self.totals.advance(self._index, self.coverage)

    def _begin(self) -> None:
        stages = self.view.config.stages
        self.coverage = Coverage(stages)
        self.totals = Totals(self.view.run, stages, _payload_size(self.manifest))

    def _replay_on(self) -> bool:
        for left in reversed(range(_TRIES)):
            try:
                return self._replay.advance()[1]
            except Unsettled:
                if not left:
                    raise
        raise AssertionError


class Reader:
    """Its methods block, and may be called from any thread."""

    def __init__(self, client: LedgerClient, folders: Sequence[Path], reach: str) -> None:
        """`folders`: where blobs lie, and beside them the verdicts that nodes have. `reach`: see Origin."""
        self.client, self.folders, self._reach = client, tuple(folders), reach
        self._lock = threading.RLock()
        self._rpc = client.rpc.with_patience(_PATIENCE)
        self._opened: EventIndex | None = None
        self._synced = 0.0
        self._silence: str | None = None
        self._runs: OrderedDict[bytes, _Run] = OrderedDict()
        self._draws, self._verdicts = Draws(client), Verdicts(folders, client.domain)

    def close(self) -> None:
        with self._lock:
            if self._opened is not None:
                self._opened.close()

    @property
    def _index(self) -> EventIndex:
        """Opened by who needs it first. Raises LedgerUnavailable."""
        if self._opened is None:
            self._opened = self.client.open_index()
        return self._opened

    def tip(self) -> bytes:
        """The hash of the newest block that is known, after a look for newer ones: another one, another page."""
        with self._lock:
            self._sync()
            head = self._index.tip
            return head.hash if head else b""

    def sealed(self, run: bytes) -> list[int]:
        """How many rounds each stage of a run has sealed. Raises NotThere."""
        with self._open(run) as opened:
            view = opened.view
            return [view.next_round(stage) for stage in range(view.config.stages)]

    def summary(self, run: bytes) -> tuple[Origin, RunSummary]:
        """Raises NotThere."""
        with self._open(run) as opened:
            return self._source(), find.summary(opened.view, self.folders)

    def resolve(self, given: str) -> bytes:
        """Raises NotThere for what is no run of the ledger."""
        with self._lock:
            self._sync()
            try:
                return find.resolve(self._index, given)
            except Failure as error:
                raise NotThere(str(error)) from None

    def runs_page(self, first: int = 0) -> RunsPage:
        """The runs from the `first` newest on."""
        with self._lock:
            self._sync()
            runs = self._index.runs()[::-1]
            source = self._source()
            lines, unreadable = find.readable(self._index, runs[first : first + RUNS], self._line_of)
            if self._index.tip is None:
                self._synced = 0.0  # what could not be read was forgotten
            return RunsPage(source, lines, unreadable, len(runs), first)

    def run_page(
        self, run: bytes, first: int | None = None, axis: Axis = "rounds", every: int | None = None
    ) -> RunPage:
        """The run with a window of its rounds: from `first` on, or the newest. `every`: all of them from that round on,
        as a file has them. Raises NotThere."""
        with self._open(run) as opened:
            view, totals = opened.view, opened.totals
            details, stages = find.show_run(view, self.folders), view.config.stages
            total = max(view.next_round(stage) for stage in range(stages))
            window = page.window(total, stages * view.config.max_replicas, first)
            if every is not None:
                window = Window(every, total, total, total, None, None)
            shown = self._shown(opened, range(window.first, window.end), whole=every is not None)
            measured = evaluation_store.read(self.folders, run)
            lines = page.member_lines(details, totals.members())
            limit = len(details.members) + _FORMER
            words = [verdict.finding.word for verdict in shown.verdicts]
            return RunPage(
                source=self._source(),
                details=details,
                axis=axis,
                axes=tuple(axis for axis in AXES if axis != "bytes" or totals.bytes),
                chart=chart(totals, measured, axis),
                loss=_last_loss(totals),
                tokens=totals.tokens[-1] if totals.tokens else 0,
                bytes=int(totals.bytes[-1]) if totals.bytes else None,
                share=totals.share(),
                shown_share=totals.share(window.first, window.end),
                strip=page.strip(totals),
                window=window,
                rows=shown.rows,
                findings={word: words.count(word) for word in dict.fromkeys(words)},
                has_manifest=opened.manifest is not None,
                members=lines[:limit],
                unlisted=max(0, len(lines) - limit),
                versions=self._versions(opened, measured),
                convictions=list(view.convictions),
            )

    def round_page(self, run: bytes, number: int) -> RoundPage:
        """Raises NotThere."""
        with self._open(run) as opened:
            view = opened.view
            stages = range(view.config.stages)
            newest = max(map(view.next_round, stages)) - 1
            if not 0 <= number <= newest:
                raise NotThere(f"no stage has sealed round {number} yet")
            shown = self._shown(opened, range(number, number + 1))
            convictions = [conviction for conviction in view.convictions if conviction.round == number]
            return RoundPage(
                source=self._source(),
                summary=find.summary(view, self.folders),
                number=number,
                newest=newest,
                row=shown.rows[0],
                seals=[
                    page.seal_page(
                        view.sealed[stage, number], view.sealed.hashes_after(stage, number), shown.drawn.get(number),
                        shown.verdicts, convictions,
                    )
                    for stage in stages
                    if number < view.next_round(stage)
                ],
                convictions=convictions,
            )  # fmt: skip

    def version_page(self, run: bytes, number: int) -> VersionPage:
        """Raises NotThere."""
        with self._open(run) as opened:
            view = opened.view
            newest = min(map(view.next_round, range(view.config.stages)))
            if not 0 <= number <= newest:
                raise NotThere(f"there is no version {number} yet: all stages have sealed {newest} rounds")
            measured = {evaluation.version: evaluation for evaluation in evaluation_store.read(self.folders, run)}
            hashes = [view.weights(stage, number).hex() for stage in range(view.config.stages)]
            files = [self._blob(name) for name in hashes]
            here = tuple(path is not None for path in files)
            return VersionPage(
                source=self._source(),
                summary=find.summary(view, self.folders),
                version=_line(number, tuple(hashes), here, measured.get(number)),
                newest=newest,
                files=files,
                checkpoints=[
                    checkpoint
                    for checkpoint in find.show_run(view, self.folders).checkpoints
                    if checkpoint.version == number
                ],
            )  # fmt: skip

    def _line_of(self, run: bytes) -> RunLine:
        with self._open(run) as opened:
            return RunLine(find.summary(opened.view, self.folders), opened.totals.share(), _last_loss(opened.totals))

    def _shown(self, opened: _Run, rounds: range, whole: bool = False) -> _Shown:
        """Of these rounds. `whole`: for a file, which cannot be asked again."""
        view, index = opened.view, self._index
        seals = takewhile(lambda row: row.round < rounds.stop, seal_rows.read(index, view.run, rounds.start))
        verdicts = self._verdicts.about(view.run, rounds, whole)
        drawn: Drawn = {}
        if opened.manifest is not None and (head := index.tip) is not None:
            seconds = _FILE_SECONDS if whole else _DRAW_SECONDS
            drawn = self._draws.of(view, opened.manifest, reversed(rounds), head, seconds)
        start = opened.totals.opened_before(index, rounds.start)
        found = page.grid(seals, view.config.stages, opened.totals, opened.coverage, start, drawn, verdicts)
        return _Shown(found, verdicts, drawn)

    def _versions(self, opened: _Run, measured: Sequence[Evaluation]) -> list[VersionLine]:
        """The newest, those that were measured or published, and the genesis; newest first."""
        view, losses = opened.view, {each.version: each for each in measured}
        newest = min(map(view.next_round, range(view.config.stages)))
        published = {checkpoint.round for checkpoint in view.checkpoints}
        special = sorted((number for number in published | {*losses} if number <= newest), reverse=True)[:_VERSIONS]
        found = []
        for number in sorted({newest, 0, *special}, reverse=True):
            hashes = tuple(view.weights(stage, number).hex() for stage in range(view.config.stages))
            here = tuple(self._blob(name) is not None for name in hashes)
            found.append(_line(number, hashes, here, losses.get(number)))
        return found

    def _blob(self, name: str) -> Path | None:
        return next((path for folder in self.folders if (path := folder / name).is_file()), None)

    def _source(self) -> Origin:
        domain = self._index.domain
        return Origin(domain.chain_id, domain.ledger, self._reach, self._index.tip, self._silence)

    def _sync(self) -> None:
        """What the chain node does not give leaves the pages as they are, with a word about it."""
        if time.monotonic() < self._synced + _FRESH_SECONDS:
            return
        try:
            self._index.sync(self._rpc)
            self._silence = None
        except LedgerUnavailable as error:
            self._silence = str(error)
        self._synced = time.monotonic()

    @contextmanager
    def _open(self, run: bytes) -> Iterator[_Run]:
        """The run as the index has it now. Raises NotThere."""
        with self._lock:
            self._sync()
            opened = self._runs.pop(run, None) or _Run(self._index, run, self.folders)
            opened.advance()
            self._runs[run] = opened
            while len(self._runs) > _OPEN_RUNS:
                self._runs.popitem(last=False)
            yield opened


def _last_loss(totals: Totals) -> float | None:
    return next((loss for loss in reversed(totals.losses) if not math.isnan(loss)), None)


def _payload_size(manifest: Manifest | None) -> PayloadSize | None:
    """How many bytes a counted payload has; None without the manifest, which says of what tensors it is."""
    if manifest is None:
        return None

    @lru_cache(1024)
    def size(stage: int, level: int | None, rank: int | None) -> int:
        plan = manifest.plan
        if manifest.adaptive is not None and level is not None and rank is not None:
            plan = Plan(level, rank, plan.inner_steps)
        return codecs.codec(manifest.codec.name).size(stage_shapes(manifest, stage), plan)

    return size


def _line(number: int, weights: tuple[str, ...], here: tuple[bool, ...], measured: Evaluation | None) -> VersionLine:
    losses = (None, None) if measured is None else (measured.loss, measured.average)
    return VersionLine(number, weights, here, *losses)
