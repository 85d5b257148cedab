"""Does what the round machine asks for, for one slot: with the training process, the pipes, gossip and the chain."""

from collections.abc import Sequence
from functools import partial
from typing import overload

import trio
from msgspec.structs import replace

from dlx.ground.blobs import Kind
from dlx.ledger.events import Sealed
from dlx.ledger.typed import Contribution, SignedContribution
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.data.retention import Retention, drop_other_stages
from dlx.node.daemon.data.shards import Shards
from dlx.node.daemon.failures import action_failures
from dlx.node.daemon.slot.pipes import Pipes
from dlx.node.daemon.slot.progress import Progress
from dlx.node.daemon.stage.message_pool import MessagePool
from dlx.node.daemon.stage.open_stage import OpenStage
from dlx.node.daemon.stage.stage_executor import StageExecutor, Work, mined
from dlx.node.daemon.stage.statements import make_contribution
from dlx.node.home import logs
from dlx.node.home.program import line
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.actions import LocalFault
from dlx.node.round.machine import RoundMachine
from dlx.node.round.rules.plans import deciding_seals, manifest_plan, plan_of
from dlx.node.runs.upkeep import round_bytes
from dlx.node.trainer import messages as m
from dlx.p2p.frames import PipeWant
from dlx.training.slot.rounds import RoundInputs

OWN_ROUNDS = 4  # newest ones, whose payloads a later round may fold back: more than any delay
log = logs.get(__name__)


class Executor(StageExecutor[RoundMachine]):
    """Of one slot's round machine, in `replica`; `nursery` has what no round waits for."""

    def __init__(
        self,
        opened: OpenStage,
        replica: int,
        machine: RoundMachine,
        pipes: Pipes,
        shards: Shards,
        pool: MessagePool,
        progress: Progress,
        nursery: trio.Nursery,
    ) -> None:
        run, blobs = opened.context.run, opened.context.storage.blobs
        retention = Retention(blobs, run.manifest.retention, opened.rules, run.id, opened.stage)
        super().__init__(opened, machine, pool, retention)
        self._replica, self._pipes, self._shards = replica, pipes, shards
        self._progress, self._nursery, self._own = progress, nursery, machine.own

    @overload
    def do(self, action: a.Prompt) -> None: ...

    @overload
    def do(self, action: a.Task) -> Work: ...

    def do(self, action: a.Action) -> Work | None:
        client, run = self._context.chain.client, self._run.id
        match action:
            case a.StartRound():
                self._start_round(action)
            case a.AbandonRound(reason=reason):
                self._stop_round(reason)
            case a.WantRound(link=link, round=round, ready=ready, steps=steps):
                self._pipes.send_want(link, PipeWant(round, ready, steps))
            case a.ResetPipes(reason=reason):
                self._reset_pipes(reason)
            case a.HaveSamples(round=round):
                return self._have_samples(round)
            case a.Contribute():
                return self._contribute(action)
            case a.Send("accuse", str(account)):
                return mined(partial(client.accuse, run, account))
            case a.Send("answer"):
                return mined(partial(client.answer, run))
            case a.Send("deal", int(replica)):
                return mined(partial(client.deal, run, replica))
            case a.Send("evict", str(account)):
                return mined(partial(client.evict, run, account))
            case a.Send("move_down"):
                return mined(partial(client.move_down, run))
            case a.Prompt():
                super().do(action)
            case _:
                return super().do(action)
        return None

    # ---- the round ----

    def _start_round(self, order: a.StartRound) -> None:
        view = self._machine.view
        log.info("training", round=order.round, base=order.base, steps=order.steps, of=order.plan.inner_steps)
        if order.steps < order.own_steps:
            log.info("another stage of the replica has no time for more steps", round=order.round, ours=order.own_steps)
        self._progress.begin(order.round, order.steps)
        self._context.observers.metrics.of_stage(self._stage).round.set(order.round)
        inputs = RoundInputs(
            round=order.round,
            plan=replace(manifest_plan(order.plan), inner_steps=order.steps),
            steps_before=order.steps_before,
            total_steps=self._rules.total_steps,
            base_version=order.base,
            base_weights=view.weights(self._stage, order.base),
            samples=self._run.deals.lot(view, order.round, self._replica) if self._shards.are_read else (),
            left_out=order.left_out,
            previous=self._own[max(self._own)].contribution.payload if self._own else None,
            replica=self._replica,
            seals=deciding_seals(self._rules, view, self._stage, order.round),
        )
        self._opened.trainer.post(m.Train(inputs, {link: self._pipes.number(link) for link in ("previous", "next")}))
        self._shards.look_ahead(view, order.round)

    def _stop_round(self, reason: str) -> None:
        self._pipes.close()
        self._opened.trainer.post(m.Stop(reason))

    def _reset_pipes(self, reason: str) -> None:
        log.info("pipes reset", reason=reason)
        self._pipes.close()

    # ---- payloads and versions ----

    async def _have_samples(self, round: int) -> e.Event:
        await self._shards.have(self._machine.view, round)
        return e.SamplesHere(round)

    async def _adopt(self, version: int) -> e.Event:
        outcome, sealed = await super()._adopt(version), self._machine.view.sealed.get((self._stage, version - 1))
        if isinstance(outcome, e.VersionAdopted) and sealed is not None:
            self._nursery.start_soon(self._complete, sealed, version)
        return outcome

    async def _complete(self, sealed: Sealed, version: int) -> None:
        """Have what only audits need of a seal: no round waits for it."""
        await self._payloads.have_statements(sealed)
        try:
            await trio.to_thread.run_sync(self._retention.keep, self._machine.view, version, self.needed())
        except OSError as error:
            log.warning("statements and traces are not kept", round=version - 1, error=str(error))

    def _keep(self, view: RunView, version: int) -> None:
        super()._keep(view, version)
        # The next round's files and payload: before it begins, because the training process knows no quota.
        if (plan := plan_of(self._rules, view, self._stage, version)) is not None:
            private = round_bytes(self._run.manifest, self._stage, plan.inner_steps)
            self._store.make_room(self._rules.max_payload_size(self._stage, plan), private)

    def needed(self) -> list[bytes]:
        """Of our own: the newest, however old, as whoever comes to check our next statement needs those before it."""
        recent = [self._own[at].contribution for at in sorted(self._own)[-OWN_ROUNDS:]]
        return [name for one in recent for name in (one.payload, one.hash(), one.trace)]

    async def mend(self, round: int, blobs: Sequence[bytes]) -> None:
        """Have again what our disk has lost of a round's inputs."""
        with action_failures():
            data = await self._shards.mend(blobs)
            await self._opened.versions.mend(self._machine.view, round, [name for name in blobs if name not in data])

    # ---- statements ----

    async def _contribute(self, action: a.Contribute) -> e.Event:
        """Our statement about a trained round, signed and on disk."""
        trained, exchange_seconds = action.trained, action.exchange_seconds
        context = self._context
        if not self._own and not trained.reset:  # it has trained before, and nothing that it signed is known
            raise LocalFault(
                f"what this account signed for stage {self._stage} is not in {context.signer.path}: put the file back, "
                f"or run `{line('keys', 'import-signed', 'FILE')}` with what was exported, "
                f"or remove {self._opened.directory / 'slot'}"
            )
        with action_failures():
            contribution = make_contribution(
                trained,
                run=self._run.id,
                account=context.account,
                replica=self._replica,
                stage=self._stage,
                plan=action.plan,
                exchange_ms=0 if exchange_seconds is None else max(1, round(exchange_seconds * 1000)),
                own=self._own,
                was_counted=(self._machine.view.last_round_counted(context.account) or trained.round) < trained.round,
            )
            return e.RoundTrained(await trio.to_thread.run_sync(self._sign_contribution, contribution))

    def _sign_contribution(self, contribution: Contribution) -> SignedContribution:
        context = self._context
        for name in (contribution.payload, contribution.trace):  # the training process wrote them
            self._store.note(name, Kind.PAYLOAD)
        for one in [self._own[at].contribution for at in sorted(self._own)[-OWN_ROUNDS:]]:
            self._store.put(one.encode(), Kind.PAYLOAD)  # for who checks this one
        self._store.put(contribution.encode(), Kind.PAYLOAD)
        signed = context.signer.sign_contribution(contribution)
        drop_other_stages(context.storage.directory, self._stage)
        self._retention.release_other_stages()
        return signed
