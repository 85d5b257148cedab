"""One slot's life: the round machine, the training process, the pipes, and the edges between them and the world.

Everything runs in the trio task group of `Session.run`; the machine decides, this file only carries out.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from dlx.ground.blobs import Kind
from dlx.ground.constants import MICRO
from dlx.ledger.errors import LedgerError
from dlx.ledger.typed import Plan, Seal, SignatureError, SignedContribution, TypedError
from dlx.ledger.view import RunView
from dlx.node.daemon.context import RunContext
from dlx.node.daemon.kept import drop_other_stages
from dlx.node.daemon.messages import Statement, event_of, message_of
from dlx.node.daemon.payloads import Payloads
from dlx.node.daemon.pipes import Pipes
from dlx.node.daemon.statements import keep_evidence, make_contribution
from dlx.node.daemon.versions import Differs, Unavailable, Versions
from dlx.node.home import logs
from dlx.node.home.signed import Contradiction
from dlx.node.round import events as e
from dlx.node.round.machine import RoundMachine
from dlx.node.round.plans import manifest_plan, plan_of
from dlx.node.round.rules import Rules
from dlx.node.trainer import messages as m
from dlx.node.trainer.client import Trainer
from dlx.p2p import wire
from dlx.p2p.frames import PipeFrame, PipeTensor, PipeWant
from dlx.p2p.gossip import Gossiped
from dlx.p2p.pipe import Pipe
from dlx.training.slot.records import RoundInputs, Trained

TICK_SECONDS = 0.2
log = logs.get(__name__)


@dataclass
class Progress:
    """What the status shows of the training under way."""

    round: int | None = None
    step: int = 0
    steps: int = 0
    loss: float | None = None
    tokens_per_second: float | None = None
    started: float = 0.0
    tokens: int = 0
    losses: dict[int, float] = field(default_factory=dict)


class Session:
    """`await nursery.start(session.run)`; then feed it `on_ledger` and `on_gossip`. Ends when its slot is lost."""

    def __init__(self, context: RunContext, trainer: Trainer, slot: tuple[int, int], view: RunView, block: int) -> None:
        self.context, self.trainer, self.replica, self.stage = context, trainer, slot[0], slot[1]
        self.progress = Progress()
        self._directory = context.directory / f"stage-{self.stage}"
        self.pipes = Pipes(
            context.pipe_service,
            wire.PipeHello(context.run, self.replica, self.stage, bytes.fromhex(context.account[2:])),
            len(context.manifest.stages),
            self._holder,
            self._on_pipe_open,
            self._on_frame,
            lambda link: self.emit(e.NeighbourWants(link, None)),
            context.reject,
        )
        self._first_view, self._first_block = view, block
        self.machine: RoundMachine | None = None
        self._over = trio.Event()
        self.lost = False

    # ---- life ----

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            await self._nursery.start(self.pipes.run)
            context = self.context
            opened = await self.trainer.open(
                m.Open(
                    context.manifest_hash, self.stage, self.replica, str(self._directory / "slot"),
                    str(context.blobs_directory), str(context.private_data) if context.private_data else None,
                    context.checkpoint_activations,
                ),
                self._on_trainer,
            )  # fmt: skip
            self._begin(opened)
            self.pipes.dial()  # not earlier: what a pipe says is said once, and the machine has to hear it
            task_status.started()
            self._nursery.start_soon(self._tick)
            await self._over.wait()
            self._nursery.cancel_scope.cancel()

    async def finish_step(self, deadline: float) -> None:
        """Give up the round under way at its next step; training state stays as the last finished round left it."""
        if self.machine is not None and self.machine.training is not None:
            self.trainer.post(m.Stop("this node is leaving"))
            with trio.move_on_after(deadline):
                while self.machine.training is not None:
                    await trio.sleep(0.05)

    def _begin(self, opened: m.Opened) -> None:
        context = self.context
        self.rules = Rules.of_run(context.manifest, context.client.domain, context.run, opened.max_payload_sizes)
        self._payloads = Payloads(context, self.rules, self.stage, self.trainer)
        self.versions = Versions(
            self.rules, context.manifest, self.stage, context.store, context.exchange, self.trainer
        )
        own = context.signed.contributions(context.run, self.stage)
        view = self._first_view
        if opened.trained is not None and opened.trained.round not in own:  # trained, but killed before it was signed
            plan = plan_of(self.rules, view, self.stage, opened.trained.round)
            if plan is not None:  # None: its seals were taken back meanwhile
                own[opened.trained.round] = self._sign_contribution(opened.trained, plan, own, None)
        drop_other_stages(context.directory, self.stage)
        # A round that was contributed to is not trained again: its training state may be gone, or on another machine.
        last_trained = max([-1 if opened.trained is None else opened.trained.round, *own])
        newest, oldest = self.versions.newest(view)
        self.machine = RoundMachine(
            self.rules, context.account, self.stage, view, newest, oldest,
            last_trained=last_trained, own=own,
        )  # fmt: skip
        log.info(
            "slot opened", replica=self.replica, stage=self.stage, version=newest, trained=self.machine.last_trained
        )
        self.emit(e.LedgerSeen(view, self._first_block))

    async def _tick(self) -> None:
        while True:
            self.emit(e.Tick())
            await trio.sleep(TICK_SECONDS)

    # ---- events in ----

    def emit(self, event: e.Event) -> None:
        """Feeds the machine and starts what it asks for."""
        if self.machine is None:
            return
        for action in self.machine.handle(event, time.time()):
            self._act(action)

    def on_ledger(self, view: RunView, block: int) -> None:
        """A newer view of the run; it ends the session when the slot is no longer ours."""
        if self.machine is None:
            return
        before = self.machine.unsealed
        self.emit(e.LedgerSeen(view, block))
        self.pipes.check()
        for round in range(before, view.next_round(self.stage)):
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
        """A statement from a peer: signature first, then the machine judges its meaning."""
        if self.machine is None:
            return
        try:
            event = event_of(item.message, item.origin, self.context.run, self.rules.domain)
        except (TypedError, SignatureError):
            self.context.reject(
                "bad_signature" if isinstance(item.message, wire.ReportMessage) else "malformed", item.origin
            )
            return
        if event is None:
            self.context.reject("wrong_run", item.origin)
        else:
            self.emit(event)

    def _on_trainer(self, message: m.FromTrainer) -> None:
        match message:
            case m.Step(round=round, step=step, loss=loss):
                self.progress.round, self.progress.step, self.progress.loss = round, step, loss
                self.context.metrics.tokens.inc(self.rules.tokens_per_step)
                self.progress.tokens += self.rules.tokens_per_step
            case m.Finished(trained=trained):
                self._on_trained(trained)
            case m.Abandoned(round=round, reason=reason):
                log.info("round abandoned", round=round, reason=reason)
                self.pipes.close()
                self.emit(e.RoundAbandoned(round, reason))
            case m.Tensor(link=link, frame=frame):
                self.pipes.post(link, frame)

    def _on_trained(self, trained: Trained) -> None:
        assert self.machine is not None
        seconds = time.monotonic() - self.progress.started
        self.progress.tokens_per_second = trained.tokens / seconds if seconds > 0 else None
        self.progress.losses[trained.round] = trained.loss / MICRO
        self.context.metrics.loss.set(trained.loss / MICRO)
        exchange_seconds = self.machine.exchange_seconds(trained.round, time.time())
        signed = self.machine.own.get(trained.round) or self._sign_contribution(
            trained, self._plan, self.machine.own, exchange_seconds
        )
        drop_other_stages(self.context.directory, self.stage)
        self.emit(e.RoundTrained(signed))

    def _on_pipe_open(self, link: str) -> None:
        self.trainer.post(m.Fresh(link))
        self.emit(e.NeighbourWants(link, 0))

    async def _on_frame(self, link: str, frame: PipeFrame) -> None:
        match frame:
            case PipeWant(round=round, ready=ready):
                self.emit(e.NeighbourWants(link, round, ready))
            case PipeTensor():
                await self.trainer.post_frame(m.Tensor(link, frame))

    # ---- actions out ----

    def _act(self, action: e.Action) -> None:
        match action:
            case e.StartRound():
                self._start_round(action)
            case e.AbandonRound(reason=reason):
                self.pipes.close()
                self.trainer.post(m.Stop(reason))
            case e.WantRound(round=round, ready=ready):
                self.pipes.send_want(round, ready)
            case e.ResetPipes(reason=reason):
                log.info("pipes reset", reason=reason)
                self.pipes.close()
            case e.SignSeal(seal=seal):
                self._sign_seal(seal)
            case e.FetchPayload(signed=signed):
                self._nursery.start_soon(self._with_view, self._payloads.fetch, signed)
            case e.ComputeOuter():
                self._nursery.start_soon(self._with_view, self._payloads.outer, action)
            case e.MeasurePolicy():
                self._nursery.start_soon(self._with_view, self._payloads.measure, action)
            case e.AdoptVersion(version=version):
                self._nursery.start_soon(self._adopt, version)
            case e.KeepEvidence(first=first, second=second):
                log.warning("two contributions to one round", account=first.contribution.account)
                try:
                    keep_evidence(self._directory / "evidence", first, second)
                except OSError as error:
                    log.warning("the evidence could not be kept", error=str(error))
            case e.Reject(reason=reason, source=source):
                self.context.reject(reason, source)
            case e.GossipContribution() | e.GossipProposal() | e.GossipAttestation() | e.GossipReport():
                self._nursery.start_soon(self._gossip, action)
            case _:
                self._nursery.start_soon(self._transact, action)

    def _start_round(self, action: e.StartRound) -> None:
        assert self.machine is not None
        log.info("training", round=action.round, base=action.base, steps=action.plan.inner_steps)
        self.progress.round, self.progress.step, self.progress.steps = action.round, 0, action.plan.inner_steps
        self.progress.started = time.monotonic()
        self.context.metrics.round.set(action.round)
        inputs = RoundInputs(
            round=action.round,
            plan=manifest_plan(action.plan),
            steps_before=action.steps_before,
            total_steps=self.rules.total_steps,
            base_version=action.base,
            base_weights=self.machine.view.weights(self.stage, action.base),
            left_out=action.left_out,
        )
        self._plan = action.plan
        self.trainer.post(m.Train(inputs))

    async def _with_view(self, work: Callable[[RunView, Any], Awaitable[e.Event]], subject: Any) -> None:
        """Work on payloads, under the view that it was asked for; its event goes to the machine."""
        assert self.machine is not None
        self.emit(await work(self.machine.view, subject))

    async def _adopt(self, version: int) -> None:
        assert self.machine is not None
        view = self.machine.view
        try:
            await self.versions.adopt(view, version)
            await trio.to_thread.run_sync(self.versions.drop_old, view, version, self._payloads.made)
        except Differs as error:
            log.error("THIS NODE STOPS CONTRIBUTING: a sealed version is not what its payloads give", error=str(error))
            self.emit(e.VersionDiffers(version, str(error)))
        except (Unavailable, OSError) as error:
            log.info("version not available yet", version=version, error=str(error))
            self.emit(e.VersionUnavailable(version))
        else:
            self.emit(e.VersionAdopted(version))

    async def _gossip(self, action: Statement) -> None:
        context = self.context
        message = message_of(action, context.run, self.stage, self.rules.domain, context.account_key)
        contributes = isinstance(action, e.GossipContribution)
        topic = context.contributions_topic if contributes else context.seals_topic
        await context.gossip.publish(topic, wire.encode(message))

    async def _transact(self, action: e.Action) -> None:
        client, run = self.context.client, self.context.run
        match action:
            case e.SendSeal(seal=seal, listed=listed, signatures=signatures):
                send = partial(client.seal, seal, listed, dict(signatures))
            case e.SendAccuse(account=account):
                send = partial(client.accuse, run, account)
            case e.SendEvict(account=account):
                send = partial(client.evict, run, account)
            case e.SendAnswer():
                send = partial(client.answer, run)
            case e.SendMoveDown():
                send = partial(client.move_down, run)
            case _:
                raise AssertionError(action)
        try:
            await trio.to_thread.run_sync(send, abandon_on_cancel=True)
        except LedgerError as error:
            log.info("transaction refused or not mined", action=type(action).__name__, error=str(error))
            self.emit(e.TransactionEnded(action, False, str(error)))
        else:
            log.info("transaction mined", action=type(action).__name__)
            self.emit(e.TransactionEnded(action, True, ""))

    # ---- helpers ----

    def _sign_contribution(
        self, trained: Trained, plan: Plan, own: dict[int, SignedContribution], exchange_seconds: float | None
    ) -> SignedContribution:
        contribution = make_contribution(
            trained,
            run=self.context.run,
            account=self.context.account,
            replica=self.replica,
            stage=self.stage,
            plan=plan,
            exchange_ms=0 if exchange_seconds is None else max(1, round(exchange_seconds * 1000)),
            own=own,
        )
        signed = self.context.signed.sign_contribution(contribution, self.rules.domain, self.context.account_key)
        self.context.store.note(trained.payload, Kind.PAYLOAD)  # the trainer wrote it
        return signed

    def _sign_seal(self, seal: Seal) -> None:
        try:
            signature = self.context.signed.sign_seal(seal, self.rules.domain, self.context.account_key)
        except Contradiction as error:  # two results of one function: a fault of this machine, never to be signed
            log.error("a seal was not signed", error=str(error))
        else:
            self.emit(e.SealSigned(seal.digest(self.rules.domain), signature))

    def _holder(self, stage: int) -> tuple[str, str] | None:
        """(account, peer id) of our replica's holder of a stage."""
        view = self.machine.view if self.machine else self._first_view
        account = view.holder(self.replica, stage)
        peer = self.context.peer_of(account) if account else None
        return (account, peer) if account and peer else None

    def _report_seal(self, view: RunView, round: int) -> None:
        """The one line per round."""
        sealed = view.sealed[self.stage, round]
        counted = self.context.account in sealed.accounts
        self.context.on_sealed(sealed, counted)
        steps = sealed.contributions[0].contribution.inner_steps if sealed.contributions else 0
        log.info(
            "round sealed",
            round=round,
            stage=self.stage,
            steps=steps,
            loss=round_loss(sealed.seal.mean_loss),
            tokens_per_second=round_rate(self.progress.tokens_per_second),
            bytes=self.context.bytes_sent(),
            counted=f"{sealed.seal.count}/{len(view.holders(self.stage))}",
            mine=counted,
            weights=sealed.seal.next_weights.hex()[:12],
            transaction=sealed.at.tx.hex()[:12],
        )


def round_loss(micro_nats: int) -> float:
    return round(micro_nats / MICRO, 4)


def round_rate(rate: float | None) -> float | None:
    return None if rate is None else round(rate)
