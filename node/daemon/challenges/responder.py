"""What this node has to show of its own work. Once a round's draw is known, the drawn segments' files become public
blobs for the manifest's window. The rest of the round goes (see training.slot.undecided).

It looks into the folders of every stage that the node has held: a contribution is answered for also after a move. The
members of a stage also keep the version that its drawn work began with, which a check begins with too.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import trio

from dlx.ground.blobs import BlobError, Kind, read_blob
from dlx.ground.constants import NO_HASH
from dlx.ledger.typed import CONTRIBUTION_SIZE, Contribution, TypedError
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.challenges.draws import RoundDraw
from dlx.node.daemon.context import RunContext
from dlx.node.daemon.observable import Observable
from dlx.node.daemon.supervisor import ReportHealthy
from dlx.node.home import logs
from dlx.node.round.challenges.draw import MOST_WINDOW
from dlx.node.round.rules.continuity import LOOKED_BACK
from dlx.node.round.rules.plans import Terms
from dlx.node.round.rules.round_rules import base_version
from dlx.training.slot.undecided import Undecided

SPARE = 4  # rounds beyond the window: a checker that sees the chain later is answered, too
log = logs.get(__name__)


@dataclass(frozen=True)
class Held:
    """What lies on this disk for checks."""

    undecided: int = 0  # bytes of rounds whose draw is not known yet
    drawn: int = 0  # own contributions of which segments are served


class ChallengeResponder:
    """Of one account in one run. `view()`: the ledger's newest."""

    def __init__(
        self, context: RunContext, rounds: Observable[Mapping[int, RoundDraw]], view: Callable[[], RunView | None]
    ) -> None:
        self.held = Held()
        self._context, self._store, self._rounds, self._view = context, context.storage.blobs, rounds, view
        self._terms = Terms.of(context.run.manifest)
        self._prefix = f"custody/{context.run.id.hex()[:16]}/"
        self._window = min(context.run.manifest.audit.window, MOST_WINDOW)

    async def run(self, report_healthy: ReportHealthy) -> None:
        """Raises OSError; what is done stays done."""
        async for rounds in self._rounds.values():
            view = self._view()
            if view is not None and view.created:
                self.held = await trio.to_thread.run_sync(self._settle, view, rounds)
                report_healthy()

    def shown(self) -> set[bytes]:
        """The blobs of our own drawn work. Blocks on the disk."""
        return self._store.pinned(f"{self._prefix}own/")

    def _settle(self, view: RunView, draws: Mapping[int, RoundDraw]) -> Held:
        gone = min(map(view.next_round, range(view.config.stages))) - self._window - SPARE
        undecided = 0
        for stage, slot in self._slots():
            for round in slot.rounds():
                if round in draws:
                    self._decide(slot, stage, round, draws[round])
                elif round < gone:
                    slot.decide(round, (), self._store.folder)
            undecided += slot.size()
        held = view.slot_of(self._context.account)
        if held is not None:
            self._keep_bases(view, held[1], draws)
        owners = self._store.owners(self._prefix)
        for owner in owners:
            if int(owner.rpartition("/")[2]) < gone:
                self._store.release(owner)
        return Held(undecided, sum("/own/" in one and int(one.rpartition("/")[2]) >= gone for one in owners))

    def _decide(self, slot: Undecided, stage: int, round: int, draw: RoundDraw) -> None:
        mine = [one for one in draw.drawn if (one.account, one.stage) == (self._context.account, stage)]
        finished = slot.find(round)
        if not mine or finished is None:
            slot.decide(round, (), self._store.folder)
            return
        segments, trained, ahead = (
            [one.segment for one in mine],
            finished.trained,
            self._context.run.manifest.outer.ahead,
        )
        names = finished.handed_over(segments, ahead)
        said = {trained.payload, trained.trace, *self._chain(mine[0].statement)}  # whatever the manifest's retention is
        self._store.pin(f"{self._prefix}own/{stage}/{round}", names | said)  # first: a kill must leave nothing unowned
        for name in names:
            self._store.note(name, Kind.PAYLOAD if name == trained.payload_before else Kind.VERSION)
        slot.decide(round, segments, self._store.folder, ahead)
        log.info("drawn for a replay", round=round, replica=mine[0].replica, stage=stage, segments=segments)

    def _chain(self, statement: bytes) -> Iterator[bytes]:
        """It and the account's statements before it that a check of it may look at, as far as they are here."""
        for _ in range(LOOKED_BACK + 1):
            yield statement
            try:
                data = read_blob(self._store.folder / statement.hex(), CONTRIBUTION_SIZE)
                statement = Contribution.decode(data).previous
            except (BlobError, TypedError):
                return
            if statement == NO_HASH:
                return

    def _keep_bases(self, view: RunView, stage: int, draws: Mapping[int, RoundDraw]) -> None:
        for round, draw in draws.items():
            owner = f"{self._prefix}base/{stage}/{round}"
            if any(one.stage == stage for one in draw.drawn):
                self._store.pin(owner, {view.weights(stage, base_version(self._terms, round))})

    def _slots(self) -> Iterator[tuple[int, Undecided]]:
        for path in sorted(self._context.storage.directory.glob("stage-*/slot")):
            yield int(path.parent.name.removeprefix("stage-")), Undecided(path)
