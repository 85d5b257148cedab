"""Does what the machine of one stage asks for, with a training process, peers and the account's key."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar, overload

import trio

from dlx.ledger.bonds import Evidence
from dlx.ledger.client import Receipt
from dlx.ledger.typed import Contribution, SignedContribution
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.data.retention import Retention
from dlx.node.daemon.failures import action_failures
from dlx.node.daemon.messages import contributions_topic, event_of, message_of, seals_topic
from dlx.node.daemon.stage.message_pool import MessagePool
from dlx.node.daemon.stage.open_stage import OpenStage, stage_directory
from dlx.node.daemon.stage.payloads import Payloads
from dlx.node.daemon.stage.statement_validator import StatementValidator
from dlx.node.home import logs
from dlx.node.home.evidence import keep
from dlx.node.home.keys.slashing_protection import Contradiction
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.actions import ActionFailed, BadPayload, BadStatement, Differs
from dlx.node.round.rules import stopping
from dlx.node.round.stage_machine import StageMachine
from dlx.p2p import wire

ALIVE = 4  # in a round timeout: how often what we have reported is said again
log = logs.get(__name__)

Work = Coroutine[Any, Any, e.Event | None]
M = TypeVar("M", bound=StageMachine)


class StageExecutor(Generic[M]):
    """Of one stage's machine. `pool` keeps what we say ourselves, too; `retention` what the disk keeps of the stage."""

    def __init__(self, opened: OpenStage, machine: M, pool: MessagePool, retention: Retention) -> None:
        self._opened, self._machine, self._pool, self._retention = opened, machine, pool, retention
        self._context, self._rules, self._stage = opened.context, opened.rules, opened.stage
        self._run, self._store = opened.context.run, opened.context.storage.blobs
        self._fetching: dict[Contribution, trio.CancelScope] = {}  # whose payloads
        self._reported: dict[a.GossipReport, int] = {}  # of the newest round: when it was made (ms)
        self._payloads, self._validator = Payloads(opened), StatementValidator(opened)

    @overload
    def do(self, action: a.Prompt) -> None: ...

    @overload
    def do(self, action: a.Task) -> Work: ...

    def do(self, action: a.Action) -> Work | None:
        """Prompt actions are done when it returns; of others it gives the work. That comes to an event, or to none, and
        raises ActionFailed where it cannot be done now (LocalFault where this machine is at fault)."""
        match action:
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
            case a.JudgeEnd(round=round):
                return self._judge_end(round)
            case a.AdoptVersion(version=version):
                return self._adopt(version)
            case a.SignSeal():
                return self._sign_seal(action)
            case a.KeepEvidence(account=account, evidence=evidence):
                return self._keep_evidence(account, evidence)
            case a.SendSeal(seal=seal, signatures=signatures):
                return mined(partial(self._context.chain.sealer.seal, seal, signatures))
            case a.Statement():
                return self._gossip(action)
            case _:
                raise AssertionError(action)
        return None

    def see(self, view: RunView) -> None:
        """A newer view of the ledger."""
        for statement, scope in self._fetching.items():
            sealed = view.sealed.get((self._stage, statement.round))
            if sealed is not None and all(record.statement != statement.hash() for record in sealed.records):
                scope.cancel()

    async def settle(self) -> None:
        """Pin what the disk has, before anything else may ask for room."""
        version = self._opened.versions.newest(self._machine.view)[0]
        if version == 0:
            await self._opened.versions.check_genesis()
        if version is not None:
            await trio.to_thread.run_sync(self._keep, self._machine.view, version)

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

    async def _judge_end(self, round: int) -> e.Event:
        view, manifest = self._machine.view, self._run.manifest
        numbers = stopping.blocks(view, manifest, round)
        if numbers is None:
            raise ActionFailed("seals of evaluated versions are not here yet")
        hashes = dict[int, bytes]()
        if numbers:
            with action_failures():
                client = self._context.chain.client
                hashes = await trio.to_thread.run_sync(client.block_hashes, numbers, abandon_on_cancel=True)
        over = stopping.is_over(view, manifest, round, hashes.get)
        if over is None:
            raise ActionFailed("the chain node does not say who was drawn to evaluate versions")
        return e.EndJudged(round, stopping.opening(view, round), over)

    async def _adopt(self, version: int) -> e.Event:
        view = self._machine.view
        try:
            await self._opened.versions.adopt(view, version)
        except Differs as error:
            return e.VersionDiffers(version, str(error))
        with action_failures():
            await trio.to_thread.run_sync(self._keep, view, version)
        return e.VersionAdopted(version)

    def _keep(self, view: RunView, version: int) -> None:
        """What the node still needs of the stage on disk, now that it has V[version]; the rest goes."""
        self._retention.keep(view, version, self.needed())
        for name in self._payloads.superseded(version):
            self._store.discard(name)

    def needed(self) -> list[bytes]:
        """Of our own."""
        return []

    # ---- statements ----

    async def _sign_seal(self, action: a.SignSeal) -> e.Event:
        sign = self._context.signer.sign_seal
        with action_failures():
            try:
                return e.SealSigned(action.digest, await trio.to_thread.run_sync(sign, action.seal))
            except Contradiction as error:  # the same inputs gave us something else before
                return e.VersionDiffers(action.seal.round + 1, str(error))

    async def _keep_evidence(self, account: str, evidence: Evidence) -> e.Event:
        log.warning("an account contradicts itself", account=account, round=evidence.place[2])
        directory = stage_directory(self._context, evidence.place[1]) / "evidence"
        with action_failures():
            await trio.to_thread.run_sync(keep, directory, account, evidence)
        return e.EvidenceKept(evidence)

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
            self._pool.put(event, data, self._machine.view, self._context.chain.now())


async def mined(send: Callable[[], Receipt]) -> e.Event:
    """What a transaction comes to."""
    with action_failures():
        return e.Mined((await trio.to_thread.run_sync(send, abandon_on_cancel=True)).block)
