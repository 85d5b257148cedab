"""One run as the contract sees it, recomputed from its events alone: no I/O, no clock.

`RunView.apply` refuses events that the contract cannot have emitted in that order (ViewError): then the chain node
that delivered them is wrong or incomplete. It does not recount the votes for a seal or a conviction: see verify. Times
are in seconds; `now` is the time of the block that a transaction would be in.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import reduce
from operator import and_
from typing import Self

from eth_hash.auto import keccak

from dlx.ground.errors import DlxError
from dlx.ledger.abi import ZERO32, ascending, word
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
    RunEvent,
    RunOpened,
    Sealed,
    SiteEnlisted,
    SiteSeated,
)
from dlx.ledger.seal_log import ReadSeal, SealLog
from dlx.ledger.typed import MAX_REPLICAS, Domain, RunConfig
from dlx.ledger.votes import YOUNG, Stage, quorum, replicas

IDLE_SEALS = 8  # non-empty seals without a count after which a seat is forfeit
GRACE_SEALS = 16  # more of them until a forfeit seat whose holder answered is lost
STALLED_TIMEOUTS = 32  # round timeouts without a non-empty seal after which a stage's seats are forfeit and lost,
LATE_TIMEOUTS = 8  # if its round has been open for so many,
BARREN_SEALS = 8  # or so many of its seals in a row were empty
OVERDUE_TIMEOUTS = 4  # that a round is open until a majority of the earned votes is enough
NO_REPLICA = 255
MAX_CHECKPOINTS = 256  # that a view remembers: anybody may publish as many as it pays for
MAX_CONVICTIONS = 256  # likewise: their entries are long
MAX_STAGES = 64
UNCOUNTED_ROUNDS = 3  # after which a replica may be dealt and a holder be asked


class ViewError(DlxError, ValueError):
    """Events that contradict the ledger's rules."""


class Asked(Enum):
    NO = 0
    PRESENCE = 1  # a transaction answers, and so does being counted
    WORK = 2  # only being counted answers
    WORK_ANSWERED = 3  # it said that it is there, which is not enough


@dataclass(frozen=True)
class Accusation:
    """When a holder was asked whether it is still there, and whether only work keeps its seat."""

    time: int
    forfeit: bool


@dataclass(frozen=True)
class Return:
    """Who alone may take a seat, and until when."""

    account: str
    until: int


@dataclass(frozen=True)
class Enlisted:
    """Whose machine an account is, which stage it asks for (ANY_STAGE: whichever), and until when the others may seat
    it; 0: they did."""

    site: str
    stage: int
    until: int


@dataclass(frozen=True)
class Member:
    """An account that holds, or once held, a seat: as the contract's Member."""

    holds: bool = False
    replica: int = 0  # the last one, where it holds none
    stage: int = 0  # likewise
    asked: Asked = Asked.NO
    asked_at: int = 0  # 0: never
    asked_seal: int = 0  # how many non-empty seals the stage had then
    joined_round: int = 0  # the stage's next round when it first took a seat there
    joined_at: int = 0  # when that was; 0: never
    took_at: int = 0  # when it last took a seat
    since: int = 0  # how many non-empty seals its stage had when it came; while it holds no seat: those without it
    changed_round: int = 0  # 1 + the stage's next round when its seat last changed; 0: never
    former_replica: int = 0  # whose record of round changed_round - 1 it makes; NO_REPLICA: none
    former_vote: bool = False  # what it had when it left in that round


@dataclass(frozen=True)
class Standing:
    """What the run never forgets of an account: as the contract's Standing."""

    stages: int = 0  # bitmap of those in which it ever held a seat
    convicted: bool = False


_NOBODY, _UNKNOWN = Member(), Standing()


class RunView:
    """The state of one run after the events applied so far. Give it every event of the run, in order.

    `keep`: how many of each stage's newest seals `sealed` has in full, with their records; None: all. Of the others 80
    bytes each stay: the hashes that they gave, and sums; `older(stage, round)`, where given, has all of them.
    """

    def __init__(self, run: bytes, domain: Domain, keep: int | None = None, older: ReadSeal | None = None) -> None:
        self.run, self.domain = run, domain
        self.started_at = 0  # when round 0 opens; 0: not yet
        self.sealed = SealLog(keep, older)
        self.checkpoints: tuple[CheckpointPublished, ...] = ()  # an account's newest of each round, oldest first
        self.convictions: tuple[Convicted, ...] = ()  # the newest, oldest first
        self._created: RunCreated | None = None
        self._round = self._opened_at = 0  # also after the last round
        self._draw = 0
        self._staffed = 0  # bitmap of the replicas that were ever complete
        self._stages: list[Stage] = []
        self._holders: dict[tuple[int, int], str] = {}
        self._members: dict[str, Member] = {}
        self._standings: dict[str, Standing] = {}
        self._returns: dict[tuple[int, int], Return] = {}
        self._vacated: dict[tuple[int, int], int] = {}  # (replica, stage) -> when the seat last became free
        self._broke: dict[int, int] = {}  # replica -> the open round when it was last complete
        self._dealt: dict[int, int] = {}  # replica -> that when it was last dealt, or complete again after a break
        self._enlisted: dict[str, Enlisted] = {}
        self._counted: dict[str, int] = {}
        self._due: tuple[RunEvent, ...] = ()  # what the transaction of the last event must have emitted next

    def copy(self) -> Self:
        """A snapshot that later events leave alone. Costs the members, not the history."""
        other = self.__class__(self.run, self.domain)
        other.__dict__.update(self.__dict__)
        for name in ("holders", "members", "standings", "returns", "vacated", "broke", "dealt", "enlisted", "counted"):
            setattr(other, f"_{name}", dict(getattr(self, f"_{name}")))
        other._stages = list(self._stages)
        other.sealed = self.sealed.copy()
        return other

    # ---- the run -----------------------------------------------------------------------------------------------------

    @property
    def created(self) -> bool:
        """Whether the ledger knows the run: until then `config`, `genesis` and what rests on them raise ViewError."""
        return self._created is not None

    @property
    def is_whole(self) -> bool:
        """Whether the last transaction can have emitted no further event."""
        return not self._due

    @property
    def creator(self) -> str:
        return self._creation.creator

    @property
    def config(self) -> RunConfig:
        return self._creation.config

    @property
    def name(self) -> str:
        """What people call the run; its manifest has to say the same."""
        return self._creation.name

    @property
    def genesis(self) -> tuple[bytes, ...]:
        """The hash of V[s,0] for each stage."""
        return self._creation.genesis

    # ---- rounds and versions -----------------------------------------------------------------------------------------

    @property
    def open_round(self) -> int | None:
        """None before round 0 is to open and after the last one is sealed."""
        return self._round if self._is_open else None

    @property
    def opened_at(self) -> int | None:
        """When the open round opened; round 0 may be still to open."""
        return self._opened_at if self._is_open else None

    @property
    def finished(self) -> bool:
        """Whether every stage has sealed the run's last round."""
        return self.created and self._round == self.config.rounds

    def next_round(self, stage: int) -> int:
        """The lowest round that the stage has not sealed."""
        return self.sealed.rounds(stage)

    def head(self, stage: int) -> bytes:
        """What the stage's next seal names as the previous one."""
        return self._stage(stage).head

    def weights(self, stage: int, version: int) -> bytes:
        """The hash of V[stage, version]. Raises KeyError for a version not sealed yet."""
        return self.sealed.hashes_after(stage, version - 1)[0] if version else self.genesis[stage]

    def momentum(self, stage: int, version: int) -> bytes:
        """The hash of the outer momentum that goes with V[stage, version]; zero where there is none."""
        return self.sealed.hashes_after(stage, version - 1)[1] if version else ZERO32

    # ---- seats -------------------------------------------------------------------------------------------------------

    def slot_of(self, account: str) -> tuple[int, int] | None:
        """(replica, stage) held by the account."""
        member = self._member(account)
        return (member.replica, member.stage) if member.holds else None

    def joined_at(self, account: str) -> int:
        """When the account last took a seat, in Unix seconds of the block. Raises KeyError for one that never did."""
        return self._members[account].took_at

    def holder(self, replica: int, stage: int) -> str | None:
        return self._holders.get((replica, stage))

    def holders(self, stage: int) -> tuple[str, ...]:
        """Who holds a seat of the stage, ascending."""
        return ascending([account for (_, at), account in self._holders.items() if at == stage])

    def members(self) -> dict[str, tuple[int, int]]:
        """Every holder's (replica, stage)."""
        return {account: slot for slot, account in sorted(self._holders.items())}

    def complete_replicas(self) -> tuple[int, ...]:
        """The replicas with a holder for every stage, ascending."""
        return replicas(self._complete)

    @property
    def returns(self) -> dict[tuple[int, int], Return]:
        """(replica, stage) -> who may take that seat alone, and until when: possibly long past."""
        return dict(self._returns)

    def free_seat(self, stage: int, account: str, now: int) -> int | None:
        """The lowest replica whose seat of the stage the account could take."""
        return next(
            (replica for replica in range(self.config.max_replicas) if self.is_free(replica, stage, account, now)), None
        )

    def is_free(self, replica: int, stage: int, account: str, now: int) -> bool:
        """Whether nobody holds the seat, and it waits for nobody else than the account."""
        kept = self._returns.get((replica, stage))
        reserved = kept is not None and kept.until >= now and kept.account != account
        vacated = kept is None and self._vacated.get((replica, stage), -1) >= now  # nobody hands a seat on
        return (replica, stage) not in self._holders and not reserved and not vacated

    def may_move(self, account: str, now: int) -> bool:
        """Whether the account could move to a lower replica, from one that is not complete."""
        slot = self.slot_of(account)
        if slot is None or self._complete >> slot[0] & 1:
            return False
        free = self.free_seat(slot[1], account, now)
        return free is not None and free < slot[0]

    # ---- sites -------------------------------------------------------------------------------------------------------

    def enlisted(self, site: str, now: int) -> dict[str, int]:
        """The accounts that the site's machines may seat, with the stage that each asks for, in the order in which they
        enlisted first."""
        listed = self._enlisted.items()
        return {
            account: one.stage
            for account, one in listed
            if one.site == site and one.until >= now and not self._member(account).holds
        }

    def enlisted_until(self, account: str) -> int:
        """Until when the others of its site may seat the account; 0: not."""
        return self._enlisted[account].until if account in self._enlisted else 0

    def may_seat(self, site: str, replica: int, accounts: Sequence[str], now: int) -> bool:
        """Whether any machine of the site may seat these accounts, one for each stage, in the replica: each holds its
        seat there already, or is enlisted and may take it. Whether they are registered is not looked at."""
        if len(accounts) != self.config.stages or replica >= self.config.max_replicas:
            return False
        if len({*accounts}) < len(accounts) or any(self.site_of(account) != site for account in accounts):
            return False
        return all(
            self.holder(replica, stage) == account or self.may_take(account, replica, stage, now)
            for stage, account in enumerate(accounts)
        )

    def may_take(self, account: str, replica: int, stage: int, now: int) -> bool:
        """Whether its site may seat the account there. Whether it is registered is not looked at."""
        member = self._member(account)
        able = not member.holds and not self.finished and not self.is_convicted(account)
        stays = stage == member.stage or not self._changed_now(member)
        return able and stays and self.enlisted_until(account) >= now and self.is_free(replica, stage, account, now)

    def site_of(self, account: str) -> str | None:
        """The site that last named the account its own."""
        return self._enlisted[account].site if account in self._enlisted else None

    def site_at(self, replica: int) -> str | None:
        """The site whose machines hold all seats of the replica; None where there is none."""
        holders = [self.holder(replica, stage) for stage in range(self.config.stages)]
        sites = {self.site_of(account) if account else None for account in holders}
        return sites.pop() if len(sites) == 1 else None

    # ---- votes and records -------------------------------------------------------------------------------------------

    def voters(self, stage: int) -> tuple[str, ...]:
        """The holders who vote on the stage's next seal, ascending; see also `may_vote`."""
        seats = replicas(self._stage(stage).voters(self._staffed))
        return ascending([self._holders[replica, stage] for replica in seats])

    def has_earned(self, stage: int) -> bool:
        """Whether any vote of the stage was earned by work."""
        return self._stage(stage).earned != 0

    def quorum(self, stage: int) -> int:
        """The votes that the stage's next seal needs of its voters while the round is not overdue."""
        return quorum(self.config, self._stages[stage].voters(self._staffed).bit_count())

    def votes(self, stage: int, signers: Collection[str]) -> int:
        """How many votes these signatures would be: each is its holder's, or of who had one and left this round."""
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
        """Who makes the record of the replica in the stage's next seal, wherever it sits now: who held the seat at the
        newest seal, or, where it was free, took it first since and had no other; None where nobody did yet."""
        if self._stages[stage].settled >> replica & 1:
            return self._holders[replica, stage]
        gone = ((account, member) for account, member in self._members.items() if member.stage == stage)
        return next((account for account, member in gone if self._former(member) == replica), None)

    def admissible(self, account: str, stage: int, replica: int) -> bool:
        """Whether the account makes the record of that replica in the stage's next seal."""
        if self._stages[stage].settled >> replica & 1:
            return self._holders[replica, stage] == account
        member = self._member(account)
        return member.stage == stage and self._former(member) == replica

    def times_counted(self, account: str) -> int:
        """How many of its stage's last eight non-empty seals counted the holder. Raises KeyError for an account without
        a seat."""
        replica, stage = self._seat(account)
        return self._stages[stage].counts[replica].bit_count()

    def counts_for_a_vote(self, stage: int) -> int:
        """How many of these it takes to vote, where any vote was earned."""
        at = self._stages[stage]
        return 2 if at.non_empty >= YOUNG and at.counted(2) else 1

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
            for account in self._holders.values()
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
        """Whether only work can keep the account's seat."""
        member = self._member(account)
        if not member.holds:
            return False
        at = self._stages[member.stage]
        idle = not at.counts[member.replica] and at.non_empty >= member.since + IDLE_SEALS
        return idle or self._is_stalled(member, now)

    def is_stalled(self, account: str, now: int) -> bool:
        """Whether the account's stage has had no non-empty seal for long while it held a seat, and by its own fault:
        then even its answers do not keep it the seat."""
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
        """Whether the replica's holders may be dealt among the seats of their stages, and that would change one."""
        return self._is_dealable(replica) and bool(self.deal_of(replica))

    def deal_of(self, replica: int) -> tuple[tuple[int, int], ...]:
        """What a deal of a complete replica would do now: its holder of `stage` changes places with that in `other`,
        for each (stage, other)."""
        drawn = ((stage, self._drawn(replica, stage)) for stage in range(self.config.stages))
        return tuple((stage, other) for stage, other in drawn if other != replica)

    # ---- verdicts ----------------------------------------------------------------------------------------------------

    def is_convicted(self, account: str) -> bool:
        """Whether the account lost every right to a seat of the run."""
        return self._standings.get(account, _UNKNOWN).convicted

    def jury(self, stage: int, account: str) -> tuple[str, ...]:
        """Who may convict the account of a contribution to the stage, ascending: all holders of the stage with a vote
        that they earned, but the account itself."""
        holders = (self._holders[replica, stage] for replica in replicas(self._stages[stage].earned))
        return ascending([holder for holder in holders if holder != account])

    def convictions_needed(self, stage: int, account: str) -> int:
        """How many of the jury it takes: as many as a seal that is not overdue, and a majority. The account counts as
        one vote more even if it has none (any more)."""
        votes = len(self.jury(stage, account)) + 1
        return max(quorum(self.config, votes), votes // 2 + 1)

    def may_convict(self, stage: int, account: str, signers: Collection[str]) -> bool:
        """Whether verdicts of these accounts against a contribution of the account to the stage convict it now."""
        standing = self._standings.get(account, _UNKNOWN)
        if standing.convicted or not standing.stages >> stage & 1:
            return False
        return len({*signers} & {*self.jury(stage, account)}) >= self.convictions_needed(stage, account)

    # ---- events ------------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Takes the next event; those of other runs and of the registry change nothing. Raises ViewError."""
        if getattr(event, "run", None) != self.run:
            return
        due, self._due = self._due[:1], self._due[1:]
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
                self._enlisted[event.account] = Enlisted(event.site, event.stage, event.until)
            case SiteSeated():
                self._seat_site(event)
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
                others = (one for one in self.checkpoints if (one.account, one.round) != mine)
                self.checkpoints = (*others, event)[-MAX_CHECKPOINTS:]

    @property
    def _creation(self) -> RunCreated:
        if self._created is None:
            raise ViewError(f"the ledger knows no run {self.run.hex()}")
        return self._created

    @property
    def _is_open(self) -> bool:
        return self._opened_at != 0 and self._round != self.config.rounds

    @property
    def _overdue_at(self) -> int:
        return self._opened_at + OVERDUE_TIMEOUTS * self.config.round_timeout

    @property
    def _complete(self) -> int:
        return reduce(and_, (stage.seated for stage in self._stages), -1)

    def _stage(self, stage: int) -> Stage:
        """Raises ViewError for a run that the ledger does not know."""
        if stage >= len(self._creation.genesis):
            raise ViewError(f"the run has no stage {stage}")
        return self._stages[stage]

    def _create(self, event: RunCreated) -> None:
        if self._created is not None or len(event.genesis) != event.config.stages:
            raise ViewError("the run was created twice, or with another number of stages than genesis hashes")
        if not _is_config(event.config):
            raise ViewError(f"the run was created with {event.config}")
        self._created = event
        self._stages = [Stage(weights) for weights in event.genesis]

    def _open(self, event: RunOpened, due: bool) -> None:
        if not due:
            raise ViewError("round 0 opened before enough replicas were complete")
        self._opened_at = self.started_at = event.opened_at

    def _expect_opening(self, event: Joined | Moved) -> None:
        """Round 0 opens with the transaction that completes enough replicas."""
        if not self._opened_at and self._complete.bit_count() >= self.config.min_replicas:
            self._due += (RunOpened(self.run, max(self.config.start_time, event.at.time), event.at),)

    # ---- seats -------------------------------------------------------------------------------------------------------

    def _seat_site(self, event: SiteSeated) -> None:
        if not self.may_seat(event.site, event.replica, event.accounts, event.at.time):
            raise ViewError(f"site {event.site} cannot have taken replica {event.replica}")
        places = enumerate(event.accounts)
        newcomers = [(stage, account) for stage, account in places if self.holder(event.replica, stage) != account]
        self._due = tuple(Joined(self.run, account, event.replica, stage, event.at) for stage, account in newcomers)

    def _join(self, event: Joined, due: bool) -> None:
        """`due`: its site took this seat for it."""
        account, replica, stage, now = event.account, event.replica, event.stage, event.at.time
        before = self._member(account)
        if before.holds or self.finished or stage >= self.config.stages or self.is_convicted(account):
            raise ViewError(f"{account} cannot have joined stage {stage}")
        own = (before.replica, before.stage)
        kept = self._returns.get(own)
        returns = kept is not None and kept.account == account and kept.until >= now and own not in self._holders
        stays = before.joined_at != 0 and stage == before.stage  # then leaving and joining again wipes nothing
        seat = before.replica if returns and stage == before.stage else self.free_seat(stage, account, now)
        if replica != seat and not due:
            raise ViewError(f"{account} cannot have joined seat ({replica}, {stage}): the free one was {seat}")
        if stage != before.stage and self._changed_now(before):
            raise ViewError(f"{account} changed stage before its old one's next seal")
        if not stays:
            before = replace(
                before, changed_round=0, asked=Asked.NO, joined_round=self.next_round(stage), joined_at=now
            )
            standing = self._standings.get(account, _UNKNOWN)
            self._standings[account] = replace(standing, stages=standing.stages | 1 << stage)
        since = max(0, self._stages[stage].non_empty - before.since)
        member = replace(before, holds=True, replica=replica, stage=stage, since=since, took_at=now)
        if account in self._enlisted:
            self._enlisted[account] = replace(self._enlisted[account], until=0)
        self._members[account] = member
        if self._changed_now(member):
            self._change(replica, stage)
        self._sit(account, replica, stage)
        self._expect_opening(event)

    def _release(self, account: str, replica: int, stage: int, now: int) -> bool:
        """Takes the account's seat; whether one of the last eight non-empty seals counted it."""
        member, at = self._held_by(account, replica, stage), self._stages[stage]
        counted = at.counts[replica] != 0
        member, voted = self._noted(member), bool(at.voters(self._staffed) >> replica & 1)
        unasked = member.asked in (Asked.NO, Asked.PRESENCE)
        self._members[account] = replace(
            member,
            holds=False,
            asked=Asked.NO if unasked else Asked.WORK_ANSWERED,
            former_vote=member.former_vote or voted,
            since=0 if counted else at.non_empty - member.since,
        )
        self._stages[stage] = at.counts_at(replica, 0)
        self._stand(replica, stage, now)
        return counted

    def _move(self, event: Moved) -> None:
        account, stage = event.account, event.stage
        member = self._held_by(account, event.from_replica, stage)
        complete = self._complete >> event.from_replica & 1
        if complete or event.to_replica != self.free_seat(stage, account, event.at.time):
            raise ViewError(f"{account} cannot have moved to ({event.to_replica}, {stage})")
        if event.to_replica >= event.from_replica:
            raise ViewError(f"{account} moved up")
        byte = self._stages[stage].counts[event.from_replica]
        self._members[account] = replace(self._noted(member), replica=event.to_replica)
        self._stages[stage] = self._stages[stage].counts_at(event.from_replica, 0).counts_at(event.to_replica, byte)
        self._stand(event.from_replica, stage, event.at.time)
        self._change(event.to_replica, stage)
        self._sit(account, event.to_replica, stage)
        self._expect_opening(event)

    def _deal(self, event: Dealt, due: bool) -> None:
        stage, replica, other = event.stage, event.replica, event.other
        if not due:
            swaps = self.deal_of(replica) if self._is_dealable(replica) else ()
            if (stage, other) not in swaps[:1]:
                raise ViewError(f"replica {replica} cannot have been dealt")
            self._due = tuple(Dealt(self.run, at, replica, to, event.at) for at, to in swaps[1:])
        counts = self._stages[stage].counts
        seats = ((replica, other), (other, replica))
        holders = [self._holders[seat, stage] for seat, _ in seats]
        members = [self._noted(self._members[account]) for account in holders]
        for account, member, (seat, to) in zip(holders, members, seats, strict=True):
            self._members[account] = replace(member, replica=to)
            self._holders[to, stage] = account
            self._stages[stage] = self._stages[stage].counts_at(to, counts[seat])
            self._change(to, stage)
            self._dealt[to] = self._round

    def _is_dealable(self, replica: int) -> bool:
        if not self._is_open or not self._complete >> replica & 1:
            return False
        settled = self._round >= self._dealt.get(replica, 0) + UNCOUNTED_ROUNDS
        return settled and any(stage.idle_rounds(replica) >= UNCOUNTED_ROUNDS for stage in self._stages)

    def _drawn(self, replica: int, stage: int) -> int:
        """The replica with whose holder of the stage that of `replica` changes places."""
        seated = replicas(self._stages[stage].seated)
        digest = keccak(b"".join(map(word, (self._draw, self._round, replica, stage))))
        return seated[int.from_bytes(digest, "big") % len(seated)]

    def _sit(self, account: str, replica: int, stage: int) -> None:
        self._holders[replica, stage] = account
        self._stages[stage] = self._stages[stage].held_at(replica, True)
        self._staffed |= self._complete & 1 << replica
        if self._complete >> replica & 1 and self._round > self._broke.get(replica, 0) + 1:
            self._dealt[replica] = self._round  # who leaves and comes back does not put off that the replica is dealt

    def _stand(self, replica: int, stage: int, now: int) -> None:
        if self._complete >> replica & 1:
            self._broke[replica] = self._round
        del self._holders[replica, stage]
        self._stages[stage] = self._stages[stage].held_at(replica, False)
        self._change(replica, stage)
        self._vacated[replica, stage] = now
        self._returns.pop((replica, stage), None)

    def _change(self, replica: int, stage: int) -> None:
        """Whoever holds the seat from now on does not make its record in the stage's next seal."""
        if self._opened_at:
            self._stages[stage] = self._stages[stage].changed_at(replica)

    def _noted(self, member: Member) -> Member:
        """The member with whose record it makes in its stage's next seal, before its seat changes."""
        if self._changed_now(member) or not self._opened_at:
            return member
        makes = not self._stages[member.stage].changed >> member.replica & 1
        return replace(
            member,
            changed_round=self.next_round(member.stage) + 1,
            former_replica=member.replica if makes else NO_REPLICA,
            former_vote=False,
        )

    def _former(self, member: Member) -> int | None:
        """Whose record the member makes in its stage's next seal, though its seat has changed since the last one."""
        changed = self._changed_now(member) and member.former_replica != NO_REPLICA
        return member.former_replica if changed else None

    def _changed_now(self, member: Member) -> bool:
        """Whether the member's seat has changed since its stage's last seal."""
        return member.changed_round == self.next_round(member.stage) + 1

    def _member(self, account: str) -> Member:
        return self._members.get(account, _NOBODY)

    def _seat(self, account: str) -> tuple[int, int]:
        slot = self.slot_of(account)
        if slot is None:
            raise KeyError(account)
        return slot

    def _held_by(self, account: str, replica: int, stage: int) -> Member:
        if self.slot_of(account) != (replica, stage):
            raise ViewError(f"{account} does not hold seat ({replica}, {stage})")
        return self._members[account]

    # ---- silence -----------------------------------------------------------------------------------------------------

    def _accuse(self, event: Accused) -> None:
        now = event.at.time
        if not self.may_accuse(event.by, event.account, now) or event.forfeit != self.is_forfeit(event.account, now):
            raise ViewError(f"{event.by} cannot have accused {event.account}")
        member = self._members[event.account]
        asked = Asked.WORK if event.forfeit else Asked.PRESENCE
        seals = self._stages[member.stage].non_empty
        self._members[event.account] = replace(member, asked=asked, asked_at=now, asked_seal=seals)

    def _answer(self, event: Answered) -> None:
        member = self._member(event.account)
        if not self.should_answer(event.account):
            raise ViewError(f"{event.account} answered no accusation")
        in_time = member.asked is Asked.PRESENCE or self._counted_since_asked(member)
        asked = Asked.NO if in_time else Asked.WORK_ANSWERED
        self._members[event.account] = replace(member, asked=asked)

    def _evict(self, event: Evicted) -> None:
        if not self.may_evict(event.account, event.at.time):
            raise ViewError(f"{event.account} cannot have been evicted")
        counted = self._release(event.account, event.replica, event.stage, event.at.time)
        self._members[event.account] = replace(self._members[event.account], asked=Asked.NO)
        until = event.at.time + self.config.eviction_time if counted else 0
        if event.return_until != until:
            raise ViewError(f"{event.account} may return until {until}, not {event.return_until}")
        if counted:
            self._returns[event.replica, event.stage] = Return(event.account, until)

    def _convict(self, event: Convicted) -> None:
        account, standing = event.account, self._standings.get(event.account, _UNKNOWN)
        if standing.convicted or not standing.stages >> event.stage & 1:
            raise ViewError(f"{account} cannot have been convicted in stage {event.stage}")
        self._standings[account] = replace(standing, convicted=True)
        self.convictions = (*self.convictions, event)[-MAX_CONVICTIONS:]
        if (slot := self.slot_of(account)) is not None:
            self._release(account, *slot, event.at.time)

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

    # ---- seals -------------------------------------------------------------------------------------------------------

    def _seal(self, event: Sealed) -> None:
        stage, round = event.stage, event.round
        if stage >= self.config.stages or not round == self.open_round == self.next_round(stage):
            raise ViewError(f"round {round} of stage {stage} was sealed out of order")
        if event.at.time < self.opens_at(stage, event.count):
            raise ViewError(f"round {round} of stage {stage} was sealed too early")
        outcome, most = event.outcome, self.config.max_inner_steps
        steps = [outcome.inner_steps, outcome.plan.inner_steps, *(record.inner_steps for record in event.records)]
        if min(steps) < 1 or max(steps[:2]) > most or max(steps[2:], default=0) > outcome.inner_steps:
            raise ViewError(f"round {round} of stage {stage} has inner steps out of range")
        if not event.records and any(map(any, outcome.hashes)):
            raise ViewError(f"round {round} of stage {stage} counts nothing and changes something")
        accounts, counted = self._makers(event)
        self.sealed.append(replace(event, accounts=accounts), self.genesis[stage])
        for account in accounts:
            self._counted[account] = round
        self._stages[stage] = self._stages[stage].sealed(event.digest, counted, not event.records, event.at.time)
        self._draw ^= int.from_bytes(event.digest[-7:], "big")
        if all(self.next_round(each) > round for each in range(self.config.stages)):
            self._round, self._opened_at = round + 1, event.at.time

    def _makers(self, event: Sealed) -> tuple[tuple[str, ...], int]:
        """Who made each record, and the bitmap of the seats that it counts for. Raises ViewError where a maker cannot
        be."""
        found, counted = [], 0
        for record in event.records:
            maker = self.maker(record.replica, event.stage)
            if maker is None:
                raise ViewError(
                    f"round {event.round} of stage {event.stage} counts replica {record.replica}: of nobody"
                )
            found.append(maker)
            member = self._members[maker]
            counted |= 1 << member.replica if member.holds else 0
        return tuple(found), counted

    def _electorate(self, stage: int, signers: Collection[str]) -> int:
        """How many votes there are when these sign."""
        return self._stages[stage].voters(self._staffed).bit_count() + len(self._voted(stage, signers)[1])

    def _voted(self, stage: int, signers: Collection[str]) -> tuple[set[int], set[int]]:
        """Replicas: the seats by which these accounts vote on the stage's next seal, and those of records that accounts
        make which have lost such a seat since the last one."""
        voters, voted, former = self._stages[stage].voters(self._staffed), set[int](), set[int]()
        for member in map(self._member, signers):
            made = self._former(member)
            if member.stage != stage:
                continue
            if member.holds and voters >> member.replica & 1:
                voted.add(member.replica)
            elif member.former_vote and made is not None:
                former.add(made)
        if not self.has_earned(stage):  # who took a seat that somebody left since shares its vote
            voted |= former & set(replicas(voters))
            former -= set(replicas(voters))
        return voted, former


def _is_config(config: RunConfig) -> bool:
    """Whether the contract creates runs with it."""
    return (
        1 <= config.rounds < 2**32 - 1
        and 1 <= config.stages <= MAX_STAGES
        and 1 <= config.min_replicas <= config.max_replicas <= MAX_REPLICAS
        and 1 <= config.quorum_numerator <= config.quorum_denominator
        and 1 <= config.min_round_time <= config.round_timeout
        and min(config.eviction_time, config.max_inner_steps, config.tokens_per_step) >= 1
        and config.start_time < 2**40
    )
