"""Which of a stage's last eight non-empty seals counted whom, and whose votes that makes: the contract's arithmetic.

Bitmaps have a bit for each replica.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from dlx.ledger.typed import MAX_REPLICAS

MEMORY = 8  # non-empty seals
YOUNG = 8  # non-empty seals until a vote takes two counts
_MAX_EMPTIES = 65535


@dataclass(frozen=True)
class Stage:
    """One stage of a run as its slots and seals have left it."""

    head: bytes  # the digest of its newest seal; before the first one the hash of V[s,0]
    counts: bytes = bytes(MAX_REPLICAS)  # a byte for each slot: which seals counted its member, lowest bit newest
    seated: int = 0  # bitmap of the slots that are held
    changed: int = 0  # bitmap of the slots whose first member since the newest seal lost it, or had another before
    non_empty: int = 0  # seals that counted anything
    empties: int = 0  # seals since the last of them
    worked_at: int = 0  # s, the time of the last of them; 0: none

    @property
    def settled(self) -> int:
        """Bitmap of the slots whose members make their records in the next seal."""
        return self.seated & ~self.changed

    def counted(self, times: int) -> int:
        """Bitmap of the slots whose members at least so many of the last eight non-empty seals counted."""
        return bitmap(replica for replica, byte in enumerate(self.counts) if byte.bit_count() >= times)

    @cached_property
    def earned(self) -> int:
        """Bitmap of the votes earned by work: counted twice; where nobody was, or the stage is young, once."""
        return (self.counted(2) if self.non_empty >= YOUNG else 0) or self.counted(1)

    def voters(self, staffed: int) -> int:
        """Bitmap of the slots that vote. `staffed`: bitmap of the replicas that ever had a member for every stage."""
        return self.earned or self.seated & staffed or self.seated

    def idle_seals(self, replica: int) -> int:
        """How many non-empty seals in a row have not counted the slot; 8 stands for more."""
        byte = self.counts[replica]
        return (byte & -byte).bit_length() - 1 if byte else MEMORY

    def idle_rounds(self, replica: int) -> int:
        """The same with the empty seals since."""
        return self.idle_seals(replica) + self.empties

    def counts_at(self, replica: int, byte: int) -> Self:
        """With another byte for the slot."""
        return replace(self, counts=self.counts[:replica] + bytes([byte]) + self.counts[replica + 1 :])

    def held_at(self, replica: int, held: bool) -> Self:
        """With the slot held or free."""
        bit = 1 << replica
        return replace(self, seated=self.seated | bit if held else self.seated & ~bit)

    def changed_at(self, replica: int) -> Self:
        """Once whoever holds the slot does not make its record in the next seal."""
        return replace(self, changed=self.changed | 1 << replica)

    def sealed(self, digest: bytes, counted: int, empty: bool, time: int) -> Self:
        """After a seal that counted these slots (a bitmap)."""
        after = replace(self, head=digest, changed=0)
        if empty:
            return replace(after, empties=min(_MAX_EMPTIES, self.empties + 1))
        counts = bytes((byte << 1) & 0xFF | counted >> replica & 1 for replica, byte in enumerate(self.counts))
        return replace(after, counts=counts, non_empty=self.non_empty + 1, empties=0, worked_at=time)


def bitmap(replicas: Iterator[int]) -> int:
    return sum(1 << replica for replica in replicas)


def replicas(bitmap: int) -> tuple[int, ...]:
    """Ascending."""
    return tuple(replica for replica in range(bitmap.bit_length()) if bitmap >> replica & 1)
