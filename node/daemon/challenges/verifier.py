"""Checks others' drawn work when its turn has come, keeps the verdicts that it gives and hears, and takes part in
convictions (see node.round.turns).
"""

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random

import trio
from eth_utils import to_canonical_address

from dlx.ground.backoff import Backoff
from dlx.ground.blobs import Kind
from dlx.ground.errors import DlxError
from dlx.ground.untrusted import printable_ascii
from dlx.ledger.abi import checksum
from dlx.ledger.errors import LedgerError
from dlx.ledger.view.run_view import RunView
from dlx.node import version
from dlx.node.audit.inner_inputs import FalseStatement, MissingInputs, Undecidable
from dlx.node.audit.verdict_store import VerdictStore
from dlx.node.daemon.challenges.draws import Draws
from dlx.node.daemon.challenges.evidence import Effort, Evidence
from dlx.node.daemon.context import RunContext
from dlx.node.daemon.messages import Heard, verdicts_topic
from dlx.node.daemon.supervisor import ReportHealthy
from dlx.node.home import logs
from dlx.node.round.challenges import leaving, turns
from dlx.node.round.challenges.draw import MOST_WINDOW, Drawn
from dlx.node.round.challenges.leaving import Owed
from dlx.node.round.challenges.turns import Case, Wanted
from dlx.node.round.challenges.verdicts import (
    MAX_REASON,
    MAX_REASONS,
    Distances,
    Finding,
    ReportedVerdict,
    VerdictError,
    VerdictReport,
    decode,
)
from dlx.node.trainer.checks import CheckFailed, Outcome
from dlx.p2p import wire
from dlx.p2p.streams import StreamBroken
from dlx.p2p.verdicts import VerdictExchange

LOOK_SECONDS = 1.0
LEAST_ASK_SECONDS = 5.0  # between two questions for verdicts that were missed
MAX_WAITING = 256  # verdicts
MAX_FAILURES = 8  # checks of one drawn segment that failed here
RETRY = Backoff(first=3.0, cap=60.0)
log = logs.get(__name__)

Key = tuple[bytes, int]  # of a drawn segment


@dataclass
class _Delays:
    """What was tried in vain: when it is tried again."""

    failures: dict[Hashable, int] = field(default_factory=lambda: defaultdict(int))
    until: dict[Hashable, float] = field(default_factory=dict)
    random: Random = field(default_factory=Random)

    def again(self, key: Hashable, now: float) -> None:
        self.failures[key] += 1
        self.until[key] = now + RETRY.delay(self.failures[key], self.random)

    def soon(self, key: Hashable, now: float) -> None:
        """It is under way: after others that wait."""
        self.until[key] = now + RETRY.first

    def never(self, key: Hashable) -> None:
        self.until[key] = math.inf

    def is_over(self, key: Hashable, now: float) -> bool:
        return now >= self.until.get(key, 0.0)

    def forget(self, key: Hashable) -> None:
        self.failures.pop(key, None)
        self.until.pop(key, None)


class Verifier:
    """`view()`: the ledger's newest; `agreed()`: the peers that are connected."""

    def __init__(
        self,
        context: RunContext,
        draws: Draws,
        store: VerdictStore,
        exchange: VerdictExchange,
        effort: Effort,
        view: Callable[[], RunView | None],
        agreed: Callable[[], tuple[str, ...]],
    ) -> None:
        self.effort = effort
        self._context, self._network, self._chain = context, context.network, context.chain
        self._draws, self._store, self._exchange = draws, store, exchange
        self._view, self._agreed, self._evidence = view, agreed, Evidence(context, effort)
        self._verdicts: dict[Key, dict[str, ReportedVerdict]] = defaultdict(dict)  # by checker
        self._delays, self._convictions = _Delays(), _Delays()
        self._wanted: dict[tuple[Key, bytes], Wanted] = {}  # and the blob
        self._due: dict[bytes, float] = {}  # statement -> since when its maker may be convicted
        self._timing = context.run.manifest.timing
        self._random = Random()
        self._incoming, self._waiting = trio.open_memory_channel[ReportedVerdict](MAX_WAITING)

    async def run(self, report_healthy: ReportHealthy) -> None:
        for verdict in await trio.to_thread.run_sync(self._store.since, 0):
            self._verdicts[verdict.report.key][verdict.checker] = verdict
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen)
            nursery.start_soon(self._ask)
            nursery.start_soon(self._forget)
            nursery.start_soon(self._convict)
            while True:
                case = self._next()
                if case is None:
                    await trio.sleep(LOOK_SECONDS)
                else:
                    await self._check(case)
                report_healthy()

    def cases(self) -> Iterator[Case]:
        """Everything drawn of the window, oldest first."""
        rounds = self._draws.rounds.value
        for round in sorted(rounds):
            for drawn in rounds[round].drawn:
                yield Case(drawn, rounds[round].since, self._verdicts.get(drawn.key, {}))

    def awaits(self) -> str | None:
        """For what drawn work that nobody replayed waits."""
        view, now, cases = self._view(), self._chain.now(), list(self.cases())
        if view is None:
            return None
        if any(not case.verdicts and not self._delays.is_over(case.drawn.key, now) for case in cases):
            return "for what a replay needs and nobody gave yet, or for another try: the log says why"
        timeout = self._timing.round_timeout
        return turns.awaits(cases, view, self._context.account, now, timeout, self._has_budget(view))

    def owed(self, trained: int | None) -> Owed:
        """What of our own work may still be asked for; `trained`: the newest round that we contributed to."""
        view = self._view()
        if view is None:
            return Owed()
        window = min(self._context.run.manifest.audit.window, MOST_WINDOW)
        rounds = self._draws.rounds.value.keys()
        return leaving.owed(view, self._context.account, trained, rounds, self.cases(), window)

    def take(self, message: wire.VerdictMessage, source: str) -> Heard:
        """A verdict that somebody sent; while too many wait it is dropped, and asked for again."""
        try:
            verdict = self._verified(message)
        except VerdictError as error:
            self._refuse(error, source)
            return Heard.JUNK
        rounds, report = self._draws.rounds.value, verdict.report
        is_known = verdict.checker in self._verdicts.get(report.key, {})
        if is_known or (report.round not in rounds and report.round > min(rounds, default=-1)):
            return Heard.NO_NEWS  # a second word is its checker's fault, and no draw yet our chain node's
        if not self._is_of_use(report):
            return Heard.REFUSED
        with contextlib.suppress(trio.WouldBlock):
            self._incoming.send_nowait(verdict)
        return Heard.NO_NEWS

    def said(self, account: str | None) -> list[wire.VerdictMessage]:
        """All verdicts of the window that are known here, or one checker's, the newest work first."""
        every = [one for known in self._verdicts.values() for one in known.values()]
        every.sort(key=lambda one: -one.report.round)
        return [wire.VerdictMessage(one.data, one.signature) for one in every if account in (None, one.checker)]

    # ---- hearing ----

    async def _listen(self) -> None:
        async for verdict in self._waiting:
            await self._keep(verdict)

    async def _hear(self, message: wire.VerdictMessage, source: str) -> None:
        """Of a peer, which sends all that it keeps again and again."""
        try:
            report = decode(message.report)
            if not self._is_of_use(report) or checksum(report.checker) in self._verdicts[report.key]:
                return
            verdict = self._verified(message)
        except VerdictError as error:
            return self._refuse(error, source)
        await self._keep(verdict)

    def _is_of_use(self, report: VerdictReport) -> bool:
        """Whether its checker may check that drawn work; what is not drawn may be drawn for others already."""
        view, drawn = self._view(), next((one for one in self._draws if report.is_about(one)), None)
        return view is not None and drawn is not None and turns.may_check(view, drawn, checksum(report.checker))

    def _verified(self, message: wire.VerdictMessage) -> ReportedVerdict:
        """Raises VerdictError."""
        domain = self._chain.client.domain
        return ReportedVerdict.read(message.report, message.signature, self._context.run.id, domain)

    def _refuse(self, error: VerdictError, source: str) -> None:
        log.debug("no verdict", source=source, error=str(error))
        self._network.reject("verdict", source)

    async def _keep(self, verdict: ReportedVerdict) -> None:
        """A valid one, others' or our own."""
        report = verdict.report
        known = self._verdicts[report.key]
        if verdict.checker in known:
            return
        kind = Kind.PAYLOAD if verdict.finding is Finding.HONEST else Kind.PUBLIC  # what the ledger may name stays
        await trio.to_thread.run_sync(self._context.storage.blobs.put, verdict.data, kind)
        if await trio.to_thread.run_sync(self._store.add, verdict):
            known[verdict.checker] = verdict
            say = log.info if verdict.finding is Finding.HONEST else log.warning
            say(
                "verdict", finding=verdict.finding.word, round=report.round, replica=report.replica,
                stage=report.stage, segment=report.segment, account=verdict.account, by=verdict.checker,
                reasons="; ".join(report.reasons),
            )  # fmt: skip
            self._context.observers.metrics.verdict(verdict.finding.word)

    async def _ask(self) -> None:
        """What was missed, of one peer after the other."""
        while True:
            rounds = self._draws.rounds.value
            peers = self._agreed()
            if rounds and peers:
                peer = self._random.choice(peers)
                try:
                    for message in await self._exchange.ask(peer, min(rounds)):
                        await self._hear(message, peer)
                        await trio.sleep(0)
                except StreamBroken as error:
                    log.debug("no verdicts of a peer", peer=peer, error=str(error))
            await trio.sleep(max(LEAST_ASK_SECONDS, self._timing.round_timeout / 2))

    async def _forget(self) -> None:
        async for rounds in self._draws.rounds.values():
            if rounds:
                current = {one.key for draw in rounds.values() for one in draw.drawn}
                for key in self._verdicts.keys() - current:
                    del self._verdicts[key]
                self._wanted = {named: wanted for named, wanted in self._wanted.items() if named[0] in current}
                statements = {statement for statement, _ in current}
                for delays, kept in ((self._delays, current), (self._convictions, statements)):
                    for gone in delays.until.keys() - kept:
                        delays.forget(gone)

    # ---- checking ----

    def _next(self) -> Case | None:
        view, now = self._view(), self._chain.now()
        if view is None:
            return None
        tried = (case for case in self.cases() if self._delays.is_over(case.drawn.key, now))
        timeout = self._timing.round_timeout
        return turns.next_check(tried, view, self._context.account, now, timeout, self._has_budget(view))

    def _has_budget(self, view: RunView) -> bool:
        """A founder without a slot trains nothing that checks could hold up."""
        account = self._context.account
        return self.effort.is_left or (view.is_founder(account) and view.slot_of(account) is None)

    async def _check(self, case: Case) -> None:
        drawn, context, view = case.drawn, self._context, self._view()
        assert view is not None
        now, timeout = self._chain.now(), self._timing.round_timeout
        try:
            whole = now < case.since + turns.TURN_TIMEOUTS * timeout
            outcome = await self._evidence.outcome(view, drawn, whole=whole)
            finding, reasons = (Finding.FALSE if outcome.reasons else Finding.HONEST), outcome.reasons
        except FalseStatement as error:
            outcome, finding, reasons = Outcome(), Finding.FALSE, (str(error),)
        except MissingInputs as error:
            if not self._is_withheld(case, error):
                (self._delays.soon if error.arriving_s else self._delays.again)(drawn.key, self._chain.now())
                log.debug("not served yet", round=drawn.round, stage=drawn.stage, blobs=str(error))
                return
            outcome, finding, reasons = Outcome(), Finding.WITHHELD, (f"nobody gives {error}",)
        except Undecidable as error:
            log.info("cannot be checked here", round=drawn.round, stage=drawn.stage, reason=str(error))
            self._delays.never(drawn.key)
            return
        except (CheckFailed, OSError) as error:
            log.info("not checked yet", round=drawn.round, stage=drawn.stage, reason=str(error))
            self._delays.again(drawn.key, self._chain.now())
            if self._delays.failures[drawn.key] >= MAX_FAILURES:
                self._delays.never(drawn.key)
            return
        report = VerdictReport(
            run=context.run.id,
            round=drawn.round,
            stage=drawn.stage,
            replica=drawn.replica,
            account=to_canonical_address(drawn.account),
            statement=drawn.statement,
            finding=int(finding),
            segment=drawn.segment,
            distances=distances(outcome),
            loss_stated=outcome.loss_stated if outcome.done else None,
            loss_replayed=outcome.loss_replayed if outcome.done else None,
            reasons=tuple(printable_ascii(reason, MAX_REASON) for reason in reasons[:MAX_REASONS]),
            software=version()[:32],
            hardware=printable_ascii(outcome.hardware[:32], 32),
            checker=to_canonical_address(context.account),
        )
        verdict = ReportedVerdict.make(report, context.signer.sign_verdict)
        await self._keep(verdict)
        await self._network.gossip.publish(
            verdicts_topic(context.run.id), wire.encode(wire.VerdictMessage(verdict.data, verdict.signature))
        )

    def _is_withheld(self, case: Case, absent: MissingInputs) -> bool:
        """Whether that nobody gives these blobs is its maker's fault: it was there, or left by itself, and asked again
        for long enough, by us, and still has to serve what it was asked for. Each has its own time: others that came
        are no fault."""
        drawn = case.drawn
        now, timeout, view = self._chain.now(), self._timing.round_timeout, self._view()
        found = [self._wanted.setdefault((drawn.key, blob), Wanted(now - absent.arriving_s)) for blob in absent.blobs]
        for wanted in found:
            wanted.in_vain(now, absent.arriving_s)
        draw = self._draws.rounds.value.get(drawn.round)
        if view is None or draw is None or drawn not in draw.drawn or draw.redrawn:  # what it kept was of another draw
            return False
        late = any(wanted.is_withheld(now, timeout) for wanted in found)
        asked = min(wanted.since for wanted in found)
        owes = turns.has_worked_since(view, drawn, asked, timeout) or leaving.is_withheld_by_leaving(
            view, case, self._context.account
        )
        return late and owes and self._hears(view, drawn.account)

    def _hears(self, view: RunView, maker: str) -> bool:
        """Whether it would be the maker's fault, not ours, that nobody gives its blobs."""
        peers = set(self._agreed())
        others = {self._network.peer_of(account) for account in view.members() if account != self._context.account}
        return self._network.peer_of(maker) in peers or 2 * len(others & peers) > len(others)

    # ---- convictions ----

    async def _convict(self) -> None:
        while True:
            view, now = self._view(), self._chain.now()
            if view is not None:
                for statement, cases in turns.by_contribution(self.cases()).items():
                    against = turns.conviction(view, cases)
                    if not against:
                        self._due.pop(statement, None)
                        continue
                    since = self._due.setdefault(statement, now)
                    delay = turns.conviction_delay(
                        view, statement, self._context.account, self._timing.proposal_timeout
                    )
                    if now >= since + delay and self._convictions.is_over(statement, now):
                        await self._send(cases[0].drawn, against)
            await trio.sleep(LOOK_SECONDS)

    async def _send(self, drawn: Drawn, against: list[ReportedVerdict]) -> None:
        log.warning("convicting", account=drawn.account, round=drawn.round, stage=drawn.stage)
        send = partial(self._chain.client.convict, [one.signed for one in against])
        self._convictions.again(drawn.statement, self._chain.now())
        try:
            await trio.to_thread.run_sync(send, abandon_on_cancel=True)
        except (LedgerError, DlxError, OSError) as error:
            log.info("not convicted yet", account=drawn.account, reason=str(error))


def distances(outcome: Outcome) -> Distances:
    found = (outcome.weights, outcome.optimiser, outcome.activations, outcome.gradients)
    return Distances(*(math.inf if one is not None and math.isnan(one) else one for one in found))
