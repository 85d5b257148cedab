"""What the contract would allow now: votes and records, questions and evictions, deals and convictions."""

from collections.abc import Collection

from eth_hash.auto import keccak

from dlx.ledger.abi import ascending, word
from dlx.ledger.view.counts import YOUNG, quorum, replicas
from dlx.ledger.view.members import UNKNOWN, Accusation, Asked, Member
from dlx.ledger.view.run_state import RunState, ViewError

IDLE_SEALS = 8  # non-empty seals without a count after which a slot is forfeit
GRACE_SEALS = 16  # more of them until a forfeit slot whose member answered is lost
STALLED_TIMEOUTS = 32  # round timeouts without a non-empty seal after which a stage's slots are forfeit and lost,
LATE_TIMEOUTS = 8  # if its round has been open for so many,
BARREN_SEALS = 8  # or so many of its seals in a row were empty
UNCOUNTED_ROUNDS = 3  # after which a replica may be dealt and a member be asked


class RunRights(RunState):
    """As `view.RunView` says."""

    # ---- votes and records -------------------------------------------------------------------------------------------

    def voters(self, stage: int) -> tuple[str, ...]:
        """The members who vote on the stage's next seal, ascending; see also `may_vote`."""
        slots = replicas(self._stage(stage).voters(self._staffed))
        return ascending([self._by_slot[replica, stage] for replica in slots])

    def has_earned(self, stage: int) -> bool:
        """Whether any vote of the stage was earned by work."""
        return self._stage(stage).earned != 0

    def quorum(self, stage: int) -> int:
        """The votes that the stage's next seal needs of its voters while the round is not overdue."""
        return quorum(self.config, self._stages[stage].voters(self._staffed).bit_count())

    def votes(self, stage: int, signers: Collection[str]) -> int:
        """How many votes these signatures would be: each is its member's, or of who had one and left this round."""
        return sum(map(len, self._voted(stage, signers)))

    def needed(self, stage: int, signers: Collection[str], now: int) -> int:
        """The votes that a seal with these signatures needs: those who left vote, so they also count as voters."""
        votes = self._electorate(stage, signers)
        normal = quorum(self.config, votes)
        overdue = self._is_open and now >= self._overdue_at
        return min(normal, votes // 2 + 1) if overdue and self.has_earned(stage) else normal

    def opens_at(self, stage: int, contributions: int, signers: Collection[str] = ()) -> int:
        """From when on the stage's next seal may count so few contributions. Raises ViewError if no round is open."""
        if not self._is_open:
            raise ViewError("no round is open")
        at, config = self._stages[stage], self.config
        times = [self._opened_at + config.min_round_time]
        if contributions < quorum(config, self._electorate(stage, signers)):
            times.append(self._opened_at + config.round_timeout)
        if at.non_empty and not at.earned:  # it waits for its voters before it belongs to those who came after them
            times.append(self._overdue_at)
        return max(times)

    def may_vote(self, account: str, stage: int) -> bool:
        """Whether the account's signature of the stage's next seal is a vote, because it has one or had it when it left
        since the last one."""
        return self.votes(stage, (account,)) != 0

    def maker(self, replica: int, stage: int) -> str | None:
        """Who makes the record of the replica in the stage's next seal, wherever it sits now: who held the slot at the
        newest seal, or, where it was free, took it first since and had no other; None where nobody did yet."""
        if self._stages[stage].settled >> replica & 1:
            return self._by_slot[replica, stage]
        gone = ((account, member) for account, member in self._members.items() if member.stage == stage)
        return next((account for account, member in gone if self._former(member) == replica), None)

    def admissible(self, account: str, stage: int, replica: int) -> bool:
        """Whether the account makes the record of that replica in the stage's next seal."""
        if self._stages[stage].settled >> replica & 1:
            return self._by_slot[replica, stage] == account
        member = self._member(account)
        return member.stage == stage and self._former(member) == replica

    def times_counted(self, account: str) -> int:
        """How many of its stage's last eight non-empty seals counted the member. Raises KeyError for an account without
        a slot."""
        replica, stage = self._slot(account)
        return self._stages[stage].counts[replica].bit_count()

    def counts_for_a_vote(self, stage: int) -> int:
        """How many of these it takes to vote, where any vote was earned."""
        at = self._stages[stage]
        return 2 if at.non_empty >= YOUNG and at.counted(2) else 1

    def was_passed_over(self, replica: int, seals: int, round: int) -> bool:
        """Whether as many non-empty seals in a row of any stage (at most seven), the newest before the round, have not
        counted who holds its slot. The round is open, or later."""
        for stage, at in enumerate(self._stages):
            skipped = int(self.next_round(stage) > round and not at.empties)
            recent = at.counts[replica] >> skipped & (1 << seals) - 1
            if at.non_empty >= seals + skipped and not recent:
                return True
        return False

    def last_round_counted(self, account: str) -> int | None:
        """The last sealed round that counts a contribution of the account."""
        return self._counted.get(account)

    # ---- silence -----------------------------------------------------------------------------------------------------

    @property
    def accusations(self) -> dict[str, Accusation]:
        """Who was asked and has neither answered nor been counted since."""
        asked = (Asked.PRESENCE, Asked.WORK)
        return {
            account: Accusation(member.asked_at, member.asked is Asked.WORK)
            for account in self._by_slot.values()
            if (member := self._members[account]).asked in asked and not self._counted_since_asked(member)
        }

    def should_answer(self, account: str) -> bool:
        """Whether an answer of the account ends a question, or wins it time: it has not answered yet, or was counted
        since."""
        member = self._member(account)
        if not member.holds or member.asked is Asked.NO:
            return False
        return member.asked is not Asked.WORK_ANSWERED or self._counted_since_asked(member)

    def is_forfeit(self, account: str, now: int) -> bool:
        """Whether only work can keep the account's slot."""
        member = self._member(account)
        if not member.holds:
            return False
        at = self._stages[member.stage]
        idle = not at.counts[member.replica] and at.non_empty >= member.since + IDLE_SEALS
        return idle or self._is_stalled(member, now)

    def is_stalled(self, account: str, now: int) -> bool:
        """Whether the account's stage has had no non-empty seal for long while it held a slot, and by its own fault:
        then even its answers do not keep it the slot."""
        return self._member(account).holds and self._is_stalled(self._member(account), now)

    def may_accuse(self, by: str, account: str, now: int) -> bool:
        """Whether an accusation of the account would stand."""
        member = self._member(account)
        if not member.holds or not self._is_open:
            return False
        forfeit = self.is_forfeit(account, now)
        waiting = member.asked is not Asked.NO and not self._counted_since_asked(member)
        if waiting and (member.asked is not Asked.WORK_ANSWERED or forfeit):
            return False
        timeout = self.config.round_timeout
        if member.asked_at and now <= member.asked_at + timeout:
            return False
        if forfeit:
            return True
        idle = self._stages[member.stage].idle_rounds(member.replica) >= UNCOUNTED_ROUNDS
        uncounted = idle and self.next_round(member.stage) >= member.joined_round + UNCOUNTED_ROUNDS
        return self._member(by).holds and (uncounted or now > self._opened_at + timeout)

    def may_evict(self, account: str, now: int) -> bool:
        """Whether the account was asked long enough ago, and no answer counts."""
        member = self._member(account)
        if not member.holds or member.asked is Asked.NO or self._counted_since_asked(member):
            return False
        at = self._stages[member.stage]
        lost = at.non_empty >= member.asked_seal + GRACE_SEALS or self._is_stalled(member, now)
        if member.asked is Asked.WORK_ANSWERED and not lost:
            return False
        return now >= member.asked_at + self.config.eviction_time

    def may_deal(self, replica: int) -> bool:
        """Whether the replica's members may be dealt among the slots of their stages, and that would change one."""
        return self._is_dealable(replica) and bool(self.deal_of(replica))

    def deal_of(self, replica: int) -> tuple[tuple[int, int], ...]:
        """What a deal of a complete replica would do now: its member of `stage` changes places with that in `other`,
        for each (stage, other)."""
        drawn = ((stage, self._drawn(replica, stage)) for stage in range(self.config.stages))
        return tuple((stage, other) for stage, other in drawn if other != replica)

    # ---- verdicts ----------------------------------------------------------------------------------------------------

    def jury(self, stage: int, account: str) -> tuple[str, ...]:
        """Who may convict the account of a contribution to the stage, ascending: all members of the stage with a vote
        that they earned, but the account itself."""
        members = (self._by_slot[replica, stage] for replica in replicas(self._stages[stage].earned))
        return ascending([member for member in members if member != account])

    def convictions_needed(self, stage: int, account: str) -> int:
        """How many of the jury it takes: as many as a seal that is not overdue. The account counts as one vote more
        even if it has none (any more)."""
        return quorum(self.config, len(self.jury(stage, account)) + 1)

    def may_convict(self, stage: int, account: str, signers: Collection[str]) -> bool:
        """Whether verdicts of these accounts against a contribution of the account to the stage convict it now."""
        standing = self._standings.get(account, UNKNOWN)
        if standing.convicted or not standing.stages >> stage & 1:
            return False
        return len({*signers} & {*self.jury(stage, account)}) >= self.convictions_needed(stage, account)

    # ---- helpers -----------------------------------------------------------------------------------------------------

    def _is_dealable(self, replica: int) -> bool:
        if not self._is_open or not self._complete >> replica & 1:
            return False
        settled = self._round >= self._dealt.get(replica, 0) + UNCOUNTED_ROUNDS
        return settled and any(stage.idle_rounds(replica) >= UNCOUNTED_ROUNDS for stage in self._stages)

    def _drawn(self, replica: int, stage: int) -> int:
        """The replica with whose member of the stage that of `replica` changes places."""
        seated = replicas(self._stages[stage].seated)
        digest = keccak(b"".join(map(word, (self._draw, self._round, replica, stage))))
        return seated[int.from_bytes(digest, "big") % len(seated)]

    def _counted_since_asked(self, member: Member) -> bool:
        at = self._stages[member.stage]
        counted = at.counts[member.replica] != 0
        return counted and at.idle_seals(member.replica) < at.non_empty - member.asked_seal

    def _is_stalled(self, member: Member, now: int) -> bool:
        at, timeout = self._stages[member.stage], self.config.round_timeout
        if now <= max(at.worked_at, self.started_at, member.joined_at) + STALLED_TIMEOUTS * timeout:
            return False
        owes = self.next_round(member.stage) == self._round
        return at.empties >= BARREN_SEALS or (owes and now > self._opened_at + LATE_TIMEOUTS * timeout)

    def _electorate(self, stage: int, signers: Collection[str]) -> int:
        """How many votes there are when these sign."""
        return self._stages[stage].voters(self._staffed).bit_count() + len(self._voted(stage, signers)[1])

    def _voted(self, stage: int, signers: Collection[str]) -> tuple[set[int], set[int]]:
        """Replicas: the slots by which these accounts vote on the stage's next seal, and those of records that accounts
        make which have lost such a slot since the last one."""
        voters, voted, former = self._stages[stage].voters(self._staffed), set[int](), set[int]()
        for member in map(self._member, signers):
            made = self._former(member)
            if member.stage != stage:
                continue
            if member.holds and voters >> member.replica & 1:
                voted.add(member.replica)
            elif member.former_vote and made is not None:
                former.add(made)
        if not self.has_earned(stage):  # who took a slot that somebody left since shares its vote
            voted |= former & set(replicas(voters))
            former -= set(replicas(voters))
        return voted, former
