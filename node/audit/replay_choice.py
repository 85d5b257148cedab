"""Which training an audit repeats."""

from __future__ import annotations

from dataclasses import dataclass

from dlx.training.models.placement import ONE_THREAD, Placement


@dataclass(frozen=True)
class ReplayChoice:
    """Which of the drawn segments are replayed, and where."""

    rounds: range | None = None  # None: those that members still have to serve
    replica: int | None = None  # None: all
    sample: float = 1.0  # part of them, by the auditor's own chance
    placement: Placement = ONE_THREAD  # of the replays
    required: int = 0  # segments that have to be found honest, with all that was drawn replayed
