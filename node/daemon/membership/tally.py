"""Whether the seals of our stage count us."""

from dlx.ledger.events import Sealed
from dlx.node.daemon.metrics import Metrics


class Tally:
    """`last` is the newest seal of our stage while we held a slot; `counted` whether it counts our work."""

    def __init__(self, metrics: Metrics) -> None:
        self.last: Sealed | None = None
        self.counted: bool | None = None
        self._metrics = metrics

    def add(self, sealed: Sealed, counted: bool) -> None:
        """The next seal of our stage."""
        metrics = self._metrics.of_stage(sealed.stage)
        metrics.seals.inc()
        if counted:
            metrics.counted.inc()
        if self.last is not None:
            metrics.round_seconds.observe(max(0.0, sealed.at.time - self.last.at.time))
        self.last, self.counted = sealed, counted
