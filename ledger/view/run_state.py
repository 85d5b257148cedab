"""The state of one run, as the contract's structs have it: plain data, and what it says without any rule.

Times are in seconds.
"""

from copy import copy
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import reduce
from operator import and_
from typing import Self

from dlx.ground.errors import DlxError
from dlx.ledger.abi import ZERO32, ascending
from dlx.ledger.events import CheckpointPublished, Convicted, Evaluated, RunCreated, RunEvent
from dlx.ledger.typed import Domain, RunConfig
from dlx.ledger.view.seal_log import SealLog
from dlx.ledger.view.weights import NEVER, NO_ABSENT, Absent, Lanes

NO_REPLICA = 255
MAX_EMPTIES = 255  # that are counted


class Asked(Enum):
    NO = 0
    PRESENCE = 1  # a transaction answers, and so does being counted
    WORK = 2  # only being counted answers
    WORK_ANSWERED = 3  # it said that it is there, which is not enough


@dataclass(frozen=True)
class Accusation:
    """When a member was asked whether it is still there, and whether only work keeps its slot."""

    time: int
    forfeit: bool


@dataclass(frozen=True)
class Return:
    """Who alone may take a slot, and until when."""

    account: str
    until: int


@dataclass(frozen=True)
class Enlisted:
    """Whose machine an account is, which stage it asks for (ANY_STAGE: whichever), and until when the others may place
    it; 0: they did."""

    site: str
    stage: int
    until: int


@dataclass(frozen=True)
class Member:
    """An account that holds, or once held, a slot: as the contract's Member."""

    holds: bool = False
    replica: int = 0  # the last one, where it holds none
    stage: int = 0  # likewise
    lane: int = 0  # likewise
    asked: Asked = Asked.NO
    asked_at: int = 0  # 0: never
    asked_seal: int = 0  # how many non-empty seals the stage had then
    mark: int = 0  # the stage's next round when it took its slot; while it holds none: the stage's non-empty seals then
    took_at: int = 0  # when it took its slot
    since: int = 0  # how many non-empty seals its stage had when it came; while it holds no slot: those without it
    changed_round: int = 0  # 1 + the stage's next round when its slot last changed; 0: never
    former_replica: int = 0  # whose record of round changed_round - 1 it makes; NO_REPLICA: none
    left_at: int = 0  # while it holds no slot: since when
    weight: int = 0  # and the weight that it had then


@dataclass(frozen=True)
class Stay:
    """The lane that an account had, from one epoch of pay to another. `rest`: its pay of the last of them; that of
    those before is with the lane."""

    stage: int
    lane: int
    from_epoch: int
    to_epoch: int
    rest: int


@dataclass(frozen=True)
class Stage:
    """One stage of a run as its slots and seals have left it. Bitmaps have a bit for each replica, `held` for each
    lane."""

    head: bytes  # the digest of its newest seal; before the first one the hash of V[s,0]
    lanes: Lanes
    held: int = 0  # bitmap of the lanes that members have
    slots: int = 0  # bitmap of those that are held
    changed: int = 0  # bitmap of the slots whose first member since the newest seal lost it, or had another before
    non_empty: int = 0  # seals that counted anything
    empties: int = 0  # seals since the last of them, up to MAX_EMPTIES
    epoch: int = 0  # that of its newest non-empty seal, whose pay the lanes have
    epoch_seals: int = 0  # the non-empty ones of that epoch so far
    absent: Absent = NO_ABSENT
    ages_before: tuple[int, ...] = ()  # of the lanes, before the newest non-empty seal

    @property
    def settled(self) -> int:
        """Bitmap of the slots whose members make their records in the next seal."""
        return self.slots & ~self.changed


@dataclass(frozen=True)
class Standing:
    """What the run never forgets of an account: as the contract's Standing."""

    stages: int = 0  # bitmap of those in which it ever held a slot
    convicted: bool = False


NOBODY, UNKNOWN = Member(), Standing()


class ViewError(DlxError, ValueError):
    """Events that contradict the ledger's rules."""


@dataclass(eq=False)
class RunState:
    """As the contract's Run. Bitmaps have a bit for each replica, slots are (replica, stage)."""

    run: bytes
    domain: Domain
    sealed: SealLog
    creation: RunCreated | None = None
    started_at: int = 0  # when round 0 opens; 0: not yet
    round: int = 0  # the open one, or the next; after the last one the number of rounds
    round_opened_at: int = 0  # also after the last round
    draw: int = 0  # what the digests of all seals so far come to: chance that no sender of a transaction chooses
    stages: list[Stage] = field(default_factory=list)
    by_slot: dict[tuple[int, int], str] = field(default_factory=dict)
    accounts: dict[str, Member] = field(default_factory=dict)
    standings: dict[str, Standing] = field(default_factory=dict)
    returns: dict[tuple[int, int], Return] = field(default_factory=dict)  # who may take a slot alone; maybe long past
    vacated: dict[tuple[int, int], int] = field(default_factory=dict)  # when the slot last became free
    broke: dict[int, int] = field(default_factory=dict)  # replica -> the open round when it was last complete
    dealt: dict[int, int] = field(default_factory=dict)  # replica -> that when it was dealt, or complete after a break
    enlistments: dict[str, Enlisted] = field(default_factory=dict)
    stays: dict[str, tuple[Stay, ...]] = field(default_factory=dict)  # those that ended, oldest first
    counted_in: dict[str, int] = field(default_factory=dict)  # account -> the last round that counts it
    gave_back: dict[str, int] = field(default_factory=dict)  # account -> when it last left by itself
    checkpoints: tuple[CheckpointPublished, ...] = ()  # an account's newest of each round, oldest first
    evaluations: dict[str, dict[int, Evaluated]] = field(default_factory=dict)  # account -> version -> its first word
    convictions: tuple[Convicted, ...] = ()  # the newest, oldest first
    due: tuple[RunEvent, ...] = ()  # what the transaction of the last event must have emitted next

    def copy(self) -> Self:
        """A snapshot that later events leave alone. Costs the members, not the history."""
        other = copy(self)
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, dict | list):
                setattr(other, each.name, value.copy())
        other.sealed = self.sealed.copy()
        return other

    # ---- the run -----------------------------------------------------------------------------------------------------

    @property
    def created(self) -> bool:
        """Whether the ledger knows the run: until then `config`, `genesis` and what rests on them raise ViewError."""
        return self.creation is not None

    @property
    def is_whole(self) -> bool:
        """Whether the last transaction can have emitted no further event."""
        return not self.due

    @property
    def creator(self) -> str:
        return self._known.creator

    @property
    def founders(self) -> tuple[str, ...]:
        """Who holds the weight that no work has earned yet."""
        return self._known.founders

    @property
    def config(self) -> RunConfig:
        return self._known.config

    @property
    def name(self) -> str:
        """What people call the run; its manifest has to say the same."""
        return self._known.name

    @property
    def genesis(self) -> tuple[bytes, ...]:
        """The hash of V[s,0] for each stage."""
        return self._known.genesis

    # ---- rounds and versions -----------------------------------------------------------------------------------------

    @property
    def open_round(self) -> int | None:
        """None before round 0 is to open and after the last one is sealed."""
        return self.round if self.is_open else None

    @property
    def opened_at(self) -> int | None:
        """When the open round opened; round 0 may be still to open."""
        return self.round_opened_at if self.is_open else None

    @property
    def finished(self) -> bool:
        """Whether every stage has sealed the run's last round."""
        return self.created and self.round == self.config.rounds

    def next_round(self, stage: int) -> int:
        """The lowest round that the stage has not sealed."""
        return self.sealed.rounds(stage)

    def head(self, stage: int) -> bytes:
        """What the stage's next seal names as the previous one."""
        return self.stage(stage).head

    def weights(self, stage: int, version: int) -> bytes:
        """The hash of V[stage, version]. Raises KeyError for a version not sealed yet."""
        return self.sealed.hashes_after(stage, version - 1)[0] if version else self.genesis[stage]

    def momentum(self, stage: int, version: int) -> bytes:
        """The hash of the outer momentum that goes with V[stage, version]; zero where there is none."""
        return self.sealed.hashes_after(stage, version - 1)[1] if version else ZERO32

    def evaluation(self, account: str, version: int) -> Evaluated | None:
        """What the account said first of a version; None also where that is long ago."""
        return self.evaluations.get(account, {}).get(version)

    # ---- accounts ----------------------------------------------------------------------------------------------------

    def slot_of(self, account: str) -> tuple[int, int] | None:
        """(replica, stage) held by the account."""
        member = self.member(account)
        return (member.replica, member.stage) if member.holds else None

    def joined_at(self, account: str) -> int:
        """When the account last took a slot, in Unix seconds of the block. Raises KeyError for one that never did."""
        return self.accounts[account].took_at

    def answered_at(self, account: str) -> int:
        """When the account was asked last, in Unix seconds of the block, if it has answered; 0 else. Raises KeyError
        for one that never took a slot."""
        member = self.accounts[account]
        return member.asked_at if member.asked in (Asked.NO, Asked.WORK_ANSWERED) else 0

    def member_at(self, replica: int, stage: int) -> str | None:
        return self.by_slot.get((replica, stage))

    def members_in(self, stage: int) -> tuple[str, ...]:
        """Who holds a slot of the stage, ascending."""
        return ascending([account for (_, at), account in self.by_slot.items() if at == stage])

    def members(self) -> dict[str, tuple[int, int]]:
        """Every member's (replica, stage)."""
        return {account: slot for slot, account in sorted(self.by_slot.items())}

    def is_convicted(self, account: str) -> bool:
        """Whether the account lost every right to a slot of the run."""
        return self.standings.get(account, UNKNOWN).convicted

    def last_round_counted(self, account: str) -> int | None:
        """The last sealed round that counts a contribution of the account."""
        return self.counted_in.get(account)

    # ---- what rules rest on ------------------------------------------------------------------------------------------

    @property
    def _known(self) -> RunCreated:
        if self.creation is None:
            raise ViewError(f"the ledger knows no run {self.run.hex()}")
        return self.creation

    @property
    def is_open(self) -> bool:
        return self.round_opened_at != 0 and self.round != self.config.rounds

    @property
    def complete(self) -> int:
        return reduce(and_, (stage.slots for stage in self.stages), -1)

    def stage(self, stage: int) -> Stage:
        """Raises ViewError for a run that the ledger does not know."""
        if stage >= len(self._known.genesis):
            raise ViewError(f"the run has no stage {stage}")
        return self.stages[stage]

    def former_replica(self, member: Member) -> int | None:
        """Whose record the member makes in its stage's next seal, though its slot has changed since the last one."""
        changed = self.changed_now(member) and member.former_replica != NO_REPLICA
        return member.former_replica if changed else None

    def changed_now(self, member: Member) -> bool:
        """Whether the member's slot has changed since its stage's last seal."""
        return member.changed_round == self.next_round(member.stage) + 1

    def member(self, account: str) -> Member:
        return self.accounts.get(account, NOBODY)

    def age_at(self, replica: int, stage: int) -> int:
        """How many non-empty seals in a row have not counted who holds the slot; weights.NEVER stands for more, and for
        a slot of nobody."""
        account = self.by_slot.get((replica, stage))
        return NEVER if account is None else self.stages[stage].lanes.ages[self.accounts[account].lane]
