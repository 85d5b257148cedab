"""What the contract knows of an account, and of those that took part: plain data."""

from dataclasses import dataclass
from enum import Enum

NO_REPLICA = 255


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
    """Whose machine an account is, which stage it asks for (ANY_STAGE: whichever), and until when the others may slot
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
    asked: Asked = Asked.NO
    asked_at: int = 0  # 0: never
    asked_seal: int = 0  # how many non-empty seals the stage had then
    joined_round: int = 0  # the stage's next round when it first took a slot there
    joined_at: int = 0  # when that was; 0: never
    took_at: int = 0  # when it last took a slot
    since: int = 0  # how many non-empty seals its stage had when it came; while it holds no slot: those without it
    changed_round: int = 0  # 1 + the stage's next round when its slot last changed; 0: never
    former_replica: int = 0  # whose record of round changed_round - 1 it makes; NO_REPLICA: none
    former_vote: bool = False  # what it had when it left in that round


@dataclass(frozen=True)
class Standing:
    """What the run never forgets of an account: as the contract's Standing."""

    stages: int = 0  # bitmap of those in which it ever held a slot
    convicted: bool = False


NOBODY, UNKNOWN = Member(), Standing()
