"""What an evaluating process is asked, what it answers, and its handle in the network process.

It is a process of its own beside the training process, with a lower priority: no round waits for it.
"""

from typing import Annotated

import msgspec
from msgspec import Struct

from dlx.ground.constants import NO_HASH
from dlx.node.trainer.job import ask
from dlx.node.trainer.spawn import EVALUATOR
from dlx.training.models.placement import ONE_THREAD, Placement

Hash = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class Pass(Struct, frozen=True, kw_only=True):
    """One stage's forward pass of a version. Files lie in `blobs`, by their names."""

    manifest: Hash
    blobs: str
    stage: int
    weights: tuple[Hash, ...]  # of all stages
    samples: tuple[int, ...]  # of the held-out data
    incoming: Hash = NO_HASH  # the activations of the stage before
    placement: Placement = ONE_THREAD


class PassOutcome(Struct, frozen=True, kw_only=True):
    """What a pass came to, as training.inner.forward.Passed where `done`; else what is missing, or why there is
    none."""

    done: bool = False
    activations: Hash = NO_HASH
    sum: int = 0
    count: int = 0
    missing: tuple[Hash, ...] = ()
    refusal: str = ""
    seconds: float = 0.0  # that it took


async def evaluate(work: Pass, deadline_s: float) -> PassOutcome:
    """In a new process, which ends with the answer. Raises JobFailed."""
    return await ask(EVALUATOR, work, PassOutcome, deadline_s)
