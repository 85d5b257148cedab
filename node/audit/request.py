"""What an audit is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

from dlx.ledger.proof.history import Pin
from dlx.node.audit.replay_choice import ReplayChoice
from dlx.node.audit.sources.places import Places


@dataclass(frozen=True)
class AuditRequest:
    """Which run is audited, from which blobs, and how far."""

    run: bytes
    places: Places = field(default_factory=Places)
    head: Pin | None = None  # what the chain node says is proven to this block's hash; None: it is believed
    replay: ReplayChoice | None = None  # level 3; None: levels 1 and 2 alone
