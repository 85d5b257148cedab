"""One stage that a founder vouches for: it takes the stage's outer steps and signs its seals, without a slot."""

import trio

from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.context import RunContext
from dlx.node.daemon.data.retention import Retention
from dlx.node.daemon.stage.open_stage import OpenStage
from dlx.node.daemon.stage.stage_executor import StageExecutor, Work
from dlx.node.daemon.stage.stage_session import StageSession
from dlx.node.home import logs
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.vouching import VouchingMachine
from dlx.node.trainer import messages as m
from dlx.node.trainer.client import Trainer
from dlx.training.models.placement import Placement

log = logs.get(__name__)


class VouchingSession(StageSession[VouchingMachine]):
    """`run` it; then feed it `on_ledger` and `on_gossip`. It goes on until it is cancelled."""

    def __init__(
        self, context: RunContext, stage: int, retention: Retention, placement: Placement, view: RunView, block: int
    ) -> None:
        super().__init__(context, stage, view, block)
        self._retention, self._trainer = retention, Trainer(placement)
        self._placement = placement
        self._alone = -2  # the newest round that this node sealed empty

    @property
    def waiting_for(self) -> str | None:
        """What keeps it from checking the stage's next seal, in words; None where nothing does."""
        if self._trainer.trouble is not None:
            return f"the process that takes the outer step: {self._trainer.trouble}"
        return "the process that takes the outer step" if self.machine is None else self.machine.waiting_for()

    async def run(self) -> None:
        """Raises what a session raises."""
        context, run = self.context, self.context.run
        async with trio.open_nursery() as self._nursery:
            await self._nursery.start(self._trainer.run)
            opened = await self._trainer.open(
                m.Open(
                    run.manifest_hash, self.stage, None, str(context.storage.blobs.folder), placement=self._placement
                ),
                self._on_trainer,
                run.manifest.genesis[self.stage].size,
            )
            rules = self._rules(opened)
            versions, view = self._versions(rules, self._trainer), self._first_view
            machine = VouchingMachine(rules, context.account, self.stage, view, *versions.newest(view))
            stage = OpenStage(context, rules, self.stage, self._trainer, versions)
            self._executor, self.machine = StageExecutor(stage, machine, self.pool, self._retention), machine
            await self._executor.settle()
            log.info("vouching for a stage as a founder", stage=self.stage, version=machine.version)
            self.emit(e.LedgerSeen(view, self._first_block))
            self._nursery.start_soon(self._tick)
            self._nursery.start_soon(self._ask_for_missed, rules)

    def emit(self, event: e.Event) -> bool:
        """As of any session, with what the operator wants of a founder now."""
        if self.machine is not None:
            self.machine.seals_empty = self.context.operator.seals_empty()
        return super().emit(event)

    async def _carry_out(self, task: a.Task, work: Work) -> None:
        if isinstance(task, a.SendSeal) and self.machine is not None:
            self._say(task.seal.round, self.machine)
        await super()._carry_out(task, work)

    def _say(self, round: int, machine: VouchingMachine) -> None:
        """Once of rounds in a row."""
        view, begins = machine.view, round not in (self._alone, self._alone + 1)
        self._alone = round
        if begins:
            late = int((self._now - (view.opened_at or self._now)) / machine.rules.round_timeout)
            log.warning(
                f"sealing round {round} of stage {self.stage} empty, and those after it as long as nobody else seals "
                f"them: its members have not sealed it for {late} round timeouts"
            )

    def _on_trainer(self, message: m.FromTrainer) -> None:
        """Questions that the process did not answer fail by themselves."""
        if isinstance(message, m.Gone):
            self._observers.metrics.failed("vouching")
