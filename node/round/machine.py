"""The round protocol of one slot as a state machine: `handle(event, now)` returns the actions that have become due.

It is level-triggered: an event changes what is known, then `_advance` asks for whatever that state calls for and is
not yet under way. So lost, repeated or reordered events cost time, never correctness, and the chain's seal is the only
truth about what was counted. Times are Unix seconds; the chain's `opened_at` is on the same clock.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

from dlx.ledger.typed import SignedContribution
from dlx.ledger.view import RunView
from dlx.node.round import events as e
from dlx.node.round.knowledge import Knowledge
from dlx.node.round.liveness import Liveness
from dlx.node.round.pending import RETRY_SECONDS, Pending
from dlx.node.round.plans import finished, has_round, plan_of, steps_before
from dlx.node.round.rules import Rules, base_version, expected_accounts, left_out
from dlx.node.round.sealing import Sealing

RESTART_SECONDS = 0.5  # between an abandoned round and the next attempt
MEASURED_ROUNDS = 3  # own ones, whose exchange is being timed


@dataclass
class RoundMachine:
    """The protocol's state for `account`, which holds a slot of `stage`.

    `version` is the newest V[s,.] on disk and `oldest` the oldest in an unbroken line to it (None: nothing yet);
    `last_trained` and `own` (round -> own contribution) come from disk too.
    """

    rules: Rules
    account: str
    stage: int
    view: RunView
    version: int | None = None
    oldest: int | None = None
    last_trained: int = -1
    own: dict[int, SignedContribution] = field(default_factory=dict)
    diverged: str | None = None  # why this node has stopped contributing
    training: int | None = None
    block: int = 0

    def __post_init__(self) -> None:
        self._pending = Pending()
        self._liveness = Liveness(self.rules, self.account)
        self._known = Knowledge(self.rules, self.account, self.stage, self.view, self._pending, self._liveness)
        self._sealing = Sealing(self.rules, self.account, self.stage, self.own, self._known, self._pending)
        self._neighbours: dict[str, e.NeighbourWants] = {}
        self._floor = 0  # the replica's round: never train below it
        self._told: e.WantRound | None = None
        self._adopting: int | None = None
        self._jump = False  # the next try takes the newest version that a start needs, by hash
        self._since: float | None = None  # when this member began to take part
        self._ended: dict[int, float] = {}  # when our own training of a round was done
        self._exchange: dict[int, float] = {}  # how long it then took until we had the version that it went into
        for signed in self.own.values():
            self._known.file_own(signed)

    # ---- what others may ask ---------------------------------------------------------------------------------------

    @property
    def slot(self) -> tuple[int, int] | None:
        """(replica, stage) while the ledger says so."""
        return self.view.slot_of(self.account)

    @property
    def unsealed(self) -> int:
        """The lowest round of our stage without a seal."""
        return self.view.next_round(self.stage)

    def next_round(self) -> int:
        """The round that this holder would train next: the replica's round is the maximum over its holders."""
        reachable = self.oldest + self.rules.delay if self.oldest else 0
        return max(self.unsealed, self.last_trained + 1, self._floor, reachable)

    def known_round(self, round: int) -> tuple[int, int]:
        """(contributions held with their payloads, contributions expected) of a round."""
        book = self._known.books.get(round)
        return len(book.usable()) if book else 0, len(expected_accounts(self.view, self.stage))

    def waiting_for(self, now: float) -> str | None:
        """What the node waits for, in words; None while it trains."""
        if self.diverged:
            return f"nothing: stopped contributing, {self.diverged}"
        if finished(self.rules, self.view):
            return "nothing: the run is finished"
        if self.training is not None:
            return None
        if self.slot is None:
            return "a slot"
        if self.view.open_round is None:
            missing = self.view.config.min_replicas - len(self.view.complete_replicas())
            return f"{max(missing, 1)} more complete replica(s) before round 0 opens"
        if self.slot[0] not in self.view.complete_replicas():
            return f"holders for the free seats of replica {self.slot[0]}"
        round = self.next_round()
        if not has_round(self.rules, self.view, round):
            return "the last seals"
        base = base_version(self.rules, round)
        if self.version is None or base > self.version:
            held, expected = self.known_round(self.unsealed)
            if self.unsealed > (-1 if self.version is None else self.version):
                return f"the weights of version {base}"
            needed, signed = self.view.quorum(self.stage), self._sealing.votes(self.unsealed)
            return (
                f"the seal of round {self.unsealed} ({held}/{expected} contributions, {signed}/{needed} signatures"
                f"{', too few members cooperate' if now > self._overdue_at() else ''})"
            )
        if plan_of(self.rules, self.view, self.stage, round) is None:
            return f"stage 0's seal of round {round - self.rules.delay - 1}, which plans round {round}"
        return f"the neighbours of replica {self.slot[0]} to start round {round}"

    def exchange_seconds(self, round: int, now: float) -> float | None:
        """How long the exchange before `round` took: from the end of our training of the round before until we had the
        version that its seal made, or until now where that is still to come. None where we have not seen it."""
        if round - 1 not in self._ended:
            return None
        return self._exchange.get(round - 1, now - self._ended[round - 1])

    # ---- events ----------------------------------------------------------------------------------------------------

    def handle(self, event: e.Event, now: float) -> list[e.Action]:
        """Takes one event and returns the actions that are due now."""
        out: list[e.Action] = []
        self._since = now if self._since is None else self._since
        match event:
            case e.LedgerSeen():
                self._see_ledger(event, now, out)
            case e.ContributionSeen():
                self._known.see_contribution(event, now, out)
            case e.PayloadReady() | e.PayloadRefused() | e.PayloadMissing():
                out += self._known.see_payload(event, now)
            case e.ProposalSeen():
                self._known.see_proposal(event, now, out)
            case e.AttestationSeen():
                self._known.see_attestation(event, now, out)
            case e.ReportSeen():
                self._known.see_report(event, now, out)
            case e.OuterComputed() | e.OuterFailed():
                self._sealing.see_outer(event, now)
            case e.PolicyMeasured() | e.PolicyFailed():
                self._sealing.see_policy(event, now)
            case e.SealSigned():
                self._sealing.see_own_signature(event)
            case e.VersionAdopted():
                self._adopting = None
                if self.version is None or event.version != self.version + 1:
                    self.oldest = event.version
                self.version = event.version
                self._note_exchange(event.version, now)
            case e.VersionDiffers():
                self._adopting = None
                self.diverged = f"version {event.version} differs from its seal: {event.detail}"
            case e.VersionUnavailable():
                self._adopting = None
                self._pending.end("adopt", now + RETRY_SECONDS)
                self._jump = True
            case e.NeighbourWants():
                self._neighbours[event.link] = event
                if event.round is None:
                    self._told = None
            case e.RoundTrained():
                self._see_trained(event.signed, now)
            case e.RoundAbandoned():
                self.training = None
                self._pending.end("abandon")
                self._pending.end("start", now + RESTART_SECONDS)
            case e.TransactionEnded():
                self._pending.end(_subject(event.action), now + RETRY_SECONDS)  # also mined: the view may lag behind
            case e.Tick():
                pass
        self._advance(now, out)
        return out

    def _see_ledger(self, event: e.LedgerSeen, now: float, out: list[e.Action]) -> None:
        before = self.view
        self.view, self.block = event.view, event.block
        if self.version is not None:  # a reorg may have taken seals back, or put others in their place
            while self.version > 0 and not self._same_version(before, self.version):
                self.version -= 1
            self.oldest = min(self.oldest or 0, self.version)
        self._pending.forget_past(now)
        self._known.see_ledger(event.view, now, out)

    def _same_version(self, before: RunView, version: int) -> bool:
        if version > self.unsealed:
            return False
        if version > before.next_round(self.stage):
            return True
        return before.weights(self.stage, version) == self.view.weights(self.stage, version) and before.momentum(
            self.stage, version
        ) == self.view.momentum(self.stage, version)

    def _see_trained(self, signed: SignedContribution, now: float) -> None:
        round = signed.contribution.round
        self.training = None
        self._pending.end("abandon")  # it was asked for too late
        self.last_trained = max(self.last_trained, round)
        self.own[round] = signed
        self._ended = {at: ended for at, ended in self._ended.items() if at >= round - MEASURED_ROUNDS} | {round: now}
        self._known.file_own(signed)

    def _note_exchange(self, version: int, now: float) -> None:
        self._exchange = {at: seconds for at, seconds in self._exchange.items() if at in self._ended}
        if version - 1 in self._ended:
            self._exchange.setdefault(version - 1, now - self._ended[version - 1])

    # ---- what is due ------------------------------------------------------------------------------------------------

    def _advance(self, now: float, out: list[e.Action]) -> None:
        self._adopt(now, out)
        if self.slot is None or self.slot[1] != self.stage:
            self._abandon("the slot is no longer ours", now, out)
            return
        if self.diverged is None:
            self._train(now, out)
            if not finished(self.rules, self.view):
                self._sealing.advance(now, self.version, self.training, self._since or now, out)
        for action in self._liveness.due(self.view, self.block, now):
            if self._pending.start(_subject(action), now):
                out.append(action)

    def _adopt(self, now: float, out: list[e.Action]) -> None:
        newest = self.unsealed
        if self._adopting is not None or self.diverged or self._pending.waits("adopt", now):
            return
        if self.version is not None and self.version >= newest:
            return
        jump = self.version is None or newest - self.version > 3 or self._jump
        self._jump = False
        target: int = base_version(self.rules, newest) if jump else (self.version or 0) + 1
        if self.version is not None:
            target = max(target, self.version + 1)
        self._adopting = target
        out.append(e.AdoptVersion(target))

    def _train(self, now: float, out: list[e.Action]) -> None:
        assert self.slot is not None
        replica = self.slot[0]
        wants = [self._neighbours.get(link) for link in self._links()]
        # Nobody can honestly be further than this; a neighbour that lies holds us up only for as long as it is there.
        furthest = min(self.rules.rounds, (self.view.open_round or 0) + self.rules.delay + 2)
        named = [want.round for want in wants if want is not None and want.round is not None]
        self._floor = max(self._floor, min(max(named, default=0), furthest))
        if self.training is not None:
            if any(want is None or want.round is None for want in wants):
                self._abandon("a neighbour's pipe is gone", now, out)
            elif any(want.round > self.training + 1 for want in wants if want and want.round is not None):
                self._abandon("a neighbour is at a later round", now, out)
            return
        round = self.next_round()
        complete = replica in self.view.complete_replicas() and self.view.open_round is not None
        if not complete or not has_round(self.rules, self.view, round):
            return
        base, plan = base_version(self.rules, round), plan_of(self.rules, self.view, self.stage, round)
        startable = (
            self.version is not None
            and self.oldest is not None
            and self.oldest <= base <= self.version
            and round <= self.unsealed + self.rules.delay
            and plan is not None
            and not self._pending.waits("start", now)
        )
        told = e.WantRound(round, startable)
        if told != self._told and all(want is not None and want.round is not None for want in wants):
            if self._told is not None and self._told.ready and self._told.round > self.last_trained:
                self._told = None
                out.append(e.ResetPipes(f"the replica goes on at round {round}"))
                return
            self._told = told
            out.append(told)
        agreed = all(want is not None and want.round == round and want.ready for want in wants)
        if startable and plan is not None and agreed:
            self.training = round
            payloads = {r: signed.contribution.payload for r, signed in self.own.items()}
            folded = left_out(self.rules, self.view, self.stage, payloads, round)
            out.append(e.StartRound(round, base, plan, steps_before(self.rules, self.view, round), folded))

    def _abandon(self, reason: str, now: float, out: list[e.Action]) -> None:
        if self.training is not None and self._pending.start("abandon", now):
            self._told = None
            out.append(e.AbandonRound(self.training, reason))

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _links(self) -> list[str]:
        return ["previous"] * (self.stage > 0) + ["next"] * (self.stage < self.rules.stages - 1)

    def _overdue_at(self) -> float:
        return (self.view.opened_at or 0) + self.rules.round_timeout


def _subject(action: e.Action) -> Hashable:
    """What a transaction is about: one at a time for each."""
    match action:
        case e.SendSeal(seal=seal):
            return "seal", seal.round
        case e.SendAccuse(account=account) | e.SendEvict(account=account):
            return type(action), account
    return type(action).__name__
