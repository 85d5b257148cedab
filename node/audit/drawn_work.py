"""Which work was drawn for a replay, asked of the chain node block by block, and what members found of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerError
from dlx.ledger.events import Sealed
from dlx.ledger.index.event_index import Head
from dlx.ledger.typed import Domain
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.verdict_store import FILE, MAX_ROWS, by_place, listed_in
from dlx.node.home.datadir import DataDir
from dlx.node.round.challenges.draw import Drawing, Drawn, Known
from dlx.node.round.challenges.verdicts import ReportedVerdict, VerdictError
from dlx.training.recipe.manifest import Manifest
from dlx.training.slot.segments import segments_in

DrawnWork = Mapping[int, tuple[Drawn, ...]]  # by round; a round that is missing is not known (yet)
Segments = Mapping[tuple[int, int], Sequence[int]]  # stage, replica -> which were drawn; what is missing has none
_MAX_SEGMENTS = 50_000  # of a round, whose draw is computed here: 64 replicas of 3,000 steps in bfloat16
_MAX_DRAWN = 500_000  # segments, and rounds, of all runs: whose draws are remembered
_MAX_VERDICTS = 4096  # of a folder that are read for a page


class Draws:
    """Of the rounds that somebody looks at. For one thread at a time."""

    def __init__(self, client: LedgerClient) -> None:
        self._client = client
        self._settled: dict[tuple[bytes, int], tuple[Drawn, ...]] = {}
        self._kept = 0

    def of(self, view: RunView, manifest: Manifest, rounds: Iterable[int], head: Head, seconds: float) -> DrawnWork:
        """What was drawn of these rounds, as far as it can be asked in so many seconds."""
        until, found = time.monotonic() + seconds, dict[int, tuple[Drawn, ...]]()
        for round in rounds:
            known = self._settled.get((view.run, round))
            if known is None and time.monotonic() < until:
                known = self._ask(view, manifest, round, head)
            if known is not None:
                found[round] = known
        return found

    def _ask(self, view: RunView, manifest: Manifest, round: int, head: Head) -> tuple[Drawn, ...] | None:
        drawing = Drawing.of(view, manifest, round)
        if drawing is None or any(_segments(seal, drawing.length) > _MAX_SEGMENTS for seal in drawing.seals):
            return None
        known = drawing.known(head.block)
        if known is Known.TO_COME:
            return None
        try:
            hash = self._client.block_hash(drawing.block)
        except LedgerError:
            return None
        if hash is None:
            return None
        found = drawing.drawn(hash)
        if known is Known.SETTLED:
            self._kept += 1 + len(found)
            if self._kept > _MAX_DRAWN:
                self._settled.clear()
                self._kept = 1 + len(found)
            self._settled[view.run, round] = found
        return found


def segments_of(drawn: Iterable[Drawn]) -> Segments:
    """Of one round, by stage and replica."""
    found: dict[tuple[int, int], list[int]] = {}
    for one in drawn:
        found.setdefault((one.stage, one.replica), []).append(one.segment)
    return found


def _segments(seal: Sealed, length: int) -> int:
    return sum(segments_in(record.inner_steps, length) for record in seal.records)


class Verdicts:
    """Those that nodes of these folders have: each signature is verified once, however often a page asks.

    For one thread at a time.
    """

    def __init__(self, folders: Sequence[Path], domain: Domain) -> None:
        self._folders, self._domain = folders, domain
        self._read: dict[tuple[bytes, bytes], ReportedVerdict | None] = {}

    def about(self, run: bytes, rounds: range, whole: bool = False) -> list[ReportedVerdict]:
        """The verdicts on work of these rounds, each once; of very many the oldest, unless all are wanted (`whole`)."""
        limit = MAX_ROWS if whole else _MAX_VERDICTS
        found = dict.fromkeys(
            verdict
            for path in self._stores(run)
            for verdict in self._of(path, run, rounds, limit)
            if verdict.report.round in rounds
        )
        return sorted(found, key=by_place)

    def heard(self, run: bytes) -> bool:
        """Whether any of the folders is of a node that keeps verdicts of the run."""
        return next(iter(self._stores(run)), None) is not None

    def _stores(self, run: bytes) -> Iterable[Path]:
        paths = (DataDir(blobs.parent).state_of(run) / FILE for blobs in self._folders)
        return (path for path in paths if path.is_file())

    def _of(self, path: Path, run: bytes, rounds: range, limit: int) -> Iterable[ReportedVerdict]:
        try:
            listed = listed_in(path, rounds.start, limit)
        except OSError:
            return
        if len(self._read) > 4 * _MAX_VERDICTS:
            self._read.clear()
        for key in listed:
            if key not in self._read:
                try:
                    self._read[key] = ReportedVerdict.read(*key, run, self._domain)
                except VerdictError:  # the disk's fault
                    self._read[key] = None
            if (verdict := self._read[key]) is not None:
                yield verdict
