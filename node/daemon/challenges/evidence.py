"""What one check of a drawn segment takes: its files from whoever serves them, and the checking process."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from dlx.ground.blobs import Kind
from dlx.ledger.typed import Contribution
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.inner_inputs import Get, InnerInputs, MissingInputs, Undecidable
from dlx.node.daemon.context import RunContext
from dlx.node.daemon.data.public_data import PublicData
from dlx.node.daemon.data.versions import fetch_file, roots
from dlx.node.daemon.failures import fetch
from dlx.node.home import logs
from dlx.node.round.challenges.draw import Drawn
from dlx.node.trainer.checks import CheckFailed, Outcome, Work, check
from dlx.p2p.exchange import BlobError
from dlx.training.data.shards import DataError, Shard

FIRST_SECONDS, THEN_SECONDS = 10.0, 20.0  # without progress of a blob: of its maker, of everybody
VISIT_SECONDS = 2 * (FIRST_SECONDS + THEN_SECONDS)  # or a round timeout: for one that comes, before others are checked
CHECK_SECONDS = (
    600.0  # for one replay, and SLOWER times what its segment took to train, which is at most what a round may
)
SLOWER = 8.0
ADVANCE = 60.0  # seconds of training that count before they were trained: the first rounds are drawn too
PASSES = 3  # each asks for what the one before found missing
log = logs.get(__name__)


@dataclass
class Effort:
    """What checking may cost, and has cost, in seconds since the start."""

    share: float  # of the seconds trained
    trained: float = 0.0
    spent: float = 0.0

    @property
    def allowed(self) -> float:
        return self.share * (self.trained + ADVANCE)

    @property
    def is_left(self) -> bool:
        return self.spent < self.allowed


@dataclass(frozen=True)
class Evidence:
    """Of one run; the checker's own blob store has what was fetched, for others too."""

    context: RunContext
    effort: Effort

    async def outcome(self, view: RunView, drawn: Drawn, *, whole: bool) -> Outcome:
        """What a check comes to.

        `whole`: also what the neighbours received is needed. Raises MissingInputs for what nobody serves, Undecidable
        where nothing can be said, CheckFailed and OSError for what may go better later, FalseStatement.
        """
        context = self.context
        inner = InnerInputs(context.run.manifest, view, context.run.deals)
        most = inner.largest_file(drawn.stage)
        get = self._getter(drawn)
        folder, placement = context.storage.blobs.folder, context.operator.placement
        work = await trio.to_thread.run_sync(inner.work, drawn, get, folder, placement)
        for name in work.sent():
            try:
                await self._fetch(name, most, None)
            except MissingInputs:
                if whole:
                    raise
        wanted = await trio.to_thread.run_sync(inner.shards, work, context.run.data)
        async with self.data(wanted, drawn.stage):
            found = await self._checked(work, drawn, view, inner)
            if found.done and found.reasons:  # nobody is accused because of a bit that flipped here
                again = await self._checked(work, drawn, view, inner)
                if not again.reasons:
                    raise CheckFailed("two replays here differ: this machine is not to be trusted")
        return found

    @property
    def _round_timeout(self) -> float:
        return self.context.run.manifest.timing.round_timeout

    @asynccontextmanager
    async def data(self, wanted: Sequence[Shard], stage: int) -> AsyncIterator[None]:
        """These shards are here, sound, and stay; so is the base of the stage's adapter. Raises CheckFailed,
        OSError."""
        run, store = self.context.run, self.context.storage.blobs
        owner, public = f"check/{run.id.hex()[:16]}", PublicData(store, self.context.network.exchange)
        names = [bytes.fromhex(shard.sha256) for shard in wanted]
        await trio.to_thread.run_sync(store.pin, owner, names)
        try:
            for name in names:
                await trio.to_thread.run_sync(store.sound, name)  # a damaged one is gone now
            await public.base(run.manifest, stage)
            await public.shards(run.data, wanted, Kind.SHARD, "a check")
            yield
        except (BlobError, DataError) as error:
            raise CheckFailed(f"its training data or base is not to be had: {error}") from None
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(store.pin, owner, ())

    async def _checked(self, work: Work, drawn: Drawn, view: RunView, inner: InnerInputs) -> Outcome:
        maker, most = self.context.network.peer_of(drawn.account), inner.largest_file(drawn.stage)
        store, seconds = self.context.storage.blobs, check_seconds(work, self._round_timeout)
        shared = work.shared(inner.terms.ahead)
        for _ in range(PASSES):
            began = trio.current_time()
            try:
                found = await check(work, seconds)
            finally:
                self.effort.spent += trio.current_time() - began
            if found.refusal:
                raise Undecidable(found.refusal)
            if not found.missing:
                return found
            for name in found.missing:
                await trio.to_thread.run_sync(store.sound, name)  # a damaged one is missing too, and goes
                if name not in shared:
                    await self._fetch(name, most, maker)
                    continue
                try:
                    await (
                        self._base(view, drawn, inner) if name == work.base_weights else self._fetch(name, most, None)
                    )
                except MissingInputs:
                    raise CheckFailed(f"nobody gives {name.hex()[:12]}, which its maker need not serve") from None
        raise CheckFailed(f"it asks for more and more: {MissingInputs(found.missing)}")

    def _getter(self, drawn: Drawn) -> Get:
        """To be called from a thread."""
        maker = self.context.network.peer_of(drawn.account)

        def get(name: bytes, limit: int) -> Path:
            return trio.from_thread.run(self._fetch, name, limit, maker)

        return get

    async def _base(self, view: RunView, drawn: Drawn, inner: InnerInputs) -> None:
        """Have the version that the round began with, from its stage's members. Raises MissingInputs."""
        context, version = self.context, inner.base(drawn)
        name, size = view.weights(drawn.stage, version), context.run.manifest.genesis[drawn.stage].size
        members = [peer for account in view.members_in(drawn.stage) if (peer := context.network.peer_of(account))]
        root = roots(view, drawn.stage, version).get(name)
        with self._absent_unless_had(name):
            await fetch_file(context.network.exchange, context.storage.blobs, name, root, size, members, THEN_SECONDS)

    async def _fetch(self, name: bytes, limit: int, maker: str | None) -> Path:
        """From its maker, else from everybody. Raises MissingInputs, also for what comes so slowly that others are
        checked first: it is gone on with where it stopped."""
        exchange, store = self.context.network.exchange, self.context.storage.blobs
        ask = partial(fetch, exchange, store, name, limit, kind=Kind.VERSION)
        with self._absent_unless_had(name):
            path = None
            if maker is not None:
                with suppress(BlobError):
                    path = await ask(peers=[maker], seconds=FIRST_SECONDS)
            if path is None:
                path = await ask(peers=None, seconds=THEN_SECONDS)
        return path

    @contextmanager
    def _absent_unless_had(self, name: bytes) -> Iterator[None]:
        """Raises MissingInputs where a blob is not to be had, or comes slowly."""
        seconds = max(VISIT_SECONDS, self._round_timeout)
        try:
            with trio.fail_after(seconds):
                yield
        except trio.TooSlowError:
            log.debug("a blob for a check comes slowly", blob=name.hex()[:12], seconds=seconds)
            raise MissingInputs([name], arriving_s=seconds) from None
        except BlobError as error:
            log.debug("a blob for a check is not to be had", blob=name.hex()[:12], error=str(error))
            raise MissingInputs([name]) from None


def check_seconds(work: Work, round_timeout: float) -> float:
    """How long a replay may take, by what the contribution says of itself: its maker bends that by a round timeout."""
    statement = Contribution.decode(work.statement)
    return CHECK_SECONDS + SLOWER * min(statement.compute_ms / 1000 / max(1, statement.segments), round_timeout)
