"""What a session does with others' payloads: fetch and check them, measure them, take the outer step over them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from dlx.ground.blobs import Kind
from dlx.ledger.typed import Plan, SignedContribution
from dlx.ledger.view import RunView
from dlx.node.daemon.context import RunContext
from dlx.node.home import logs
from dlx.node.round import events as e
from dlx.node.round.plans import manifest_plan, plan_of
from dlx.node.round.rules import Rules, unit_multipliers
from dlx.node.trainer.client import Trainer, TrainerError, TrainerSilent
from dlx.node.trainer.messages import SealedPayload
from dlx.p2p.exchange import BlobError, BlobNotFound, BlobTimeout, BlobTooLarge

PAYLOAD_SECONDS = 30.0
log = logs.get(__name__)


@dataclass(frozen=True)
class Payloads:
    """Of one stage. Each method ends with the event that tells the machine how it went."""

    context: RunContext
    rules: Rules
    stage: int
    trainer: Trainer
    made: dict[int, set[bytes]] = field(default_factory=dict)  # round -> blobs that outer steps wrote, sealed or not

    async def fetch(self, view: RunView, signed: SignedContribution) -> e.Event:
        """Have the payload in the blob store, and know that it decodes."""
        statement = signed.contribution
        round, payload, plan = statement.round, statement.payload, self._plan(view, statement.round)
        limit = self.rules.max_payload_size(self.stage, plan)  # the stated size may be a lie
        exchange, peer = self.context.exchange, self.context.peer_of(statement.account)
        try:
            try:
                path = await exchange.fetch(payload, limit, [peer] if peer else None, 5.0, Kind.PAYLOAD)
            except (BlobNotFound, BlobTimeout):  # its maker is silent: whoever has it
                path = await exchange.fetch(payload, limit, None, PAYLOAD_SECONDS, Kind.PAYLOAD)
            await self.trainer.check(payload, manifest_plan(plan))
        except BlobTooLarge as error:
            log.warning("payload refused", payload=payload.hex()[:12], account=statement.account, error=str(error))
            return e.PayloadRefused(round, payload, "payload_size")
        except (BlobError, TrainerSilent, OSError) as error:
            log.info("payload not here yet", payload=payload.hex()[:12], error=str(error))
            return e.PayloadMissing(round, payload)
        except TrainerError as error:
            log.warning("payload refused", payload=payload.hex()[:12], account=statement.account, error=str(error))
            return e.PayloadRefused(round, payload, "bad_payload")
        return e.PayloadReady(round, payload, path.stat().st_size)

    async def outer(self, view: RunView, action: e.ComputeOuter) -> e.Event:
        """V[round + 1], and what the ranks keep of the mean."""
        round, names = action.round, tuple(signed.contribution.hash() for signed in action.listed)
        started = time.monotonic()
        try:
            answer = await self.trainer.outer(
                view.weights(self.stage, round),
                view.momentum(self.stage, round),
                self._sealed(view, round, action.listed, action.multipliers),
                action.ranks,
            )
        except TrainerError as error:
            log.warning("outer step failed", round=round, error=str(error))
            return e.OuterFailed(round, names, action.multipliers, str(error))
        self.made.setdefault(round, set()).update((answer.weights, answer.momentum))
        self.context.metrics.outer_seconds.observe(time.monotonic() - started)
        return e.OuterComputed(round, names, action.multipliers, answer.weights, answer.momentum, answer.energy)

    async def measure(self, view: RunView, action: e.MeasurePolicy) -> e.Event:
        """What the aggregation policy needs to know."""
        round, names = action.round, tuple(signed.contribution.hash() for signed in action.listed)
        units = unit_multipliers(len(action.listed))
        try:
            measured = await self.trainer.measure(self._sealed(view, round, action.listed, units))
        except TrainerError as error:
            log.warning("the payloads could not be measured", round=round, error=str(error))
            return e.PolicyFailed(round, names, str(error))
        return e.PolicyMeasured(round, names, measured)

    def _sealed(
        self, view: RunView, round: int, listed: Sequence[SignedContribution], multipliers: Sequence[int]
    ) -> tuple[SealedPayload, ...]:
        plan = manifest_plan(self._plan(view, round))
        return tuple(
            SealedPayload(signed.contribution.payload, signed.contribution.tokens, multiplier, plan)
            for signed, multiplier in zip(listed, multipliers, strict=True)
        )

    def _plan(self, view: RunView, round: int) -> Plan:
        plan = plan_of(self.rules, view, self.stage, round)
        assert plan is not None, "contributions are taken only to rounds whose plan is known"
        return plan
