"""A session for whichever slot the ledger gives us, and another one when it gives us another slot."""

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from dlx.ledger.typed import ANY_STAGE
from dlx.node.daemon.chain.follower import Follower
from dlx.node.daemon.context import RunContext
from dlx.node.daemon.data.retention import kept_stage
from dlx.node.daemon.membership.registration import Membership
from dlx.node.daemon.membership.rest import Rest
from dlx.node.daemon.slot.session import Session
from dlx.node.daemon.supervisor import ReportHealthy, Supervisor
from dlx.node.home import logs
from dlx.node.home.errors import Failure
from dlx.node.round.rules import plans
from dlx.node.round.rules.plans import Terms
from dlx.node.trainer.client import Trainer
from dlx.node.trainer.stuck import stuck
from dlx.training.models.parallel import check_parallel
from dlx.training.models.placement import ONE_THREAD, Placement, PlacementError, of_run

SETTLE_SECONDS = 5.0  # until it is asked again whether a slot can be given back
FINISH_SECONDS = 4.0  # for the step under way, when the node stops or gives its slot back
log = logs.get(__name__)


async def _nothing_owed() -> bool:
    await trio.lowlevel.checkpoint()
    return True


class Assignment:
    """`run` loads the training process at once; `open` says, once, what there is to train.

    `stage`: the one that the user wants, or None. No slot is taken on a machine that lacks the placement.
    """

    def __init__(
        self,
        follower: Follower,
        membership: Membership,
        supervisor: Supervisor,
        stage: int | None,
        placement: Placement = ONE_THREAD,
        rest: Rest | None = None,
        settled: Callable[[], Awaitable[bool]] = _nothing_owed,
    ) -> None:
        """`settled()` waits until nothing of our work has to be served any more: before that no slot is given back.
        False where that cannot be told."""
        self.session: Session | None = None
        self._follower, self._membership, self._supervisor, self._stage = follower, membership, supervisor, stage
        self._placement, self._rest, self._settled = placement, rest, settled
        self._context: RunContext | None = None
        self._terms: Terms | None = None
        self._opened, self._closed = trio.Event(), False
        self.able = trio.Event()  # this machine has what the placement asks for
        self._trainer: Trainer | None = None

    def open(self, context: RunContext) -> None:
        """The run's public data is here. Raises Failure where its model cannot be trained by these ranks, or there."""
        try:
            check_parallel(context.run.manifest, self._placement.tensor_parallel)
            of_run(context.run.manifest, self._placement)
        except PlacementError as error:
            raise Failure(str(error)) from None
        self._context, self._terms = context, Terms.of(context.run.manifest)
        self._opened.set()

    @property
    def trouble(self) -> str | None:
        """Why there is no training process that has the slot open, as far as something went wrong."""
        return None if self._trainer is None else self._trainer.trouble

    def stuck(self) -> list[str]:
        """The processes of the slot that do not run, in words."""
        pid = None if self._trainer is None else self._trainer.pid
        return [] if pid is None else stuck(pid)

    @property
    def finished(self) -> bool:
        """Whether the run is over; as long as its manifest is not here, by its number of rounds alone."""
        seen = self._follower.seen.value
        if seen is None:
            return False
        return seen.view.finished if self._terms is None else plans.finished(self._terms, seen.view)

    @property
    def awaits_chain(self) -> bool:
        """Whether anything here waits for the chain now."""
        machine = self.session.machine if self.session else None
        return not self.finished if machine is None else machine.awaits_chain()

    async def run(self, report_healthy: ReportHealthy) -> None:
        """Train until the run is over or the slot closed, then return. Raises what a session raises."""
        while True:
            await self._rest_away()
            async with trio.open_nursery() as nursery:
                self._trainer = trainer = Trainer(self._placement)
                await nursery.start(trainer.run)
                await trainer.loaded.wait()  # a round that opens with us must not wait for our imports
                self.able.set()
                await self._opened.wait()
                context = self._context
                assert context is not None
                await self._follower.first()
                while (slot := self._membership.slot) is None and not self._is_over and not self._leaves:
                    await self._supervisor.keep("taking a slot", partial(self._join, context))
                if slot is not None and not self._closed:
                    await self._hold(context, trainer, slot, report_healthy)
                nursery.cancel_scope.cancel()
            if self._is_over:
                if self.finished:
                    log.info("the run is finished: serving its blobs until stopped")
                return

    @property
    def _is_over(self) -> bool:
        return self.finished or self._closed

    @property
    def _leaves(self) -> bool:
        return self._rest is not None and self._rest.leaves

    async def _give_back(self) -> None:
        """Not before it is sure that nobody has to check our work any more: else who leaves is convicted."""
        while not await self._settled():
            await trio.sleep(SETTLE_SECONDS)
        await self._membership.leave()

    async def _rest_away(self) -> None:
        """While the node rests without a slot there is no training process, and a slot that it had is given back."""
        if not self._leaves or self._rest is None:
            return
        await self._follower.first()
        if not self.finished:
            await self._give_back()
        log.info("no slot is held until the node works again")
        await self._rest.until(leaves=False)

    async def close(self) -> None:
        """Take no slot any more, and give up the round under way at its next step, within FINISH_SECONDS."""
        self._closed = True
        if self.session is not None:
            await self.session.finish_step(FINISH_SECONDS)

    async def _join(self, context: RunContext, report_healthy: ReportHealthy) -> None:
        if self._is_over:
            return
        if self._stage is not None:
            await self._membership.join((self._stage,), report_healthy)
            return
        kept = kept_stage(context.storage.directory)
        await self._membership.join((ANY_STAGE,) if kept is None else (kept, ANY_STAGE), report_healthy)

    async def _hold(
        self, context: RunContext, trainer: Trainer, slot: tuple[int, int], report_healthy: ReportHealthy
    ) -> None:
        """One session, from the slot's opening until it is no longer ours."""
        seen = await self._follower.first()
        session = Session(context, trainer, slot, seen.view, seen.head.block)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell, session, report_healthy)
            nursery.start_soon(self._leave_to_rest, session)
            self.session = session
            try:
                await session.run()
            finally:
                self.session = None  # at once: whoever came with something would find its task group closed
            nursery.cancel_scope.cancel()
        now = self._membership.slot
        if now is not None and now != slot and now[1] == slot[1]:
            log.warning("moved or dealt to another replica", replica=now[0], before=slot[0], stage=slot[1])
        elif not self._closed:
            log.warning("the slot is no longer ours", replica=slot[0], stage=slot[1])

    async def _leave_to_rest(self, session: Session) -> None:
        """The session ends when the ledger says that the slot is free."""
        if self._rest is not None:
            await self._rest.until(leaves=True)
            await session.finish_step(FINISH_SECONDS)
            await self._give_back()

    async def _tell(self, session: Session, report_healthy: ReportHealthy) -> None:
        worked = session.last_trained
        async for seen in self._follower.seen.values():
            if seen is not None:
                session.on_ledger(seen.view, seen.head.block)
                if session.last_trained != worked:
                    worked = session.last_trained
                    report_healthy()  # a session that trains rounds is no failure, however it ends
