"""The Prometheus metrics of one node, in a registry of their own so that many nodes fit in one process."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from dlx.ledger.events import Sealed
from dlx.node import version

_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
_SLOT = ("run", "stage")  # the labels of what is measured in a slot

Traffic = Mapping[str, tuple[int, int]]  # kind -> bytes (sent, received)


@dataclass(frozen=True)
class StageMetrics:
    """What is measured while a stage of the run is held."""

    round: Gauge
    loss: Gauge
    tokens: Counter
    counted: Counter
    seals: Counter
    weight: Gauge
    round_seconds: Histogram


class Metrics:
    """Set by the node as it goes; read at /metrics. `run` is the run's id, 0x hex."""

    def __init__(self, run: str) -> None:
        self.registry = registry = CollectorRegistry()
        for collect in (ProcessCollector, PlatformCollector, GCCollector):
            collect(registry=registry)
        Info("dlx_build", "Versions of what runs", registry=registry).info(
            {"version": version(), "python": platform.python_version(), "torch": _installed("torch")}
        )
        # prometheus_client adds "_total" to the names of counters.
        self._rejected = Counter("dlx_rejected", "Messages and blobs refused", ["reason"], registry=registry)
        self._action_failures = Counter(
            "dlx_action_failures", "What the round needed and could not be done", ["action"], registry=registry
        )
        self._failures = Counter("dlx_part_failures", "Failures of the node's parts", ["part"], registry=registry)
        self.peers = Gauge("dlx_peers", "Peers that agreed on chain, ledger and run", registry=registry)
        self.reachable = Gauge(
            "dlx_reachable", "Whether peers can connect to this node: 1 yes, 0.5 by a relay, 0 no", registry=registry
        )
        self.reachable.set(math.nan)
        self.ledger_block = Gauge("dlx_ledger_block", "Newest ledger block seen", registry=registry)
        self._round = Gauge("dlx_round", "Round this node works on", _SLOT, registry=registry)
        self._loss = Gauge("dlx_loss", "Training loss of the last round, nats per token", _SLOT, registry=registry)
        self._tokens = Counter("dlx_tokens", "Tokens this node's replica trained on", _SLOT, registry=registry)
        self._counted = Counter(
            "dlx_contributions_counted", "Own contributions that a seal counted", _SLOT, registry=registry
        )
        self._seals = Counter("dlx_seals", "Seals of this node's stage seen on the ledger", _SLOT, registry=registry)
        self._weight = Gauge("dlx_weight", "This node's part of its stage's weight, 0 to 1", _SLOT, registry=registry)
        self._outer_seconds = Histogram(
            "dlx_outer_seconds", "Time of one outer step", _SLOT, registry=registry, buckets=_SECONDS
        )
        self._round_seconds = Histogram(
            "dlx_round_seconds",
            "Time from seal to seal of the stage",
            _SLOT,
            registry=registry,
            buckets=_SECONDS,
        )
        self._run = run
        self._verdicts = Counter("dlx_verdicts", "Verdicts given and heard", ["finding"], registry=registry)
        self._reasons: dict[str, int] = {}
        self._held: tuple[int, StageMetrics] | None = None

    def of_stage(self, stage: int) -> StageMetrics:
        """The metrics of the stage that this node holds, all there from the first call on. Round and loss are those
        of this stage alone from then on; what is counted of an earlier one stays."""
        if self._held is None or self._held[0] != stage:
            self._round.clear()
            self._loss.clear()
            self._weight.clear()
            labels = (self._run, str(stage))
            made = StageMetrics(
                round=self._round.labels(*labels),
                loss=self._loss.labels(*labels),
                tokens=self._tokens.labels(*labels),
                counted=self._counted.labels(*labels),
                seals=self._seals.labels(*labels),
                weight=self._weight.labels(*labels),
                round_seconds=self._round_seconds.labels(*labels),
            )
            self._outer_seconds.labels(*labels)
            self._held = stage, made
        return self._held[1]

    def outer_step(self, stage: int, seconds: float) -> None:
        """One was taken, of whatever stage."""
        self._outer_seconds.labels(self._run, str(stage)).observe(seconds)

    def count_bytes(self, traffic: Callable[[], Traffic], protocols: Callable[[], Traffic]) -> None:
        """From now on `dlx_bytes_total` says what `traffic` does, `dlx_protocol_bytes_total` what `protocols` does."""
        self.registry.register(_Bytes(traffic, "dlx_bytes", "Bytes to and from peers and the chain node", "kind"))
        self.registry.register(
            _Bytes(
                protocols, "dlx_protocol_bytes", "Bytes of protocols other than payloads, pipes and blobs", "protocol"
            )
        )

    def count_gossip(self, traffic: Callable[[], Traffic]) -> None:
        """From now on `dlx_gossip_messages_total` and `dlx_gossip_bytes_total` say what `traffic` does."""
        self.registry.register(_Gossip(traffic))

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

    def verdict(self, finding: str) -> None:
        """Count one verdict: "honest", "false" or "withheld"."""
        self._verdicts.labels(finding=finding).inc()

    @property
    def rejections(self) -> dict[str, int]:
        """Refusals so far by reason, as the status shows them."""
        return dict(self._reasons)


class _Bytes(Collector):
    """Read when asked, so that nobody has to keep it up to date."""

    def __init__(self, traffic: Callable[[], Traffic], name: str, words: str, label: str) -> None:
        self._traffic, self._name, self._words, self._label = traffic, name, words, label

    def collect(self) -> Iterable[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._words, labels=["direction", self._label])
        for kind, (sent, received) in self._traffic().items():
            family.add_metric(["sent", kind], sent)
            family.add_metric(["received", kind], received)
        yield family


class _Gossip(Collector):
    """As it came from peers: kind -> (messages, bytes)."""

    def __init__(self, traffic: Callable[[], Traffic]) -> None:
        self._traffic = traffic

    def collect(self) -> Iterable[CounterMetricFamily]:
        messages = CounterMetricFamily("dlx_gossip_messages", "Gossip messages that came", labels=["kind"])
        size = CounterMetricFamily("dlx_gossip_bytes", "Their bytes", labels=["kind"])
        for kind, (count, length) in self._traffic().items():
            messages.add_metric([kind], count)
            size.add_metric([kind], length)
        yield from (messages, size)


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


class SealCounter:
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
