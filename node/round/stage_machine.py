"""What the machines of one stage have in common: its newest version, what is heard of its rounds, and its seals.

`handle(event, now)` returns the actions that have become due. It is level-triggered: an event changes what is known,
then `_advance` asks for whatever that state calls for and is not yet under way. So lost, repeated or reordered events
cost time, never correctness, and the chain's seal is the only truth about what was counted. Times are Unix seconds; the
chain's `opened_at` is on the same clock.
"""

from dataclasses import dataclass, field
from random import Random

from dlx.ledger.typed import SignedContribution
from dlx.ledger.view.run_view import RunView
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.knowledge import Knowledge
from dlx.node.round.liveness import Liveness
from dlx.node.round.pending import Failing, Pending
from dlx.node.round.rules.round_rules import Rules, base_version
from dlx.node.round.sealing import Sealing


@dataclass
class StageMachine:
    """Of `account` in `stage`.

    `version` is the newest V[s,.] on disk and `oldest` the oldest in an unbroken line to it (None: nothing yet). `own`
    (round -> own contribution to this stage, whatever replica it was of) comes from disk too.
    """

    rules: Rules
    account: str
    stage: int
    view: RunView
    version: int | None = None
    oldest: int | None = None
    own: dict[int, SignedContribution] = field(default_factory=dict)
    diverged: str | None = None  # why this node has stopped taking part
    block: int = 0

    def __post_init__(self) -> None:
        self._pending = Pending(Random(f"{self.account} {self.stage}"))
        self._liveness = Liveness(self.rules, self.account)
        self._known = Knowledge(self.rules, self.account, self.stage, self.view, self._pending, self._liveness)
        self._sealing = Sealing(self.rules, self.account, self.stage, self.own, self._known, self._pending)
        self._jump = False  # the next try takes the newest version that a start needs, by hash
        self._since: float | None = None  # when this machine began to take part

    # ---- what others may ask ---------------------------------------------------------------------------------------

    @property
    def unsealed(self) -> int:
        """The lowest round of the stage without a seal."""
        return self.view.next_round(self.stage)

    def failing(self, now: float) -> list[Failing]:
        """What was asked for and failed the last time, and when it is tried again."""
        return self._pending.failing(now)

    # ---- events ----------------------------------------------------------------------------------------------------

    def handle(self, event: e.Event, now: float) -> list[a.Action]:
        """Takes one event and returns the actions that are due now."""
        out: list[a.Action] = []
        self._since = now if self._since is None else self._since
        self._take(event, now, out)
        self._advance(now, out)
        return out

    def _take(self, event: e.Event, now: float, out: list[a.Action]) -> None:
        match event:
            case e.LedgerSeen():
                self._see_ledger(event, now, out)
            case e.ContributionSeen():
                self._known.see_contribution(event, now, out)
            case e.PayloadReady() | e.PayloadRefused():
                out += self._known.see_payload(event, now)
            case e.StatementSound() | e.StatementRefused():
                out += self._known.see_statement(event)
            case e.ProposalSeen():
                self._known.see_proposal(event, now, out)
            case e.AttestationSeen():
                self._known.see_attestation(event, now, out)
            case e.ReportSeen():
                self._known.see_report(event, now, out)
            case e.EvidenceKept(evidence=evidence):
                self._known.evidence.pop(evidence, None)
            case e.OuterComputed():
                self._sealing.see_outer(event)
            case e.PolicyMeasured():
                self._sealing.see_policy(event)
            case e.EndJudged():
                self._sealing.see_end(event)
            case e.SealSigned():
                self._sealing.see_own_signature(event)
            case e.VersionAdopted():
                if self.version is None or event.version != self.version + 1:
                    self.oldest = event.version
                self.version = event.version
            case e.VersionDiffers():
                self.diverged = f"version {event.version} differs from its seal: {event.detail}"
            case e.Done(action=action, outcome=outcome):
                mined = outcome.block + self.rules.confirmations + 1 if isinstance(outcome, e.Mined) else 0
                self._pending.done(action, mined)
                self._take(outcome, now, out)
            case e.Failed(action=action, reason=reason, local=local):
                self._pending.failed(action, reason, now, local)
                self._jump = self._jump or (isinstance(action, a.AdoptVersion) and not local)

    def _see_ledger(self, event: e.LedgerSeen, now: float, out: list[a.Action]) -> None:
        before = self.view
        self.view, self.block = event.view, event.block
        if self.version is not None:  # a reorg may have taken seals back, or put others in their place
            while self.version > 0 and not self._same_version(before, self.version):
                self.version -= 1
            self.oldest = min(self.oldest or 0, self.version)
        self._pending.see(event.block, now)
        self._known.see_ledger(event.view, now, out)

    def _same_version(self, before: RunView, version: int) -> bool:
        if version > self.unsealed:
            return False
        if version > before.next_round(self.stage):
            return True
        return before.weights(self.stage, version) == self.view.weights(self.stage, version) and before.momentum(
            self.stage, version
        ) == self.view.momentum(self.stage, version)

    # ---- what is due ------------------------------------------------------------------------------------------------

    def _advance(self, now: float, out: list[a.Action]) -> None:
        """Ask for whatever is due."""
        raise NotImplementedError

    def _adopt(self, now: float, out: list[a.Action]) -> None:
        newest = self.unsealed
        if self.diverged:
            return
        if self.version is not None and self.version >= newest:
            return
        jump = self.version is None or newest - self.version > 3 or self._jump
        target: int = base_version(self.rules, newest) if jump else (self.version or 0) + 1
        if self.version is not None:
            target = max(target, self.version + 1)
        if self._ask(a.AdoptVersion(target), now, out):
            self._jump = False

    def _ask(self, action: a.Task, now: float, out: list[a.Action]) -> bool:
        if not self._pending.start(action, now):
            return False
        out.append(action)
        return True
