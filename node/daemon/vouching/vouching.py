"""Which stages a founder's node vouches for now, and their sessions."""

import trio

from dlx.node.daemon.chain.follower import ChainSeen, Follower
from dlx.node.daemon.context import RunContext
from dlx.node.daemon.data.retention import Retention
from dlx.node.daemon.messages import seals_topic
from dlx.node.daemon.supervisor import ReportHealthy
from dlx.node.daemon.vouching.vouching_session import VouchingSession
from dlx.node.home import logs
from dlx.node.round.rules.plans import Terms
from dlx.node.round.vouching import vouched_stages
from dlx.training.models.placement import Placement
from dlx.training.recipe.recipe import Retention as Kept

LOOK_SECONDS = 1.0
# Others keep the history: a founder needs what the next outer step starts from, and a reorg may bring back.
KEPT = Kept(payloads=2, versions=3, every=1, checkpoints=2)
log = logs.get(__name__)


class Vouching:
    """Of the account of `context`; it does nothing where that is no founder of the run."""

    def __init__(self, follower: Follower, context: RunContext) -> None:
        self.sessions: dict[int, VouchingSession] = {}  # by stage
        self._scopes: dict[int, trio.CancelScope] = {}
        self._follower, self._context = follower, context
        self._terms = Terms.of(context.run.manifest)
        chosen = context.operator.placement
        self._placement = Placement(device="cpu", threads=chosen.threads)  # a device may have no room beside a slot

    async def run(self, report_healthy: ReportHealthy) -> None:
        """Raises what a session raises: run again, all begin anew."""
        async with trio.open_nursery() as nursery:
            while True:
                seen = self._follower.seen.value
                if seen is not None:
                    wanted = vouched_stages(self._terms, seen.view, self._context.account, self._context.chain.now())
                    for stage in self._scopes.keys() - {*wanted}:
                        self._scopes[stage].cancel()
                    for stage in {*wanted} - self._scopes.keys():
                        self._scopes[stage] = trio.CancelScope()
                        nursery.start_soon(self._hold, stage, seen)
                    report_healthy()
                await trio.sleep(LOOK_SECONDS)

    async def _hold(self, stage: int, seen: ChainSeen) -> None:
        """One session, until the stage needs no founder any more."""
        context, run = self._context, self._context.run
        retention = Retention(context.storage.blobs, KEPT, self._terms, run.id, stage, "vouching/")
        session = VouchingSession(context, stage, retention, self._placement, seen.view, seen.head.block)
        self.sessions[stage] = session
        try:
            with self._scopes[stage]:
                await self._follow_gossip()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._tell, session)
                    await session.run()
            del self.sessions[stage]
            await self._follow_gossip()
            await trio.to_thread.run_sync(retention.release)
        finally:
            self.sessions.pop(stage, None)
            del self._scopes[stage]
        log.info("the stage needs no founder any more, or is our own now", stage=stage)

    async def _follow_gossip(self) -> None:
        run = self._context.run.id
        await self._context.network.gossip.follow("vouching", {seals_topic(run, stage) for stage in self.sessions})

    async def _tell(self, session: VouchingSession) -> None:
        async for seen in self._follower.seen.values():
            if seen is not None:
                session.on_ledger(seen.view, seen.head.block)
