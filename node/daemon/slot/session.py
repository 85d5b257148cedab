"""One slot's life: the round machine, the training process, the pipes, and the edges between them and the world.

Everything runs in the trio task group of `Session.run`; the machine decides, this file only carries out.
"""

import contextlib
from collections.abc import Mapping
from random import Random

import trio

from dlx.ground.backoff import Backoff
from dlx.ground.constants import MICRO
from dlx.ground.errors import DlxError
from dlx.ledger.typed import SignatureError, SignedContribution, TypedError
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.context import RunContext
from dlx.node.daemon.data.public_data import PublicData
from dlx.node.daemon.data.retention import drop_other_stages
from dlx.node.daemon.data.shards import Shards
from dlx.node.daemon.data.versions import Versions
from dlx.node.daemon.messages import event_of, seals_topic
from dlx.node.daemon.slot.executor import Executor, Work
from dlx.node.daemon.slot.message_pool import MessagePool
from dlx.node.daemon.slot.missed_messages import MissedMessages
from dlx.node.daemon.slot.open_slot import OpenSlot, stage_directory
from dlx.node.daemon.slot.pipes import Pipes
from dlx.node.daemon.slot.progress import Progress
from dlx.node.home import formatting, logs
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.actions import ActionFailed, LocalFault
from dlx.node.round.machine import RoundMachine
from dlx.node.round.rules.round_rules import Rules
from dlx.node.trainer import messages as m
from dlx.node.trainer.client import Trainer
from dlx.p2p import wire
from dlx.p2p.frames import PipeAlive, PipeTensor, PipeWant
from dlx.p2p.gossip import Gossiped
from dlx.p2p.pipe import Pipe
from dlx.training.inner.traffic import Incoming, incoming
from dlx.training.models.placement import Placement
from dlx.training.slot.rounds import Trained

TICK_SECONDS = 0.2
REFETCH = Backoff(0.5, 30.0)
log = logs.get(__name__)


class ClockCorrected(DlxError):
    """All that the round machine waits for was reckoned by a wrong time: it begins anew."""


class Session:
    """`await nursery.start(session.run)`; then feed it `on_ledger` and `on_gossip`. Ends when its slot is lost."""

    def __init__(self, context: RunContext, trainer: Trainer, slot: tuple[int, int], view: RunView, block: int) -> None:
        self.context, self.trainer, self.replica, self.stage = context, trainer, slot[0], slot[1]
        self.progress = Progress()
        self._run, self._network, self._observers = context.run, context.network, context.observers
        self._metrics = context.observers.metrics.of_stage(self.stage)
        self.pipes = Pipes(
            context.network.pipes,
            wire.PipeHello(context.run.id, self.replica, self.stage, bytes.fromhex(context.account[2:])),
            len(context.run.manifest.stages),
            self,
            context.network.reject,
        )
        self._first_view, self._first_block = view, block
        self.machine: RoundMachine | None = None
        self._over, self._now = trio.Event(), 0.0
        self.pool = MessagePool(self.stage)
        self.lost = False
        self.placement: Placement | None = None  # where and how the slot is trained; None before it is open

    @property
    def last_trained(self) -> int | None:
        """The newest round that was trained here; None before the slot is open."""
        return None if self.machine is None else self.machine.last_trained

    # ---- life ----

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            await self._nursery.start(self.pipes.run)
            context, private = self.context, self.context.operator.private_data
            opened = await self.trainer.open(
                m.Open(
                    context.run.manifest_hash, self.stage, str(stage_directory(context, self.stage) / "slot"),
                    str(context.storage.blobs.folder), str(private) if private else None, context.operator.placement,
                ),
                self._on_trainer, context.run.manifest.genesis[self.stage].size,
            )  # fmt: skip
            own = await trio.to_thread.run_sync(context.signer.contributions, context.run.id, self.stage)
            await trio.to_thread.run_sync(drop_other_stages, context.storage.directory, self.stage)
            await context.network.gossip.follow(seals_topic(context.run.id, self.stage))
            self._begin(opened, own)
            await self._executor.settle()
            self.pipes.dial()  # not earlier: what a pipe says is said once, and the machine has to hear it
            task_status.started()
            self._nursery.start_soon(self._tick)
            self._nursery.start_soon(self._shards.run)
            longest = self.rules.proposal_timeout  # what is lost costs one proposer's turn
            gossip, messages = self._network.gossip, self._network.messages
            missed = MissedMessages(gossip, messages, self.pool, lambda: self._view, self._hear, longest)
            self._nursery.start_soon(missed.run)
            await self._over.wait()
            self._nursery.cancel_scope.cancel()

    async def finish_step(self, deadline: float) -> None:
        """Give up the round under way at its next step, and begin none; training state stays as the last finished round
        left it."""
        if self.machine is None:
            return
        self.machine.leaves = True
        if self.machine.training is not None:
            self.trainer.post(m.Stop("this node is leaving"))
            with trio.move_on_after(deadline):
                while self.machine.training is not None:
                    await trio.sleep(0.05)

    def _begin(self, opened: m.Opened, own: dict[int, SignedContribution]) -> None:
        context, view = self.context, self._first_view
        run, domain = context.run, context.chain.client.domain
        self.rules = Rules.of_run(run.manifest, domain, run.id, opened.max_payload_sizes)
        versions = Versions(
            self.rules,
            run.manifest,
            self.stage,
            context.storage.blobs,
            self._network.exchange,
            self.trainer,
            self._network.peer_of,
        )
        newest, oldest = versions.newest(view)
        self._shards = Shards(context, (self.replica, self.stage))
        machine = RoundMachine(
            self.rules, context.account, self.stage, view, newest, oldest,
            last_trained=opened.trained.round if opened.trained else -1, own=own, takes_samples=self._shards.are_read,
        )  # fmt: skip
        slot = OpenSlot(context, self.rules, self.replica, self.stage, self.trainer, versions)
        self._executor = Executor(slot, machine, self.pipes, self._shards, self.pool, self.progress, self._nursery)
        self.machine = machine
        self._take_up(opened)
        log.info(
            "slot opened", replica=self.replica, stage=self.stage, version=newest,
            last_trained=machine.last_trained if machine.last_trained >= 0 else None, on=str(opened.placement),
        )  # fmt: skip
        self.emit(e.LedgerSeen(view, self._first_block))
        self._finish(opened.trained)

    def _take_up(self, opened: m.Opened) -> None:
        """What a training process says of its slot, every time that one opens it."""
        self.placement = opened.placement
        for note in opened.notes:
            log.warning(note)

    def _finish(self, trained: Trained | None) -> None:
        """Sign what a training process saved and nobody signed before it, or we, were killed."""
        if trained is not None and self.machine is not None and trained.round not in self.machine.own:
            self.emit(e.RoundFinished(trained))

    async def _tick(self) -> None:
        while True:
            self.emit(e.Tick())
            await trio.sleep(TICK_SECONDS)

    # ---- events in ----

    def emit(self, event: e.Event) -> bool:
        """Feeds the machine and starts what it asks for; False where that refused something."""
        if self.machine is None:
            return False
        now = self.context.chain.now()
        if now < self._now:
            raise ClockCorrected(f"the chain's time went back by {self._now - now:.0f} s")
        self._now = now
        self.machine.rests = self.context.operator.rests()
        actions = self.machine.handle(event, now)
        for action in actions:
            if isinstance(action, a.Task):
                self._nursery.start_soon(self._carry_out, action, self._executor.do(action))
            else:
                self._executor.do(action)
        return not any(isinstance(action, a.Reject) for action in actions)

    def on_ledger(self, view: RunView, block: int) -> None:
        """A newer view of the run; it ends the session when the slot is no longer ours."""
        if self.machine is None:
            return
        before = self.machine.unsealed
        self.emit(e.LedgerSeen(view, block))
        self.pool.forget(view)
        self._executor.see(view)
        if self.machine.unsealed != before:  # what came of the round too early for our view of the ledger
            for event in self.pool.events(self.stage, self.machine.unsealed):
                self.emit(event)
        self.pipes.check()
        self._metrics.vote.set(self.context.account in view.voters(self.stage))
        for round in range(max(before, view.sealed.oldest(self.stage)), view.next_round(self.stage)):
            self._report_seal(view, round)
        if view.slot_of(self.context.account) != (self.replica, self.stage):
            self.lost = True
            self._over.set()

    def take_pipe(self, pipe: Pipe) -> bool:
        """An accepted pipe from the previous stage; False while the session cannot use it."""
        if self.machine is None:
            return False
        self.pipes.take(pipe)
        return True

    def on_gossip(self, item: Gossiped) -> None:
        self._hear(item.data, item.origin)

    def _hear(self, data: bytes, peer: str) -> bool:
        """A statement, however it came: signature first, then the machine judges its meaning. False: it is none."""
        if self.machine is None:
            return False
        reason, event = "wrong_run", None
        try:
            event = event_of(data, peer, self._run.id, self.rules.domain)
        except SignatureError:
            reason = "bad_signature"
        except (TypedError, wire.WireError):
            reason = "malformed"
        if event is None:
            self._network.reject(reason, peer)
            return False
        if self.emit(event):  # else it is asked for again: our view of the ledger may be older than others'
            self.pool.put(event, data, self.machine.view)
        return True

    def _on_trainer(self, message: m.FromTrainer) -> None:
        match message:
            case m.Step(round=round, step=step, loss=loss):
                self.progress.at_step(round, step, loss)
                self._metrics.tokens.inc(self.rules.tokens_per_step)
            case m.Finished(trained=trained):
                self.progress.end(trained)
                self._observers.on_trained(trained)
                self._metrics.loss.set(trained.loss / MICRO)
                self.emit(e.RoundFinished(trained, self.progress.step_seconds))
            case m.Abandoned(round=round, reason=reason):
                log.info("round abandoned", round=round, reason=reason)
                self.pipes.close()
                self._nursery.start_soon(self._abandoned, message)
            case m.Gone(reason=reason, blobs=blobs):
                self._observers.metrics.failed("trainer")
                self.pipes.close()
                self.emit(e.TrainerGone(reason))
                if blobs:
                    self._nursery.start_soon(self._fetch_again, blobs)
            case m.Opened(trained=trained):
                self._take_up(message)
                self.emit(e.TrainerBack())
                self._finish(trained)
            case m.Tensor():
                self.pipes.post(message.link, message.pipe, message.piece)

    # ---- what pipes ask and tell ----

    def member_at(self, stage: int) -> tuple[str, str] | None:
        """(account, peer id) of our replica's member of a stage."""
        account = self._view.member_at(self.replica, stage)
        peer = self._network.peer_of(account) if account else None
        return (account, peer) if account and peer else None

    def incoming(self, link: str) -> Mapping[str, Incoming]:
        return incoming(self._run.manifest, self.stage, link)

    def on_pipe_open(self, link: str) -> None:
        self.emit(e.NeighbourWants(link, 0))

    def on_pipe_gone(self, link: str) -> None:
        self.emit(e.NeighbourWants(link, None))

    def on_want(self, link: str, want: PipeWant) -> None:
        self.emit(e.NeighbourWants(link, want.round, want.ready, want.steps))

    def alive(self) -> PipeAlive | None:
        """What neighbours are told that wait for us in a round."""
        if self.machine is None or self.machine.training is None:
            return None
        return PipeAlive("computing", self.progress.step, self.progress.steps)

    def on_alive(self, link: str, pipe: int, moving: bool, doing: str) -> None:
        self.trainer.post(m.Alive(link, pipe, moving, doing))

    def on_tensor(self, link: str, pipe: int, piece: PipeTensor) -> None:
        self.trainer.post(m.Tensor(link, pipe, piece))

    # ---- actions out ----

    async def _carry_out(self, task: a.Task, work: Work) -> None:
        try:
            outcome = await work
        except ActionFailed as error:
            log.info("not done yet", action=task.name, reason=str(error))
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

    async def _fetch_again(self, blobs: tuple[bytes, ...]) -> None:
        """Without damaged ones among these, which go; those of the run are had again here, payloads when a round needs
        them."""
        context = self.context
        for name in blobs:
            await trio.to_thread.run_sync(context.storage.blobs.sound, name)  # a damaged one is gone now
        public, failures = PublicData(context.storage.blobs, context.network.exchange), 0
        while True:
            try:
                await public.manifest(self._view)
                await public.begin(context.run.manifest)
                return
            except (DlxError, OSError) as error:
                failures += 1
                log.warning("public data that this disk has lost is not here again yet", error=str(error))
                await trio.sleep(REFETCH.delay(failures, Random()))

    async def _abandoned(self, message: m.Abandoned) -> None:
        """The round machine hears of it when what was missing or damaged on our disk is here again, or cannot be."""
        trouble = message.trouble
        if trouble is not None and trouble.kind is m.Kind.BLOBS:
            with contextlib.suppress(ActionFailed):
                await self._executor.mend(message.round, trouble.blobs)
        self._observers.metrics.action_failed(a.START)
        local = trouble is not None and trouble.kind is m.Kind.LOCAL
        self.emit(e.RoundAbandoned(message.round, message.reason, local))

    # ---- helpers ----

    @property
    def _view(self) -> RunView:
        return self.machine.view if self.machine else self._first_view

    def _report_seal(self, view: RunView, number: int) -> None:
        """The one line per round."""
        sealed = view.sealed[self.stage, number]
        counted = self.context.account in sealed.accounts
        self._observers.on_sealed(sealed, counted)
        sent, rate = self._observers.traffic(), self.progress.tokens_per_second
        taken = {record.replica: record.inner_steps for record in sealed.records}
        log.info(
            "round sealed",
            round=number,
            stage=self.stage,
            steps=formatting.steps(sealed.outcome.inner_steps, taken) if taken else 0,
            loss=round(sealed.mean_loss / MICRO, 4),
            tokens_per_second=None if rate is None else round(rate),
            payload_bytes=sent["payload"][0],
            pipe_bytes=sent["pipe"][0],
            counted=formatting.counted([sealed.count], max(sealed.count, len(view.complete_replicas()))),
            mine=counted,
            weights=view.weights(self.stage, number + 1).hex()[:12],
            transaction=sealed.at.tx.hex()[:12],
        )
