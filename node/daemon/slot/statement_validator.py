"""Whether others' statements follow from what they stated before: fetches the earlier ones, and compares."""

from dataclasses import dataclass
from functools import cached_property, partial

import trio

from dlx.ground.blobs import BlobError, Kind, read_blob
from dlx.ground.constants import NO_HASH
from dlx.ledger.typed import CONTRIBUTION_SIZE, Contribution, SignedContribution, TypedError
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.failures import action_failures, fetch
from dlx.node.daemon.slot.open_slot import OpenSlot
from dlx.node.home import logs
from dlx.node.round.actions import ActionFailed, BadStatement
from dlx.node.round.rules.continuity import (
    PREVIOUS,
    START,
    Fault,
    faults,
    is_start_public,
    last_counted,
    left_out_by,
    named_wrongly,
    next_needed,
    start_of,
)
from dlx.node.round.rules.plans import manifest_plan
from dlx.node.round.rules.round_rules import base_version
from dlx.node.trainer.client import BlobTrouble, UnusableInput
from dlx.p2p.exchange import BlobNotFound, BlobTimeout
from dlx.training.inner.states import unused

MAKER_SECONDS, ANYBODY_SECONDS = 15.0, 30.0  # for a blob of 896 bytes, which waits behind payloads on a slow link
log = logs.get(__name__)


@dataclass(frozen=True)
class StatementValidator:
    """Of the members of one slot's stage."""

    slot: OpenSlot

    async def check(self, view: RunView, signed: SignedContribution) -> None:
        """Raises BadStatement for a statement that does not follow; ActionFailed where that cannot be said yet, because
        earlier statements, the base version or the payload in its start cannot be had."""
        statement = signed.contribution
        if view.next_round(self.slot.stage) < base_version(self.slot.rules, statement.round):
            raise ActionFailed(f"the seals that round {statement.round} starts from were taken back")
        with action_failures():
            fault = await self._fault(view, statement)
        if fault is not None:
            log.warning("statement refused", account=statement.account, round=statement.round, reason=fault.detail)
            raise BadStatement(fault.reason, fault.detail)

    async def _fault(self, view: RunView, statement: Contribution) -> Fault | None:
        counted = last_counted(view, statement.account, self.slot.stage, statement.round)
        if fault := named_wrongly(statement, counted):
            return fault
        earlier: list[Contribution] = []
        while (name := next_needed(self.slot.rules, statement, earlier)) is not None:
            try:
                earlier.append(await self._statement(statement.account, name))
            except TypedError:
                return Fault(PREVIOUS, f"{name.hex()} is no statement")
        own, start = start_of(self.slot.rules, statement, earlier), None
        if own != NO_HASH and is_start_public(self.slot.rules, statement):
            try:
                start = await self._start(view, base_version(self.slot.rules, statement.round), own)
            except UnusableInput as error:
                return Fault(START, f"the payload in its start is none: {error}")
        zeros = await trio.to_thread.run_sync(lambda: self._unused)
        left_out = left_out_by(view)
        return next(iter(faults(self.slot.rules, zeros, statement, earlier, counted, left_out, start)), None)

    async def _statement(self, account: str, name: bytes) -> Contribution:
        """Raises TypedError for a blob that is none."""
        context = self.slot.context
        exchange, store = context.network.exchange, context.storage.blobs
        peer = None if account == context.account else context.network.peer_of(account)
        ask = partial(fetch, exchange, store, name, CONTRIBUTION_SIZE)
        try:
            path = await ask([peer] if peer else None, MAKER_SECONDS, Kind.PAYLOAD)
        except (BlobNotFound, BlobTimeout):
            path = await ask(None, ANYBODY_SECONDS, Kind.PAYLOAD)
        try:
            return Contribution.decode(await trio.to_thread.run_sync(read_blob, path, CONTRIBUTION_SIZE))
        except BlobError as error:  # our disk's fault: it is had again
            await trio.to_thread.run_sync(store.sound, name)
            raise ActionFailed(str(error)) from error

    async def _start(self, view: RunView, base: int, own: bytes) -> bytes:
        """The hash of V[base] less alpha times the payload, which is of round `base`. Raises UnusableInput."""
        plan = manifest_plan(self.slot.versions.plan(view, base))
        ask = partial(self.slot.trainer.start, view.weights(self.slot.stage, base), own, plan)
        try:
            return await ask()
        except BlobTrouble as error:
            await self.slot.versions.mend(view, base, error.blobs)
            return await ask()

    @cached_property
    def _unused(self) -> bytes:
        return unused(self.slot.context.run.manifest, self.slot.stage)
