"""One run as the contract sees it, recomputed from its events alone: no I/O, no clock.

`RunView.apply` refuses events that the contract cannot have emitted in that order (ViewError): then the chain node
that delivered them is wrong or incomplete.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

from dlx.ground.errors import DlxError
from dlx.ledger.abi import ZERO32, ascending
from dlx.ledger.events import (
    Accused,
    Answered,
    CheckpointPublished,
    Event,
    Evicted,
    Joined,
    Left,
    Moved,
    RoundOpened,
    RunCreated,
    Sealed,
)
from dlx.ledger.keys import SignatureError
from dlx.ledger.typed import RunConfig, TypedError

ACTIVE_ROUNDS = 3  # an account is active when counted or signing in one of the stage's last so many sealed rounds
ANSWER_BLOCKS = 5  # blocks that must follow an accusation before an eviction


class ViewError(DlxError, ValueError):
    """Events that contradict the ledger's rules."""


@dataclass(frozen=True)
class Accusation:
    """When a holder was asked whether it is still there; time in seconds."""

    round: int
    block: int
    time: int


@dataclass(frozen=True)
class Member:
    """An account that holds, or once held, a slot. Rounds as in the contract: 1 + the round, 0 for none."""

    holds: bool
    replica: int
    stage: int
    joined_round: int  # the stage's next round at the time
    joined_at: int  # s, Unix time
    last_active: int = 0
    accused: Accusation | None = None  # the last time

    def is_active(self, next_round: int) -> bool:
        return self.last_active != 0 and self.last_active + ACTIVE_ROUNDS > next_round


class RunView:
    """The state of one run after the events applied so far. Give it every event of the run, in order.

    `keep`: how many of each stage's newest seals `sealed` has in full, with their contributions; None: all. Of the
    others 72 bytes each stay: the hashes that they gave, and sums; `older(stage, round)`, where given, has all of them.
    """

    def __init__(self, run: bytes, keep: int | None = None, older: "ReadSeal | None" = None) -> None:
        self.run = run
        self.open_round: int | None = None  # None before round 0 opens and after the last one is sealed
        self.opened_at: int | None = None
        self.accusations: dict[str, Accusation] = {}  # those that wait for an answer
        self.sealed = SealLog(keep, older)
        self.checkpoints: tuple[CheckpointPublished, ...] = ()
        self._created: RunCreated | None = None
        self._holders: dict[tuple[int, int], str] = {}
        self._members: dict[str, Member] = {}
        self._counted: dict[str, int] = {}

    def copy(self) -> Self:
        """A snapshot that later events leave alone. Costs the members, not the history."""
        other = self.__class__(self.run)
        other.__dict__.update(self.__dict__)
        for name in ("accusations", "_holders", "_members", "_counted"):
            setattr(other, name, dict(getattr(self, name)))
        other.sealed = self.sealed.copy()
        return other

    @property
    def created(self) -> bool:
        """Whether the ledger knows the run: until then `config`, `genesis` and what rests on them raise ViewError."""
        return self._created is not None

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

    def slot_of(self, account: str) -> tuple[int, int] | None:
        """(replica, stage) held by the account."""
        member = self._members.get(account)
        return (member.replica, member.stage) if member is not None and member.holds else None

    def joined_at(self, account: str) -> int:
        """When the account last took a slot, in Unix seconds of the block. Raises KeyError for one that never did."""
        return self._members[account].joined_at

    def holder(self, replica: int, stage: int) -> str | None:
        return self._holders.get((replica, stage))

    def holders(self, stage: int) -> tuple[str, ...]:
        """Who holds a slot of the stage, ascending."""
        return ascending([account for (_, at), account in self._holders.items() if at == stage])

    def members(self) -> dict[str, tuple[int, int]]:
        """Every holder's (replica, stage)."""
        return {account: slot for slot, account in sorted(self._holders.items())}

    def complete_replicas(self) -> tuple[int, ...]:
        """The replicas with a holder for every stage, ascending."""
        seats = Counter(replica for replica, _ in self._holders)
        return tuple(sorted(replica for replica, taken in seats.items() if taken == self.config.stages))

    def next_round(self, stage: int) -> int:
        """The lowest round that the stage has not sealed."""
        return self.sealed.rounds(stage)

    def active(self, stage: int) -> tuple[str, ...]:
        """The holders counted or signing in one of the stage's last 3 sealed rounds, ascending."""
        next_round = self.next_round(stage)
        return tuple(a for a in self.holders(stage) if self._members[a].is_active(next_round))

    def voters(self, stage: int) -> tuple[str, ...]:
        """Whose signatures count towards the quorum: the active holders, or all where none is active."""
        return self.active(stage) or self.holders(stage)

    def quorum(self, stage: int) -> int:
        """How many voters must sign the stage's next seal."""
        needed = -(-self.config.quorum_numerator * len(self.voters(stage)) // self.config.quorum_denominator)
        return max(1, needed)

    def weights(self, stage: int, version: int) -> bytes:
        """The hash of V[stage, version]. Raises KeyError for a version not sealed yet."""
        return self.sealed.next_hashes(stage, version - 1)[0] if version else self.genesis[stage]

    def momentum(self, stage: int, version: int) -> bytes:
        """The hash of the outer momentum that goes with V[stage, version]; zero where there is none."""
        return self.sealed.next_hashes(stage, version - 1)[1] if version else ZERO32

    def last_round_counted(self, account: str) -> int | None:
        """The last sealed round that counts a contribution of the account."""
        return self._counted.get(account)

    @property
    def finished(self) -> bool:
        """Whether every stage has sealed the run's last round."""
        return self.created and all(self.next_round(s) >= self.config.rounds for s in range(self.config.stages))

    def may_accuse(self, account: str, now: int) -> bool:
        """Whether a holder's accusation of the account would stand in a block of time `now`."""
        if self.slot_of(account) is None or self.open_round is None or self.opened_at is None:
            return False
        member, timeout = self._members[account], self.config.round_timeout
        asked = member.accused
        asked_again = asked is not None and asked.round == self.open_round and now <= asked.time + timeout
        if account in self.accusations or asked_again:
            return False
        since = max(member.last_active, member.joined_round)
        return self.next_round(member.stage) >= since + ACTIVE_ROUNDS or now > self.opened_at + timeout

    def may_evict(self, account: str, now: int, block: int) -> bool:
        """Whether the account's accusation has waited long enough for block number `block` of time `now`."""
        asked = self.accusations.get(account)
        if asked is None:
            return False
        return now >= asked.time + self.config.eviction_time and block >= asked.block + ANSWER_BLOCKS

    def apply(self, event: Event) -> None:
        """Takes the next event; those of other runs and of the registry change nothing. Raises ViewError."""
        if getattr(event, "run", None) != self.run:
            return
        match event:
            case RunCreated():
                self._create(event)
            case Joined():
                self._join(event)
            case Left() | Evicted():
                self._leave(event)
            case Moved():
                self._move(event)
            case RoundOpened():
                self._open(event)
            case Accused():
                self._accuse(event)
            case Answered():
                if self.accusations.pop(event.account, None) is None:
                    raise ViewError(f"{event.account} answered no accusation")
            case Sealed():
                self._seal(event)
            case CheckpointPublished():
                self.checkpoints += (event,)

    @property
    def _creation(self) -> RunCreated:
        if self._created is None:
            raise ViewError(f"the ledger knows no run {self.run.hex()}")
        return self._created

    def _create(self, event: RunCreated) -> None:
        if self._created is not None or len(event.genesis) != event.config.stages:
            raise ViewError("the run was created twice, or with another number of stages than genesis hashes")
        self._created = event

    def _join(self, event: Joined) -> None:
        account, replica, stage = event.account, event.replica, event.stage
        before = self._members.get(account)
        taken = (before is not None and before.holds) or (replica, stage) in self._holders
        if taken or stage >= self.config.stages or replica >= self.config.max_replicas:
            raise ViewError(f"{account} cannot have joined slot ({replica}, {stage})")
        # Changing stage starts anew; rejoining the same one goes on.
        last_active = before.last_active if before is not None and before.stage == stage else 0
        accused = None if before is None else before.accused
        self._members[account] = Member(
            True, replica, stage, self.next_round(stage), event.at.time, last_active, accused
        )
        self._holders[replica, stage] = account

    def _leave(self, event: Left | Evicted) -> None:
        member = self._holder(event.account, event.replica, event.stage)
        self._members[event.account] = replace(member, holds=False)
        del self._holders[event.replica, event.stage]
        self.accusations.pop(event.account, None)

    def _move(self, event: Moved) -> None:
        member = self._holder(event.account, event.from_replica, event.stage)
        if (event.to_replica, event.stage) in self._holders:
            raise ViewError(f"{event.account} cannot have moved to a taken slot")
        self._members[event.account] = replace(member, replica=event.to_replica)
        del self._holders[event.from_replica, event.stage]
        self._holders[event.to_replica, event.stage] = event.account

    def _open(self, event: RoundOpened) -> None:
        due = set(map(self.next_round, range(self.config.stages)))
        if due != {event.round} or event.round == self.open_round:
            raise ViewError(f"round {event.round} opened out of order")
        self.open_round, self.opened_at = event.round, event.opened_at

    def _accuse(self, event: Accused) -> None:
        member = self._holder(event.account, event.replica, event.stage)
        accusation = Accusation(event.round, event.at.block, event.at.time)
        self._members[event.account] = replace(member, accused=accusation)
        self.accusations[event.account] = accusation

    def _seal(self, event: Sealed) -> None:
        stage = event.stage
        if stage >= self.config.stages or not event.round == self.open_round == self.next_round(stage):
            raise ViewError(f"round {event.round} of stage {stage} was sealed out of order")
        try:
            named = {*event.accounts, *event.signers}
        except (TypedError, SignatureError) as error:
            raise ViewError(f"round {event.round} of stage {stage}: {error}") from None
        if not named <= self._members.keys():
            raise ViewError(f"round {event.round} of stage {stage} names accounts that never joined")
        self.sealed.append(event)
        for account in event.accounts:
            self._counted[account] = event.round
        for account in named:
            self._members[account] = replace(self._members[account], last_active=event.round + 1)
        if self.finished:
            self.open_round = self.opened_at = None

    def _holder(self, account: str, replica: int, stage: int) -> Member:
        if self.slot_of(account) != (replica, stage):
            raise ViewError(f"{account} does not hold slot ({replica}, {stage})")
        return self._members[account]


@dataclass(frozen=True)
class _Stage:
    """A stage's seals. Copies share what grows, and each sees its own beginning: the first `rounds`."""

    rounds: int  # sealed so far
    first: int  # the round of seals[0]
    seals: list[Sealed]
    hashes: bytearray  # 64 bytes a round: next weights, next momentum
    steps: "array[int]"  # sums of the inner steps that the first 0, 1, 2, ... seals plan

    def append(self, sealed: Sealed, keep: int | None) -> "_Stage":
        first, seals, hashes, steps = self.first, self.seals, self.hashes, self.steps
        if len(steps) != self.rounds + 1:  # a copy has gone on: part from it
            seals, hashes, steps = seals[: self.rounds - first], hashes[: 64 * self.rounds], steps[: self.rounds + 1]
        if keep is not None and len(seals) >= 2 * keep:
            first, seals = first + len(seals) - keep, seals[-keep:]
        seals.append(sealed)
        hashes += sealed.seal.next_weights + sealed.seal.next_momentum
        steps.append(steps[-1] + sealed.seal.plan_inner_steps)
        return _Stage(self.rounds + 1, first, seals, hashes, steps)


ReadSeal = Callable[[int, int], Sealed]  # of a stage and round that are sealed


class SealLog(Mapping[tuple[int, int], Sealed]):
    """(stage, round) -> Sealed, for the newest `keep` rounds of each stage, or for all; with `older` for all."""

    def __init__(self, keep: int | None = None, older: ReadSeal | None = None) -> None:
        if keep is not None and keep < 1:
            raise ValueError("at least the last seal of a stage is kept")
        self._keep, self._older = keep, older
        self._stages: dict[int, _Stage] = {}

    def rounds(self, stage: int) -> int:
        """How many rounds of the stage are sealed."""
        return self._stages[stage].rounds if stage in self._stages else 0

    def oldest(self, stage: int) -> int:
        """The first round of the stage whose seal is here, or the next one where none is."""
        return 0 if self._older is not None else self._oldest_kept(stage)

    def copy(self) -> "SealLog":
        other = SealLog(self._keep, self._older)
        other._stages = dict(self._stages)
        return other

    def planned_steps(self, stage: int, rounds: int) -> int:
        """The sum of the inner steps that the stage's first `rounds` seals plan. Raises KeyError beyond the sealed."""
        if not 0 <= rounds <= self.rounds(stage):
            raise KeyError((stage, rounds - 1))
        return self._stages[stage].steps[rounds] if rounds else 0

    def next_hashes(self, stage: int, round: int) -> tuple[bytes, bytes]:
        """The hashes of weights and momentum that any sealed round gave. Raises KeyError beyond the sealed."""
        if not 0 <= round < self.rounds(stage):
            raise KeyError((stage, round))
        both = bytes(self._stages[stage].hashes[64 * round : 64 * round + 64])
        return both[:32], both[32:]

    def append(self, sealed: Sealed) -> None:
        """Adds the stage's next round."""
        before = self._stages.get(sealed.stage) or _Stage(0, 0, [], bytearray(), array("q", [0]))
        self._stages[sealed.stage] = before.append(sealed, self._keep)

    def restore(self, outlines: Iterable[tuple[int, bytes, bytes, int]], newest: ReadSeal) -> None:
        """Fills an empty log with all seals: (stage, next weights, next momentum, planned inner steps) of each, in the
        order of a stage's rounds; `newest` gives those to keep."""
        hashes: dict[int, bytearray] = defaultdict(bytearray)
        steps: dict[int, array[int]] = defaultdict(lambda: array("q", [0]))
        for stage, weights, momentum, planned in outlines:
            hashes[stage] += weights + momentum
            steps[stage].append(steps[stage][-1] + planned)
        for stage in hashes:
            rounds = len(steps[stage]) - 1
            first = 0 if self._keep is None else max(0, rounds - self._keep)
            seals = [newest(stage, round) for round in range(first, rounds)]
            self._stages[stage] = _Stage(rounds, first, seals, hashes[stage], steps[stage])

    def _oldest_kept(self, stage: int) -> int:
        return 0 if self._keep is None else max(0, self.rounds(stage) - self._keep)

    def __contains__(self, key: object) -> bool:
        match key:
            case (int(stage), int(round)):
                return self.oldest(stage) <= round < self.rounds(stage)
        return False

    def __getitem__(self, key: tuple[int, int]) -> Sealed:
        """Raises KeyError for a round that is not sealed, or whose seal is not kept."""
        stage, round = key
        if key not in self:
            raise KeyError(key)
        if self._older is not None and round < self._oldest_kept(stage):
            return self._older(stage, round)
        return self._stages[stage].seals[round - self._stages[stage].first]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return (
            (stage, round) for stage in sorted(self._stages) for round in range(self.oldest(stage), self.rounds(stage))
        )

    def __len__(self) -> int:
        return sum(self.rounds(stage) - self.oldest(stage) for stage in self._stages)
