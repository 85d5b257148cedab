"""What a member has heard of the open rounds: every statement is judged on arrival, then kept in its round's state."""

from collections import deque

from dlx.ledger.bonds import Evidence, SignedSeal, TwoStatements, is_equivocation
from dlx.ledger.typed import Contribution, SignedContribution
from dlx.ledger.view.run_view import RunView
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.liveness import Liveness
from dlx.node.round.pending import Pending
from dlx.node.round.round_state import Proposal, RoundState
from dlx.node.round.rules.inclusion import Arrivals, Reports, merged, trusted_names
from dlx.node.round.rules.plans import has_round, plan_of
from dlx.node.round.rules.round_rules import (
    PayloadFacts,
    Rules,
    attempt_at,
    has_ledgers_base_and_plan,
    has_votes,
    may_count,
    proposers,
    refusal,
)

HELP_SECONDS = 2.0  # between two times that a contribution is repeated for those who lack it
MAX_MISSING = 64  # what a report message has room for
EARLY_ATTEMPTS = 2  # by which a proposer may be ahead of us: clocks differ
MOST_STATED = 2  # different numbers of steps that are remembered of who contradicts itself
MAX_EARLY = 256  # contributions to rounds that our view of the ledger does not reach yet
LATE_ROUNDS = 4  # sealed ones, of which it is remembered who stated what first
MAX_STATED = 4096  # accounts of a round, of all stages: as many as a run has slots
MAX_BASES = 4  # of an account's statements of a round, each with its plan: only a reorg gives a round another


class Knowledge:
    """The states of one member of `stage`. `view` is its newest view of the ledger."""

    def __init__(
        self, rules: Rules, account: str, stage: int, view: RunView, pending: Pending, liveness: Liveness
    ) -> None:
        self.view = view
        self.states: dict[int, RoundState] = {}
        self.arrivals = Arrivals()
        self._rules, self._account, self._stage = rules, account, stage
        self._pending, self._liveness = pending, liveness
        self.evidence: dict[Evidence, a.KeepEvidence] = {}  # not on disk yet
        self._early: deque[e.ContributionSeen] = deque(maxlen=MAX_EARLY)
        # round -> replica -> stage -> inner steps -> the first that states so many
        self._made: dict[int, dict[int, dict[int, dict[int, SignedContribution]]]] = {}
        # round -> (stage, account) -> base and plan, both the ledger's when it came, the oldest first -> what it stated
        # first, and the first that contradicts it
        self._stated: dict[int, dict[tuple[int, str], dict[tuple[bytes, bytes], list[SignedContribution]]]] = {}

    @property
    def unsealed(self) -> int:
        """The lowest round of our stage without a seal."""
        return self.view.next_round(self._stage)

    def state(self, round: int) -> RoundState:
        return self.states.setdefault(round, RoundState(round))

    def usable(self, state: RoundState) -> dict[int, bytes]:
        """replica -> the contribution for it that we would list, ascending replicas."""
        return state.usable(lambda statement: may_count(self.view, statement) and self.is_whole(statement))

    def holding(self, state: RoundState) -> tuple[bytes, ...]:
        """What a report names."""
        return state.holding(self.is_whole)

    def expected(self, state: RoundState, by: float) -> set[int]:
        """The replicas of which something was heard by then that may become usable."""
        only = (names[0] for names in state.by_signer.values() if len(names) == 1)
        names = (name for name in only if state.heard[name] <= by)
        heard = (state.contributions[name].contribution for name in names if name not in state.unsound)
        return {one.replica for one in heard if one.payload not in state.refused and may_count(self.view, one)}

    def holds(self, state: RoundState, name: bytes) -> bool:
        """Whether we could sign for the contribution: its payload is ready, and its replica finished the round."""
        return state.is_ready(name) and self.is_whole(state.contributions[name].contribution)

    def is_heard(self, state: RoundState, name: bytes) -> bool:
        """Whether no statement of a contribution is lacking: its own, and those of the replica's other stages."""
        return name in state.contributions and self.is_whole(state.contributions[name].contribution)

    def missing(self, state: RoundState) -> tuple[bytes, ...]:
        """What others hold for sure and we do not, though nothing but a statement may be lacking: who has them repeats
        them. (Payloads of what we have heard are fetched anyway.)"""
        names = trusted_names(self.view, self._stage, state.reports)
        return tuple(sorted(name for name in names if not self.is_heard(state, name)))[:MAX_MISSING]

    def reports(self, state: RoundState) -> Reports:
        """What the members say they hold of a round, ourselves among them."""
        return {**state.reports, self._account: frozenset(self.holding(state))}

    def is_whole(self, statement: Contribution) -> bool:
        """Whether every other stage of the replica was seen to contribute as many inner steps to the round too, or was
        counted with them. A replica finishes a round together, so whoever contributes alone has made it up. We know
        that we have not. And we take the word of members of whom one is honest: what a mate stated may be past judging
        when it reaches us."""
        if statement.account == self._account:
            return True
        made = self._made.get(statement.round, {}).get(statement.replica, {})
        finished = all(
            stage == statement.stage
            or statement.inner_steps in made.get(stage, ())
            or self._was_counted(stage, statement)
            for stage in range(self._rules.stages)
        )
        return finished or self._is_widely_held(statement)

    # ---- what is heard ----------------------------------------------------------------------------------------------

    def see_ledger(self, view: RunView, now: float, out: list[a.Action]) -> None:
        self.view = view
        for round in [round for round in self.states if round < self.unsealed - 1]:
            del self.states[round]
        self._made = {round: made for round, made in self._made.items() if round >= self.unsealed}
        self._stated = {round: stated for round, stated in self._stated.items() if not self._is_past(round)}
        early = list(self._early)
        self._early.clear()
        for contribution in early:
            self.see_contribution(contribution, now, out)

    def see_contribution(self, event: e.ContributionSeen, now: float, out: list[a.Action]) -> None:
        statement = event.signed.contribution
        is_second = event.signer == statement.account and self._is_second(event.signed, out)
        if statement.run == self._rules.run and statement.stage < self._rules.stages:
            if statement.round < self.view.next_round(statement.stage):  # late, not wrong: its seal has decided
                if event.signer == statement.account and may_count(self.view, statement):
                    if has_ledgers_base_and_plan(self._rules, self.view, statement):
                        self._note_stated(event.signed)
                    self._note_made(event.signed)  # the replica's other stages may want to know yet
                return
            if self._is_early(event):
                self._early.append(event)
                return
        reason = refusal(self._rules, self.view, event.signed, event.signer)
        if reason is not None:
            # Who brought what its maker signed may have known no better, or be helping.
            out.append(a.Reject(reason, event.peer if event.signer != statement.account else statement.account))
            return
        self._liveness.heard(event.signer, now)
        self._note_stated(event.signed)
        self._note_made(event.signed)
        if statement.stage != self._stage:
            return
        state = self.state(statement.round)
        verdict = state.add(event.signed, now)
        if verdict in ("new", "conflict") and (fault := state.misstated(statement)):
            out.append(a.Reject(fault, statement.account))
        if verdict in ("conflict", "duplicate") and not is_second:  # of another base, which could not be judged yet
            out.append(a.Reject("equivocation", statement.account))

    def see_proposal(self, event: e.ProposalSeen, now: float, out: list[a.Action]) -> None:
        if self._refuse_signer(event.signer, event.seal.stage, event.signature.hex()[:16], now, out):
            return
        self._hear(event.signer, event.seal.stage, event.seal.round, now)
        if event.seal.stage != self._stage:
            return
        if event.seal.round != self.unsealed:
            if (late := self._sealed_state(event.seal.round)) is None:
                return
            if evidence := late.contradicted_by(SignedSeal(event.seal, event.signature), event.signer):
                self._keep(evidence, event.signer, out)
            return
        order = proposers(self._rules, self.view, self._stage, event.seal.round, event.attempt)
        turn = attempt_at(self._rules, self.view, now) if self.view.open_round is not None else 0
        if order[:1] != (event.signer,) or event.attempt > turn + EARLY_ATTEMPTS:
            out.append(a.Reject("not_the_proposer", event.signer))
            return
        digest = event.seal.digest(self._rules.domain)
        state = self.state(event.seal.round)
        proposal = Proposal(event.seal, event.attempt, event.signer, now)
        if state.propose(digest, proposal):
            self._sign(state, digest, event.signer, event.signature, out)
        else:
            out.append(a.Reject("too_many_proposals", event.signer))

    def see_attestation(self, event: e.AttestationSeen, now: float, out: list[a.Action]) -> None:
        """A founder's counts in every stage, wherever it has a slot."""
        by_founder = self.view.is_founder(event.signer) and event.signer != self._account
        by_founder = by_founder and event.stage < self._rules.stages
        if not by_founder and self._refuse_signer(event.signer, event.stage, event.digest.hex()[:16], now, out):
            return
        if self._liveness.is_news(event.signer, event.digest):  # its round is not signed: a repetition says nothing
            self._hear(event.signer, event.stage, event.round, now)
        if event.stage != self._stage:
            return
        state = self.state(event.round) if event.round == self.unsealed else self._sealed_state(event.round)
        if state is not None:
            self._sign(state, event.digest, event.signer, event.signature, out)

    def see_report(self, event: e.ReportSeen, now: float, out: list[a.Action]) -> None:
        if self._refuse_signer(event.signer, event.stage, "report", now, out):
            return
        if self._liveness.is_later(event.signer, event.made):
            self._hear(event.signer, event.stage, event.round, now)
        if event.stage != self._stage or event.round != self.unsealed:
            return
        state = self.state(event.round)
        reported = state.reports.get(event.signer, frozenset())
        state.reports[event.signer] = merged(reported, event.holding, state.contributions)
        for name in event.missing:
            signed = state.contributions.get(name)
            if signed is not None and self._pending.due(("help", name), now, HELP_SECONDS):
                stated = self._made.get(event.round, {}).get(signed.contribution.replica, {}).values()
                mates = [one for steps in stated for one in steps.values()]
                statements = {one.contribution.hash(): one for one in (signed, *mates)}
                out += [a.GossipContribution(one) for one in statements.values()]

    def see_payload(self, event: e.PayloadReady | e.PayloadRefused, now: float) -> list[a.Action]:
        state = self.states.get(event.round)
        if isinstance(event, e.PayloadRefused):
            if state is not None:
                state.refused.add(event.payload)
            return [a.Reject(event.reason, event.payload.hex())]
        if state is None:
            return []
        state.ready[event.payload] = event.facts
        stating = [
            (one.contribution, now - state.heard[name])
            for name, one in state.contributions.items()
            if one.contribution.payload == event.payload
        ]
        for statement, seconds in stating:
            self.arrivals.add(statement.replica, seconds)
        return [a.Reject(fault, one.account) for one, _ in stating if (fault := state.misstated(one))]

    def see_statement(self, event: e.StatementSound | e.StatementRefused) -> list[a.Action]:
        state = self.states.get(event.round)
        if isinstance(event, e.StatementSound):
            if state is not None:
                state.sound.add(event.name)
            return []
        if state is not None:
            state.unsound.add(event.name)
        return [a.Reject(event.reason, event.name.hex())]

    def file_own(self, signed: SignedContribution, here: bool, now: float) -> None:
        """Our own contribution needs no judge; `here`: its payload is on our disk, as it may not be after a move."""
        if signed.contribution.round >= self.unsealed:
            self._note_stated(signed)
            state = self.state(signed.contribution.round)
            state.add(signed, now)
            state.sound.add(signed.contribution.hash())
            if here:
                facts = PayloadFacts(signed.contribution.payload_size, signed.contribution.payload_root)
                state.ready[signed.contribution.payload] = facts

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _sign(self, state: RoundState, digest: bytes, signer: str, signature: bytes, out: list[a.Action]) -> None:
        """Files a signature, and looks whose the seal contradicts: its signers may have come before it."""
        state.sign(digest, signer, signature)
        for evidence, account in state.contradictions(digest):
            self._keep(evidence, account, out)

    def _keep(self, evidence: Evidence, account: str, out: list[a.Action]) -> None:
        self.evidence[evidence] = a.KeepEvidence(account, evidence)
        out.append(a.Reject("equivocation", account))

    def _is_second(self, signed: SignedContribution, out: list[a.Action]) -> bool:
        """Whether its account stated something else of the round before, in whatever stage and however late: the first
        such pair of a base and plan is kept."""
        statement = signed.contribution
        by_account = self._stated.get(statement.round, {})
        stated = by_account.get((statement.stage, statement.account), {}).get(_basis(statement), [])
        if not stated or not is_equivocation(stated[0].contribution, statement):
            return False
        if len(stated) == 1:
            stated.append(signed)
            self._keep(TwoStatements(*stated), statement.account, out)
        elif statement != stated[1].contribution:
            out.append(a.Reject("equivocation", statement.account))
        return True

    def _note_made(self, signed: SignedContribution) -> None:
        statement = signed.contribution
        if statement.round >= self.unsealed:
            made = self._made.setdefault(statement.round, {}).setdefault(statement.replica, {})
            steps = made.setdefault(statement.stage, {})
            if len(steps) < MOST_STATED:
                steps.setdefault(statement.inner_steps, signed)

    def _note_stated(self, signed: SignedContribution) -> None:
        """Of a member, whose signature it is, by the ledger's base and plan. Else it could have what it makes up
        remembered in place of what counts."""
        statement = signed.contribution
        by_account = self._stated.setdefault(statement.round, {}) if not self._is_past(statement.round) else {}
        who = statement.stage, statement.account
        if who in by_account or len(by_account) < MAX_STATED:
            stated = by_account.setdefault(who, {})
            stated.setdefault(_basis(statement), [signed])
            if len(stated) > MAX_BASES:
                del stated[next(iter(stated))]

    def _is_past(self, round: int) -> bool:
        return round < self.unsealed - LATE_ROUNDS

    def _sealed_state(self, round: int) -> RoundState | None:
        """What is still known of a round of our stage that has a seal."""
        return self.states.get(round) if round < self.unsealed else None

    def _is_widely_held(self, statement: Contribution) -> bool:
        state = self.states.get(statement.round)
        if statement.stage != self._stage or state is None or not state.reports:
            return False
        return statement.hash() in trusted_names(self.view, self._stage, state.reports)

    def _was_counted(self, stage: int, statement: Contribution) -> bool:
        sealed = self.view.sealed.get((stage, statement.round))
        made = statement.replica, statement.inner_steps
        return sealed is not None and any((one.replica, one.inner_steps) == made for one in sealed.records)

    def _is_early(self, event: e.ContributionSeen) -> bool:
        """Whether a member's contribution is to a round that our view of the ledger cannot judge yet."""
        statement, rules = event.signed.contribution, self._rules
        if event.signer != statement.account or not may_count(self.view, statement):
            return False
        if not has_round(rules, self.view, statement.round):
            return False
        is_far = statement.round > self.view.next_round(statement.stage) + rules.delay
        return is_far or plan_of(rules, self.view, statement.stage, statement.round) is None

    def _refuse_signer(self, signer: str, stage: int, what: str, now: float, out: list[a.Action]) -> bool:
        if signer == self._account:
            return True  # somebody repeats our own words to us
        slot, is_stage = self.view.slot_of(signer), stage < self._rules.stages
        if not is_stage or ((slot is None or slot[1] != stage) and not has_votes(self.view, signer, stage, now)):
            out.append(a.Reject("not_a_member", f"{signer} ({what})"))
            return True
        return False

    def _hear(self, signer: str, stage: int, round: int, now: float) -> None:
        """Statements about sealed rounds prove nothing: anybody may repeat those of a member that is gone."""
        if round >= self.view.next_round(stage):
            self._liveness.heard(signer, now)


def _basis(statement: Contribution) -> tuple[bytes, bytes]:
    """What two statements of one slot and round have to share to be evidence."""
    return statement.base_weights, statement.plan
