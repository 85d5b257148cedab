"""The segments of a round: its inner steps cut where it commits to weights and optimiser state, as a replay takes them.

Honest replays drift from the claim with every step, so a segment is short. The states at the ends of all of them are on
disk until one is drawn, so it is not shorter than the thresholds of a replay need (docs/auditor.md).
"""

from msgspec import Struct

from dlx.training.recipe.recipe import Precision, Recipe

SEGMENT_STEPS: dict[Precision, int] = {"float32": 20, "bfloat16": 4}  # inner steps between two committed states


class SegmentState(Struct, frozen=True, forbid_unknown_fields=True):
    """Hashes (32 bytes) of a stage's weights (at a round's end: of its change) and optimiser state: names of their
    canonical files."""

    weights: bytes
    optimiser: bytes


def segment_steps(recipe: Recipe) -> int:
    """The inner steps of every segment of the run but a round's last one, which has what is left."""
    return SEGMENT_STEPS[recipe.precision]


def segments_in(inner_steps: int, length: int) -> int:
    """How many segments of `length` steps a round of that many has."""
    return -(-inner_steps // length)


def segment(index: int, steps_before: int, inner_steps: int, length: int) -> tuple[int, int]:
    """The run's first inner step of segment `index` and its number of steps, in a round of `inner_steps` that began
    after `steps_before`. Raises IndexError where the round has no such segment."""
    low = index * length
    if not 0 <= low < inner_steps:
        raise IndexError(f"a round of {inner_steps} steps has no segment {index}")
    return steps_before + low, min(length, inner_steps - low)
