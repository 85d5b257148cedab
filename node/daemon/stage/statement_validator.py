"""Whether others' statements follow from what they stated before: fetches the earlier ones, and compares."""

from dataclasses import dataclass
from functools import cached_property, partial

import trio

from dlx.ground.blobs import BlobError, Kind, read_blob
from dlx.ground.constants import NO_HASH
from dlx.ledger.typed import CONTRIBUTION_SIZE, STATE_RESET, Contribution, SignedContribution, TypedError
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.failures import action_failures, fetch
from dlx.node.daemon.stage.open_stage import OpenStage
from dlx.node.home import logs
from dlx.node.round.actions import ActionFailed, BadStatement
from dlx.node.round.rules.continuity import (
    PREVIOUS,
    START,
    TOO_OFTEN,
    Fault,
    counted_before,
    faults,
    is_start_public,
    last_counted,
    left_out_by,
    named_wrongly,
    next_needed,
    start_of,
)
from dlx.node.round.rules.plans import RESETS, manifest_plan
from dlx.node.round.rules.round_rules import base_version
from dlx.node.trainer.client import BlobTrouble, UnusableInput
from dlx.p2p.exchange import BlobNotFound, BlobTimeout
from dlx.training.inner.states import unused

AT_ONCE = 16  # statements that are asked for
MAKER_SECONDS, ANYBODY_SECONDS = 15.0, 30.0  # for a blob of 896 bytes, which waits behind payloads on a slow link
log = logs.get(__name__)


@dataclass(frozen=True)
class StatementValidator:
    """Of the members of one stage."""

    opened: OpenStage

    async def check(self, view: RunView, signed: SignedContribution) -> None:
        """Raises BadStatement for a statement that does not follow; ActionFailed where that cannot be said yet, because
        earlier statements, the base version or the payload in its start cannot be had."""
        statement = signed.contribution
        if view.next_round(self.opened.stage) < base_version(self.opened.rules, statement.round):
            raise ActionFailed(f"the seals that round {statement.round} starts from were taken back")
        with action_failures():
            fault = await self._fault(view, statement)
        if fault is not None:
            log.warning("statement refused", account=statement.account, round=statement.round, reason=fault.detail)
            raise BadStatement(fault.reason, fault.detail)

    async def _fault(self, view: RunView, statement: Contribution) -> Fault | None:
        counted = last_counted(view, statement.account, self.opened.stage, statement.round)
        if fault := named_wrongly(statement, counted):
            return fault
        earlier: list[Contribution] = []
        while (name := next_needed(self.opened.rules, statement, earlier)) is not None:
            try:
                earlier.append(await self._statement(statement.account, name))
            except TypedError:
                return Fault(PREVIOUS, f"{name.hex()} is no statement")
        own, start = start_of(self.opened.rules, statement, earlier), None
        if own != NO_HASH and is_start_public(self.opened.rules, statement):
            try:
                start = await self._start(view, base_version(self.opened.rules, statement.round), own)
            except UnusableInput as error:
                return Fault(START, f"the payload in its start is none: {error}")
        zeros = await trio.to_thread.run_sync(lambda: self._unused)
        left_out = left_out_by(view)
        if found := faults(self.opened.rules, zeros, statement, earlier, counted, left_out, start):
            return found[0]
        return TOO_OFTEN if statement.flags & STATE_RESET and await self._has_reset(view, statement) else None

    async def _has_reset(self, view: RunView, statement: Contribution) -> bool:
        """Whether RESETS of its account's contributions that were counted lately state a reset. All members keep these,
        so nobody waits for their maker."""
        names, resets, errors = counted_before(self.opened.rules, view, statement), 0, list[Exception]()
        if len(names) < RESETS:
            return False

        async def look(name: bytes) -> None:
            nonlocal resets
            try:
                found = await self._statement(None, name)
                resets += bool(found.flags & STATE_RESET)
            except TypedError:  # a quorum counted what is no statement
                pass
            except Exception as error:
                errors.append(error)

        for at in range(0, len(names), AT_ONCE):
            async with trio.open_nursery() as nursery:
                for name in names[at : at + AT_ONCE]:
                    nursery.start_soon(look, name)
            if resets >= RESETS:
                return True
            if errors:
                raise errors[0]
        return False

    async def _statement(self, maker: str | None, name: bytes) -> Contribution:
        """Of its maker, or else of anybody. Raises TypedError for a blob that is none."""
        context = self.opened.context
        exchange, store = context.network.exchange, context.storage.blobs
        peer = None if maker in (None, context.account) else context.network.peer_of(str(maker))
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
        plan = manifest_plan(self.opened.versions.plan(view, base))
        ask = partial(self.opened.trainer.start, view.weights(self.opened.stage, base), own, plan)
        try:
            return await ask()
        except BlobTrouble as error:
            await self.opened.versions.mend(view, base, error.blobs)
            return await ask()

    @cached_property
    def _unused(self) -> bytes:
        return unused(self.opened.context.run.manifest, self.opened.stage)
