"""A ledger as its pages need it: the index, brought up to the chain's head, and for each run what was summed of it."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from dlx.ledger.campaigns import Campaigns
from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import EventsLeftOut, LedgerError, LedgerUnavailable
from dlx.ledger.events import Convicted
from dlx.ledger.index import seal_rows
from dlx.ledger.index.crosscheck import Comparison, disagreement, incomplete, read_all, stage_claims
from dlx.ledger.index.event_index import EventIndex, Head
from dlx.ledger.index.log_reader import Unsettled
from dlx.ledger.index.rebuild import RunReplay
from dlx.ledger.transactions.fees import Limits
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.drawn_work import Draws, Segments, Verdicts, segments_of
from dlx.node.audit.leaderboards import improvement_of, read_leaderboard
from dlx.node.checkpoints import evaluation_store
from dlx.node.checkpoints.evaluation_store import Compared, Evaluation
from dlx.node.home.errors import Failure
from dlx.node.round.challenges.evaluation import due
from dlx.node.round.challenges.verdicts import ReportedVerdict
from dlx.node.runs import campaigns, find
from dlx.node.runs.campaigns import Funding
from dlx.node.runs.find import RunDetails, RunSummary, UnreadableRun
from dlx.node.runs.held_out import HeldOut, losses_of, read_held_out
from dlx.node.runs.leaderboard import Leaderboard, Leaderboards, over_runs
from dlx.node.runs.slot_costs import GasPrice, gas_price, take
from dlx.node.web.reading import page
from dlx.node.web.reading.chart import AXES, Axis, Chart, chart
from dlx.node.web.reading.coverage import Coverage
from dlx.node.web.reading.offer import Offer, Pace, Subject, offer, pace, round_seconds, subject
from dlx.node.web.reading.page import Bucket, GridRow, SealPage, Window
from dlx.node.web.reading.totals import PayloadSize, Share, Totals
from dlx.training import codecs
from dlx.training.data.shards import Counted, DataError, DataManifest, read_data_manifest
from dlx.training.models.shapes import stage_shapes
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Plan

RUNS = 50  # on a page
_FRESH_SECONDS = 1.0  # that the index is believed to be at the head
_LEFT_OUT_SECONDS = 60.0  # that chain nodes are left alone which left events out
_DRAW_SECONDS, _FILE_SECONDS = 0.3, 20.0  # to ask for the blocks that draw, for one page, and for a file
_OPEN_RUNS = 64  # replayed and kept in memory
_TRIES = 5
_VERSIONS = 10
_CAMPAIGNS = 5  # that the page shows
_PRICE_SECONDS = 60.0  # that a price of gas is believed
_FUNDING_SECONDS = 10.0  # that what was read of them is believed


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
    loss: float | None  # of training
    held_out: HeldOut | None  # the newest that anybody said


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
    held_out: HeldOut | None  # by the ledger
    evaluation: float | None  # held-out loss that was measured here
    average: float | None  # that of the mean that is published as the version


class RunPage(NamedTuple):
    source: Origin
    details: RunDetails
    axis: Axis
    axes: tuple[Axis, ...]  # that there are numbers for
    chart: Chart | None
    loss: float | None  # of training, of the newest round that has one
    held_out: HeldOut | None  # of the newest version of which anybody said it
    before: float | None  # that of the model that the run starts from, by its creator
    tokens: int
    bytes: int | None  # of counted payloads
    share: Share
    shown_share: Share  # of the rounds in the grid
    strip: list[Bucket]
    window: Window
    rows: list[GridRow]
    findings: dict[str, int]  # of the verdicts on the rounds in the grid
    has_manifest: bool
    subject: Subject | None  # None without the manifest
    pace: Pace | None  # None before two rounds are sealed
    offer: Offer
    sources: list[Counted]  # of a mixture; none where the data manifest is not here
    board: Leaderboard
    versions: list[VersionLine]
    convictions: list[Convicted]
    funding: Funding | None  # None: no contract of campaigns is known, or it could not be read


class AccountsPage(NamedTuple):
    source: Origin
    boards: Leaderboards
    unreadable: list[UnreadableRun]
    total: int  # runs
    first: int


class RoundPage(NamedTuple):
    source: Origin
    summary: RunSummary
    number: int
    newest: int
    row: GridRow
    held_out: HeldOut | None  # of the version that the round made
    seals: list[SealPage]
    convictions: list[Convicted]


class VersionPage(NamedTuple):
    source: Origin
    summary: RunSummary
    version: VersionLine
    newest: int
    files: list[Path | None]  # of each stage's weights; None: not here
    checkpoints: list[find.Checkpoint]
    beside: VersionLine | None  # another one, to compare it with
    answers: list[Compared]  # of both, where somebody kept some here


class NotThere(Failure):
    """No such run, round or version."""


class _Shown(NamedTuple):
    """Some rounds: what the grid has of them, newest first, the verdicts on their work, and what was drawn."""

    rows: list[GridRow]
    verdicts: list[ReportedVerdict]
    drawn: Mapping[int, Segments]


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
        self.data: DataManifest | None = None  # once its file is here
        self.held_out: Mapping[int, HeldOut] = {}
        self._said: tuple[int, int] | None = None  # how much of it was said, and how much could be, when it was read
        self.improved: Mapping[str, float] | None = None
        self.comparison = Comparison()
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

    def ask_held_out(self, client: LedgerClient) -> None:
        """Reads the ledger's record of held-out losses where somebody said more since. What the chain node does not
        give leaves what was read before."""
        if self.manifest is None or not self.manifest.evaluation.every:
            return
        news = sum(map(len, self.view.evaluations.values())), len(due(self.view, self.manifest))
        if news != self._said:
            with suppress(LedgerError):
                self.held_out, self._said = read_held_out(client, self.view, self.manifest), news
                self.improved = improvement_of(self._index, self.view, self.losses)

    @property
    def losses(self) -> dict[int, float]:
        """The held-out losses that the ledger has, by version, ascending."""
        return losses_of(self.held_out)

    @property
    def newest_held_out(self) -> HeldOut | None:
        return next((self.held_out[version] for version in reversed(self.losses)), None)

    def _begin(self) -> None:
        self._said = None
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

    def __init__(
        self,
        client: LedgerClient,
        folders: Sequence[Path],
        reach: str,
        campaigns: str = "",
        rpc_url: Sequence[str] = (),
    ) -> None:
        """`folders`: where blobs lie, and beside them the verdicts that nodes have. `reach`: see Origin. `campaigns`:
        the address of their contract, if it is known. `rpc_url`: chain nodes that whoever reads the page can ask."""
        self._rpc_url = tuple(rpc_url)
        self.client, self.folders, self._reach = client, tuple(folders), reach
        self._campaigns = campaigns
        self._fundings = dict[bytes, tuple[float, Funding | None]]()  # run -> when it was read, and what that was
        self._priced = -math.inf
        self._price: GasPrice | str = ""
        self._lock = threading.RLock()
        self._rpc = client.rpc.impatient()  # of a silent chain node what was read before is shown
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
            lines, unreadable = find.readable(self._index, runs[first : first + RUNS], self._line_of)
            self._compare([self._runs[run] for run in runs[first : first + RUNS] if run in self._runs])
            source = self._source()
            if self._index.tip is None and self._silence is None:
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
            words = [verdict.finding.word for verdict in shown.verdicts]
            return RunPage(
                source=self._source(),
                details=details,
                axis=axis,
                axes=tuple(axis for axis in AXES if axis != "bytes" or totals.bytes),
                chart=chart(totals, opened.losses, measured, axis),
                loss=_last_loss(totals),
                held_out=opened.newest_held_out,
                before=None if opened.manifest is None else opened.manifest.loss_before,
                tokens=totals.tokens[-1] if totals.tokens else 0,
                bytes=int(totals.bytes[-1]) if totals.bytes else None,
                share=totals.share(),
                shown_share=totals.share(window.first, window.end),
                strip=page.strip(totals),
                window=window,
                rows=shown.rows,
                findings={word: words.count(word) for word in dict.fromkeys(words)},
                has_manifest=opened.manifest is not None,
                subject=None if opened.manifest is None else subject(opened.manifest, self._data(opened)),
                pace=pace(totals, view.config.rounds, view.finished),
                offer=offer(
                    view,
                    self._index.domain.chain_id,
                    self._index.domain.ledger,
                    self._rpc_url,
                    take(view, opened.manifest, self._gas_price(), round_seconds(totals)),
                ),
                sources=[] if (data := self._data(opened)) is None else data.sources,
                board=self._board(opened, _DRAW_SECONDS if every is None else _FILE_SECONDS),
                versions=self._versions(opened, measured),
                convictions=list(view.convictions),
                funding=self._funding(view),
            )

    def accounts_page(self, first: int = 0) -> AccountsPage:
        """Who did what in the runs from the `first` newest on."""
        with self._lock:
            self._sync()
            runs = self._index.runs()[::-1]

            def board(run: bytes) -> Leaderboard:
                with self._open(run, alone=False) as opened:
                    return self._board(opened, _DRAW_SECONDS / RUNS)

            boards, unreadable = find.readable(self._index, runs[first : first + RUNS], board)
            return AccountsPage(self._source(), over_runs(boards), unreadable, len(runs), first)

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
                held_out=opened.held_out.get(number + 1),
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

    def version_page(self, run: bytes, number: int, beside: int | None = None) -> VersionPage:
        """`beside`: another version, to compare it with. Raises NotThere."""
        with self._open(run) as opened:
            view = opened.view
            newest = min(map(view.next_round, range(view.config.stages)))
            if missing := [one for one in (number, beside) if one is not None and not 0 <= one <= newest]:
                raise NotThere(f"there is no version {missing[0]} yet: all stages have sealed {newest} rounds")
            measured = {evaluation.version: evaluation for evaluation in evaluation_store.read(self.folders, run)}

            def hashes(number: int) -> list[str]:
                return [view.weights(stage, number).hex() for stage in range(view.config.stages)]

            def line(number: int) -> VersionLine:
                names = tuple(hashes(number))
                here = tuple(self._blob(name) is not None for name in names)
                return _line(number, names, here, opened.held_out.get(number), measured.get(number))

            return VersionPage(
                source=self._source(),
                summary=find.summary(view, self.folders),
                version=line(number),
                newest=newest,
                files=[self._blob(name) for name in hashes(number)],
                checkpoints=[
                    checkpoint
                    for checkpoint in find.show_run(view, self.folders).checkpoints
                    if checkpoint.version == number
                ],
                beside=None if beside is None else line(beside),
                answers=[]
                if beside is None
                else evaluation_store.comparison(self.folders, run, (number, beside)),
            )  # fmt: skip

    def _line_of(self, run: bytes) -> RunLine:
        with self._open(run, alone=False) as opened:
            totals, newest = opened.totals, opened.newest_held_out
            return RunLine(find.summary(opened.view, self.folders), totals.share(), _last_loss(totals), newest)

    def _board(self, opened: _Run, seconds: float) -> Leaderboard:
        return read_leaderboard(
            self._index,
            opened.view,
            opened.manifest,
            self._draws,
            self._verdicts,
            opened.totals.work,
            opened.improved,
            seconds,
        )

    def _shown(self, opened: _Run, rounds: range, whole: bool = False) -> _Shown:
        """Of these rounds. `whole`: for a file, which cannot be asked again."""
        view, index = opened.view, self._index
        seals = takewhile(lambda row: row.round < rounds.stop, seal_rows.read(index, view.run, rounds.start))
        verdicts = self._verdicts.about(view.run, rounds, whole)
        drawn = dict[int, Segments]()
        if opened.manifest is not None and (head := index.tip) is not None:
            seconds = _FILE_SECONDS if whole else _DRAW_SECONDS
            found = self._draws.of(view, opened.manifest, reversed(rounds), head, seconds)
            drawn = {round: segments_of(each) for round, each in found.items()}
        start = opened.totals.opened_before(index, rounds.start)
        rows = page.grid(
            seals, view.config.stages, opened.totals, opened.coverage, start, drawn, verdicts, opened.losses
        )
        return _Shown(rows, verdicts, drawn)

    def _versions(self, opened: _Run, measured: Sequence[Evaluation]) -> list[VersionLine]:
        """The newest, those that were evaluated, measured or published, and the genesis; newest first."""
        view, losses = opened.view, {each.version: each for each in measured}
        newest = min(map(view.next_round, range(view.config.stages)))
        published = {checkpoint.round for checkpoint in view.checkpoints}
        known = published | {*losses} | {*opened.losses}
        special = sorted((number for number in known if number <= newest), reverse=True)[:_VERSIONS]
        found = []
        for number in sorted({newest, 0, *special}, reverse=True):
            hashes = tuple(view.weights(stage, number).hex() for stage in range(view.config.stages))
            here = tuple(self._blob(name) is not None for name in hashes)
            found.append(_line(number, hashes, here, opened.held_out.get(number), losses.get(number)))
        return found

    def _funding(self, view: RunView) -> Funding | None:
        """Not asked for anew at each look. Whatever is wrong with it, the page is shown."""
        read, found = self._fundings.get(view.run, (-math.inf, None))
        if self._campaigns and time.monotonic() > read + _FUNDING_SECONDS:
            try:
                opened = Campaigns(self.client, self._campaigns, self._rpc)
                found = campaigns.funding(opened, view, campaigns.progress_of(self.client, view.run), _CAMPAIGNS)
            except LedgerError:
                found = None
            self._fundings[view.run] = time.monotonic(), found
        return found

    def _gas_price(self) -> GasPrice | str:
        """Not asked for anew at each look."""
        if time.monotonic() > self._priced + _PRICE_SECONDS:
            self._priced, self._price = time.monotonic(), gas_price(self._rpc, Limits())
        return self._price

    def _blob(self, name: str) -> Path | None:
        return next((path for folder in self.folders if (path := folder / name).is_file()), None)

    def _data(self, opened: _Run) -> DataManifest | None:
        if opened.data is None and opened.manifest is not None:
            path = self._blob(opened.manifest.data.manifest.sha256)
            with suppress(DataError):
                opened.data = read_data_manifest(path) if path else None
        return opened.data

    def _source(self) -> Origin:
        domain = self._index.domain
        return Origin(domain.chain_id, domain.ledger, self._reach, self._index.tip, self._silence)

    def _sync(self) -> None:
        """What the chain node does not give leaves the pages as they are, with a word about it."""
        if time.monotonic() < self._synced + _FRESH_SECONDS:
            return
        rest = 0.0
        try:
            read_all(self._index, self._rpc)
            self._silence = None
        except LedgerUnavailable as error:
            self._silence = str(error)
        except EventsLeftOut as error:  # each look would have all read anew
            self._silence, rest = str(error), _LEFT_OUT_SECONDS
        self._synced = time.monotonic() + rest

    def _compare(self, runs: Sequence[_Run]) -> None:
        """Says it where the contracts have other heads or slots of runs than were read."""
        tip, name = self._index.tip, self._rpc.name
        if tip is None or self._silence is not None:
            return
        due = [one for one in runs if one.comparison.is_due(self._index, tip.block)]
        claims = [
            replace(claim, about=f"{claim.about} of run 0x{one.view.run.hex()}")
            for one in due
            for claim in stage_claims(one.view)
        ]
        try:
            about = disagreement(self._rpc, self._index.contracts, claims, tip.block)
        except LedgerUnavailable as error:
            self._silence = str(error)
            return
        if about is None:
            for one in due:
                one.comparison.passed(tip.block)
        else:
            due[0].comparison.failed(self._index, self._rpc)
            self._silence = incomplete(name, "events", about)

    @contextmanager
    def _open(self, run: bytes, alone: bool = True) -> Iterator[_Run]:
        """The run as the index has it now; of those that are not shown `alone` many are compared at once. Raises
        NotThere."""
        with self._lock:
            self._sync()
            opened = self._runs.pop(run, None) or _Run(self._index, run, self.folders)
            opened.advance()
            if alone:
                self._compare([opened])
            if self._silence is None:
                opened.ask_held_out(self.client)
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


def _line(
    number: int,
    weights: tuple[str, ...],
    here: tuple[bool, ...],
    held_out: HeldOut | None,
    measured: Evaluation | None,
) -> VersionLine:
    losses = (None, None) if measured is None else (measured.loss, measured.average)
    return VersionLine(number, weights, here, held_out, *losses)
