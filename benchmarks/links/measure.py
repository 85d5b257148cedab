"""One row of the table, measured: a rival's processes or our nodes, each on a host of its own."""

import contextlib
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.links.network import CHAIN, Network
from benchmarks.links.rivals import Peer
from benchmarks.links.rows import Row
from dlx.ledger.typed import Contribution
from dlx.node.daemon.api.status import NodeStatus
from dlx.node.devnet import demo
from dlx.node.devnet.devnet import Devnet, DevnetShape
from dlx.node.home.errors import Failure
from dlx.node.home.keys import site as sites

FIRST_ROUND = 1  # whose seal the timing may begin with: the first round is short, to measure how fast each is
SITE = "links"  # the name that each operator gives its site
_ROOT = Path(__file__).parents[2]
_START_SECONDS = 120.0  # until a rival's processes train
_READY_SECONDS = 240.0  # until our nodes do
_SHOWN = 300  # characters of a reason
_KINDS = {  # a node's -> ours
    "payload": "payload",
    "pipe": "pipe",
    "blobs": "blobs",
    "gossip": "gossip",
    "signalling": "gossip",
}


@dataclass(frozen=True)
class Measured:
    """Of the timed rounds. Bytes are those that came to all hosts over all links, by kind."""

    rounds: int
    seconds: float
    tokens: int
    trained: float | None  # part of the time in which a machine trained; None: not known
    bytes: dict[str, int]


def peers(replicas: int, stages: int) -> list[list[str]]:
    """The hosts of each replica, named as a devnet names its nodes."""
    return [[f"node-{replica * stages + stage}" for stage in range(stages)] for replica in range(replicas)]


# ---- rivals ----


def common_files(root: Path, text: str) -> tuple[Path, Path, Any]:
    """The manifest of this draft and its blobs, for rivals; made by a chain of its own."""
    from dlx.training.recipe.manifest import parse

    devnet = Devnet(root, DevnetShape("", 0, 1, 1))
    with demo.stopping(devnet):
        devnet.make(text, lambda line: None)
        manifest, blobs = demo.manifest_file(devnet)
    return manifest, blobs, parse(manifest.read_bytes())


def rival(
    network: Network, python: str, peer: Callable[[int, list[str]], Peer], expected: float, tokens_per_step: int
) -> Measured:
    """All replicas of a rival, made by rank and addresses; `expected`: seconds of all its rounds. Raises Failure."""
    hosts = network.hosts
    addresses = [network.address(name) for name in hosts]
    told = [peer(rank, addresses) for rank in range(len(hosts))]
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "GLOO_SOCKET_IFNAME": "eth0", "HOME": tempfile.gettempdir()}
    environment |= {"PYTHONPATH": f"{_ROOT}:{_ROOT / 'src'}", "OMP_NUM_THREADS": str(told[0].threads)}
    deadline = time.monotonic() + _START_SECONDS + 3 * expected
    with tempfile.TemporaryDirectory(prefix="dlx-links-") as logs, contextlib.ExitStack() as ending:
        running = []
        for host, one in zip(hosts, told, strict=True):
            command = network.command(host, [python, "-m", "benchmarks.links.rivals", one.encode()])
            with (Path(logs) / host).open("wb") as log:
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment)
            ending.callback(_end, process)
            running.append((host, process))
        found = []
        for host, process in running:
            try:
                output, _ = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Failure(f"{host} did not end within {_START_SECONDS + 3 * expected:.0f} s") from None
            if process.returncode:
                raise Failure(f"{host}: {_last_line(Path(logs) / host)}")
            found.append(json.loads(output.splitlines()[-1]))
    one = told[0]
    return Measured(
        rounds=one.rounds,
        seconds=max(each["seconds"] for each in found),
        tokens=len(hosts) * one.rounds * one.inner_steps * tokens_per_step,
        trained=None,
        bytes={"total": sum(each["bytes"] for each in found)},
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    wrong = [line for line in lines if "Error" in line or "error" in line]
    return (wrong or lines or ["ended without a word"])[-1].strip()[:_SHOWN]


# ---- our nodes ----


@dataclass
class Hosts(Devnet):
    """A devnet whose chain and nodes are on hosts of their own."""

    forks_nodes = False

    network: Network = field(default_factory=lambda: Network([]))

    def address(self, name: str) -> str:
        return self.network.address(name)

    def command(self, name: str, module: Sequence[str]) -> list[str]:
        return self.network.command(name, super().command(name, module))

    def more_arguments(self, name: str) -> list[str]:
        if self.shape.stages == 1:
            return []
        return ["--site", SITE, "--stage", str(self.names.index(name) % self.shape.stages)]

    def status(self, name: str) -> NodeStatus | None:
        with self.network.inside(name):
            return super().status(name)

    def share_site_keys(self) -> None:
        """Each replica's machines get a key of their own."""
        for names in peers(self.shape.replicas, self.shape.stages):
            made = [self.folder(name) for name in names]
            sites.make(made[0], SITE)
            key = sites.key_file(made[0], SITE)
            for folder in made[1:]:
                folder.sites.mkdir(mode=0o700, exist_ok=True)
                shutil.copy(key, sites.key_file(folder, SITE))

    def metrics(self, name: str) -> dict[str, float]:
        """Of a node, by name and labels; empty while it does not answer."""
        with self.network.inside(name), contextlib.suppress(OSError, ValueError, requests.RequestException):
            url = json.loads(self.folder(name).http_address.read_text())["url"]
            text = requests.get(f"{url}/metrics", timeout=5).text
            samples = (one for family in text_string_to_metric_families(text) for one in family.samples)
            return {" ".join([one.name, *one.labels.values()]): one.value for one in samples}
        return {}


@dataclass(frozen=True)
class _Look:
    """What was counted when a round was sealed by all stages."""

    round: int
    at: float
    bytes: dict[str, int]


def nodes(
    network: Network,
    row: Row,
    replicas: int,
    text: str,
    speed: float | None,
    seconds: float,
    stall: float,
    keep: Path | None,
    note: Callable[[str], None],
) -> Measured:
    """Our nodes, timed from a seal on until the first seal after `seconds`. The links get their speed when all nodes
    train, so that only rounds are measured. `keep`: where the folder of a run stays.

    Raises Failure."""
    with _folder(keep) as root, network.inside(CHAIN):
        devnet = Hosts(root / "net", DevnetShape("", 0, replicas, row.stages), network=network)
        devnet.root.mkdir(mode=0o700)
        with demo.stopping(devnet):
            devnet.make(text, lambda line: None)
            if row.stages > 1:
                devnet.share_site_keys()
            devnet.start()
            looks: list[_Look] = []
            shaped = False
            started = time.monotonic()

            def on_statuses(seen: demo.Observed) -> None:
                nonlocal shaped
                training = [status for status in seen.statuses.values() if status.steps]
                if not shaped and len(training) == len(devnet.names):
                    network.shape(speed)
                    shaped = True
                    note("all nodes train: the links get their speed")
                if not shaped and time.monotonic() - started > _READY_SECONDS:
                    raise Failure(f"nodes do not train within {_READY_SECONDS:.0f} s: {_troubles(seen)}")

            def on_round(seen: demo.Observed, round: int) -> None:
                if shaped and round >= FIRST_ROUND:
                    looks.append(_Look(round, time.monotonic(), _traffic(devnet)))
                    note(f"round {round} sealed, {seen.view.sealed[0, round].count} of {replicas} counted")

            def enough() -> bool:
                return len(looks) > 1 and looks[-1].at - looks[0].at >= seconds

            try:
                seen = demo.follow(devnet, on_round, on_statuses, enough, stall)
            except Failure as error:
                raise Failure(f"{error}; {_said(devnet)}") from None
            return _measured(devnet, seen, looks)


def _measured(devnet: Hosts, seen: demo.Observed, looks: list[_Look]) -> Measured:
    first, last = looks[0], looks[-1]
    rounds = range(first.round + 1, last.round + 1)
    elapsed = last.at - first.at
    steps = sum(seen.view.sealed[0, round].steps for round in rounds)
    trained = sum(one.compute_ms for one in _statements(devnet, seen, rounds)) / 1000
    return Measured(
        rounds=len(rounds),
        seconds=elapsed,
        tokens=steps * seen.view.config.tokens_per_step,
        trained=trained / (elapsed * len(devnet.names)),
        bytes={kind: last.bytes[kind] - first.bytes[kind] for kind in last.bytes},
    )


def _traffic(devnet: Hosts) -> dict[str, int]:
    """By kind: what the nodes say of peers, what the chain's interface counted, and the rest: headers of packets,
    and what came twice."""
    total, chain = devnet.network.traffic()
    found = dict.fromkeys(_KINDS.values(), 0)
    for name in devnet.names:
        metrics = devnet.metrics(name)
        for label, kind in _KINDS.items():
            found[kind] += round(metrics.get(f"dlx_bytes_total received {label}", 0.0))
    return {"total": total, **found, "chain": chain, "rest": total - chain - sum(found.values())}


def _statements(devnet: Hosts, seen: demo.Observed, rounds: range) -> Iterator[Contribution]:
    """Of every contribution that the seals of these rounds count."""
    folders = [devnet.folder(name).blobs for name in devnet.names]
    for round in rounds:
        for sealed in seen.seals(round):
            for record in sealed.records:
                for folder in folders:
                    with contextlib.suppress(FileNotFoundError):
                        yield Contribution.decode((folder / record.statement.hex()).read_bytes())
                        break


def _said(devnet: Hosts) -> str:
    """What the nodes wait for and what fails, now."""
    found = {name: devnet.status(name) for name in devnet.names}
    seen = [f"{name}: {status.waiting_for or status.phase}" for name, status in found.items() if status is not None]
    return "; ".join(seen)[:_SHOWN]


def _troubles(seen: demo.Observed) -> str:
    found = [f"{name}: {status.waiting_for or status.phase}" for name, status in sorted(seen.statuses.items())]
    return ("; ".join(found) or "none answers")[:_SHOWN]


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="dlx-links-") as folder:
        yield Path(folder)
