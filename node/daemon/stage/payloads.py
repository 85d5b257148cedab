"""What a node does with others' payloads: fetch and check them, measure them, take the outer step over them."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from dlx.ground.blobs import Kind
from dlx.ground.merkle import file_root
from dlx.ledger.events import Sealed
from dlx.ledger.typed import CONTRIBUTION_SIZE, Contribution, SignedContribution, TypedError
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.failures import action_failures, fetch
from dlx.node.daemon.stage.open_stage import OpenStage
from dlx.node.home import logs
from dlx.node.round.actions import ActionFailed, BadPayload, BadStatement
from dlx.node.round.rules.continuity import next_needed
from dlx.node.round.rules.plans import manifest_plan
from dlx.node.round.rules.round_rules import OuterResult, PayloadFacts, unit_multipliers
from dlx.node.trainer.client import BlobTrouble, UnusableInput
from dlx.p2p.exchange import BlobContradiction, BlobNotFound, BlobTooLarge, Tree
from dlx.training.outer.policy import Measured
from dlx.training.slot.trace import size as trace_size

PAYLOAD_SECONDS = 30.0  # without progress
STATEMENT_SECONDS = 5.0  # for all of a seal that this node did not hear; nothing waits for them but who audits later
T = TypeVar("T")
log = logs.get(__name__)


@dataclass(frozen=True)
class Payloads:
    """Of one stage. The methods raise ActionFailed (LocalFault where this machine is at fault)."""

    opened: OpenStage
    made: dict[int, set[bytes]] = field(default_factory=dict)  # round -> blobs that outer steps wrote, sealed or not

    async def fetch(self, view: RunView, signed: SignedContribution) -> PayloadFacts:
        """Have payload and statement in the blob store, know that it decodes. Raises BadPayload, BadStatement too."""
        statement = signed.contribution
        payload, plan = statement.payload, self.opened.versions.plan(view, statement.round)
        limit = self.opened.rules.max_payload_size(self.opened.stage, plan)  # the stated size may be a lie
        context, peer_of = self.opened.context, self.opened.context.network.peer_of
        exchange, store = context.network.exchange, context.storage.blobs
        peer = None if statement.account == context.account else peer_of(statement.account)
        peers = [peer] if peer else None
        tree = Tree(statement.payload_size, statement.payload_root)
        sharers = [one for account in view.members_in(self.opened.stage) if (one := peer_of(account)) != peer and one]
        with action_failures():
            await trio.to_thread.run_sync(store.put, statement.encode(), Kind.PAYLOAD)
            try:
                try:
                    ask = partial(fetch, exchange, store, payload, limit, peers, PAYLOAD_SECONDS, Kind.PAYLOAD)
                    path = await ask(tree, sharers)
                except BlobNotFound:  # nobody has it with the stated root, which may be a lie
                    path = await fetch(exchange, store, payload, limit, None, PAYLOAD_SECONDS, Kind.PAYLOAD)
                decode = partial(self.opened.trainer.check, payload, manifest_plan(plan))
                await self._mending(decode, view, statement.round)
                return await trio.to_thread.run_sync(lambda: PayloadFacts(path.stat().st_size, file_root(path)))
            except (BlobTooLarge, BlobContradiction, UnusableInput) as error:
                log.warning("payload refused", payload=payload.hex()[:12], account=statement.account, error=str(error))
                if isinstance(error, BlobContradiction):
                    raise BadStatement("payload_root", str(error)) from None
                raise BadPayload("payload_size" if isinstance(error, BlobTooLarge) else "bad_payload") from None

    async def outer(
        self,
        view: RunView,
        round: int,
        listed: Sequence[SignedContribution],
        multipliers: Sequence[int],
    ) -> OuterResult:
        """V[round + 1]."""
        payloads = self.opened.versions.inputs(view, round, listed, multipliers)
        if round > view.next_round(self.opened.stage):
            raise ActionFailed(f"the seal of round {round - 1} was taken back")
        weights, momentum = view.weights(self.opened.stage, round), view.momentum(self.opened.stage, round)
        started = time.monotonic()
        with action_failures():
            ask = partial(self.opened.versions.step, weights, momentum, payloads)
            made = await self._mending(ask, view, round)
        self.made.setdefault(round, set()).update((made.weights, made.momentum))
        self.opened.context.observers.metrics.outer_step(self.opened.stage, time.monotonic() - started)
        return OuterResult(made.weights, made.momentum, made.weights_root, made.momentum_root)

    def superseded(self, adopted: int) -> set[bytes]:
        """What outer steps over proposals wrote for rounds that are sealed by now; told once."""
        return {name for round in [at for at in self.made if at < adopted] for name in self.made.pop(round)}

    async def have_statements(self, sealed: Sealed) -> None:
        """Have the statements that a seal counts, their traces and the earlier statements by which audits judge them,
        as far as somebody offers them soon."""
        with trio.move_on_after(STATEMENT_SECONDS):
            for account, record in zip(sealed.accounts, sealed.records, strict=True):
                try:
                    with action_failures():
                        maker = self.opened.context.network.peer_of(account)
                        statement = await self._have_statement(record.statement, maker)
                        steps = min(statement.inner_steps, sealed.outcome.inner_steps)  # whatever a quorum let in
                        await self._have(statement.trace, trace_size(min(statement.segments, steps), steps), maker)
                        earlier: list[Contribution] = []
                        while (name := next_needed(self.opened.rules, statement, earlier)) is not None:
                            earlier.append(await self._have_statement(name, maker))
                except (ActionFailed, TypedError) as error:
                    log.info("no statement or trace", statement=record.statement.hex()[:12], error=str(error))

    async def _have_statement(self, name: bytes, maker: str | None) -> Contribution:
        """Raises TypedError for a blob that is none."""
        path = await self._have(name, CONTRIBUTION_SIZE, maker)
        return Contribution.decode(await trio.to_thread.run_sync(path.read_bytes))

    async def _have(self, name: bytes, limit: int, maker: str | None) -> Path:
        exchange, store = self.opened.context.network.exchange, self.opened.context.storage.blobs
        peers = [maker] if maker else None
        return await fetch(exchange, store, name, limit, peers, STATEMENT_SECONDS, Kind.PAYLOAD)

    async def measure(self, view: RunView, round: int, listed: Sequence[SignedContribution]) -> Measured:
        """What the aggregation policy needs to know."""
        payloads = self.opened.versions.inputs(view, round, listed, unit_multipliers(len(listed)))
        with action_failures():
            return await self._mending(partial(self.opened.trainer.measure, payloads), view, round)

    async def _mending(self, ask: Callable[[], Awaitable[T]], view: RunView, round: int) -> T:
        """Asks the training process; once more where our disk had lost or damaged something that could be had again."""
        try:
            return await ask()
        except BlobTrouble as error:
            await self.opened.versions.mend(view, round, error.blobs)
            return await ask()
