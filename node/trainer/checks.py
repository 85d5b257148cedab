"""What a checking process is asked, what it answers, and its handle in the network process.

It is a process of its own beside the training process, with a lower priority: a replay takes as long as training did.
"""

from typing import Annotated

import msgspec
from msgspec import Struct

from dlx.ground.constants import NO_HASH
from dlx.ledger.typed import Contribution
from dlx.node.trainer.job import JobFailed, ask
from dlx.node.trainer.spawn import CHECKER
from dlx.training.models.placement import ONE_THREAD, Placement
from dlx.training.recipe.recipe import Plan
from dlx.training.slot.trace import TraceError, decode, handed_over

Hash = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class Work(Struct, frozen=True, kw_only=True):
    """A contribution to check. Files lie in `blobs`, by their names."""

    manifest: Hash
    blobs: str
    stage: int
    segment: int
    statement: bytes  # as signed
    trace: bytes
    plan: Plan
    steps_before: int
    total_steps: int
    samples: tuple[tuple[int, int], ...] = ()  # positions of the round, where the stage takes any
    own_plans: dict[bytes, Plan] = {}  # of the own payloads that the statement names
    placement: Placement = ONE_THREAD
    key: bytes = b""  # the checker's own, by which deviations are projected; empty: they are not

    @property
    def base_weights(self) -> bytes:
        """The version that the round began with."""
        return Contribution.decode(self.statement).base_weights

    def shared(self, ahead: float) -> set[bytes]:
        """Names of what the check needs and its maker need not serve, where that is the manifest's `ahead`. What it has
        to hand over may have one of their names as well: its last payload is often folded back, or in the start."""
        said = Contribution.decode(self.statement)
        found = {said.base_weights, said.start_payload, said.folded_payload, said.folded_payload2}
        try:
            trace = decode(self.trace, said.segments, said.inner_steps)
            return found - {*handed_over(trace, self.segment, said, ahead).values()}
        except (TraceError, IndexError):
            return found

    def sent(self) -> list[bytes]:
        """Names of what the stage sent its neighbours in the segment, which they serve."""
        said = Contribution.decode(self.statement)
        try:
            between = decode(self.trace, said.segments, said.inner_steps).boundaries[self.segment]
        except (TraceError, IndexError):
            return []
        return [name for name in (between.activations_out, between.gradients_out) if name != NO_HASH]


class Outcome(Struct, frozen=True, kw_only=True):
    """What a check came to: `reasons` (why it is false; empty: honest) where `done`; else what is missing, or why
    nothing can be said here. Distances (None: not compared by one) and losses as in training.slot.replay.Checked."""

    done: bool = False
    reasons: tuple[str, ...] = ()
    weights: float | None = None
    optimiser: float | None = None
    activations: float | None = None
    gradients: float | None = None
    loss_stated: float = 0.0
    loss_replayed: float = 0.0
    sketches: dict[str, bytes] = {}  # of the deviations that are not zero, by part: float32 [Projection.SIZE]
    missing: tuple[Hash, ...] = ()
    refusal: str = ""  # why nobody, or not this machine, can say anything
    hardware: str = ""  # that it was done on
    seconds: float = 0.0  # that it took


class CheckFailed(Exception):
    """The checking process ended, or was too slow: it says nothing about what was checked."""


async def check(work: Work, deadline_s: float) -> Outcome:
    """In a new process, which ends with the answer. Raises CheckFailed."""
    try:
        return await ask(CHECKER, work, Outcome, deadline_s)
    except JobFailed as error:
        raise CheckFailed(str(error)) from None
