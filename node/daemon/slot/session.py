"""One slot's life: the round machine, the training process, the pipes, and the edges between them and the world.

Everything runs in the trio task group of `Session.run`; the machine decides, this file only carries out.
"""

import contextlib
from collections.abc import Iterator, Mapping
from random import Random

import trio

from dlx.ground.backoff import Backoff
from dlx.ground.constants import MICRO
from dlx.ground.errors import DlxError
from dlx.ledger.typed import Contribution, SignatureError, SignedContribution, TypedError
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.context import RunContext
from dlx.node.daemon.data.public_data import PublicData
from dlx.node.daemon.data.retention import drop_other_stages
from dlx.node.daemon.data.shards import Shards
from dlx.node.daemon.messages import event_of, seals_topic
from dlx.node.daemon.slot.agreements import Agreements
from dlx.node.daemon.slot.executor import Executor
from dlx.node.daemon.slot.pipes import Pipes
from dlx.node.daemon.slot.progress import Progress
from dlx.node.daemon.stage.open_stage import OpenStage, stage_directory
from dlx.node.daemon.stage.stage_session import StageSession
from dlx.node.home import formatting, logs
from dlx.node.home.errors import Failure
from dlx.node.home.keys.slashing_protection import Contradiction
from dlx.node.home.program import line
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.actions import ActionFailed
from dlx.node.round.machine import RoundMachine
from dlx.node.round.rules.round_rules import weight_share
from dlx.node.trainer import messages as m
from dlx.node.trainer.client import Trainer
from dlx.p2p import wire
from dlx.p2p.frames import PipeAlive, PipeTensor, PipeWant
from dlx.p2p.pipe import Pipe
from dlx.training.inner.traffic import AGREE, Incoming, incoming
from dlx.training.models.placement import Placement
from dlx.training.slot.rounds import Trained

REFETCH = Backoff(0.5, 30.0)
log = logs.get(__name__)


class Session(StageSession[RoundMachine]):
    """`await nursery.start(session.run)`; then feed it `on_ledger` and `on_gossip`. Ends when its slot is lost."""

    _executor: Executor

    def __init__(self, context: RunContext, trainer: Trainer, slot: tuple[int, int], view: RunView, block: int) -> None:
        super().__init__(context, slot[1], view, block)
        self.trainer, self.replica, self.progress = trainer, slot[0], Progress()
        self._metrics = context.observers.metrics.of_stage(self.stage)
        self.pipes = Pipes(
            context.network.pipes,
            wire.PipeHello(context.run.id, self.replica, self.stage, bytes.fromhex(context.account[2:])),
            len(context.run.manifest.stages),
            self,
            context.network.reject,
        )
        self._over = trio.Event()
        self.lost = False
        self._signed_before = -1  # the newest round of which a contribution was signed before it was opened
        self.placement: Placement | None = None  # where and how the slot is trained; None before it is open

    @property
    def last_trained(self) -> int | None:
        """The newest round that was trained here; None before the slot is open."""
        return None if self.machine is None else self.machine.last_trained

    def own_blobs(self) -> list[bytes]:
        """Those of our newest contributions."""
        return [] if self.machine is None else self._executor.needed()

    # ---- life ----

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            await self._nursery.start(self.pipes.run)
            context, private = self.context, self.context.operator.private_data
            await self._have_base()
            opened = await self.trainer.open(
                m.Open(
                    context.run.manifest_hash, self.stage, str(stage_directory(context, self.stage) / "slot"),
                    str(context.storage.blobs.folder), str(private) if private else None, context.operator.placement,
                ),
                self._on_trainer, context.run.manifest.genesis[self.stage].size,
            )  # fmt: skip
            own = await trio.to_thread.run_sync(context.signer.contributions, context.run.id, self.stage)
            await trio.to_thread.run_sync(drop_other_stages, context.storage.directory, self.stage)
            await context.network.gossip.follow("slot", {seals_topic(context.run.id, self.stage)})
            self._begin(opened, own)
            await self._executor.settle()
            self.pipes.dial()  # not earlier: what a pipe says is said once, and the machine has to hear it
            task_status.started()
            self._nursery.start_soon(self._tick)
            self._nursery.start_soon(self._shards.run)
            self._nursery.start_soon(self._ask_for_missed, self.rules)
            await self._over.wait()
            self._nursery.cancel_scope.cancel()

    async def _have_base(self) -> None:
        """Without the weights that an adapter leaves as they are, there is nothing to open."""
        context, failures = self.context, 0
        public = PublicData(context.storage.blobs, context.network.exchange)
        while True:
            try:
                await public.base(context.run.manifest, self.stage)
                return
            except (DlxError, OSError) as error:
                failures += 1
                log.warning("the base of the stage's adapter is not here yet", error=str(error))
                await trio.sleep(REFETCH.delay(failures, Random()))

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
        self.rules = self._rules(opened)
        slot = self.replica, self.stage
        self._agreements = Agreements(context.signer, self.rules.domain, context.run.id, slot)
        versions = self._versions(self.rules, self.trainer)
        newest, oldest = versions.newest(view)
        self._shards = Shards(context, slot)
        machine = RoundMachine(
            self.rules, context.account, self.stage, view, newest, oldest,
            last_trained=opened.trained.round if opened.trained else -1, own=own, takes_samples=self._shards.are_read,
        )  # fmt: skip
        stage = OpenStage(context, self.rules, self.stage, self.trainer, versions)
        edges = self.pipes, self._shards, self.pool, self.progress, self._nursery
        self._executor = Executor(stage, self.replica, machine, *edges)
        self.machine, self._signed_before = machine, max(own, default=-1)
        self._check_said_before()
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

    # ---- events in ----

    def emit(self, event: e.Event) -> bool:
        """Feeds the machine and starts what it asks for; False where that refused something."""
        if self.machine is not None:
            self.machine.rests = self.context.operator.rests()
            if isinstance(event, e.ContributionSeen) and event.signer == self.context.account:
                self._check_alone(event.signed.contribution)
        return super().emit(event)

    def on_ledger(self, view: RunView, block: int) -> None:
        """A newer view of the run; it ends the session when the slot is no longer ours."""
        if self.machine is None:
            return
        before = self.machine.unsealed
        super().on_ledger(view, block)
        self.pipes.check()
        self._metrics.weight.set(weight_share(view, self.context.account, self.stage, self._now))
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
            case m.Tensor(piece=piece) if piece.kind in AGREE:
                self._nursery.start_soon(self._agree, message)
            case m.Tensor():
                self.pipes.post(message.link, message.pipe, message.piece)

    # ---- what pipes ask and tell ----

    def member_at(self, stage: int) -> tuple[str, str] | None:
        """(account, peer id) of our replica's member of a stage."""
        account = self._view.member_at(self.replica, stage)
        peer = self._network.peer_of(account) if account else None
        return (account, peer) if account and peer else None

    def others(self) -> Iterator[tuple[str, str, str]]:
        """Who exchanges payloads with us: what it is, its account and peer id; by replica."""
        for (replica, stage), account in sorted((slot, account) for account, slot in self._view.members().items()):
            peer = self._network.peer_of(account)
            if stage == self.stage and replica != self.replica and peer:
                yield f"the member of replica {replica} at stage {stage}", account, peer

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
        if piece.kind in AGREE:
            member = self.member_at(self.stage + (1 if link == "next" else -1))
            self._agreements.require(link, piece, member[0] if member else None)
        self.trainer.post(m.Tensor(link, pipe, piece))

    # ---- actions out ----

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
                await public.base(context.run.manifest, self.stage)
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

    async def _agree(self, message: m.Tensor) -> None:
        """Send a neighbour, signed, what was recorded of the pipe to it: the last message of the round that way."""
        link, piece = message.link, message.piece
        try:
            signed = await trio.to_thread.run_sync(self._agreements.signed, link, piece)
        except (Contradiction, OSError) as error:
            log.warning("the round cannot end", round=piece.round, reason=str(error))
            self.pipes.close()
            return
        self.pipes.post(link, message.pipe, signed)

    # ---- helpers ----

    def _check_alone(self, said: Contribution) -> None:
        """Raises Failure for what our account signed of an open round of our stage, and this folder did not. Who has
        signed in this session goes on: it is no copy that starts, and a thief of its key is not to end it."""
        assert self.machine is not None
        if self._has_signed or said.account != self.context.account or said.stage != self.stage:
            return
        if said.round < self.machine.unsealed:
            return
        own = self.machine.own.get(said.round)
        if own is None or own.contribution != said:
            raise self._works_elsewhere(said.round)

    def _check_said_before(self) -> None:
        """The same of what our own mailbox showed at the start."""
        for data in self._network.said_before:
            with contextlib.suppress(SignatureError, TypedError, wire.WireError):
                event = event_of(data, "", self._run.id, self.rules.domain)
                if isinstance(event, e.ContributionSeen) and event.signer == self.context.account:
                    self._check_alone(event.signed.contribution)

    @property
    def _has_signed(self) -> bool:
        """Whether it has signed a contribution since it was opened."""
        return self.machine is not None and max(self.machine.own, default=-1) > self._signed_before

    def _works_elsewhere(self, number: int) -> Failure:
        return Failure(
            f"account {self.context.account} works elsewhere too: this folder has not signed what it did in round "
            f"{number}. Two nodes with one account lose slot and bond for what both sign: stop the other one for good, "
            f"have what it signed here (`keys export-signed` there, `{line('keys', 'import-signed', 'FILE')}` here), "
            "and start again"
        )

    def _report_seal(self, view: RunView, number: int) -> None:
        """The one line per round."""
        sealed = view.sealed[self.stage, number]
        counted = self.context.account in sealed.accounts
        if counted and self.machine is not None and not self._has_signed and number not in self.machine.own:
            raise self._works_elsewhere(number)
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
