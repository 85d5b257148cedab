"""What an audit is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

from dlx.ledger.proof.history import Pin
from dlx.node.audit.sources.places import Places
from dlx.training.models.placement import ONE_THREAD, Placement


@dataclass(frozen=True)
class ReplayChoice:
    """Which of the drawn replica-rounds are replayed, and where."""

    rounds: range | None = None  # None: those that members still have to serve
    replica: int | None = None  # None: all
    sample: float = 1.0  # part of them, by the auditor's own chance
    placement: Placement = ONE_THREAD  # of the replays


@dataclass(frozen=True)
class AuditRequest:
    """Which run is audited, from which blobs, and how far."""

    run: bytes
    places: Places = field(default_factory=Places)
    head: Pin | None = None  # what the chain node says is proven to this block's hash; None: it is believed
    replay: ReplayChoice | None = None  # level 3; None: levels 1 and 2 alone
