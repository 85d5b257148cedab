"""What the round machine's actions need done in the world, for one slot: the training process, pipes, gossip, chain."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import trio
from msgspec.structs import replace

from dlx.ground.blobs import Kind
from dlx.ledger.client import Receipt
from dlx.ledger.events import Sealed
from dlx.ledger.typed import Contribution, Plan, Seal, SignedContribution
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.context import RunContext
from dlx.node.daemon.data.local_states import drop_other_stages
from dlx.node.daemon.data.retention import Retention
from dlx.node.daemon.data.shards import Shards
from dlx.node.daemon.data.versions import Versions
from dlx.node.daemon.failures import told
from dlx.node.daemon.messages import contributions_topic, message_of, seals_topic
from dlx.node.daemon.slot.payloads import Payloads
from dlx.node.daemon.slot.pipes import Pipes
from dlx.node.daemon.slot.progress import Progress
from dlx.node.daemon.slot.statement_validator import Past
from dlx.node.daemon.slot.statements import keep_evidence, make_contribution
from dlx.node.home import logs
from dlx.node.home.keys.slashing_protection import Contradiction
from dlx.node.round import actions as a
from dlx.node.round.faults import ActionFailed, Differs, LocalFault
from dlx.node.round.rules.plans import deciding_seals, manifest_plan, plan_of
from dlx.node.round.rules.round_rules import OuterResult, PayloadFacts, Rules
from dlx.node.runs.upkeep import round_bytes
from dlx.node.trainer import messages as m
from dlx.node.trainer.client import Trainer
from dlx.p2p import wire
from dlx.p2p.frames import PipeWant
from dlx.training.outer.policy import Measured
from dlx.training.slot.rounds import RoundInputs, Trained

ALIVE = 4  # in a round timeout: how often what we have reported is said again
OWN_ROUNDS = 4  # newest ones, whose payloads a later round may fold back: more than any delay
log = logs.get(__name__)


class SlotHands:
    """The `Hands` of one slot's round machine: `view` is its newest view of the ledger, `own` its contributions;
    `shelve` takes what is said, as gossip carries it; `later(work, *arguments)` does it beside everything else."""

    def __init__(
        self,
        context: RunContext,
        rules: Rules,
        slot: tuple[int, int],
        trainer: Trainer,
        pipes: Pipes,
        versions: Versions,
        shards: Shards,
        directory: Path,
        progress: Progress,
        own: dict[int, SignedContribution],
        view: Callable[[], RunView],
        shelve: Callable[[bytes], None],
        later: Callable[..., object],
    ) -> None:
        self._context, self._rules, self._trainer = context, rules, trainer
        self._replica, self._stage = slot
        self._pipes, self._directory, self._progress, self._view = pipes, directory, progress, view
        self._versions, self._shards, self._own, self._shelve, self._later = versions, shards, own, shelve, later
        self._fetching: dict[Contribution, trio.CancelScope] = {}  # whose payloads
        self._reported: dict[a.GossipReport, int] = {}  # of the newest round: when it was made (ms)
        self._payloads = Payloads(context, rules, self._stage, trainer, versions)
        self._past = Past(context, rules, self._stage, trainer, versions)
        self._retention = Retention(context.store, context.manifest, context.run, self._stage)

    # ---- at once ----

    def start_round(self, order: a.StartRound) -> None:
        view = self._view()
        log.info("training", round=order.round, base=order.base, steps=order.steps, of=order.plan.inner_steps)
        if order.steps < order.own_steps:
            log.info("another stage of the replica has no time for more steps", round=order.round, ours=order.own_steps)
        self._progress.begin(order.round, order.steps)
        self._context.metrics.of_stage(self._stage).round.set(order.round)
        inputs = RoundInputs(
            round=order.round,
            plan=replace(manifest_plan(order.plan), inner_steps=order.steps),
            steps_before=order.steps_before,
            total_steps=self._rules.total_steps,
            base_version=order.base,
            base_weights=view.weights(self._stage, order.base),
            samples=self._context.deals.lot(view, order.round, self._replica) if self._shards.are_read else (),
            left_out=order.left_out,
            previous=self._own[max(self._own)].contribution.payload if self._own else None,
            replica=self._replica,
            seals=deciding_seals(self._rules, view, self._stage, order.round),
        )
        self._trainer.post(m.Train(inputs, {link: self._pipes.number(link) for link in ("previous", "next")}))
        self._shards.look_ahead(view, order.round)

    def stop_round(self, reason: str) -> None:
        self._pipes.close()
        self._trainer.post(m.Stop(reason))

    def want_round(self, link: str, round: int, ready: bool, steps: int) -> None:
        self._pipes.send_want(link, PipeWant(round, ready, steps))

    def reset_pipes(self, reason: str) -> None:
        log.info("pipes reset", reason=reason)
        self._pipes.close()

    def reject(self, reason: str, source: str) -> None:
        self._context.reject(reason, source)

    # ---- payloads and versions ----

    async def fetch(self, signed: SignedContribution) -> PayloadFacts:
        """Given up when its round is sealed without it: nobody needs it then, and the link has better to do."""
        scope = self._fetching[signed.contribution] = trio.CancelScope()
        try:
            with scope:
                return await self._payloads.fetch(self._view(), signed)
        finally:
            del self._fetching[signed.contribution]
        raise ActionFailed("its round is sealed without it")

    def see(self, view: RunView) -> None:
        """A newer view of the ledger."""
        for statement, scope in self._fetching.items():
            sealed = view.sealed.get((self._stage, statement.round))
            if sealed is not None and all(record.payload != statement.payload for record in sealed.records):
                scope.cancel()

    async def check(self, signed: SignedContribution) -> None:
        await self._past.check(self._view(), signed)

    async def outer(self, round: int, listed: Sequence[SignedContribution], multipliers: Sequence[int]) -> OuterResult:
        return await self._payloads.outer(self._view(), round, listed, multipliers)

    async def measure(self, round: int, listed: Sequence[SignedContribution]) -> Measured:
        return await self._payloads.measure(self._view(), round, listed)

    async def have_samples(self, round: int) -> None:
        await self._shards.have(self._view(), round)

    async def adopt(self, version: int) -> None:
        view = self._view()
        await self._versions.adopt(view, version)
        with told():
            await trio.to_thread.run_sync(self._keep, view, version)
        sealed = view.sealed.get((self._stage, version - 1))
        if sealed is not None:
            self._later(self._complete, sealed, version)

    async def _complete(self, sealed: Sealed, version: int) -> None:
        """Have what only audits need of a seal: no round waits for it."""
        await self._payloads.have_statements(sealed)
        try:
            await trio.to_thread.run_sync(self._retention.keep, self._view(), version, self._needed())
        except OSError as error:
            log.warning("statements and traces are not kept", round=version - 1, error=str(error))

    async def settle(self) -> None:
        """Pin what the disk has, before anything else may ask for room."""
        version = self._versions.newest(self._view())[0]
        if version is not None:
            await trio.to_thread.run_sync(self._keep, self._view(), version)

    def _keep(self, view: RunView, version: int) -> None:
        """What the node still needs on disk, now that it has V[version]; the rest goes."""
        self._retention.keep(view, version, self._needed())
        for name in self._payloads.superseded(version):
            self._context.store.discard(name)
        # The next round's files and payload: before it begins, because the training process knows no quota.
        if (plan := plan_of(self._rules, view, self._stage, version)) is not None:
            private = round_bytes(self._context.manifest, self._stage, plan.inner_steps)
            self._context.store.make_room(self._rules.max_payload_size(self._stage, plan), private)

    def _needed(self) -> list[bytes]:
        """Of our own: the newest, however old, as whoever comes to check our next statement needs those before it."""
        recent = [self._own[at].contribution for at in sorted(self._own)[-OWN_ROUNDS:]]
        return [name for one in recent for name in (one.payload, one.hash(), one.trace)]

    async def mend(self, round: int, blobs: Sequence[bytes]) -> None:
        """Have again what our disk has lost of a round's inputs."""
        with told():
            data = await self._shards.mend(blobs)
            await self._versions.mend(self._view(), round, [name for name in blobs if name not in data])

    # ---- statements ----

    async def contribute(self, trained: Trained, plan: Plan, exchange_seconds: float | None) -> SignedContribution:
        context = self._context
        if not self._own and not trained.reset:  # it has trained before, and the book knows nothing of it
            raise LocalFault(
                f"what this account signed for stage {self._stage} is not in {context.signed.path}: put the file back, "
                f"or `dlx-node keys import-signed` what was exported, or remove {self._directory / 'slot'}"
            )
        with told():
            contribution = make_contribution(
                trained,
                run=context.run,
                account=context.account,
                replica=self._replica,
                stage=self._stage,
                plan=plan,
                exchange_ms=0 if exchange_seconds is None else max(1, round(exchange_seconds * 1000)),
                own=self._own,
                was_counted=(self._view().last_round_counted(context.account) or trained.round) < trained.round,
            )
            return await trio.to_thread.run_sync(self._sign_contribution, contribution)

    def _sign_contribution(self, contribution: Contribution) -> SignedContribution:
        context = self._context
        for name in (contribution.payload, contribution.trace):  # the training process wrote them
            context.store.note(name, Kind.PAYLOAD)
        for one in [self._own[at].contribution for at in sorted(self._own)[-OWN_ROUNDS:]]:
            context.store.put(one.encode(), Kind.PAYLOAD)  # for who checks this one
        context.store.put(contribution.encode(), Kind.PAYLOAD)
        signed = context.signed.sign_contribution(contribution, self._rules.domain, context.account_key)
        drop_other_stages(context.directory, self._stage)
        self._retention.release_other_stages()
        return signed

    async def sign(self, seal: Seal) -> bytes:
        context = self._context
        with told():
            sign = context.signed.sign_seal
            try:
                return await trio.to_thread.run_sync(sign, seal, self._rules.domain, context.account_key)
            except Contradiction as error:  # the same inputs gave us something else before
                raise Differs(str(error)) from error

    async def keep_evidence(self, first: SignedContribution, second: SignedContribution) -> None:
        log.warning("two contributions to one round", account=first.contribution.account)
        with told():
            await trio.to_thread.run_sync(keep_evidence, self._directory / "evidence", first, second)

    async def gossip(self, statement: a.Statement) -> None:
        context, made = self._context, int(self._context.now() * 1000)
        if isinstance(statement, a.GossipReport) and not self._is_news(statement, made):
            return
        data = wire.encode(
            message_of(statement, context.run, self._stage, self._rules.domain, context.account_key, made)
        )
        contributes = isinstance(statement, a.GossipContribution)
        topic = contributions_topic(context.run) if contributes else seals_topic(context.run, self._stage)
        self._shelve(data)
        await context.gossip.publish(topic, data)

    def _is_news(self, report: a.GossipReport, made: int) -> bool:
        """The same report again only says that we are alive."""
        again = 1000 * self._rules.round_timeout / ALIVE
        if made < self._reported.get(report, -again) + again:
            return False
        self._reported = {one: at for one, at in self._reported.items() if one.round == report.round} | {report: made}
        return True

    # ---- transactions ----

    async def send_seal(self, seal: Seal, signatures: bytes) -> int:
        return await _mined(partial(self._context.client.seal, seal, signatures))

    async def send_accuse(self, account: str) -> int:
        return await _mined(partial(self._context.client.accuse, self._context.run, account))

    async def send_answer(self) -> int:
        return await _mined(partial(self._context.client.answer, self._context.run))

    async def send_evict(self, account: str) -> int:
        return await _mined(partial(self._context.client.evict, self._context.run, account))

    async def send_deal(self, replica: int) -> int:
        return await _mined(partial(self._context.client.deal, self._context.run, replica))

    async def send_move_down(self) -> int:
        return await _mined(partial(self._context.client.move_down, self._context.run))


async def _mined(send: Callable[[], Receipt]) -> int:
    """The block that took the transaction."""
    with told():
        return (await trio.to_thread.run_sync(send, abandon_on_cancel=True)).block
