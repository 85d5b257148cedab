"""The state of one run, and what it is: the run, its rounds and versions, slots and sites. `view.RunView` changes it.

Times are in seconds; `now` is the time of the block that a transaction would be in.
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Self

from dlx.ground.errors import DlxError
from dlx.ledger.abi import ZERO32, ascending
from dlx.ledger.events import CheckpointPublished, Convicted, RunCreated, RunEvent
from dlx.ledger.typed import Domain, RunConfig
from dlx.ledger.view.counts import Stage, replicas
from dlx.ledger.view.members import NO_REPLICA, NOBODY, UNKNOWN, Enlisted, Member, Return, Standing
from dlx.ledger.view.seal_log import ReadSeal, SealLog

OVERDUE_TIMEOUTS = 4  # that a round is open until a majority of the earned votes is enough


class ViewError(DlxError, ValueError):
    """Events that contradict the ledger's rules."""


class RunState:
    """As `view.RunView` says."""

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
        self._by_slot: dict[tuple[int, int], str] = {}
        self._members: dict[str, Member] = {}
        self._standings: dict[str, Standing] = {}
        self._returns: dict[tuple[int, int], Return] = {}
        self._vacated: dict[tuple[int, int], int] = {}  # (replica, stage) -> when the slot last became free
        self._broke: dict[int, int] = {}  # replica -> the open round when it was last complete
        self._dealt: dict[int, int] = {}  # replica -> that when it was last dealt, or complete again after a break
        self._enlisted: dict[str, Enlisted] = {}
        self._counted: dict[str, int] = {}
        self._due: tuple[RunEvent, ...] = ()  # what the transaction of the last event must have emitted next

    def copy(self) -> Self:
        """A snapshot that later events leave alone. Costs the members, not the history."""
        other = self.__class__(self.run, self.domain)
        other.__dict__.update(self.__dict__)
        for name in ("members", "by_slot", "standings", "returns", "vacated", "broke", "dealt", "enlisted", "counted"):
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

    # ---- slots -------------------------------------------------------------------------------------------------------

    def slot_of(self, account: str) -> tuple[int, int] | None:
        """(replica, stage) held by the account."""
        member = self._member(account)
        return (member.replica, member.stage) if member.holds else None

    def joined_at(self, account: str) -> int:
        """When the account last took a slot, in Unix seconds of the block. Raises KeyError for one that never did."""
        return self._members[account].took_at

    def member_at(self, replica: int, stage: int) -> str | None:
        return self._by_slot.get((replica, stage))

    def members_in(self, stage: int) -> tuple[str, ...]:
        """Who holds a slot of the stage, ascending."""
        return ascending([account for (_, at), account in self._by_slot.items() if at == stage])

    def members(self) -> dict[str, tuple[int, int]]:
        """Every member's (replica, stage)."""
        return {account: slot for slot, account in sorted(self._by_slot.items())}

    def complete_replicas(self) -> tuple[int, ...]:
        """The replicas with a member for every stage, ascending."""
        return replicas(self._complete)

    @property
    def returns(self) -> dict[tuple[int, int], Return]:
        """(replica, stage) -> who may take that slot alone, and until when: possibly long past."""
        return dict(self._returns)

    def free_slot(self, stage: int, account: str, now: int) -> int | None:
        """The lowest replica whose slot of the stage the account could take."""
        return next(
            (replica for replica in range(self.config.max_replicas) if self.is_free(replica, stage, account, now)), None
        )

    def is_free(self, replica: int, stage: int, account: str, now: int) -> bool:
        """Whether nobody holds the slot, and it waits for nobody else than the account."""
        kept = self._returns.get((replica, stage))
        reserved = kept is not None and kept.until >= now and kept.account != account
        vacated = kept is None and self._vacated.get((replica, stage), -1) >= now  # nobody hands a slot on
        return (replica, stage) not in self._by_slot and not reserved and not vacated

    def may_move(self, account: str, now: int) -> bool:
        """Whether the account could move to a lower replica, from one that is not complete."""
        slot = self.slot_of(account)
        if slot is None or self._complete >> slot[0] & 1:
            return False
        free = self.free_slot(slot[1], account, now)
        return free is not None and free < slot[0]

    def is_convicted(self, account: str) -> bool:
        """Whether the account lost every right to a slot of the run."""
        return self._standings.get(account, UNKNOWN).convicted

    # ---- sites -------------------------------------------------------------------------------------------------------

    def enlisted(self, site: str, now: int) -> dict[str, int]:
        """The accounts that the site's machines may slot, with the stage that each asks for, in the order in which they
        enlisted first."""
        listed = self._enlisted.items()
        return {
            account: one.stage
            for account, one in listed
            if one.site == site and one.until >= now and not self._member(account).holds
        }

    def enlisted_until(self, account: str) -> int:
        """Until when the others of its site may slot the account; 0: not."""
        return self._enlisted[account].until if account in self._enlisted else 0

    def may_slot(self, site: str, replica: int, accounts: Sequence[str], now: int) -> bool:
        """Whether any machine of the site may slot these accounts, one for each stage, in the replica: each holds its
        slot there already, or is enlisted and may take it. Whether they are registered is not looked at."""
        if len(accounts) != self.config.stages or replica >= self.config.max_replicas:
            return False
        if len({*accounts}) < len(accounts) or any(self.site_of(account) != site for account in accounts):
            return False
        return all(
            self.member_at(replica, stage) == account or self.may_take(account, replica, stage, now)
            for stage, account in enumerate(accounts)
        )

    def may_take(self, account: str, replica: int, stage: int, now: int) -> bool:
        """Whether its site may slot the account there. Whether it is registered is not looked at."""
        member = self._member(account)
        able = not member.holds and not self.finished and not self.is_convicted(account)
        stays = stage == member.stage or not self._changed_now(member)
        return able and stays and self.enlisted_until(account) >= now and self.is_free(replica, stage, account, now)

    def site_of(self, account: str) -> str | None:
        """The site that last named the account its own."""
        return self._enlisted[account].site if account in self._enlisted else None

    def site_at(self, replica: int) -> str | None:
        """The site whose machines hold all slots of the replica; None where there is none."""
        members = [self.member_at(replica, stage) for stage in range(self.config.stages)]
        sites = {self.site_of(account) if account else None for account in members}
        return sites.pop() if len(sites) == 1 else None

    # ---- helpers -----------------------------------------------------------------------------------------------------

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

    def _former(self, member: Member) -> int | None:
        """Whose record the member makes in its stage's next seal, though its slot has changed since the last one."""
        changed = self._changed_now(member) and member.former_replica != NO_REPLICA
        return member.former_replica if changed else None

    def _changed_now(self, member: Member) -> bool:
        """Whether the member's slot has changed since its stage's last seal."""
        return member.changed_round == self.next_round(member.stage) + 1

    def _member(self, account: str) -> Member:
        return self._members.get(account, NOBODY)

    def _slot(self, account: str) -> tuple[int, int]:
        slot = self.slot_of(account)
        if slot is None:
            raise KeyError(account)
        return slot
