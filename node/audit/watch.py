"""Follows a live run from outside and replays what is drawn, as soon as it is: no slot, no account, no word for it but
the chain node's."""

from __future__ import annotations

import math
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dlx.ledger.client import LedgerClient
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.inner import Replayed, Replayer
from dlx.node.audit.replay_choice import ReplayChoice
from dlx.node.audit.report import Verdict
from dlx.node.audit.request import AuditRequest
from dlx.node.audit.sources.blobs import BlobMissing, Blobs
from dlx.node.audit.sources.search import open_sources
from dlx.node.audit.watched import Chain, LiveChain, PinnedChain, Say, Seen
from dlx.node.home.diagnostics import exit_code
from dlx.node.home.errors import Failure
from dlx.node.home.formatting import bar
from dlx.node.round.challenges.draw import Drawing, Drawn, Known, drawable
from dlx.node.round.challenges.turns import SERVE_TIMEOUTS
from dlx.node.round.challenges.verdicts import Finding
from dlx.node.round.rules.plans import Terms, finished
from dlx.training.recipe.manifest import MAX_BYTES, Manifest, parse

POLL_SECONDS = 1.0
RETRY_SECONDS = 5.0  # until what was not served is asked for again
WORDS = ("honest", "false", "withheld", "unknown")


class WatchLine(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a drawn segment of one contribution."""

    round: int
    replica: int
    stage: int
    segment: int
    account: str
    statement: str  # hex
    finding: str | None  # honest, false, withheld; None: nothing can be said
    verdict: Verdict  # as the audit has it
    reasons: tuple[str, ...]
    distances: dict[str, float | None] | None

    @property
    def word(self) -> str:
        """One of WORDS."""
        return self.finding or "unknown"


@dataclass
class Tally:
    """The lines of a watch in numbers."""

    found: Counter[str] = field(default_factory=Counter)
    verdicts: set[str] = field(default_factory=set)

    def add(self, line: WatchLine) -> None:
        self.found[line.word] += 1
        self.verdicts.add(line.verdict)

    def sum(self, waiting: int) -> WatchSum:
        """At the end, when so many of those drawn have no line."""
        counts = {word: self.found[word] for word in WORDS}
        verdicts = self.verdicts | ({"SKIP"} if waiting else set())
        drawn = sum(counts.values()) + waiting
        return WatchSum(drawn=drawn, not_looked_at=waiting, exit_code=exit_code(verdicts), **counts)


class WatchSum(msgspec.Struct, frozen=True, kw_only=True):
    """How many drawn segments there were, and what became of them."""

    drawn: int
    honest: int
    false: int
    withheld: int
    unknown: int
    not_looked_at: int  # when the watch ended
    exit_code: int

    def __str__(self) -> str:
        counts = {word: getattr(self, word) for word in WORDS} | {"not looked at": self.not_looked_at}
        return f"{self.drawn} drawn segments: {', '.join(f'{count} {word}' for word, count in counts.items())}"


@contextmanager
def watching(client: LedgerClient, request: AuditRequest, say: Say, show: Say, step: Say) -> Iterator[Watch]:
    """A watch of the run with blobs from the request's places and the run's peers, in a working folder of its own.

    `say` is told what is worth keeping, `step` what is looked at next, `show` how far a download is. Raises Failure
    where the ledger is not what it has to be.
    """
    with (
        open_sources(client, request.run, request.places, say, show) as sources,
        tempfile.TemporaryDirectory(prefix="dlx-watch-") as work,
        ExitStack() as stack,
    ):
        chain: Chain
        if request.head is None:
            chain = LiveChain(client, request.run, say)
        else:
            chain = PinnedChain(client, request.run, request.head, show, stack)
        yield Watch(chain, request.replay or ReplayChoice(), Blobs(sources, Path(work)), say, step)


class Watch:
    """`lines` gives one line for each drawn segment of a contribution, of the window and of every later round. It ends
    with the run or, where a block is pinned, when all that was drawn up to it has a line.

    Raises Failure where the run's manifest or data cannot be had, LedgerUnavailable where the chain stays silent,
    Contradiction where the chain nodes disagree about a block that draws.
    """

    def __init__(self, chain: Chain, choice: ReplayChoice, blobs: Blobs, say: Say, step: Say) -> None:
        self._chain, self._choice, self._blobs, self._say, self._step = chain, choice, blobs, say, step
        self._drawn: set[int] = set()
        self._open: dict[tuple[bytes, int], _Open] = {}  # by `Drawn.key`
        self._done = 0  # of those drawn

    @property
    def waiting(self) -> int:
        """How many drawn segments of contributions have no line yet."""
        return len(self._open)

    def lines(self) -> Iterator[WatchLine]:
        manifest = self._manifest()
        try:
            replayer = Replayer(manifest, self._blobs, self._choice.placement)
        except BlobMissing as error:
            raise Failure(f"the run's data is not to be had: {error}") from None
        while True:
            seen = self._chain.look()
            if seen is not None:
                self._draw(manifest, seen)
                for place, one in list(self._open.items()):
                    if time.monotonic() >= one.again:
                        yield from self._replay(replayer, manifest, seen.view, place, one)
                if self._is_done(manifest, seen):
                    return
            time.sleep(POLL_SECONDS)

    def _manifest(self) -> Manifest:
        while (seen := self._chain.look()) is None or not seen.view.created:
            time.sleep(POLL_SECONDS)
        try:
            return parse(self._blobs.get(seen.view.config.manifest, MAX_BYTES).read_bytes())
        except BlobMissing as error:
            raise Failure(f"the run's manifest is not to be had: {error}") from None

    def _draw(self, manifest: Manifest, seen: Seen) -> None:
        before = len(self._open)
        for round in drawable(seen.view, manifest.audit.window):
            drawing = None if round in self._drawn else Drawing.of(seen.view, manifest, round)
            if drawing is None or drawing.known(seen.block, seen.final) is Known.TO_COME:
                continue
            hash_ = self._chain.block_hash(drawing.block)
            if hash_ is not None:
                self._drawn.add(round)
                self._open |= {drawn.key: _Open(drawn) for drawn in drawing.drawn(hash_)}
        if len(self._open) > before:
            self._say(f"{len(self._open) - before} more segments are drawn, {len(self._open)} to be looked at")

    def _replay(
        self, replayer: Replayer, manifest: Manifest, view: RunView, place: tuple[bytes, int], one: _Open
    ) -> Iterator[WatchLine]:
        """However slowly its files come: the time of what is withheld counts from when it was first missed."""
        drawn = one.drawn
        where = f"round {drawn.round} replica {drawn.replica} stage {drawn.stage} segment {drawn.segment}"
        total = self._done + len(self._open)
        self._step(f"{bar(self._done, total)} looking at {where}: {self._done} of {total} drawn segments are done")
        found = replayer.check(view, drawn)
        now = time.monotonic()
        if found.finding is Finding.WITHHELD and now < one.until:
            if one.until == math.inf:
                one.until = now + SERVE_TIMEOUTS * manifest.timing.round_timeout
                self._say(f"{where}: {'; '.join(found.reasons)}; it is asked for again")
            one.again = now + RETRY_SECONDS
            return
        del self._open[place]
        self._done += 1
        yield _line(drawn, found, view.is_convicted(drawn.account))

    def _is_done(self, manifest: Manifest, seen: Seen) -> bool:
        if self._open:
            return False
        drawn = self._drawn.issuperset(drawable(seen.view, manifest.audit.window))
        return seen.final or (drawn and finished(Terms.of(manifest), seen.view))


@dataclass
class _Open:
    """A drawn contribution without a line, and the times (s) of its next replay and of the last one."""

    drawn: Drawn
    again: float = 0.0
    until: float = math.inf  # nothing of it was missed yet


def _line(drawn: Drawn, found: Replayed, convicted: bool) -> WatchLine:
    outcome, verdict = found.outcome, found.verdict(convicted)
    distances = None
    if outcome is not None:
        names = ("weights", "optimiser", "activations", "gradients")
        distances = {name: getattr(outcome, name) for name in names}
    return WatchLine(
        round=drawn.round,
        replica=drawn.replica,
        stage=drawn.stage,
        segment=drawn.segment,
        account=drawn.account,
        statement=drawn.statement.hex(),
        finding=None if found.finding is None else found.finding.word,
        verdict="WARN" if verdict == "PASS" and found.direction else verdict,
        reasons=(*found.reasons, *found.direction),
        distances=distances,
    )
