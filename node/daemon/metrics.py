"""The Prometheus metrics of one node, in a registry of their own so that many nodes fit in one process."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


class Metrics:
    """Set by the node as it goes; read at /metrics."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        # prometheus_client adds "_total" to the names of counters.
        self._rejected = Counter("dlx_rejected", "Messages and blobs refused", ["reason"], registry=registry)
        self._action_failures = Counter(
            "dlx_action_failures",
            "What the round needed and could not be done",
            ["action"],
            registry=registry,
        )
        self.round = Gauge("dlx_round", "Round this node works on", registry=registry)
        self.loss = Gauge("dlx_loss", "Training loss of the last round, nats per token", registry=registry)
        self.tokens = Counter("dlx_tokens", "Tokens this node's replica trained on", registry=registry)
        self.bytes_sent = Counter("dlx_bytes_sent", "Bytes sent to peers", registry=registry)
        self.bytes_received = Counter("dlx_bytes_received", "Bytes received from peers", registry=registry)
        self.peers = Gauge("dlx_peers", "Peers that agreed on chain, ledger and run", registry=registry)
        self.counted = Counter("dlx_contributions_counted", "Own contributions that a seal counted", registry=registry)
        self.seals = Counter("dlx_seals", "Seals of this node's stage seen on the ledger", registry=registry)
        self.ledger_block = Gauge("dlx_ledger_block", "Newest ledger block seen", registry=registry)
        self.outer_seconds = Histogram(
            "dlx_outer_seconds", "Time of one outer step", registry=registry, buckets=_SECONDS
        )
        self.round_seconds = Histogram(
            "dlx_round_seconds", "Time from one seal of the stage to the next", registry=registry, buckets=_SECONDS
        )
        self._failures = Counter("dlx_part_failures", "Failures of the node's parts", ["part"], registry=registry)
        self._reasons: dict[str, int] = {}

    def rejected(self, reason: str) -> None:
        """Count one refusal. `reason` is one of the code's own few words, never text from the network."""
        self._rejected.labels(reason=reason).inc()
        self._reasons[reason] = self._reasons.get(reason, 0) + 1

    def failed(self, part: str) -> None:
        """Count one failure of a part of the node, which is tried again."""
        self._failures.labels(part=part).inc()

    def action_failed(self, action: str) -> None:
        """Count one failure of an action of the round machine, named by its class."""
        self._action_failures.labels(action=action).inc()

    @property
    def rejections(self) -> dict[str, int]:
        """Refusals so far by reason, as the status shows them."""
        return dict(self._reasons)
