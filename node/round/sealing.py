"""Closing a round of one stage: fetch what was contributed, propose a seal, attest others', send the first complete.

A founder without a slot of the stage fetches and attests as its members do. It proposes, reports and sends nothing,
unless its operator has it seal rounds empty and alone: `seal_alone`.

What nobody can recompute exactly (multipliers of a policy) is the proposer's to choose. An attester takes any choice
within a unit of its own, and checks the rest of the seal against that choice, bit for bit.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial

from dlx.ledger.typed import Plan, SignedContribution, ascending, entries
from dlx.ledger.view.run_view import RunView
from dlx.ledger.view.runs import RECLAIM_TIMEOUTS
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.knowledge import MAX_MISSING, Knowledge
from dlx.node.round.pending import Pending
from dlx.node.round.round_state import Proposal, RoundState
from dlx.node.round.rules import stopping
from dlx.node.round.rules.inclusion import Deadlines, Grace, awaited, is_named
from dlx.node.round.rules.plans import kept_plan, may_plan, next_plan, plan_fault, plan_of
from dlx.node.round.rules.round_rules import (
    NOTHING,
    OuterResult,
    Rules,
    attempt_at,
    base_version,
    build_seal,
    has_votes,
    may_count,
    may_train,
    proposers,
    unit_multipliers,
)
from dlx.training.outer import policy

REGOSSIP_SECONDS = 2.0  # own statements are repeated until the round is sealed: gossip drops in silence
EMPTY_PATIENCE = 3  # round timeouts that a member in a complete replica waits before it agrees to a first empty seal
ALONE_PATIENCE = RECLAIM_TIMEOUTS  # that a founder leaves to members, and to who may take slots of theirs back


@dataclass(frozen=True, slots=True)
class _Moment:
    """The open round as this member has it now; `out` takes the actions that are due."""

    state: RoundState
    usable: dict[int, bytes]  # replica -> the contribution for it that we would list
    opened_at: float
    grace: Grace
    now: float
    out: list[a.Action]


class Sealing:
    """The seals of `stage`, as `account` has a part in them. `own`: round -> own contribution, the machine's."""

    def __init__(
        self,
        rules: Rules,
        account: str,
        stage: int,
        own: dict[int, SignedContribution],
        known: Knowledge,
        pending: Pending,
    ) -> None:
        self._rules, self._account, self._stage = rules, account, stage
        self._own, self._known, self._pending = own, known, pending
        self._training: int | None = None
        self._since: float = 0.0

    def advance(self, now: float, version: int | None, training: int | None, since: float, out: list[a.Action]) -> None:
        """Whatever is due: `version` is the newest on disk, `training` the round under way, `since` when we began."""
        self._training, self._since = training, since
        self._fetch(version, now, out)
        self._gossip_own(now, out)
        view = self._known.view
        round, opened_at = view.open_round, view.opened_at
        if round is None or opened_at is None or round != self._known.unsealed:
            return
        if not may_plan(self._rules, view, self._stage, round):
            return
        state, usable = self._known.state(round), self._known.usable(self._known.state(round))
        state.held_since = {replica: state.held_since.get(replica, now) for replica in usable}
        if state.enough_since is None and self._are_enough(state, usable, now):
            state.enough_since = now
        moment = _Moment(state, usable, opened_at, self._grace(state, usable, opened_at, now), now, out)
        if self._is_member:
            self._report(moment)
        if version != round:
            return
        opens_at = self._opens_at(state, tuple(usable.values()), now)
        if state.ready_since is None and now >= opens_at and self._is_collected(moment):
            state.ready_since = now
        self._propose(moment)
        self._foresee(moment)
        for digest, proposal in list(state.proposals.items()):
            known = [state.contributions[name].contribution for name in proposal.listed if name in state.contributions]
            if any(not may_count(view, statement) for statement in known):
                del state.proposals[digest]  # the ledger refuses it; after a reorg, say
                continue
            self._attest(moment, digest, proposal)
            self._send(moment, digest, proposal)

    def seal_alone(self, now: float, version: int | None, wanted: bool, out: list[a.Action]) -> None:
        """Of a founder without a slot of the stage: seals the open round empty where nobody else seals it any more and
        that was `wanted` for long enough. It takes no other vote, so it is not proposed."""
        rules, view, round = self._rules, self._known.view, self._known.view.open_round
        if round is None or round != self._known.unsealed or not may_plan(rules, view, self._stage, round):
            return
        state = self._known.state(round)
        if not wanted or not self._can_seal_alone(round, version, now):
            state.alone_since = None
            return
        if state.alone_since is None:
            state.alone_since = now
        if now < state.alone_since + self._alone_patience(state) * rules.round_timeout:
            return
        plan = kept_plan(rules, view, self._stage, round)
        seal = build_seal(rules, view, self._stage, round, (), (), plan, NOTHING)
        digest = seal.digest(rules.domain)
        signature = state.signatures.get(digest, {}).get(self._account)
        if signature is None:
            state.alone = digest
            self._ask(a.SignSeal(seal, digest), now, out)
        else:
            self._ask(a.SendSeal(seal, self._entries((), {self._account: signature}, signature, now)), now, out)

    def see_own_signature(self, event: e.SealSigned) -> None:
        state = self._known.states.get(self._known.unsealed)
        if state is not None and (event.digest in state.proposals or event.digest == state.alone):
            state.signatures.setdefault(event.digest, {})[self._account] = event.signature  # however many there are

    def see_outer(self, event: e.OuterComputed) -> None:
        if event.round in self._known.states:
            self._known.states[event.round].outer[event.listed, event.multipliers] = event.result

    def see_policy(self, event: e.PolicyMeasured) -> None:
        if event.round in self._known.states:
            self._known.states[event.round].measured[event.listed] = event.measured

    def see_end(self, event: e.EndJudged) -> None:
        if event.round in self._known.states:
            self._known.states[event.round].ends[event.opening] = event.is_over

    def signed_part(self, round: int, now: float) -> float:
        """The part of the stage's weight, a founder's included, that has signed one seal of the round: the most."""
        state, view, at = self._known.states.get(round), self._known.view, int(now)
        signed = state.signatures.values() if state else ()
        votes = (view.seal_votes(self._stage, one, at, founder=_founder(view, one) is not None) for one in signed)
        return max(votes, default=0) / view.total(self._stage, at)

    def lacks_founder(self, round: int) -> float | None:
        """Since when a seal of the round lacks nothing but a founder's signature; None where that is not so."""
        state = self._known.states.get(round)
        return None if state is None else min(state.lacks_founder.values(), default=None)

    @property
    def is_gathered(self) -> bool:
        """Whether all that the open round waits for is here, or our stage has sealed it."""
        round = self._known.view.open_round
        state = self._known.states.get(self._known.unsealed)
        return round != self._known.unsealed or (state is not None and state.gathered_since is not None)

    # ---- what is due ------------------------------------------------------------------------------------------------

    def _fetch(self, version: int | None, now: float, out: list[a.Action]) -> None:
        for state in self._known.states.values():
            if state.round < self._known.unsealed:
                continue
            if plan_of(self._rules, self._known.view, self._stage, state.round) is None:
                continue  # a reorg took back the seal that planned the round
            # A check may need the version that the round began with: this node is about to have it anyway.
            can_check = version is not None and version >= base_version(self._rules, state.round)
            for name, signed in state.contributions.items():
                payload = signed.contribution.payload
                if can_check and name not in state.sound and name not in state.unsound:
                    self._ask(a.CheckStatement(signed), now, out)
                if payload not in state.ready and payload not in state.refused and name not in state.unsound:
                    self._ask(a.FetchPayload(signed), now, out)

    def _gossip_own(self, now: float, out: list[a.Action]) -> None:
        # Also one that our stage has sealed, while other stages of the replica have to know that we contributed.
        first = self._known.unsealed if self._known.view.open_round is None else self._known.view.open_round
        for recent in range(first, self._known.unsealed + 2):
            own = self._own.get(recent)
            if own is None or not may_count(self._known.view, own.contribution):  # our slot is another one since
                continue
            if self._pending.due(("gossip", recent), now, REGOSSIP_SECONDS):
                out.append(a.GossipContribution(own))

    @property
    def _is_member(self) -> bool:
        slot = self._known.view.slot_of(self._account)
        return slot is not None and slot[1] == self._stage

    def _are_enough(self, state: RoundState, usable: dict[int, bytes], now: float) -> bool:
        """Whether the makers of what is usable have a quorum of the votes. Contributions of others do not count: who
        has just come could have many slots, and contribute at once."""
        view, makers = self._known.view, _makers(state, usable.values())
        return view.votes(self._stage, makers, int(now)) >= view.needed(self._stage, int(now))

    def _opens_at(self, state: RoundState, listed: Collection[bytes], now: float) -> float:
        """From when on the ledger takes a seal of these contributions, with a founder's signature if it needs one."""
        return self._known.view.opens_at(self._stage, _makers(state, listed), int(now), founder=True)

    def _grace(self, state: RoundState, usable: dict[int, bytes], opened_at: float, now: float) -> Grace:
        rules, view = self._rules, self._known.view
        # Until there is enough for a seal it waits for everybody: else the first to come would leave out all others.
        waits = set(view.complete_replicas()) if state.enough_since is None else awaited(view, state.round)
        if state.gathered_since is None and waits <= usable.keys():
            state.gathered_since = now
        voting = {slot[0] for one in view.voters(self._stage) if (slot := view.slot_of(one)) is not None}
        own = {slot[0] for slot in (view.slot_of(self._account),) if slot is not None}
        others = (voting or set(view.complete_replicas())) - own
        payload = self._known.arrivals.usual(others, rules.straggler_grace)
        times = opened_at, state.enough_since, rules.straggler_grace, payload, rules.round_timeout
        return Grace.of(*times, waits, state.gathered_since)

    def _is_collected(self, moment: _Moment) -> bool:
        """Whether there is nobody left to wait for before a first proposal."""
        state, usable, grace, now = moment.state, moment.usable, moment.grace, moment.now
        if now < grace.ends:
            return grace.awaited <= usable.keys()
        return now >= grace.extended or grace.awaited & self._known.expected(state, grace.ends) <= usable.keys()

    def _report(self, moment: _Moment) -> None:
        """What we hold and what others have, from shortly before the grace ends, so that all know then what all hold.
        In an overdue round it also says: I am alive."""
        rules, state, usable, grace, now = self._rules, moment.state, moment.usable, moment.grace, moment.now
        patience = rules.proposal_timeout
        starts = grace.ends - patience
        if state.ready_since is not None:  # everything is here, and the first proposer has said nothing
            starts = min(starts, state.ready_since + patience)
        if not usable.keys() <= grace.awaited:  # what came unawaited counts if a quorum has it
            starts = min(starts, *(grace.over(replica) for replica in usable))
        if now < starts:
            return
        holding, missing = self._known.holding(state), self._known.missing(state)
        overdue = now > moment.opened_at + rules.round_timeout
        if (holding or missing or overdue) and self._pending.due("report", now, patience / 2):
            moment.out.append(a.GossipReport(state.round, holding, missing))

    def _turns(self, round: int, ready_since: float, now: float) -> list[int]:
        """The attempts that are ours: that of the moment, and the one before if we were ready in its turn, since what
        we propose takes a while to compute."""
        rules, view, stage = self._rules, self._known.view, self._stage
        times = (now, max(ready_since, now - rules.proposal_timeout))
        turns = dict.fromkeys(attempt_at(rules, view, at) for at in times)
        return [one for one in turns if proposers(rules, view, stage, round, one)[:1] == (self._account,)]

    def _propose(self, moment: _Moment) -> None:
        state, now = moment.state, moment.now
        rules, view, ready_since = self._rules, self._known.view, state.ready_since
        if ready_since is None:
            return
        turns = self._turns(state.round, ready_since, now)
        if not turns or any(p.signer == self._account and p.attempt in turns for p in state.proposals.values()):
            return
        again = now >= ready_since + rules.proposal_timeout
        listed = tuple(moment.usable.values())
        if again:  # not everybody could have that: only what a quorum holds
            reports = self._known.reports(state)
            listed = tuple(name for name in listed if is_named(view, self._stage, reports, name, now))
        if now < self._opens_at(state, listed, now):
            return
        if not listed and not self._may_be_empty(state.round, now):
            return
        multipliers = self._multipliers(moment, listed)
        if multipliers is None:
            return
        result = self._outer(moment, listed, multipliers)
        if result is None:
            return
        contributions = state.listing(listed)
        plan = self._plan(moment, contributions, again)
        if plan is None:
            return
        seal = build_seal(rules, view, self._stage, state.round, contributions, multipliers, plan, result)
        digest = seal.digest(rules.domain)
        known = state.proposals.get(digest)
        if known is None or now >= known.since + rules.proposal_timeout:  # the same seal again: now we send it first
            state.proposals[digest] = Proposal(seal, turns[0], self._account, now)

    def _foresee(self, moment: _Moment) -> None:
        """While nobody who is waited for may be left out and nothing is anybody's choice, all would propose the same
        seal. Who is not in turn computes it as soon as it could propose it, and signs without waiting for the
        proposal."""
        state, grace, now = moment.state, moment.grace, moment.now
        rules, view, round, ready_since = self._rules, self._known.view, state.round, state.ready_since
        if state.foreseen or ready_since is None or now >= min(grace.ends, ready_since + rules.proposal_timeout):
            return
        listed = tuple(moment.usable.values())
        if rules.policy != "mean" or not moment.usable.keys() >= grace.awaited:
            return
        attempt = attempt_at(rules, view, now)
        signer = next(iter(proposers(rules, view, self._stage, round, attempt)), None)  # a founder may be alone
        if not listed or signer in (None, self._account) or now < self._opens_at(state, listed, now):
            return
        multipliers = unit_multipliers(len(listed))
        result = self._outer(moment, listed, multipliers)
        if result is None:
            return
        contributions = state.listing(listed)
        plan = self._plan(moment, contributions, again=False)
        if plan is None:
            return
        seal = build_seal(rules, view, self._stage, round, contributions, multipliers, plan, result)
        state.proposals.setdefault(seal.digest(rules.domain), Proposal(seal, attempt, signer, now))
        state.foreseen = True

    def _attest(self, moment: _Moment, digest: bytes, proposal: Proposal) -> None:
        state, now, out = moment.state, moment.now, moment.out
        signature = state.signatures.get(digest, {}).get(self._account)
        if signature is not None:
            if self._pending.due(("attest", digest), now, REGOSSIP_SECONDS):
                out.append(self._statement(state.round, digest, proposal, signature))
            return
        listed = proposal.listed
        missing = tuple(name for name in listed if not self._known.holds(state, name))
        if missing:
            unheard = tuple(name for name in missing if not self._known.is_heard(state, name))  # payloads are fetched
            late = now >= proposal.since + REGOSSIP_SECONDS  # else it is mostly on its way
            if unheard and late and self._pending.due(("missing", digest), now, REGOSSIP_SECONDS):
                out.append(a.GossipReport(state.round, self._known.holding(state), unheard[:MAX_MISSING]))
            return
        contributions = state.listing(listed)
        if now < self._opens_at(state, listed, now):
            return
        if len({signed.contribution.account for signed in contributions}) < len(contributions):
            self._refuse(moment, digest, proposal, "two contributions of one account")
            return
        if self._leaves_out(moment, proposal):
            return
        if not listed and not self._may_be_empty(state.round, now):
            return
        fault = self._fault(moment, proposal, contributions)
        if fault:
            self._refuse(moment, digest, proposal, fault)
        elif fault is not None:
            self._ask(a.SignSeal(proposal.seal, digest), now, out)

    def _send(self, moment: _Moment, digest: bytes, proposal: Proposal) -> None:
        """The proposal's seal to the ledger, once that would take it. While the stage's weight is not earned by work
        that takes a founder's signature, for which everybody waits."""
        state, now = moment.state, moment.now
        view, signatures = self._known.view, state.signatures.get(digest, {})
        if self._account not in signatures or not self._is_member:
            return
        if any(name not in state.contributions for name in proposal.listed):
            return  # somebody repeats our own vote of before a restart
        makers, founder = _makers(state, proposal.listed), _founder(view, signatures)
        may_seal = partial(view.may_seal, self._stage, makers, signatures, int(now))
        alone = may_seal(founder=False)
        if not alone and founder is None and may_seal(founder=True):
            state.lacks_founder.setdefault(digest, now)
        else:
            state.lacks_founder.pop(digest, None)
        if not alone and (founder is None or not may_seal(founder=True)):
            return
        since = state.quorum_since.setdefault(digest, now)
        order = proposers(self._rules, view, self._stage, state.round, proposal.attempt)
        patience = order.index(self._account) * self._rules.proposal_timeout  # the proposer first, then the next
        if now >= since + patience:
            vouched = None if alone or founder is None else signatures[founder]
            signed = self._entries(state.listing(proposal.listed), signatures, vouched, now)
            self._ask(a.SendSeal(proposal.seal, signed), now, moment.out)

    def _entries(
        self, listed: tuple[SignedContribution, ...], signatures: dict[str, bytes], vouched: bytes | None, now: float
    ) -> bytes:
        """All that the ledger looks at: signatures of the seal, by those with weight and by makers of what it lists.
        Of the other makers those of their contributions. `vouched`: a founder's, where it takes one."""
        view = self._known.view
        of_seal, of_records = {}, {}
        for signed in listed:
            maker, replica = signed.contribution.account, signed.contribution.replica
            if maker in signatures:
                of_seal[maker] = (replica, signatures[maker])
            else:
                of_records[replica] = signed.signature
        for account in ascending(signatures.keys() - of_seal.keys()):
            if has_votes(view, account, self._stage, now):
                slot = view.slot_of(account)  # for who has left any replica will do
                of_seal[account] = (slot[0] if slot else 0, signatures[account])
        return entries(of_seal, of_records, vouched)

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _ask(self, action: a.Task, now: float, out: list[a.Action]) -> None:
        if self._pending.start(action, now):
            out.append(action)

    def _statement(self, round: int, digest: bytes, proposal: Proposal, signature: bytes) -> a.Action:
        if proposal.signer != self._account:
            return a.GossipAttestation(round, digest, signature)
        return a.GossipProposal(proposal.seal, proposal.attempt, signature)

    def _refuse(self, moment: _Moment, digest: bytes, proposal: Proposal, fault: str) -> None:
        del moment.state.proposals[digest]
        moment.out.append(a.Reject("wrong_seal", f"{proposal.signer} ({fault})"))

    def _fault(self, moment: _Moment, proposal: Proposal, listed: tuple[SignedContribution, ...]) -> str | None:
        """What is wrong with a proposal ("": nothing); None while what that takes is being computed."""
        seal, view, rules = proposal.seal, self._known.view, self._rules
        multipliers = tuple(record.multiplier for record in seal.records)
        fault = self._multiplier_fault(moment, proposal.listed, multipliers)
        if fault is None or fault:
            return fault
        result = self._outer(moment, proposal.listed, multipliers)
        if result is None:
            return None
        plan, round = seal.outcome.plan, moment.state.round
        over = False if plan.inner_steps else self._is_over(moment)
        if over is None:
            return None
        if fault := plan_fault(rules, view, self._stage, round, plan, _parts_kept(listed), over):
            return fault
        built = build_seal(rules, view, self._stage, round, listed, multipliers, plan, result)
        return "" if seal == built else "its fields"

    def _multipliers(self, moment: _Moment, listed: tuple[bytes, ...]) -> tuple[int, ...] | None:
        """Our own choice; None while it is being measured."""
        if self._rules.policy == "mean" or not listed:
            return unit_multipliers(len(listed))
        measured = self._measured(moment, listed)
        return None if measured is None else policy.multipliers(measured)

    def _multiplier_fault(self, moment: _Moment, listed: tuple[bytes, ...], sealed: tuple[int, ...]) -> str | None:
        """What is wrong with a proposal's multipliers ("": nothing); None while ours are being measured."""
        if self._rules.policy == "mean" or not listed:
            return "" if sealed == unit_multipliers(len(listed)) else f"the multipliers {sealed}"
        measured = self._measured(moment, listed)
        return None if measured is None else policy.disagreement(measured, sealed) or ""

    def _measured(self, moment: _Moment, listed: tuple[bytes, ...]) -> policy.Measured | None:
        state = moment.state
        if listed not in state.measured:
            self._ask(a.MeasurePolicy(state.round, state.listing(listed)), moment.now, moment.out)
        return state.measured.get(listed)

    def _outer(self, moment: _Moment, listed: tuple[bytes, ...], multipliers: tuple[int, ...]) -> OuterResult | None:
        state = moment.state
        if not listed:
            return NOTHING
        key = (listed, multipliers)
        if key not in state.outer:
            self._ask(a.ComputeOuter(state.round, state.listing(listed), multipliers), moment.now, moment.out)
        return state.outer.get(key)

    def _plan(self, moment: _Moment, listed: tuple[SignedContribution, ...], again: bool) -> Plan | None:
        """The plan that we would seal. Where a first proposal came to nothing it does not change: who has not the seals
        that we have can agree to that too. None while we do not know whether it ends the run."""
        rules, view, round = self._rules, self._known.view, moment.state.round
        if again:
            return kept_plan(rules, view, self._stage, round)
        over = self._is_over(moment)
        return None if over is None else next_plan(rules, view, self._stage, round, _parts_kept(listed), over)

    def _is_over(self, moment: _Moment) -> bool | None:
        """Whether the run stops with the round; None while that is being found out. Stage 0 alone says it."""
        if not self._rules.may_stop or self._stage:
            return False
        state, opened = moment.state, stopping.opening(self._known.view, moment.state.round)
        if opened not in state.ends:
            self._ask(a.JudgeEnd(state.round), moment.now, moment.out)
        return state.ends.get(opened)

    def _leaves_out(self, moment: _Moment, proposal: Proposal) -> bool:
        """Whether a proposal lacks what it has to list now: before the grace ends whoever is waited for, until shortly
        after it was extended whoever of them was heard of, then what nothing excuses."""
        state, grace, now = moment.state, moment.grace, moment.now
        view, patience = self._known.view, self._rules.proposal_timeout
        listed = {record.replica for record in proposal.seal.records}
        lacking = grace.awaited - listed
        if lacking and now < grace.ends:
            return True
        if now < grace.extended + patience and lacking & self._known.expected(state, grace.ends):
            return True  # its payload may be on its way to us
        reports = self._known.reports(state)
        return not all(
            Deadlines(now, grace.over(replica), proposal.since, patience).excuse(
                state.held_since[replica], is_named(view, self._stage, reports, name, now)
            )
            for replica, name in moment.usable.items()
            if replica not in listed
        )

    def _may_be_empty(self, round: int, now: float) -> bool:
        """An empty seal wastes everybody's round: not before the timeout, which counts anew for who has just started
        (perhaps everybody has), and not while we may still contribute. Where the stage's last round was empty too there
        is less to wait for, and what helps needs three of them: a deal."""
        view = self._known.view
        before = view.sealed.get((self._stage, round - 1))
        again = before is not None and not before.records
        patience = EMPTY_PATIENCE if self._may_contribute(round) and not again else 1
        since = max(view.opened_at or 0, self._since)
        return now >= since + patience * self._rules.round_timeout and self._training != round

    def _can_seal_alone(self, round: int, version: int | None, now: float) -> bool:
        """Whether the ledger would take the founder's empty seal of the stage, and it helps: the stage has members and
        does not stand still yet, and it is not this machine that they wait for."""
        view = self._known.view
        if version != round or self._pending.trouble(("seal", round)):
            return False
        if not view.members_in(self._stage) or view.stands_still(self._stage):
            return False
        return view.may_seal(self._stage, (), (self._account,), int(now), founder=True)

    def _alone_patience(self, state: RoundState) -> int:
        """Round timeouts that a founder leaves to members. One is enough where the stage's last round was empty too and
        nobody has contributed to this one. Who contributes and signs nothing gains the longer time, and no more."""
        before = self._known.view.sealed.get((self._stage, state.round - 1))
        is_idle = before is not None and not before.records and not state.contributions
        return 1 if is_idle else ALONE_PATIENCE

    def _may_contribute(self, round: int) -> bool:
        """Whether we have contributed to the round, or can still: who was dealt meanwhile has lost what it trained
        ahead, and a round before our last one is not trained any more. A founder without a slot of the stage speaks
        for all its members."""
        view = self._known.view
        if not self._is_member:
            return bool(view.complete_replicas())
        slot, own = view.slot_of(self._account), self._own.get(round)
        if own is not None:
            return may_count(view, own.contribution)
        if slot is None or slot[0] not in view.complete_replicas() or not may_train(view, self._account, round):
            return False
        return round > max(self._own, default=-1)


def _makers(state: RoundState, listed: Iterable[bytes]) -> set[str]:
    """The accounts of these contributions."""
    return {state.contributions[name].contribution.account for name in listed}


def _founder(view: RunView, signers: Iterable[str]) -> str | None:
    """One of the signers that is a founder of the run."""
    return next((account for account in signers if view.is_founder(account)), None)


def _parts_kept(listed: tuple[SignedContribution, ...]) -> tuple[int, ...]:
    return tuple(signed.contribution.kept for signed in listed)
