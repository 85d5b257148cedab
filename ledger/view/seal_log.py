"""The sealed rounds of a run: the newest in full, of the others what they gave."""

import struct
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dlx.ledger.abi import ZERO32
from dlx.ledger.events import Sealed

_PLANNED, _TAKEN, _PAID = struct.Struct(">I"), struct.Struct(">BI"), struct.Struct(">IB")
ReadSeal = Callable[[int, int], Sealed]  # of a stage and round that are sealed


class Paid(NamedTuple):
    """What a stage paid in an epoch: its non-empty seals then, and the pay of each lane as the epoch left it."""

    epoch: int
    seals: int
    pay: tuple[int, ...]

    def encode(self) -> bytes:
        """5 bytes, and 2 for each lane."""
        return _PAID.pack(self.epoch, self.seals) + struct.pack(f">{len(self.pay)}H", *self.pay)

    @classmethod
    def decode(cls, data: bytes) -> "Paid":
        epoch, seals = _PAID.unpack_from(data)
        lanes = (len(data) - _PAID.size) // 2
        return cls(epoch, seals, struct.unpack_from(f">{lanes}H", data, _PAID.size))


class SealLog(Mapping[tuple[int, int], Sealed]):
    """(stage, round) -> Sealed, for the newest `keep` rounds of each stage, or for all; with `older` for all."""

    def __init__(self, keep: int | None = None, older: ReadSeal | None = None) -> None:
        if keep is not None and keep < 1:
            raise ValueError("at least the last seal of a stage is kept")
        self._keep, self._older = keep, older
        self._stages: dict[int, _Seals] = {}

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

    def hashes_after(self, stage: int, round: int) -> tuple[bytes, bytes]:
        """The hashes of weights and momentum that any sealed round gave. Raises KeyError beyond the sealed."""
        if not 0 <= round < self.rounds(stage):
            raise KeyError((stage, round))
        both = bytes(self._stages[stage].hashes[64 * round : 64 * round + 64])
        return both[:32], both[32:]

    def counted(self, stage: int, round: int) -> dict[int, int]:
        """The replicas that any sealed round counts, ascending, and the inner steps of each. Raises KeyError beyond the
        sealed."""
        if not 0 <= round < self.rounds(stage):
            raise KeyError((stage, round))
        return taken(self._stages[stage].counted[round])

    def outline(self, stage: int, rounds: int) -> Sequence[bytes]:
        """What each of the stage's first `rounds` seals counts and plans: equal for those that count and plan alike."""
        if not 0 <= rounds <= self.rounds(stage):
            raise KeyError((stage, rounds - 1))
        return self._stages[stage].counted[:rounds] if rounds else []

    def paid(self, stage: int, epoch: int) -> Paid:
        """What the stage paid in an epoch before that of its newest non-empty seal."""
        seals = self._stages.get(stage)
        round, data = (0, b"") if seals is None else seals.paid.get(epoch, (seals.rounds, b""))
        # Copies share what grows: this one knows of what its own seals wrote down.
        return Paid.decode(data) if seals is not None and round < seals.rounds else Paid(epoch, 0, ())

    def paid_at(self, stage: int, round: int) -> bytes:
        """`Paid.encode` of the epoch whose pay was complete with this sealed round, the first of a later epoch that
        counts anything; empty for others."""
        newest = reversed(self._stages[stage].paid.values())
        written, data = next((one for one in newest if one[0] <= round), (round, b""))
        return data if written == round else b""

    def append(self, sealed: Sealed, genesis: bytes, paid: Paid | None = None) -> None:
        """Adds the stage's next round; an empty one keeps weights and momentum, of round 0 those of the genesis.
        `paid`: of the epoch that is over by it."""
        before = self._stages.get(sealed.stage) or _Seals(0, 0, [], bytearray(), array("q", [0]), [], {})
        hashes = bytes(before.hashes[64 * before.rounds - 64 : 64 * before.rounds]) or genesis + ZERO32
        self._stages[sealed.stage] = before.append(sealed, hashes, paid, self._keep)

    def restore(self, outlines: Iterable[tuple[int, bytes, bytes, int, bytes, bytes]], newest: ReadSeal) -> None:
        """Fills an empty log with all seals: (stage, weights and momentum after it, planned inner steps, `outlined`,
        `paid_at`) of each, in the order of a stage's rounds; `newest` gives those to keep."""
        hashes: dict[int, bytearray] = defaultdict(bytearray)
        steps: dict[int, array[int]] = defaultdict(lambda: array("q", [0]))
        counted: dict[int, list[bytes]] = defaultdict(list)
        paid: dict[int, dict[int, tuple[int, bytes]]] = defaultdict(dict)
        for stage, weights, momentum, planned, outline, wages in outlines:
            if wages:
                paid[stage][Paid.decode(wages).epoch] = len(counted[stage]), wages
            hashes[stage] += weights + momentum
            counted[stage].append(_shared(counted[stage], outline))
            steps[stage].append(steps[stage][-1] + planned)
        for stage in hashes:
            rounds = len(steps[stage]) - 1
            first = 0 if self._keep is None else max(0, rounds - self._keep)
            seals = [newest(stage, round) for round in range(first, rounds)]
            self._stages[stage] = _Seals(rounds, first, seals, hashes[stage], steps[stage], counted[stage], paid[stage])

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


@dataclass(frozen=True)
class _Seals:
    """A stage's seals. Copies share what grows, and each sees its own beginning: the first `rounds`."""

    rounds: int  # sealed so far
    first: int  # the round of seals[0]
    seals: list[Sealed]
    hashes: bytearray  # 64 bytes a round: weights and momentum after it
    steps: "array[int]"  # sums of the inner steps that the first 0, 1, 2, ... seals plan
    counted: list[bytes]  # of each round what `outlined` gives, one object where rounds in a row are alike
    paid: dict[int, tuple[int, bytes]]  # epoch -> the round that ended it, and `Paid.encode`

    def append(self, sealed: Sealed, before: bytes, paid: Paid | None, keep: int | None) -> "_Seals":
        first, seals, hashes, steps, counted = self.first, self.seals, self.hashes, self.steps, self.counted
        pays = self.paid
        if len(steps) != self.rounds + 1:  # a copy has gone on: part from it
            seals, hashes, steps = seals[: self.rounds - first], hashes[: 64 * self.rounds], steps[: self.rounds + 1]
            counted = counted[: self.rounds]
            pays = {epoch: one for epoch, one in pays.items() if one[0] < self.rounds}
        if keep is not None and len(seals) >= 2 * keep:
            first, seals = first + len(seals) - keep, seals[-keep:]
        seals.append(sealed)
        hashes += sealed.outcome.weights + sealed.outcome.momentum if sealed.records else before
        steps.append(steps[-1] + sealed.outcome.plan.inner_steps)
        counted.append(_shared(counted, outlined(sealed)))
        if paid is not None:
            pays[paid.epoch] = self.rounds, paid.encode()
        return _Seals(self.rounds + 1, first, seals, hashes, steps, counted, pays)


def outlined(sealed: Sealed) -> bytes:
    """The inner steps that a seal plans (4 bytes, big-endian), then of each replica that it counts, ascending, its
    number and inner steps (5 bytes)."""
    records = sorted((record.replica, record.inner_steps) for record in sealed.records)
    return _PLANNED.pack(sealed.outcome.plan.inner_steps) + b"".join(_TAKEN.pack(*record) for record in records)


def taken(outline: bytes) -> dict[int, int]:
    """Replica -> inner steps, of those that a seal counts."""
    return dict(_TAKEN.iter_unpack(outline[_PLANNED.size :]))


def _shared(before: Sequence[bytes], outline: bytes) -> bytes:
    return before[-1] if before and before[-1] == outline else outline
