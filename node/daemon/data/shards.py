"""The training data of one slot: the shards of a round are here before it begins, those of past ones give way.

Only the first and the last stage of a replica read data. What a round needs is known once the seals are there that deal
its samples; what the next ones will need is foreseen, and fetched while this one trains.
"""

import contextlib
from collections.abc import Collection, Sequence
from functools import cached_property

import trio

from dlx.ground.blobs import Kind
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.context import RunContext
from dlx.node.daemon.data.public_data import PublicData
from dlx.node.daemon.failures import action_failures
from dlx.node.home import logs
from dlx.node.home.errors import Failure
from dlx.node.round.actions import ActionFailed
from dlx.p2p.exchange import BlobError
from dlx.training.data.dealing import Intervals
from dlx.training.data.order import SampleOrder
from dlx.training.data.shards import DataError, Shard, sample_order
from dlx.training.recipe.recipe import reads_data

AHEAD = 2  # rounds
log = logs.get(__name__)


class Shards:
    """Of a slot. `run` looks ahead."""

    def __init__(self, context: RunContext, slot: tuple[int, int]) -> None:
        (self._replica, stage), self._data_cache = slot, context.operator.data_cache
        self._run, self._store = context.run, context.storage.blobs
        self._public = PublicData(context.storage.blobs, context.network.exchange)
        self.are_read = reads_data(context.run.manifest, stage) and context.operator.private_data is None
        self._owner = f"data/{context.run.id.hex()[:16]}"
        self._recent: dict[int, list[Shard]] = {}  # of the round asked for last, and of the one before it
        self.is_looking = False  # whether shards of later rounds are being fetched
        self._looking, self._look = trio.open_memory_channel[tuple[RunView, int]](1)

    async def samples(self, view: RunView, round: int) -> Intervals:
        """The positions that the replica trains on in a round. Raises ActionFailed where its seals were taken back."""
        try:
            return await trio.to_thread.run_sync(self._run.deals.lot, view, round, self._replica)
        except KeyError:
            raise ActionFailed(f"the seals that deal the samples of round {round} were taken back") from None

    async def have(self, view: RunView, round: int) -> None:
        """Have the shards of a round's samples on disk. Raises ActionFailed, Failure."""
        lot = await self.samples(view, round)
        wanted = await trio.to_thread.run_sync(self._of, lot)
        under_way = self._recent.get(round - 1, [])  # perhaps
        self._recent = {round - 1: under_way, round: wanted}
        with action_failures():
            await trio.to_thread.run_sync(self._pin, [*under_way, *wanted])
            await self._fetch(wanted, f"the training data of round {round}")

    async def mend(self, blobs: Collection[bytes]) -> set[bytes]:
        """Have again what is missing or damaged on our disk, as far as it is of the data: what was."""
        listed = [shard for shard in self._run.data.train if bytes.fromhex(shard.sha256) in blobs]
        for shard in listed:
            log.warning("a shard was missing or damaged on this disk: having it again", blob=shard.sha256[:12])
            await trio.to_thread.run_sync(self._store.sound, bytes.fromhex(shard.sha256))
        await self._fetch(listed, "training data that this disk has lost")
        return {bytes.fromhex(shard.sha256) for shard in listed}

    def look_ahead(self, view: RunView, round: int) -> None:
        """The round has begun: fetch what the next ones will need."""
        if self.are_read and not self._looking.statistics().current_buffer_used:
            self._looking.send_nowait((view, round))
            self.is_looking = True

    async def run(self) -> None:
        """Until cancelled. Raises Failure."""
        if not self.are_read:
            with contextlib.suppress(OSError):  # what an earlier slot had pinned stays a while longer
                await trio.to_thread.run_sync(self._store.pin, self._owner, ())
        async for view, round in self._look:
            try:
                wanted = await trio.to_thread.run_sync(self._foreseen, view, round)
                await self._fetch(wanted, f"the training data of rounds {round + 1} to {round + AHEAD}")
                await trio.to_thread.run_sync(self._store.shrink, Kind.SHARD, self._data_cache)
            except (BlobError, OSError) as error:
                log.info("training data of later rounds is not here yet", error=str(error))
            self.is_looking = False

    def _foreseen(self, view: RunView, round: int) -> list[Shard]:
        """Of the round under way and those after it; they are not evicted."""
        now = self._run.deals.coming(view, round, self._replica, 1)
        later = self._run.deals.coming(view, round + 1, self._replica, AHEAD)
        self._pin(self._of([*now, *later]))
        return self._of(later)

    def _pin(self, wanted: Sequence[Shard]) -> None:
        self._store.pin(self._owner, [bytes.fromhex(shard.sha256) for shard in wanted])

    async def _fetch(self, wanted: Sequence[Shard], why: str) -> None:
        try:
            await self._public.shards(self._run.data, wanted, Kind.SHARD, why)
        except DataError as error:
            raise Failure(str(error)) from error  # it stays so

    def _of(self, intervals: Sequence[tuple[int, int]]) -> list[Shard]:
        return [self._run.data.train[index] for index in self._order.shards(intervals)]

    @cached_property
    def _order(self) -> SampleOrder:
        data = self._run.manifest.data
        return sample_order(self._run.data, data.seed, data.sequence_length)
