"""Which segments of a round are replayed, and who goes first: chance that nobody could know before.

The seed is the hash of a block that is some blocks above the round's last seal, mixed with what the round sealed. Who
builds that one block can bias it, and nobody else; the embedded chain's operator always can.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from eth_utils import keccak, to_canonical_address

from dlx.ledger.events import Sealed
from dlx.ledger.view.run_view import RunView
from dlx.training.recipe.manifest import Manifest
from dlx.training.slot.segments import segment_steps, segments_in

MOST_WINDOW = 1024  # rounds that a node looks back on, whatever the manifest says
SETTLED = (
    64  # blocks above the one that draws: its hash is not asked for again; two epochs of Ethereum, whose are final
)
_SPAN = 2**64  # of the number that is compared with the share


class Known(Enum):
    """Whether the hash that draws is to be used."""

    TO_COME = "to come"  # nobody takes it for drawn yet: the block is not there, or not confirmed
    TOLD = "told"  # but the chain may still put another block there
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class Draw:
    """A segment of a replica's round that was drawn, in every stage whose contribution has it."""

    round: int
    replica: int
    segment: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drawn segment of one stage's counted contribution. Hashes are 32 bytes."""

    round: int
    replica: int
    stage: int
    segment: int
    account: str
    statement: bytes
    seed: bytes  # the round's
    team: frozenset[str]  # whose contributions the replica's round is: none of them checks it

    @property
    def key(self) -> tuple[bytes, int]:
        """What tells it from everything else that is drawn: the statement's name and the segment."""
        return self.statement, self.segment


@dataclass(frozen=True, slots=True)
class Drawing:
    """How the training of a round is drawn that all stages have sealed: by the hash of `block`. Nodes, pages, audits
    and watches go by it."""

    seals: tuple[Sealed, ...]  # of each stage, stage 0 first
    block: int
    confirmations: int
    share: float
    length: int  # inner steps of a segment

    @classmethod
    def of(cls, view: RunView, manifest: Manifest, round: int) -> "Drawing | None":
        """None while a seal is missing, or the view has not kept it."""
        seals, audit = seals_of(view, round), manifest.audit
        if seals is None:
            return None
        block = draw_block(seals, audit.draw_after)
        return cls(seals, block, manifest.confirmations, audit.share, segment_steps(manifest))

    def known(self, head: int, final: bool = False) -> Known:
        """At this newest block. `final`: it is pinned, so nothing above it is ever used."""
        if final:
            return Known.SETTLED if head >= self.block else Known.TO_COME
        if head >= self.block + max(SETTLED, self.confirmations):
            return Known.SETTLED
        return Known.TOLD if head >= self.block + self.confirmations else Known.TO_COME

    def drawn(self, block_hash: bytes) -> tuple[Drawn, ...]:
        """By the block's hash."""
        return drawn_of(self.seals, block_hash, self.share, self.length)


def seals_of(view: RunView, round: int) -> tuple[Sealed, ...] | None:
    """The round's seals, stage 0 first; None while one is missing, or the view has not kept it."""
    found = [view.sealed.get((stage, round)) for stage in range(view.config.stages)]
    return tuple(seal for seal in found if seal is not None) if None not in found else None


def draw_block(seals: Sequence[Sealed], draw_after: int) -> int:
    """The number of the block whose hash draws a round."""
    return max(seal.at.block for seal in seals) + draw_after


def drawn_of(seals: Sequence[Sealed], block_hash: bytes, share: float, length: int) -> tuple[Drawn, ...]:
    """What was drawn of one round, ascending by replica, segment and stage; `length`: inner steps of a segment.

    A stage has as many segments as its own record's inner steps make: who states fewer than its mates hides nothing of
    theirs. A stage whose seal does not count the replica has nothing to check.
    """
    run, round = seals[0].run, seals[0].round
    seed = seed_of(block_hash, run, round, [seal.digest for seal in seals])
    made: dict[int, list[tuple[int, int, str, bytes]]] = {}  # replica -> stage, segments, account, statement
    for seal in seals:
        for record, account in zip(seal.records, seal.accounts, strict=True):
            segments = segments_in(record.inner_steps, length)
            made.setdefault(record.replica, []).append((seal.stage, segments, account, record.statement))
    teams = {replica: frozenset(account for _, _, account, _ in parts) for replica, parts in made.items()}
    longest = {replica: max(segments for _, segments, _, _ in parts) for replica, parts in made.items()}
    return tuple(
        Drawn(round, one.replica, stage, one.segment, account, statement, seed, teams[one.replica])
        for one in draw(seed, round, longest, share)
        for stage, segments, account, statement in made[one.replica]
        if one.segment < segments
    )


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
    """Which segments of the round's counted replicas are drawn, ascending, each by itself. `share`: the probability, 0
    to 1; `segments`: replica -> segments of its round."""
    below = share * _SPAN  # a power of two: exact
    return [
        Draw(round, replica, segment)
        for replica in sorted(segments)
        for segment in range(segments[replica])
        if int.from_bytes(keccak(_place(seed, replica, segment))[:8], "big") < below
    ]


def checkers(seed: bytes, replica: int, segment: int, members: Iterable[str]) -> list[str]:
    """The order in which `members`, who hold slots in other replicas, replay a drawn segment of `replica`."""
    return sorted(members, key=lambda account: turn_of(seed, replica, segment, account))


def turn_of(seed: bytes, replica: int, segment: int, account: str) -> bytes:
    """Where an account comes in that order: the lower goes first."""
    return keccak(_place(seed, replica, segment) + to_canonical_address(account))


def _place(seed: bytes, replica: int, segment: int) -> bytes:
    return seed + replica.to_bytes(2, "big") + segment.to_bytes(2, "big")
