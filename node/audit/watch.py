"""Follows a live run from outside and replays what is drawn, as soon as it is: no slot, no account, no word for it but
the chain node's."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerUnavailable
from dlx.ledger.index.feed import RunUpdate
from dlx.node.audit.inner import Replayed, Replayer
from dlx.node.audit.report import Verdict
from dlx.node.audit.request import AuditRequest, ReplayChoice
from dlx.node.audit.sources.blobs import BlobMissing, Blobs
from dlx.node.audit.sources.places import open_sources
from dlx.node.home.errors import Failure
from dlx.node.round.challenges.draw import Drawn, draw_block, drawable, drawn_of, seals_of
from dlx.node.round.challenges.turns import SERVE_TIMEOUTS
from dlx.node.round.challenges.verdicts import Finding
from dlx.node.round.rules.plans import Terms, finished
from dlx.training.recipe.manifest import MAX_BYTES, Manifest, parse
from dlx.training.slot.segments import segment_steps

POLL_SECONDS = 1.0
RETRY_SECONDS = 5.0  # until what was not served is asked for again
PATIENCE = 600.0  # that the chain may be silent

Say = Callable[[str], None]


class WatchLine(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one drawn contribution."""

    round: int
    replica: int
    stage: int
    segment: int
    account: str
    statement: str  # hex
    finding: str | None  # honest, false, withheld; None: nothing can be said
    verdict: Verdict  # as the audit has it
    reasons: tuple[str, ...]
    disputed: bool
    distances: dict[str, float | None] | None


@contextmanager
def watching(client: LedgerClient, request: AuditRequest, say: Say) -> Iterator[Watch]:
    """A watch of the run with blobs from the request's places and the run's peers, in a working folder of its own."""
    with (
        open_sources(client, request.run, request.places, say) as sources,
        tempfile.TemporaryDirectory(prefix="dlx-watch-") as work,
    ):
        yield Watch(client, request, Blobs(sources, Path(work)), say)


class Watch:
    """`lines` gives one line for each drawn contribution of the window and of every later round, until the run is over.

    Raises Failure where the run's manifest or data cannot be had, LedgerUnavailable where the chain stays silent.
    """

    def __init__(self, client: LedgerClient, request: AuditRequest, blobs: Blobs, say: Say) -> None:
        self._client, self._request, self._blobs, self._say = client, request, blobs, say
        self._drawn: set[int] = set()
        self._open: dict[bytes, tuple[Drawn, float, float]] = {}  # withheld from (inf: not missed yet), again
        self._silent_since: float | None = None

    @property
    def waiting(self) -> int:
        """How many drawn contributions have no line yet."""
        return len(self._open)

    def lines(self) -> Iterator[WatchLine]:
        manifest, choice = self._manifest(), self._request.replay or ReplayChoice()
        try:
            replayer = Replayer(manifest, self._blobs, choice.placement)
        except BlobMissing as error:
            raise Failure(f"the run's data is not to be had: {error}") from None
        feed = self._client.follow(self._request.run, manifest.confirmations)
        while True:
            update = self._poll(lambda: self._client.poll(feed))
            if update is not None:
                self._draw(manifest, update)
                for drawn, until, again in list(self._open.values()):
                    if time.monotonic() >= again:
                        yield from self._replay(replayer, manifest, update, drawn, until)
                if finished(Terms.of(manifest), update.view) and self._is_done(manifest, update):
                    return
            time.sleep(POLL_SECONDS)

    def _manifest(self) -> Manifest:
        feed = self._client.follow(self._request.run)
        while (update := self._poll(lambda: self._client.poll(feed))) is None or not update.view.created:
            time.sleep(POLL_SECONDS)
        try:
            return parse(self._blobs.get(update.view.config.manifest, MAX_BYTES).read_bytes())
        except BlobMissing as error:
            raise Failure(f"the run's manifest is not to be had: {error}") from None

    def _poll(self, poll: Callable[[], RunUpdate]) -> RunUpdate | None:
        """None while the chain is silent."""
        try:
            update = poll()
        except LedgerUnavailable as error:
            now = time.monotonic()
            if self._silent_since is None:
                self._silent_since = now
                self._say(f"the chain does not answer: {error}")
            if now > self._silent_since + PATIENCE:
                raise
            return None
        self._silent_since = None
        return update if update.complete else None

    def _draw(self, manifest: Manifest, update: RunUpdate) -> None:
        view, audit = update.view, manifest.audit
        for round in drawable(view, audit.window):
            seals = None if round in self._drawn else seals_of(view, round)
            if seals is None:
                continue
            block = draw_block(seals, audit.draw_after)
            ready = update.head.block >= block + manifest.confirmations
            hash_ = self._client.block_hash(block) if ready else None
            if hash_ is not None:
                self._drawn.add(round)
                for drawn in drawn_of(seals, hash_, audit.share, segment_steps(manifest)):
                    self._open[drawn.statement] = drawn, math.inf, 0.0

    def _replay(
        self, replayer: Replayer, manifest: Manifest, update: RunUpdate, drawn: Drawn, until: float
    ) -> Iterator[WatchLine]:
        """However slowly its files come: the time of what is withheld counts from when it was first missed."""
        found = replayer.check(update.view, drawn)
        now = time.monotonic()
        if found.finding is Finding.WITHHELD and now < until:
            until = min(until, now + SERVE_TIMEOUTS * manifest.timing.round_timeout)
            self._open[drawn.statement] = drawn, until, now + RETRY_SECONDS
            return
        del self._open[drawn.statement]
        yield _line(drawn, found, update.view.is_convicted(drawn.account))

    def _is_done(self, manifest: Manifest, update: RunUpdate) -> bool:
        return not self._open and self._drawn.issuperset(drawable(update.view, manifest.audit.window))


def _line(drawn: Drawn, found: Replayed, convicted: bool) -> WatchLine:
    outcome = found.outcome
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
        verdict=found.verdict(convicted),
        reasons=found.reasons,
        disputed=found.disputed,
        distances=distances,
    )
