"""Does what the round machine asks for, for one slot: with the training process, the pipes, gossip and the chain."""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, overload

import trio
from msgspec.structs import replace

from dlx.ground.blobs import Kind
from dlx.ledger.client import Receipt
from dlx.ledger.events import Sealed
from dlx.ledger.typed import Contribution, SignedContribution
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.data.retention import Retention, drop_other_stages
from dlx.node.daemon.data.shards import Shards
from dlx.node.daemon.failures import action_failures
from dlx.node.daemon.messages import contributions_topic, event_of, message_of, seals_topic
from dlx.node.daemon.slot.message_pool import MessagePool
from dlx.node.daemon.slot.open_slot import OpenSlot
from dlx.node.daemon.slot.payloads import Payloads
from dlx.node.daemon.slot.pipes import Pipes
from dlx.node.daemon.slot.progress import Progress
from dlx.node.daemon.slot.statement_validator import StatementValidator
from dlx.node.daemon.slot.statements import keep_evidence, make_contribution
from dlx.node.home import logs
from dlx.node.home.keys.slashing_protection import Contradiction
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.actions import ActionFailed, BadPayload, BadStatement, Differs, LocalFault
from dlx.node.round.machine import RoundMachine
from dlx.node.round.rules.plans import deciding_seals, manifest_plan, plan_of
from dlx.node.runs.upkeep import round_bytes
from dlx.node.trainer import messages as m
from dlx.p2p import wire
from dlx.p2p.frames import PipeWant
from dlx.training.slot.rounds import RoundInputs

ALIVE = 4  # in a round timeout: how often what we have reported is said again
OWN_ROUNDS = 4  # newest ones, whose payloads a later round may fold back: more than any delay
log = logs.get(__name__)

Work = Coroutine[Any, Any, e.Event | None]


class Executor:
    """Of one slot's round machine. `pool` keeps what we say ourselves, too; `nursery` has what no round waits for."""

    def __init__(
        self,
        slot: OpenSlot,
        machine: RoundMachine,
        pipes: Pipes,
        shards: Shards,
        pool: MessagePool,
        progress: Progress,
        nursery: trio.Nursery,
    ) -> None:
        self._slot, self._machine, self._pipes, self._shards = slot, machine, pipes, shards
        self._pool, self._progress, self._nursery = pool, progress, nursery
        self._context, self._rules, self._stage, self._own = slot.context, slot.rules, slot.stage, machine.own
        self._run, self._store = slot.context.run, slot.context.storage.blobs
        self._fetching: dict[Contribution, trio.CancelScope] = {}  # whose payloads
        self._reported: dict[a.GossipReport, int] = {}  # of the newest round: when it was made (ms)
        self._payloads, self._validator = Payloads(slot), StatementValidator(slot)
        self._retention = Retention(self._store, self._run.manifest, self._run.id, slot.stage)

    @overload
    def do(self, action: a.Prompt) -> None: ...

    @overload
    def do(self, action: a.Task) -> Work: ...

    def do(self, action: a.Action) -> Work | None:
        """Prompt actions are done when it returns; of others it gives the work. That comes to an event, or to none, and
        raises ActionFailed where it cannot be done now (LocalFault where this machine is at fault)."""
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
            case a.Reject(reason=reason, source=source):
                self._context.network.reject(reason, source)
            case a.FetchPayload(signed=signed):
                return self._fetch(signed)
            case a.CheckStatement(signed=signed):
                return self._check(signed)
            case a.ComputeOuter():
                return self._compute_outer(action)
            case a.MeasurePolicy(round=round, listed=listed):
                return self._measure(round, listed)
            case a.HaveSamples(round=round):
                return self._have_samples(round)
            case a.AdoptVersion(version=version):
                return self._adopt(version)
            case a.Contribute():
                return self._contribute(action)
            case a.SignSeal():
                return self._sign_seal(action)
            case a.KeepEvidence(first=first, second=second):
                return self._keep_evidence(first, second)
            case a.Statement():
                return self._gossip(action)
            case a.SendSeal(seal=seal, signatures=signatures):
                return _mined(partial(client.seal, seal, signatures))
            case a.Send("accuse", str(account)):
                return _mined(partial(client.accuse, run, account))
            case a.Send("answer"):
                return _mined(partial(client.answer, run))
            case a.Send("deal", int(replica)):
                return _mined(partial(client.deal, run, replica))
            case a.Send("evict", str(account)):
                return _mined(partial(client.evict, run, account))
            case a.Send("move_down"):
                return _mined(partial(client.move_down, run))
            case _:
                raise AssertionError(action)
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
            samples=self._run.deals.lot(view, order.round, self._slot.replica) if self._shards.are_read else (),
            left_out=order.left_out,
            previous=self._own[max(self._own)].contribution.payload if self._own else None,
            replica=self._slot.replica,
            seals=deciding_seals(self._rules, view, self._stage, order.round),
        )
        self._slot.trainer.post(m.Train(inputs, {link: self._pipes.number(link) for link in ("previous", "next")}))
        self._shards.look_ahead(view, order.round)

    def _stop_round(self, reason: str) -> None:
        self._pipes.close()
        self._slot.trainer.post(m.Stop(reason))

    def _reset_pipes(self, reason: str) -> None:
        log.info("pipes reset", reason=reason)
        self._pipes.close()

    # ---- payloads and versions ----

    async def _fetch(self, signed: SignedContribution) -> e.Event:
        """Given up when its round is sealed without it: nobody needs it then, and the link has better to do."""
        statement, facts = signed.contribution, None
        scope = self._fetching[statement] = trio.CancelScope()
        try:
            with scope:
                facts = await self._payloads.fetch(self._machine.view, signed)
        except BadPayload as error:
            return e.PayloadRefused(statement.round, statement.payload, error.reason)
        except BadStatement as error:  # others may state the same payload, and be right
            return e.StatementRefused(statement.round, statement.hash(), error.reason)
        finally:
            del self._fetching[statement]
        if facts is None:
            raise ActionFailed("its round is sealed without it")
        return e.PayloadReady(statement.round, statement.payload, facts)

    def see(self, view: RunView) -> None:
        """A newer view of the ledger."""
        for statement, scope in self._fetching.items():
            sealed = view.sealed.get((self._stage, statement.round))
            if sealed is not None and all(record.payload != statement.payload for record in sealed.records):
                scope.cancel()

    async def _check(self, signed: SignedContribution) -> e.Event:
        statement = signed.contribution
        try:
            await self._validator.check(self._machine.view, signed)
        except BadStatement as error:
            return e.StatementRefused(statement.round, statement.hash(), error.reason)
        return e.StatementSound(statement.round, statement.hash())

    async def _compute_outer(self, action: a.ComputeOuter) -> e.Event:
        round, listed, multipliers = action.round, action.listed, action.multipliers
        result = await self._payloads.outer(self._machine.view, round, listed, multipliers)
        return e.OuterComputed(round, a.names(listed), multipliers, result)

    async def _measure(self, round: int, listed: tuple[SignedContribution, ...]) -> e.Event:
        measured = await self._payloads.measure(self._machine.view, round, listed)
        return e.PolicyMeasured(round, a.names(listed), measured)

    async def _have_samples(self, round: int) -> e.Event:
        await self._shards.have(self._machine.view, round)
        return e.SamplesHere(round)

    async def _adopt(self, version: int) -> e.Event:
        view = self._machine.view
        try:
            await self._slot.versions.adopt(view, version)
        except Differs as error:
            return e.VersionDiffers(version, str(error))
        with action_failures():
            await trio.to_thread.run_sync(self._keep, view, version)
        sealed = view.sealed.get((self._stage, version - 1))
        if sealed is not None:
            self._nursery.start_soon(self._complete, sealed, version)
        return e.VersionAdopted(version)

    async def _complete(self, sealed: Sealed, version: int) -> None:
        """Have what only audits need of a seal: no round waits for it."""
        await self._payloads.have_statements(sealed)
        try:
            await trio.to_thread.run_sync(self._retention.keep, self._machine.view, version, self._needed())
        except OSError as error:
            log.warning("statements and traces are not kept", round=version - 1, error=str(error))

    async def settle(self) -> None:
        """Pin what the disk has, before anything else may ask for room."""
        version = self._slot.versions.newest(self._machine.view)[0]
        if version is not None:
            await trio.to_thread.run_sync(self._keep, self._machine.view, version)

    def _keep(self, view: RunView, version: int) -> None:
        """What the node still needs on disk, now that it has V[version]; the rest goes."""
        self._retention.keep(view, version, self._needed())
        for name in self._payloads.superseded(version):
            self._store.discard(name)
        # The next round's files and payload: before it begins, because the training process knows no quota.
        if (plan := plan_of(self._rules, view, self._stage, version)) is not None:
            private = round_bytes(self._run.manifest, self._stage, plan.inner_steps)
            self._store.make_room(self._rules.max_payload_size(self._stage, plan), private)

    def _needed(self) -> list[bytes]:
        """Of our own: the newest, however old, as whoever comes to check our next statement needs those before it."""
        recent = [self._own[at].contribution for at in sorted(self._own)[-OWN_ROUNDS:]]
        return [name for one in recent for name in (one.payload, one.hash(), one.trace)]

    async def mend(self, round: int, blobs: Sequence[bytes]) -> None:
        """Have again what our disk has lost of a round's inputs."""
        with action_failures():
            data = await self._shards.mend(blobs)
            await self._slot.versions.mend(self._machine.view, round, [name for name in blobs if name not in data])

    # ---- statements ----

    async def _contribute(self, action: a.Contribute) -> e.Event:
        """Our statement about a trained round, signed and on disk."""
        trained, exchange_seconds = action.trained, action.exchange_seconds
        context = self._context
        if not self._own and not trained.reset:  # it has trained before, and nothing that it signed is known
            raise LocalFault(
                f"what this account signed for stage {self._stage} is not in {context.signer.path}: put the file back, "
                f"or `dlx-node keys import-signed` what was exported, or remove {self._slot.directory / 'slot'}"
            )
        with action_failures():
            contribution = make_contribution(
                trained,
                run=self._run.id,
                account=context.account,
                replica=self._slot.replica,
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

    async def _sign_seal(self, action: a.SignSeal) -> e.Event:
        sign = self._context.signer.sign_seal
        with action_failures():
            try:
                return e.SealSigned(action.digest, await trio.to_thread.run_sync(sign, action.seal))
            except Contradiction as error:  # the same inputs gave us something else before
                return e.VersionDiffers(action.seal.round + 1, str(error))

    async def _keep_evidence(self, first: SignedContribution, second: SignedContribution) -> e.Event:
        log.warning("two contributions to one round", account=first.contribution.account)
        with action_failures():
            await trio.to_thread.run_sync(keep_evidence, self._slot.directory / "evidence", first, second)
        return e.EvidenceKept(second)

    async def _gossip(self, statement: a.Statement) -> None:
        context, made = self._context, int(self._context.chain.now() * 1000)
        if isinstance(statement, a.GossipReport) and not self._is_news(statement, made):
            return
        data = wire.encode(message_of(statement, self._run.id, self._stage, made, context.signer.sign_report))
        contributes = isinstance(statement, a.GossipContribution)
        topic = contributions_topic(self._run.id) if contributes else seals_topic(self._run.id, self._stage)
        self._keep_said(data)
        await context.network.gossip.publish(topic, data)

    def _is_news(self, report: a.GossipReport, made: int) -> bool:
        """The same report again only says that we are alive."""
        again = 1000 * self._rules.round_timeout / ALIVE
        if made < self._reported.get(report, -again) + again:
            return False
        self._reported = {one: at for one, at in self._reported.items() if one.round == report.round} | {report: made}
        return True

    def _keep_said(self, data: bytes) -> None:
        """Our own message, for those who ask for it."""
        event = None if self._pool.has(data) else event_of(data, "", self._run.id, self._rules.domain)
        if event is not None:
            self._pool.put(event, data, self._machine.view)


async def _mined(send: Callable[[], Receipt]) -> e.Event:
    with action_failures():
        return e.Mined((await trio.to_thread.run_sync(send, abandon_on_cancel=True)).block)
