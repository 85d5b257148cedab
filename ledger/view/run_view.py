"""One run as the contract sees it, recomputed from its events alone: no I/O, no clock.

`RunView.apply` refuses events that the contract cannot have emitted in that order (ViewError): then the chain node
that delivered them is wrong or incomplete. It does not recount the votes for a seal or a conviction: recount.py does.
Times are in seconds; `now` is the time of the block that a transaction would be in.
"""

from dataclasses import replace

from dlx.ledger.abi import ZERO32
from dlx.ledger.events import (
    Accused,
    Answered,
    CheckpointPublished,
    Convicted,
    Dealt,
    Event,
    Evicted,
    Joined,
    Left,
    Moved,
    RunCreated,
    RunOpened,
    Sealed,
    SiteEnlisted,
    SiteSeated,
)
from dlx.ledger.typed import Domain
from dlx.ledger.view import runs, seals, sites, verdicts
from dlx.ledger.view.counts import Stage, replicas
from dlx.ledger.view.run_state import (
    NO_REPLICA,
    UNKNOWN,
    Accusation,
    Asked,
    Enlisted,
    Member,
    Return,
    RunState,
    ViewError,
)
from dlx.ledger.view.seal_log import ReadSeal, SealLog

MAX_CHECKPOINTS = 256  # that a view remembers: anybody may publish as many as it pays for
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
    may_move = runs.may_move
    times_counted = runs.times_counted
    counts_for_a_vote = runs.counts_for_a_vote
    was_passed_over = runs.was_passed_over
    should_answer = runs.should_answer
    is_forfeit = runs.is_forfeit
    is_stalled = runs.is_stalled
    may_accuse = runs.may_accuse
    may_evict = runs.may_evict
    may_deal = runs.may_deal
    deal_of = runs.deal_of

    voters = seals.voters
    has_earned = seals.has_earned
    quorum = seals.quorum
    votes = seals.votes
    needed = seals.needed
    opens_at = seals.opens_at
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
    convictions_needed = verdicts.convictions_needed
    may_convict = verdicts.may_convict

    def __init__(self, run: bytes, domain: Domain, keep: int | None = None, older: ReadSeal | None = None) -> None:
        super().__init__(run, domain, SealLog(keep, older))

    @property
    def accusations(self) -> dict[str, Accusation]:
        """Who was asked and has neither answered nor been counted since."""
        return runs.accusations(self)

    def complete_replicas(self) -> tuple[int, ...]:
        """The replicas with a member for every stage, ascending."""
        return replicas(self.complete)

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
            case SiteSeated():
                self._slot_site(event)
            case Left():
                self._release(event.account, event.replica, event.stage, event.at.time)
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

    def _create(self, event: RunCreated) -> None:
        if self.creation is not None or len(event.genesis) != event.config.stages:
            raise ViewError("the run was created twice, or with another number of stages than genesis hashes")
        if ZERO32 in event.genesis:
            raise ViewError("the run was created with no weights for a stage")
        if problem := runs.config_problem(event.config):
            raise ViewError(f"the run was created with {problem}")
        self.creation = event
        self.stages = [Stage(weights) for weights in event.genesis]

    def _open(self, event: RunOpened, due: bool) -> None:
        if not due:
            raise ViewError("round 0 opened before enough replicas were complete")
        self.round_opened_at = self.started_at = event.opened_at

    def _expect_opening(self, event: Joined | Moved) -> None:
        """Round 0 opens with the transaction that completes enough replicas."""
        if not self.round_opened_at and self.complete.bit_count() >= self.config.min_replicas:
            self.due += (RunOpened(self.run, max(self.config.start_time, event.at.time), event.at),)

    # ---- slots -------------------------------------------------------------------------------------------------------

    def _slot_site(self, event: SiteSeated) -> None:
        if not self.may_slot(event.site, event.replica, event.accounts, event.at.time):
            raise ViewError(f"site {event.site} cannot have taken replica {event.replica}")
        places = enumerate(event.accounts)
        newcomers = [(stage, account) for stage, account in places if self.member_at(event.replica, stage) != account]
        self.due = tuple(Joined(self.run, account, event.replica, stage, event.at) for stage, account in newcomers)

    def _join(self, event: Joined, due: bool) -> None:
        """`due`: its site took this slot for it."""
        account, replica, stage, now = event.account, event.replica, event.stage, event.at.time
        before = self.member(account)
        if before.holds or self.finished or stage >= self.config.stages or self.is_convicted(account):
            raise ViewError(f"{account} cannot have joined stage {stage}")
        own = (before.replica, before.stage)
        reserved = self.returns.get(own)
        returns = (
            reserved is not None and reserved.account == account and reserved.until >= now and own not in self.by_slot
        )
        stays = before.joined_at != 0 and stage == before.stage  # then leaving and joining again wipes nothing
        slot = before.replica if returns and stage == before.stage else self.free_slot(stage, account, now)
        if replica != slot and not due:
            raise ViewError(f"{account} cannot have joined slot ({replica}, {stage}): the free one was {slot}")
        if stage != before.stage and self.changed_now(before):
            raise ViewError(f"{account} changed stage before its old one's next seal")
        if not stays:
            before = replace(
                before, changed_round=0, asked=Asked.NO, joined_round=self.next_round(stage), joined_at=now
            )
            standing = self.standings.get(account, UNKNOWN)
            self.standings[account] = replace(standing, stages=standing.stages | 1 << stage)
        since = max(0, self.stages[stage].non_empty - before.since)
        member = replace(before, holds=True, replica=replica, stage=stage, since=since, took_at=now)
        if account in self.enlistments:
            self.enlistments[account] = replace(self.enlistments[account], until=0)
        self.accounts[account] = member
        if self.changed_now(member):
            self._change(replica, stage)
        self._sit(account, replica, stage)
        self._expect_opening(event)

    def _release(self, account: str, replica: int, stage: int, now: int) -> bool:
        """Takes the account's slot; whether one of the last eight non-empty seals counted it."""
        member, at = self._held_by(account, replica, stage), self.stages[stage]
        counted = at.counts[replica] != 0
        member, voted = self._noted(member), bool(at.voters(self.staffed) >> replica & 1)
        unasked = member.asked in (Asked.NO, Asked.PRESENCE)
        self.accounts[account] = replace(
            member,
            holds=False,
            asked=Asked.NO if unasked else Asked.WORK_ANSWERED,
            former_vote=member.former_vote or voted,
            since=0 if counted else at.non_empty - member.since,
        )
        self.stages[stage] = at.counts_at(replica, 0)
        self._stand(replica, stage, now)
        return counted

    def _move(self, event: Moved) -> None:
        account, stage = event.account, event.stage
        member = self._held_by(account, event.from_replica, stage)
        complete = self.complete >> event.from_replica & 1
        if complete or event.to_replica != self.free_slot(stage, account, event.at.time):
            raise ViewError(f"{account} cannot have moved to ({event.to_replica}, {stage})")
        if event.to_replica >= event.from_replica:
            raise ViewError(f"{account} moved up")
        byte = self.stages[stage].counts[event.from_replica]
        self.accounts[account] = replace(self._noted(member), replica=event.to_replica)
        self.stages[stage] = self.stages[stage].counts_at(event.from_replica, 0).counts_at(event.to_replica, byte)
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
        counts = self.stages[stage].counts
        slots = ((replica, other), (other, replica))
        held_by = [self.by_slot[slot, stage] for slot, _ in slots]
        members = [self._noted(self.accounts[account]) for account in held_by]
        for account, member, (slot, to) in zip(held_by, members, slots, strict=True):
            self.accounts[account] = replace(member, replica=to)
            self.by_slot[to, stage] = account
            self.stages[stage] = self.stages[stage].counts_at(to, counts[slot])
            self._change(to, stage)
            self.dealt[to] = self.round

    def _sit(self, account: str, replica: int, stage: int) -> None:
        self.by_slot[replica, stage] = account
        self.stages[stage] = self.stages[stage].held_at(replica, True)
        self.staffed |= self.complete & 1 << replica
        if self.complete >> replica & 1 and self.round > self.broke.get(replica, 0) + 1:
            self.dealt[replica] = self.round  # who leaves and comes back does not put off that the replica is dealt

    def _stand(self, replica: int, stage: int, now: int) -> None:
        if self.complete >> replica & 1:
            self.broke[replica] = self.round
        del self.by_slot[replica, stage]
        self.stages[stage] = self.stages[stage].held_at(replica, False)
        self._change(replica, stage)
        self.vacated[replica, stage] = now
        self.returns.pop((replica, stage), None)

    def _change(self, replica: int, stage: int) -> None:
        """Whoever holds the slot from now on does not make its record in the stage's next seal."""
        if self.round_opened_at:
            self.stages[stage] = self.stages[stage].changed_at(replica)

    def _noted(self, member: Member) -> Member:
        """The member with whose record it makes in its stage's next seal, before its slot changes."""
        if self.changed_now(member) or not self.round_opened_at:
            return member
        makes = not self.stages[member.stage].changed >> member.replica & 1
        return replace(
            member,
            changed_round=self.next_round(member.stage) + 1,
            former_replica=member.replica if makes else NO_REPLICA,
            former_vote=False,
        )

    def _held_by(self, account: str, replica: int, stage: int) -> Member:
        if self.slot_of(account) != (replica, stage):
            raise ViewError(f"{account} does not hold slot ({replica}, {stage})")
        return self.accounts[account]

    # ---- silence -----------------------------------------------------------------------------------------------------

    def _accuse(self, event: Accused) -> None:
        now = event.at.time
        if not self.may_accuse(event.by, event.account, now) or event.forfeit != self.is_forfeit(event.account, now):
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
        if not self.may_evict(event.account, event.at.time):
            raise ViewError(f"{event.account} cannot have been evicted")
        counted = self._release(event.account, event.replica, event.stage, event.at.time)
        self.accounts[event.account] = replace(self.accounts[event.account], asked=Asked.NO)
        until = event.at.time + self.config.eviction_time if counted else 0
        if event.return_until != until:
            raise ViewError(f"{event.account} may return until {until}, not {event.return_until}")
        if counted:
            self.returns[event.replica, event.stage] = Return(event.account, until)

    def _convict(self, event: Convicted) -> None:
        account, standing = event.account, self.standings.get(event.account, UNKNOWN)
        if standing.convicted or not standing.stages >> event.stage & 1:
            raise ViewError(f"{account} cannot have been convicted in stage {event.stage}")
        self.standings[account] = replace(standing, convicted=True)
        self.convictions = (*self.convictions, event)[-MAX_CONVICTIONS:]
        if (slot := self.slot_of(account)) is not None:
            self._release(account, *slot, event.at.time)

    # ---- seals -------------------------------------------------------------------------------------------------------

    def _seal(self, event: Sealed) -> None:
        stage, round = event.stage, event.round
        if stage >= self.config.stages or not round == self.open_round == self.next_round(stage):
            raise ViewError(f"round {round} of stage {stage} was sealed out of order")
        if event.at.time < self.opens_at(stage, event.count):
            raise ViewError(f"round {round} of stage {stage} was sealed too early")
        outcome, max_steps = event.outcome, self.config.max_inner_steps
        steps = [outcome.inner_steps, outcome.plan.inner_steps, *(record.inner_steps for record in event.records)]
        if min(steps) < 1 or max(steps[:2]) > max_steps or max(steps[2:], default=0) > outcome.inner_steps:
            raise ViewError(f"round {round} of stage {stage} has inner steps out of range")
        if not event.records and any(map(any, outcome.hashes)):
            raise ViewError(f"round {round} of stage {stage} counts nothing and changes something")
        accounts, counted = self._makers(event)
        self.sealed.append(replace(event, accounts=accounts), self.genesis[stage])
        for account in accounts:
            self.counted_in[account] = round
        self.stages[stage] = self.stages[stage].sealed(event.digest, counted, not event.records, event.at.time)
        self.draw ^= int.from_bytes(event.digest[-7:], "big")
        if all(self.next_round(each) > round for each in range(self.config.stages)):
            self.round, self.round_opened_at = round + 1, event.at.time

    def _makers(self, event: Sealed) -> tuple[tuple[str, ...], int]:
        """Who made each record, and the bitmap of the slots that it counts for. Raises ViewError where a maker cannot
        be."""
        found, counted = [], 0
        for record in event.records:
            maker = self.maker(record.replica, event.stage)
            if maker is None:
                raise ViewError(
                    f"round {event.round} of stage {event.stage} counts replica {record.replica}: of nobody"
                )
            found.append(maker)
            member = self.accounts[maker]
            counted |= 1 << member.replica if member.holds else 0
        return tuple(found), counted
