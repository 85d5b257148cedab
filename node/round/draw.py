"""Which replica-rounds are replayed, which segment of them, and who goes first: chance that nobody could know before.

The seed is the hash of a block that is some blocks above the round's last seal, mixed with what the round sealed. Who
builds that one block can bias it, and nobody else; the embedded chain's operator always can.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eth_utils import keccak, to_canonical_address

_SPAN = 2**64  # of the number that is compared with the share


@dataclass(frozen=True, slots=True)
class Draw:
    """A replica's round that was drawn, and the segment of it that is replayed."""

    round: int
    replica: int
    segment: int


def seed_of(block_hash: bytes, run: bytes, round: int, digests: Sequence[bytes]) -> bytes:
    """The round's seed; `digests` are those of its seals, stage 0 first. Raises ValueError but for 32-byte hashes."""
    if any(len(one) != 32 for one in (block_hash, run, *digests)):
        raise ValueError("expected hashes of 32 bytes")
    return keccak(block_hash + run + round.to_bytes(4, "big") + b"".join(digests))


def draw(seed: bytes, round: int, replicas: Iterable[int], share: float, segments: int) -> list[Draw]:
    """Which of the round's counted replicas are drawn, ascending. `share`: probability of each, 0 to 1; `segments`: of
    the round."""
    found = []
    for replica in sorted(set(replicas)):
        lot = keccak(seed + replica.to_bytes(2, "big"))
        if int.from_bytes(lot[:8], "big") < share * _SPAN:  # a power of two: exact
            found.append(Draw(round, replica, int.from_bytes(lot[8:16], "big") % segments))
    return found


def checkers(seed: bytes, replica: int, members: Iterable[str]) -> list[str]:
    """The order in which `members`, who hold seats in other replicas, replay what was drawn of `replica`."""
    prefix = seed + replica.to_bytes(2, "big")
    return sorted(members, key=lambda account: keccak(prefix + to_canonical_address(account)))
