"""The edges between the machine of one stage and the world: what is heard goes in, what it asks for is carried out.

Everything runs in the trio task group of who holds the session; the machine decides.
"""

from typing import Generic

import trio

from dlx.ground.errors import DlxError
from dlx.ledger.typed import SignatureError, TypedError
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.context import RunContext
from dlx.node.daemon.data.versions import Versions
from dlx.node.daemon.messages import Heard, event_of
from dlx.node.daemon.stage.message_pool import MessagePool
from dlx.node.daemon.stage.missed_messages import MissedMessages
from dlx.node.daemon.stage.stage_executor import M, StageExecutor, Work
from dlx.node.home import logs
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.actions import ActionFailed, LocalFault
from dlx.node.round.rules.round_rules import Rules
from dlx.node.trainer import messages as m
from dlx.node.trainer.client import Trainer
from dlx.p2p import wire
from dlx.p2p.gossip import Gossiped

TICK_SECONDS = 0.2
log = logs.get(__name__)


class ClockCorrected(DlxError):
    """All that the machine waits for was reckoned by a wrong time: it begins anew."""


class StageSession(Generic[M]):
    """Subclasses set `machine` and `_executor` once a training process has opened the stage, and `_nursery`."""

    _nursery: trio.Nursery
    _executor: StageExecutor[M]

    def __init__(self, context: RunContext, stage: int, view: RunView, block: int) -> None:
        self.context, self.stage = context, stage
        self.machine: M | None = None
        self.pool = MessagePool(stage)
        self._run, self._network, self._observers = context.run, context.network, context.observers
        self._first_view, self._first_block, self._now = view, block, 0.0

    # ---- events in ----

    def emit(self, event: e.Event) -> bool:
        """Feeds the machine and starts what it asks for; False where that refused something."""
        if self.machine is None:
            return False
        now = self.context.chain.now()
        if now < self._now:
            raise ClockCorrected(f"the chain's time went back by {self._now - now:.0f} s")
        self._now = now
        actions = self.machine.handle(event, now)
        for action in actions:
            if isinstance(action, a.Task):
                self._nursery.start_soon(self._carry_out, action, self._executor.do(action))
            else:
                self._executor.do(action)
        return not any(isinstance(action, a.Reject) for action in actions)

    def on_ledger(self, view: RunView, block: int) -> None:
        """A newer view of the run."""
        if self.machine is None:
            return
        before = self.machine.unsealed
        self.emit(e.LedgerSeen(view, block))
        self.pool.forget(view)
        self._executor.see(view)
        if self.machine.unsealed != before:  # what came of the round too early for our view of the ledger
            for event in self.pool.events(self.stage, self.machine.unsealed):
                self.emit(event)

    def on_gossip(self, item: Gossiped) -> None:
        self.hear(item.data, item.origin)

    def hear(self, data: bytes, peer: str) -> Heard:
        """A statement, however it came: signature first, then the machine judges its meaning."""
        if self.machine is None:
            return Heard.NO_NEWS
        reason, event = "wrong_run", None
        try:
            event = event_of(data, peer, self._run.id, self.context.chain.client.domain)
        except SignatureError:
            reason = "bad_signature"
        except (TypedError, wire.WireError):
            reason = "malformed"
        if event is None:
            self._network.reject(reason, peer)
            return Heard.JUNK
        if not self.emit(event):
            return Heard.REFUSED  # it is asked for again: our view of the ledger may be older than others'
        if self.pool.put(event, data, self.machine.view, self._now):
            return Heard.NO_NEWS if event.signer == self.context.account else Heard.NEWS
        return Heard.NO_NEWS if self.pool.is_for_others(event, self.machine.view) else Heard.REFUSED

    async def _tick(self) -> None:
        while True:
            self.emit(e.Tick())
            await trio.sleep(TICK_SECONDS)

    async def _ask_for_missed(self, rules: Rules) -> None:
        longest = rules.proposal_timeout  # what is lost costs one proposer's turn
        gossip, messages = self._network.gossip, self._network.messages
        await MissedMessages(gossip, messages, self.pool, lambda: self._view, self.hear, longest).run()

    # ---- actions out ----

    async def _carry_out(self, task: a.Task, work: Work) -> None:
        try:
            outcome = await work
        except ActionFailed as error:
            log.info("not done yet", action=task.name, stage=self.stage, reason=str(error))
            self._observers.metrics.action_failed(task.name)
            self.emit(e.Failed(task, str(error), isinstance(error, LocalFault)))
            return
        if isinstance(outcome, e.Mined):
            log.info("transaction mined", action=task.name, block=outcome.block)
        if isinstance(outcome, e.VersionDiffers):
            log.error(
                "THIS NODE STOPS CONTRIBUTING: a sealed version is not what its payloads give", error=outcome.detail
            )
        if outcome is not None:
            self.emit(e.Done(task, outcome))

    # ---- helpers ----

    @property
    def _view(self) -> RunView:
        return self.machine.view if self.machine else self._first_view

    def _rules(self, opened: m.Opened) -> Rules:
        run, domain = self._run, self.context.chain.client.domain
        return Rules.of_run(run.manifest, domain, run.id, opened.max_payload_sizes)

    def _versions(self, rules: Rules, trainer: Trainer) -> Versions:
        manifest, blobs, network = self._run.manifest, self.context.storage.blobs, self._network
        return Versions(rules, manifest, self.stage, blobs, network.exchange, trainer, network.peer_of)
