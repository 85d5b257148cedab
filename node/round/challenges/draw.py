"""Which replica-rounds are replayed, which segment of them, and who goes first: chance that nobody could know before.

The seed is the hash of a block that is some blocks above the round's last seal, mixed with what the round sealed. Who
builds that one block can bias it, and nobody else; the embedded chain's operator always can.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from eth_utils import keccak, to_canonical_address

from dlx.ledger.events import Sealed
from dlx.ledger.view.run_view import RunView
from dlx.training.slot.segments import segments_in

MOST_WINDOW = 1024  # rounds that a node looks back on, whatever the manifest says
_SPAN = 2**64  # of the number that is compared with the share


@dataclass(frozen=True, slots=True)
class Draw:
    """A replica's round that was drawn, and the segment of it that is replayed."""

    round: int
    replica: int
    segment: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """One stage's counted contribution to a drawn replica-round. Hashes are 32 bytes."""

    round: int
    replica: int
    stage: int
    segment: int
    account: str
    statement: bytes
    seed: bytes  # the round's
    team: frozenset[str]  # whose contributions the replica's round is: none of them checks it


def seals_of(view: RunView, round: int) -> tuple[Sealed, ...] | None:
    """The round's seals, stage 0 first; None while one is missing, or the view has not kept it."""
    found = [view.sealed.get((stage, round)) for stage in range(view.config.stages)]
    return tuple(seal for seal in found if seal is not None) if None not in found else None


def draw_block(seals: Sequence[Sealed], draw_after: int) -> int:
    """The number of the block whose hash draws a round."""
    return max(seal.at.block for seal in seals) + draw_after


def drawn_of(seals: Sequence[Sealed], block_hash: bytes, share: float, length: int) -> tuple[Drawn, ...]:
    """The contributions of the drawn replica-rounds of one round, ascending by replica and stage; `length`: inner steps
    of a segment. A stage whose seal does not count the replica has nothing to check."""
    run, round = seals[0].run, seals[0].round
    seed = seed_of(block_hash, run, round, [seal.digest for seal in seals])
    made = {
        (record.replica, seal.stage): (account, record.statement)
        for seal in seals
        for record, account in zip(seal.records, seal.accounts, strict=True)
    }
    segments: dict[int, int] = {}  # the stages of a replica state as many steps, or they contradict each other
    for record in (record for seal in seals for record in seal.records):
        own = segments_in(record.inner_steps, length)
        segments[record.replica] = min(own, segments.get(record.replica, own))
    found = []
    for one in draw(seed, round, segments, share):
        parts = {stage: made[replica, stage] for replica, stage in sorted(made) if replica == one.replica}
        team = frozenset(account for account, _ in parts.values())
        found += [
            Drawn(round, one.replica, stage, one.segment, account, statement, seed, team)
            for stage, (account, statement) in parts.items()
        ]
    return tuple(found)


def drawable(view: RunView, window: int) -> range:
    """The rounds whose draw anybody still has to answer for: the newest `window` that all stages have sealed."""
    sealed = min(map(view.next_round, range(view.config.stages)))
    return range(max(0, sealed - min(window, MOST_WINDOW)), sealed)


def seed_of(block_hash: bytes, run: bytes, round: int, digests: Sequence[bytes]) -> bytes:
    """The round's seed; `digests` are those of its seals, stage 0 first. Raises ValueError but for 32-byte hashes."""
    if any(len(one) != 32 for one in (block_hash, run, *digests)):
        raise ValueError("expected hashes of 32 bytes")
    return keccak(block_hash + run + round.to_bytes(4, "big") + b"".join(digests))


def draw(seed: bytes, round: int, segments: Mapping[int, int], share: float) -> list[Draw]:
    """Which of the round's counted replicas are drawn, ascending. `share`: probability of each, 0 to 1; `segments`:
    replica -> segments of its round."""
    found = []
    for replica in sorted(segments):
        lot = keccak(seed + replica.to_bytes(2, "big"))
        if int.from_bytes(lot[:8], "big") < share * _SPAN:  # a power of two: exact
            found.append(Draw(round, replica, int.from_bytes(lot[8:16], "big") % segments[replica]))
    return found


def checkers(seed: bytes, replica: int, members: Iterable[str]) -> list[str]:
    """The order in which `members`, who hold slots in other replicas, replay what was drawn of `replica`."""
    return sorted(members, key=lambda account: place(seed, replica, account))


def place(seed: bytes, replica: int, account: str) -> bytes:
    """Where an account comes in that order: the lower goes first."""
    return keccak(seed + replica.to_bytes(2, "big") + to_canonical_address(account))
