"""Who trains on which positions of the run's order of samples: a fold over what the seals of stage 0 counted.

A round deals to every replica that there may be, whether it is there or not. What its seal does not count is free
again, and so is the end of a lot whose replica did fewer steps. So absent and slow replicas cost nothing, and every
position is counted once. Pure arithmetic over half-open intervals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

Interval = tuple[int, int]  # positions low to high - 1
Intervals = tuple[Interval, ...]  # ascending, apart from each other


ENDLESS = 1 << 62  # beyond any position


@dataclass(frozen=True)
class Deal:
    """One round's lots: `need` positions for each replica."""

    need: int
    first: tuple[int, ...]  # the replicas that were counted last, ascending
    others: tuple[int, ...]  # ascending
    front: Intervals  # the lots of the first, one after the other
    back: Intervals  # those of the others, likewise

    def lot(self, replica: int) -> Intervals:
        """The positions that the replica trains on, in this order; none for a replica that there may not be."""
        for replicas, lots in ((self.first, self.front), (self.others, self.back)):
            if replica in replicas:
                return cut(lots, replicas.index(replica) * self.need, self.need)
        return ()

    def left(self, taken: Mapping[int, int]) -> list[Interval]:
        """What is not used up of the lots, in any order; `taken`: counted replica -> the positions that it took, the
        first of its lot."""
        found = list[Interval]()
        for replicas, lots in ((self.first, self.front), (self.others, self.back)):
            starts = [(i * self.need, replica) for i, replica in enumerate(replicas) if replica in taken]
            used = [(start, start + min(taken[replica], self.need)) for start, replica in starts]
            for (_, low), (high, _) in pairwise(((0, 0), *used, (len(replicas) * self.need, 0))):
                found += cut(lots, low, high - low)
        return found


@dataclass(frozen=True)
class Dealing:
    """Before a round: what is free, and the rounds whose seals decide later rounds only.

    Examples:
        Two replicas, ten positions each a round. Replica 1 is not counted, and what it was dealt is free again:

        >>> before = Dealing(replicas=2, delay=0)
        >>> before.deal(10).lot(0), before.deal(10).lot(1)
        (((0, 10),), ((10, 20),))
        >>> after = before.after(10, {0: 10})
        >>> after.deal(10).lot(0), after.deal(10).lot(1)
        (((10, 20),), ((20, 30),))
    """

    replicas: int  # that the run may have
    delay: int
    free: Intervals = ((0, ENDLESS),)
    first: tuple[int, ...] = ()  # whom the newest seal that counts anybody counts, ascending
    open: tuple[Deal, ...] = ()  # the last `delay` rounds, oldest first

    def deal(self, need: int) -> Deal:
        """The lots of the next round. Those who were counted last walk on along the lowest free positions; behind what
        they will take until this round is decided come the others, in the order of their numbers."""
        return self._dealt(need)[0]

    def after(self, need: int, taken: Mapping[int, int] | None) -> "Dealing":
        """The state after a round of that need, with what the seal of the round `delay` before it counts: replica ->
        positions that it took of its lot; None where the run has no such round. They are used up, the rest free again.
        """
        dealt, kept = self._dealt(need)
        if taken is None:
            return Dealing(self.replicas, self.delay, union(kept), self.first, (*self.open, dealt))
        decided, *later = *self.open, dealt
        free = union([*kept, *decided.left(taken)])
        return Dealing(self.replicas, self.delay, free, tuple(sorted(taken)) or self.first, tuple(later))

    def _dealt(self, need: int) -> tuple[Deal, list[Interval]]:
        """And what is free then."""
        others = tuple(sorted(set(range(self.replicas)).difference(self.first)))
        ends = list(accumulate(need * one for one in (len(self.first), self.delay * len(self.first), len(others))))
        front, back = cut(self.free, 0, ends[0]), cut(self.free, ends[1], ends[2] - ends[1])
        kept = [*cut(self.free, ends[0], ends[1] - ends[0]), *cut(self.free, ends[2], ENDLESS)]
        return Deal(need, self.first, others, front, back), kept


def cut(intervals: Intervals, skip: int, length: int) -> Intervals:
    """So many positions of these after the first `skip`.

    Examples:
        >>> cut(((0, 4), (10, 20)), skip=2, length=5)
        ((2, 4), (10, 13))
    """
    found: list[Interval] = []
    for low, high in intervals:
        if length <= 0:
            break
        begin = min(low + skip, high)
        skip -= begin - low
        end = min(begin + length, high)
        if begin < end:
            found.append((begin, end))
            length -= end - begin
    return tuple(found)


def positions(intervals: Sequence[Interval], skip: int, length: int) -> list[int]:
    """The single positions of `cut`."""
    return [position for low, high in cut(tuple(intervals), skip, length) for position in range(low, high)]


def union(intervals: Sequence[Interval]) -> Intervals:
    """Of any, in any order: ascending, those that touch made one.

    Examples:
        >>> union([(5, 7), (0, 3), (3, 4)])
        ((0, 4), (5, 7))
    """
    found: list[Interval] = []
    for low, high in sorted(intervals):
        if found and low <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return tuple(found)
