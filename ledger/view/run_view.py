"""One run as the contract sees it, recomputed from its events alone: no I/O, no clock.

`RunView.apply` refuses events that the contract cannot have emitted in that order (ViewError): then the chain node
that delivered them is wrong or incomplete. It does not recount the votes for a seal or a conviction: recount.py does.
Times are in seconds; `now` is the time of the block that a transaction would be in.
"""

from dataclasses import replace

from dlx.ledger.abi import ZERO32, ZERO_ACCOUNT
from dlx.ledger.events import (
    Accused,
    Answered,
    CheckpointPublished,
    Convicted,
    Dealt,
    Dismissed,
    Evaluated,
    Event,
    Evicted,
    Joined,
    Left,
    Moved,
    Reclaimed,
    RunCreated,
    RunOpened,
    Sealed,
    SiteEnlisted,
    SitePlaced,
)
from dlx.ledger.typed import Domain
from dlx.ledger.view import bitmaps, pay, runs, seals, sites, verdicts, weights
from dlx.ledger.view.run_state import (
    MAX_EMPTIES,
    NO_REPLICA,
    UNKNOWN,
    Accusation,
    Asked,
    Enlisted,
    Member,
    Return,
    RunState,
    Stage,
    Stay,
    ViewError,
)
from dlx.ledger.view.seal_log import Paid, ReadSeal, SealLog
from dlx.ledger.view.weights import Lanes

MAX_CHECKPOINTS = 256  # that a view remembers: anybody may publish as many as it pays for
MAX_EVALUATIONS = 1024  # of an account: so nobody can push out what others said
MAX_CONVICTIONS = 256  # likewise: their entries are long


class RunView(RunState):
    """The state of one run after the events applied so far, and what the contract would allow now, by the rules in the
    files named as the contract's. Give it every event of the run, in order.

    `keep`: how many of each stage's newest seals `sealed` has in full, with their records; None: all. Of the others 80
    bytes each stay: the hashes that they gave, and sums; `older(stage, round)`, where given, has all of them.
    """

    # The rules as methods: the first argument of each function is the view.

    free_slot = runs.free_slot
    is_free = runs.is_free
    waiting_for = runs.waiting_for
    stage_left = runs.stage_left
    may_move = runs.may_move
    age_of = runs.age_of
    was_passed_over = runs.was_passed_over
    should_answer = runs.should_answer
    is_forfeit = runs.is_forfeit
    may_accuse = runs.may_accuse
    may_evict = runs.may_evict
    may_dismiss = runs.may_dismiss
    is_outweighed = runs.is_outweighed
    stands_still = runs.stands_still
    may_reclaim = runs.may_reclaim
    reclaimable_from = runs.reclaimable_from
    may_deal = runs.may_deal
    deal_of = runs.deal_of
    came_back = runs.came_back

    is_founder = seals.is_founder
    weight_of = seals.weight_of
    vacuum = seals.vacuum
    total = seals.total
    seal_votes = seals.seal_votes
    needed = seals.needed
    opens_at = seals.opens_at
    weigh = seals.weigh
    may_seal = seals.may_seal
    votes = seals.votes
    voters = seals.voters
    may_vote = seals.may_vote
    maker = seals.maker
    admissible = seals.admissible

    enlisted = sites.enlisted
    enlisted_until = sites.enlisted_until
    may_slot = sites.may_slot
    may_take = sites.may_take
    site_of = sites.site_of
    site_at = sites.site_at

    jury = verdicts.jury
    verdict_votes = verdicts.verdict_votes
    verdicts_needed = verdicts.verdicts_needed
    may_convict = verdicts.may_convict

    seals_in = pay.seals_in
    earned_in = pay.earned_in
    earnings = pay.earnings

    def __init__(self, run: bytes, domain: Domain, keep: int | None = None, older: ReadSeal | None = None) -> None:
        super().__init__(run, domain, SealLog(keep, older))

    @property
    def accusations(self) -> dict[str, Accusation]:
        """Who was asked and has neither answered nor been counted since."""
        return runs.accusations(self)

    def complete_replicas(self) -> tuple[int, ...]:
        """The replicas with a member for every stage, ascending."""
        return bitmaps.members(self.complete)

    def apply(self, event: Event) -> None:
        """Takes the next event; those of other runs and of the registry change nothing. Raises ViewError."""
        if getattr(event, "run", None) != self.run:
            return
        due, self.due = self.due[:1], self.due[1:]
        if due and replace(event, at=due[0].at) != due[0]:
            raise ViewError(f"{due[0]} had to come next, not {event}")
        match event:
            case RunCreated():
                self._create(event)
            case RunOpened():
                self._open(event, bool(due))
            case Joined():
                self._join(event, bool(due))
            case SiteEnlisted():
                self.enlistments[event.account] = Enlisted(event.site, event.stage, event.until)
            case SitePlaced():
                self._slot_site(event)
            case Left():
                self._release(event.account, event.replica, event.stage, event.at.time)
                self.gave_back[event.account] = event.at.time
            case Moved():
                self._move(event)
            case Dealt():
                self._deal(event, bool(due))
            case Accused():
                self._accuse(event)
            case Answered():
                self._answer(event)
            case Evicted():
                self._evict(event)
            case Dismissed():
                self._dismiss(event)
            case Reclaimed():
                self._reclaim(event)
            case Convicted():
                self._convict(event)
            case Sealed():
                self._seal(event)
            case CheckpointPublished():
                mine = (event.account, event.round)
                others = (
                    checkpoint for checkpoint in self.checkpoints if (checkpoint.account, checkpoint.round) != mine
                )
                self.checkpoints = (*others, event)[-MAX_CHECKPOINTS:]
            case Evaluated():
                self._evaluate(event)

    def _create(self, event: RunCreated) -> None:
        if self.creation is not None or len(event.genesis) != event.config.stages:
            raise ViewError("the run was created twice, or with another number of stages than genesis hashes")
        if ZERO32 in event.genesis:
            raise ViewError("the run was created with no weights for a stage")
        if problem := runs.config_problem(event.config):
            raise ViewError(f"the run was created with {problem}")
        if problem := runs.founders_problem(event.founders):
            raise ViewError(f"the run was created with {problem}")
        self.creation = event
        self.stages = [Stage(head, Lanes.of(event.config.max_replicas)) for head in event.genesis]

    def _open(self, event: RunOpened, due: bool) -> None:
        if not due:
            raise ViewError("round 0 opened before enough replicas were complete")
        self.round_opened_at = self.started_at = event.opened_at

    def _expect_opening(self, event: Joined | Moved) -> None:
        """Round 0 opens with the transaction that completes enough replicas."""
        if not self.round_opened_at and self.complete.bit_count() >= self.config.min_replicas:
            self.due += (RunOpened(self.run, max(self.config.start_time, event.at.time), event.at),)

    def _evaluate(self, event: Evaluated) -> None:
        member, last = self.member(event.account), self.config.stages - 1
        if not member.holds or member.stage != last or not 0 < event.version <= self.round or not event.count:
            raise ViewError(f"{event.account} cannot have said the loss of version {event.version}")
        said = {event.version: event} | self.evaluations.get(event.account, {})  # the first word stays
        self.evaluations[event.account] = dict(sorted(said.items())[-MAX_EVALUATIONS:])

    # ---- slots -------------------------------------------------------------------------------------------------------

    def _slot_site(self, event: SitePlaced) -> None:
        if not self.may_slot(event.site, event.replica, event.accounts, event.at.time):
            raise ViewError(f"site {event.site} cannot have taken replica {event.replica}")
        places = enumerate(event.accounts)
        newcomers = [(stage, account) for stage, account in places if self.member_at(event.replica, stage) != account]
        self.due = tuple(Joined(self.run, account, event.replica, stage, event.at) for stage, account in newcomers)

    def _join(self, event: Joined, due: bool) -> None:
        """`due`: its site took this slot for it, or it took it from another member."""
        account, replica, stage, now = event.account, event.replica, event.stage, event.at.time
        before = self.member(account)
        if before.holds or self.finished or stage >= self.config.stages or self.is_convicted(account):
            raise ViewError(f"{account} cannot have joined stage {stage}")
        own = (before.replica, before.stage)
        reserved = self.returns.get(own)
        returns = (
            reserved is not None and reserved.account == account and reserved.until >= now and own not in self.by_slot
        )
        slot = before.replica if returns and stage == before.stage else self.free_slot(stage, account, now)
        if replica != slot and not due:
            raise ViewError(f"{account} cannot have joined slot ({replica}, {stage}): the free one was {slot}")
        if stage != before.stage and self.changed_now(before):
            raise ViewError(f"{account} changed stage before its old one's next seal")
        standing, weight = self.standings.get(account, UNKNOWN), 0
        if stage != before.stage or not standing.stages >> stage & 1:
            before = replace(before, changed_round=0, asked=Asked.NO)
            self.standings[account] = replace(standing, stages=standing.stages | 1 << stage)
        else:  # leaving and joining again wipes nothing
            weight = self._come_back(before, now)
        at = self.stages[stage]
        lane = bitmaps.lowest_free(at.held)
        member = replace(
            before,
            holds=True,
            replica=replica,
            stage=stage,
            lane=lane,
            since=max(0, at.non_empty - before.since),
            mark=self.next_round(stage),
            took_at=now,
            left_at=0,
            weight=0,
        )
        self.stages[stage] = replace(at, lanes=at.lanes.set(lane, weight), held=at.held | 1 << lane)
        if account in self.enlistments:
            self.enlistments[account] = replace(self.enlistments[account], until=0)
        self.accounts[account] = member
        if self.changed_now(member):
            self._change(replica, stage)
        self._sit(account, replica, stage)
        self._expect_opening(event)

    def _release(self, account: str, replica: int, stage: int, now: int, loses: bool = False) -> bool:
        """Takes the account's slot, and, if it `loses` it, its weight; whether one of the last eight non-empty seals
        counted it."""
        member, at = self._noted(self._held_by(account, replica, stage)), self.stages[stage]
        counted = runs.was_counted_lately(self, member)
        unasked = member.asked in (Asked.NO, Asked.PRESENCE)
        self._keep_pay(account, member, at)
        weight = at.lanes.weights[member.lane]
        if weight and not loses:
            pool = seals.absent_now(self, stage, now).joined_by(weight)
            at = replace(at, absent=pool)
        self.stages[stage] = replace(at, lanes=at.lanes.set(member.lane, 0), held=at.held & ~(1 << member.lane))
        member = replace(
            member,
            holds=False,
            asked=Asked.NO if unasked else Asked.WORK_ANSWERED,
            since=0 if counted else at.non_empty - member.since,
        )
        kept = member if loses else replace(member, left_at=now, weight=weight, mark=at.non_empty)
        self.accounts[account] = kept
        self._stand(replica, stage, now)
        return counted

    def _come_back(self, member: Member, now: int) -> int:
        """Takes the weight that the member left in its stage out of the pool of the absent: what seals have left of it.
        The time that it was away cost it nothing, as nobody gained by it."""
        if not member.weight:
            return 0
        seals_part, verdicts_part = seals.parts_of_pool(self, member, now)
        pool = seals.absent_now(self, member.stage, now).without(seals_part, verdicts_part)
        self.stages[member.stage] = replace(self.stages[member.stage], absent=pool)
        return verdicts_part >> weights.FRACTION

    def _keep_pay(self, account: str, member: Member, at: Stage) -> None:
        """Writes down which pay is the account's, before somebody else gets its lane."""
        since, rest = member.mark // weights.EPOCH_ROUNDS, at.lanes.pay[member.lane]
        if rest or at.epoch > since:
            stay = Stay(member.stage, member.lane, since, at.epoch, rest)
            self.stays[account] = (*self.stays.get(account, ()), stay)

    def _move(self, event: Moved) -> None:
        account, stage = event.account, event.stage
        member = self._held_by(account, event.from_replica, stage)
        complete = self.complete >> event.from_replica & 1
        if complete or event.to_replica != self.free_slot(stage, account, event.at.time):
            raise ViewError(f"{account} cannot have moved to ({event.to_replica}, {stage})")
        if event.to_replica >= event.from_replica:
            raise ViewError(f"{account} moved up")
        self.accounts[account] = replace(self._noted(member), replica=event.to_replica)
        self._stand(event.from_replica, stage, event.at.time)
        self._change(event.to_replica, stage)
        self._sit(account, event.to_replica, stage)
        self._expect_opening(event)

    def _deal(self, event: Dealt, due: bool) -> None:
        stage, replica, other = event.stage, event.replica, event.other
        if not due:
            swaps = self.deal_of(replica) if runs.is_dealable(self, replica) else ()
            if (stage, other) not in swaps[:1]:
                raise ViewError(f"replica {replica} cannot have been dealt")
            self.due = tuple(Dealt(self.run, at, replica, to, event.at) for at, to in swaps[1:])
        slots = ((replica, other), (other, replica))
        held_by = [self.by_slot[slot, stage] for slot, _ in slots]
        members = [self._noted(self.accounts[account]) for account in held_by]
        for account, member, (_, to) in zip(held_by, members, slots, strict=True):
            self.accounts[account] = replace(member, replica=to)
            self.by_slot[to, stage] = account
            self._change(to, stage)
            self.dealt[to] = self.round

    def _sit(self, account: str, replica: int, stage: int) -> None:
        self.by_slot[replica, stage] = account
        at = self.stages[stage]
        self.stages[stage] = replace(at, slots=at.slots | 1 << replica)
        if self.complete >> replica & 1 and (replica not in self.broke or self.round > self.broke[replica] + 1):
            self.dealt[replica] = self.round  # who leaves and comes back does not put off that the replica is dealt

    def _stand(self, replica: int, stage: int, now: int) -> None:
        if self.complete >> replica & 1:
            self.broke[replica] = self.round
        del self.by_slot[replica, stage]
        at = self.stages[stage]
        self.stages[stage] = replace(at, slots=at.slots & ~(1 << replica))
        self._change(replica, stage)
        self.vacated[replica, stage] = now
        self.returns.pop((replica, stage), None)

    def _change(self, replica: int, stage: int) -> None:
        """Whoever holds the slot from now on does not make its record in the stage's next seal."""
        if self.round_opened_at:
            at = self.stages[stage]
            self.stages[stage] = replace(at, changed=at.changed | 1 << replica)

    def _noted(self, member: Member) -> Member:
        """The member with whose record it makes in its stage's next seal, before its slot changes."""
        if self.changed_now(member) or not self.round_opened_at:
            return member
        makes = not self.stages[member.stage].changed >> member.replica & 1
        return replace(
            member,
            changed_round=self.next_round(member.stage) + 1,
            former_replica=member.replica if makes else NO_REPLICA,
        )

    def _held_by(self, account: str, replica: int, stage: int) -> Member:
        if self.slot_of(account) != (replica, stage):
            raise ViewError(f"{account} does not hold slot ({replica}, {stage})")
        return self.accounts[account]

    # ---- silence -----------------------------------------------------------------------------------------------------

    def _accuse(self, event: Accused) -> None:
        now = event.at.time
        if not self.may_accuse(event.by, event.account, now) or event.forfeit != self.is_forfeit(event.account):
            raise ViewError(f"{event.by} cannot have accused {event.account}")
        member = self.accounts[event.account]
        asked = Asked.WORK if event.forfeit else Asked.PRESENCE
        seals = self.stages[member.stage].non_empty
        self.accounts[event.account] = replace(member, asked=asked, asked_at=now, asked_seal=seals)

    def _answer(self, event: Answered) -> None:
        member = self.member(event.account)
        if not self.should_answer(event.account):
            raise ViewError(f"{event.account} answered no accusation")
        in_time = member.asked is Asked.PRESENCE or runs.counted_since_asked(self, member)
        asked = Asked.NO if in_time else Asked.WORK_ANSWERED
        self.accounts[event.account] = replace(member, asked=asked)

    def _evict(self, event: Evicted) -> None:
        account, now = event.account, event.at.time
        if not self.may_evict(account, now):
            raise ViewError(f"{account} cannot have been evicted")
        counted = self._release(account, event.replica, event.stage, now)
        self._reserve(event, account if counted else None, event.return_until)

    def _dismiss(self, event: Dismissed) -> None:
        if not self.may_dismiss(event.by, event.account, event.at.time):
            raise ViewError(f"{event.by} cannot have dismissed {event.account}")
        self._release(event.account, event.replica, event.stage, event.at.time)
        self._reserve(event, None if event.successor == ZERO_ACCOUNT else event.successor, event.until)

    def _reserve(self, event: Evicted | Dismissed, account: str | None, until: int) -> None:
        """The slot that the event took waits for the account; None: for nobody."""
        self.accounts[event.account] = replace(self.accounts[event.account], asked=Asked.NO)
        expected = 0 if account is None else event.at.time + self.config.eviction_time
        if until != expected:
            raise ViewError(f"the slot of {event.account} is kept until {expected}, not {until}")
        if account is not None:
            self.returns[event.replica, event.stage] = Return(account, until)

    def _reclaim(self, event: Reclaimed) -> None:
        account, former, slot, now = event.account, event.former, (event.replica, event.stage), event.at.time
        if not self.may_reclaim(account, former, now):
            raise ViewError(f"{account} cannot have taken the slot of {former}")
        self._release(former, *slot, now)
        self.due = (Joined(self.run, account, *slot, event.at),)

    def _convict(self, event: Convicted) -> None:
        account, standing = event.account, self.standings.get(event.account, UNKNOWN)
        if standing.convicted or not standing.stages >> event.stage & 1:
            raise ViewError(f"{account} cannot have been convicted in stage {event.stage}")
        self.standings[account] = replace(standing, convicted=True)
        self.convictions = (*self.convictions, event)[-MAX_CONVICTIONS:]
        member = self.accounts[account]
        if member.holds:
            self._release(account, member.replica, member.stage, event.at.time, loses=True)
        else:
            self._come_back(member, event.at.time)
            self.accounts[account] = replace(member, weight=0)

    # ---- seals -------------------------------------------------------------------------------------------------------

    def _seal(self, event: Sealed) -> None:
        stage, round = event.stage, event.round
        if stage >= self.config.stages or not round == self.open_round == self.next_round(stage):
            raise ViewError(f"round {round} of stage {stage} was sealed out of order")
        outcome, max_steps = event.outcome, self.config.max_inner_steps
        done = [outcome.inner_steps, *(record.inner_steps for record in event.records)]
        planned = max(outcome.inner_steps, outcome.plan.inner_steps)
        if min(done) < 1 or planned > max_steps or max(done) > outcome.inner_steps:
            raise ViewError(f"round {round} of stage {stage} has inner steps out of range")
        if not event.records and any(map(any, outcome.hashes)):
            raise ViewError(f"round {round} of stage {stage} counts nothing and changes something")
        accounts, now = self._makers(event), event.at.time
        if now < self.opens_at(stage, accounts, now, event.has_founder):
            raise ViewError(f"round {round} of stage {stage} was sealed too early")
        at, paid = replace(self.stages[stage], head=event.digest, changed=0), None
        if event.records:
            at, paid = self._count(at, event, accounts)
        else:
            at = replace(at, empties=min(MAX_EMPTIES, at.empties + 1))
        self.stages[stage] = at
        self.sealed.append(replace(event, accounts=accounts), self.genesis[stage], paid)
        for account in accounts:
            self.counted_in[account] = round
        self.draw ^= int.from_bytes(event.digest[-7:], "big")
        if all(self.next_round(each) > round for each in range(self.config.stages)):
            self.round, self.round_opened_at = round + 1, now

    def _makers(self, event: Sealed) -> tuple[str, ...]:
        """Who made each record. Raises ViewError where a maker cannot be."""
        found, settled, by_slot = [], self.stages[event.stage].settled, self.by_slot
        for record in event.records:
            replica, stage = record.replica, event.stage
            maker = by_slot[replica, stage] if settled >> replica & 1 else self.maker(replica, stage)
            if maker is None:
                raise ViewError(f"round {event.round} of stage {stage} counts replica {replica}: of nobody")
            found.append(maker)
        return tuple(found)

    def _count(self, at: Stage, event: Sealed, makers: tuple[str, ...]) -> tuple[Stage, Paid | None]:
        """The stage after a seal that counts these makers' records, and the pay of the epoch that is over by it."""
        epoch, paid = event.round // weights.EPOCH_ROUNDS, None
        if epoch != at.epoch:
            paid = Paid(at.epoch, at.epoch_seals, at.lanes.pay) if at.epoch_seals else None
            at = replace(at, lanes=at.lanes.unpaid(), epoch=epoch, epoch_seals=0)
        horizon = self.config.horizon
        shares = weights.shares([record.inner_steps for record in event.records], at.non_empty, horizon)
        members = [self.accounts[maker] for maker in makers]
        gains = zip(members, shares, strict=True)
        credits = {member.lane: share for member, share in gains if member.holds and member.stage == event.stage}
        at = replace(
            at,
            lanes=at.lanes.sealed(at.non_empty, horizon, credits),
            ages_before=at.lanes.ages,
            non_empty=at.non_empty + 1,
            empties=0,
            epoch_seals=at.epoch_seals + 1,
        )
        return at, paid
