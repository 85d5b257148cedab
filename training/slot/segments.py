"""The states that a round commits to: at its start, after every SEGMENT_STEPS inner steps and at its end.

A contribution carries their number and the root of a Merkle tree (sha256) over them. A leaf is
sha256(weights hash ‖ optimiser hash), a node sha256(left ‖ right); the odd one out moves up as it is.
"""

import hashlib
from collections.abc import Sequence

from msgspec import Struct

SEGMENT_STEPS = 20  # inner steps between two committed states: longer replays drift apart


class SegmentState(Struct, frozen=True, forbid_unknown_fields=True):
    """Hashes (32 bytes) of a stage's weights and optimiser state: names of their canonical files."""

    weights: bytes
    optimiser: bytes

    def leaf(self) -> bytes:
        return _sha256(self.weights + self.optimiser)


def segments_in(inner_steps: int) -> int:
    """How many segments a round of that many steps has."""
    return -(-inner_steps // SEGMENT_STEPS)


def segment(index: int, steps_before: int, inner_steps: int) -> tuple[int, int]:
    """The run's first inner step of segment `index` and its number of steps, in a round of `inner_steps` that began
    after `steps_before`. Raises IndexError where the round has no such segment."""
    low = index * SEGMENT_STEPS
    if not 0 <= low < inner_steps:
        raise IndexError(f"a round of {inner_steps} steps has no segment {index}")
    return steps_before + low, min(SEGMENT_STEPS, inner_steps - low)


def segments_root(leaves: Sequence[bytes]) -> bytes:
    """The root over the leaves, oldest first (at least one)."""
    return _rows(leaves)[-1][0]


def prove(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """What `proves` needs to know beside leaf `index`: its siblings from the bottom up."""
    siblings = []
    for row in _rows(leaves):
        if index ^ 1 < len(row):
            siblings.append(row[index ^ 1])
        index //= 2
    return siblings


def proves(root: bytes, segments: int, index: int, leaf: bytes, siblings: Sequence[bytes]) -> bool:
    """Whether `leaf` is state `index` (0 is the start) of a contribution with this root and number of segments."""
    count, left = segments + 1, list(siblings)
    if not 0 <= index < count or any(len(one) != 32 for one in (leaf, *left)):
        return False
    while count > 1:
        if index ^ 1 < count:
            if not left:
                return False
            sibling = left.pop(0)
            leaf = _sha256(sibling + leaf if index % 2 else leaf + sibling)
        index, count = index // 2, (count + 1) // 2
    return not left and leaf == root


def _rows(leaves: Sequence[bytes]) -> list[list[bytes]]:
    """The tree from the leaves up to the root."""
    rows = [list(leaves)]
    while len(rows[-1]) > 1:
        pairs = [rows[-1][index : index + 2] for index in range(0, len(rows[-1]), 2)]
        rows.append([_sha256(pair[0] + pair[1]) if len(pair) == 2 else pair[0] for pair in pairs])
    return rows


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
