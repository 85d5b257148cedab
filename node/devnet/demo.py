"""The demonstration: a devnet trained to the end under a live display, then audited, pulled and sampled."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlx.ground.constants import MICRO
from dlx.ground.forks import LOAD_SECONDS
from dlx.ground.machine import stop_signals
from dlx.ledger.errors import LedgerUnavailable
from dlx.ledger.events import Event, Sealed
from dlx.ledger.view.run_view import RunView
from dlx.node.checkpoints import evaluation_store
from dlx.node.checkpoints.evaluation_store import Evaluation
from dlx.node.daemon.api.status import NodeStatus
from dlx.node.devnet.devnet import Devnet
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import Failure, NotReady
from dlx.node.home.ledgers import ledger_client, open_index, open_ledger
from dlx.node.round.challenges.verdicts import Finding
from dlx.node.round.rules.plans import Terms, finished
from dlx.node.runs.find import view_of
from dlx.node.runs.held_out import HeldOut, read_held_out

PROMPT = b"def "
SAMPLE_BYTES = 160
POLL_SECONDS = 1.0  # between two questions for the nodes' status
_CHECKS = 1 / 3  # of a round timeout, after the last seal
_STALLED = 8  # round timeouts without a seal: something is broken, and waiting longer would hide it


@dataclass
class Observed:
    """What was seen of a run under way."""

    view: RunView
    started: float = field(default_factory=time.time)
    statuses: dict[str, NodeStatus] = field(default_factory=dict)
    sealed_at: list[float] = field(default_factory=list)  # wall-clock time of each completed round
    earlier: int = 0  # rounds of these that were complete before this process followed it
    replicas: dict[tuple[int, int], int] = field(default_factory=dict)  # (stage, round) -> complete when it was sealed

    def apply(self, event: Event) -> None:
        if isinstance(event, Sealed):
            complete = len(self.view.complete_replicas())
            self.replicas[event.stage, event.round] = max(event.count, complete)
        self.view.apply(event)

    def seals(self, round: int) -> list[Sealed]:
        """Of every stage."""
        return [self.view.sealed[stage, round] for stage in range(self.view.config.stages)]

    def complete(self, now: float) -> range:
        """Notes at this wall-clock time the rounds that every stage has sealed since the last call, and gives them."""
        known, done = len(self.sealed_at), min(map(self.view.next_round, range(self.view.config.stages)))
        for round in range(known, done):
            block_time = max(sealed.at.time for sealed in self.seals(round))
            live = block_time > self.started - 1
            self.sealed_at.append(now if live else float(block_time))
            self.earlier += not live
        return range(known, done)


def follow(
    devnet: Devnet,
    on_round: Callable[[Observed, int], None],
    on_statuses: Callable[[Observed], None],
    enough: Callable[[], bool] = lambda: False,
    stall: float | None = None,
    poll_seconds: float = POLL_SECONDS,
) -> Observed:
    """Follows the ledger and, every `poll_seconds`, the nodes' status endpoints until the run is finished, or there is
    enough of it. Raises Failure when no round was sealed for `stall` seconds; None: for eight of the run's timeouts."""
    run, terms = bytes.fromhex(devnet.shape.run[2:]), _terms(devnet)
    client = ledger_client(devnet.settings, DataDir(devnet.root))  # on a busy machine the chain may be late
    feed, observed = client.feed(run), Observed(RunView(run, client.domain))
    moved = looked = time.monotonic()
    while True:
        devnet.check()
        try:
            events = client.poll(feed).events
        except LedgerUnavailable:
            events = ()
        for event in events:
            observed.apply(event)
        if observed.view.created:
            for round in observed.complete(time.time()):
                on_round(observed, round)
                moved = time.monotonic()
        over = finished(terms, observed.view)
        if over or time.monotonic() > looked + poll_seconds:
            looked = time.monotonic()
            found = {name: devnet.status(name) for name in devnet.names}
            observed.statuses |= {name: status for name, status in found.items() if status is not None}
            on_statuses(observed)
        if over or enough():
            return observed
        usual = _STALLED * observed.view.config.round_timeout if observed.view.created else LOAD_SECONDS
        longest = usual if stall is None else stall
        if time.monotonic() > moved + longest:
            raise Failure(f"no round was sealed for {longest:.0f} s: see {devnet.root / 'logs'}")
        time.sleep(0.3)


def _terms(devnet: Devnet) -> Terms:
    """A chain that has just started beside nodes that start may be late for longer than a client waits."""
    deadline = time.monotonic() + LOAD_SECONDS
    while True:
        try:
            return Terms.of(_manifest(devnet)[0])
        except NotReady:
            if time.monotonic() > deadline:
                raise
            devnet.check()


def await_checks(devnet: Devnet, observed: Observed) -> None:
    """The last rounds are drawn some blocks after the run's end: give members a moment to check them."""
    deadline = time.time() + _CHECKS * observed.view.config.round_timeout
    while time.time() < deadline:
        found = {name: devnet.status(name) for name in devnet.names}
        observed.statuses |= {name: status for name, status in found.items() if status is not None}
        reported = [status.checks for status in observed.statuses.values() if status.checks is not None]
        if reported and all(checks.checked == checks.drawn and not checks.undecided_bytes for checks in reported):
            return
        time.sleep(POLL_SECONDS)


def await_evaluations(devnet: Devnet, observed: Observed) -> None:
    """Likewise the last version: give members a moment to say its held-out loss."""
    deadline = time.time() + _CHECKS * observed.view.config.round_timeout
    while time.time() < deadline and any(one.missing for one in held_out(devnet).values()):
        time.sleep(POLL_SECONDS)


def held_out(devnet: Devnet) -> dict[int, HeldOut]:
    """By version, what the ledger has of them now."""
    with open_ledger(devnet.settings, DataDir(devnet.root)) as client, open_index(client) as index:
        view = view_of(client, index, bytes.fromhex(devnet.shape.run[2:]))
        return read_held_out(client, view, _manifest(devnet)[0])


def outcome(devnet: Devnet, observed: Observed, report: Callable[[str], None]) -> dict[str, Any]:
    """Audit, pull and evaluate what the run left, from its chain and blobs alone; the demo's JSON object."""
    from dlx.node.audit.request import AuditRequest
    from dlx.node.audit.run import audit
    from dlx.node.audit.sources.places import Places
    from dlx.node.checkpoints.pull import pull_run

    view, root = observed.view, devnet.root
    folder, checkpoint = DataDir(root), root / "checkpoint"
    places = Places(nodes=tuple(folder.blob_folders))
    with open_ledger(devnet.settings, folder) as client:
        report("auditing the whole history")
        audited = audit(client, AuditRequest(view.run, places), say=report)
        report("pulling the final checkpoint")
        shutil.rmtree(checkpoint, ignore_errors=True)
        pull_run(client, view, None, checkpoint, places, lambda line: None, report)
    report("measuring its loss on all text that nobody trained on")
    stages, rounds = devnet.shape.stages, len(observed.sealed_at)
    last = [view.sealed[stages - 1, round] for round in range(rounds)]
    losses = [sealed.mean_loss / MICRO if sealed.count else None for sealed in last]
    tokens = sum(view.sealed[0, round].steps for round in range(rounds)) * view.config.tokens_per_step
    seals = [
        {
            "round": round,
            "stage": sealed.stage,
            "count": sealed.count,
            "replicas": observed.replicas[sealed.stage, round],
            "weights": view.weights(sealed.stage, round + 1).hex(),
            "transaction": "0x" + sealed.at.tx.hex(),
        }
        for round in range(rounds)
        for sealed in observed.seals(round)
    ]
    speed = tokens_per_second(observed)
    return {
        "run": devnet.shape.run,
        "rounds": rounds,
        "loss": losses,
        "heldout_loss": _heldout(devnet, checkpoint, rounds),
        "held_out": {version: one.loss for version, one in held_out(devnet).items() if one.loss is not None},
        "tokens": tokens,
        "tokens_per_second": None if speed is None else round(speed, 1),
        "checks": checks(observed),
        "traffic_per_node": [status.traffic for _, status in sorted(observed.statuses.items())],
        "seals": seals,
        "audit": audited.json(),
        "checkpoint": str(checkpoint),
    }


def checks(observed: Observed) -> dict[str, int]:
    """What the members said last of drawn work: contributions drawn, checked, and found honest, false or withheld; of
    the node that knows of most."""
    reported = [status.checks for status in observed.statuses.values() if status.checks is not None]
    furthest = max(reported, key=lambda checks: checks.checked, default=None)
    names = ("drawn", "checked", *(finding.word for finding in Finding))
    return {name: 0 if furthest is None else getattr(furthest, name) for name in names}


def passed(result: dict[str, Any]) -> list[str]:
    """Why the demo failed; empty when at least half of each stage's seals count work and the audit passed."""
    of_stage = Counter(seal["stage"] for seal in result["seals"])
    empty = Counter(seal["stage"] for seal in result["seals"] if not seal["count"])
    problems = [
        f"{empty[stage]} of {seals} seals of stage {stage} are empty"
        for stage, seals in sorted(of_stage.items())
        if 2 * empty[stage] > seals
    ]
    if bad := result["checks"]["false"] + result["checks"]["withheld"]:
        problems.append(f"members found {bad} contributions false or withheld")
    from dlx.node.audit.report import Conclusion

    counts = result["audit"]["counts"]
    if sum(counts.values()) != counts["PASS"]:
        problems.append(f"the audit found something: {Conclusion(**result['audit']['verdict'])}")
    return problems


def late(result: dict[str, Any]) -> str | None:
    """What to know of rounds that were sealed empty, of a demo that passed."""
    empty = [seal for seal in result["seals"] if not seal["count"]]
    if not empty:
        return None
    named = ", ".join(f"round {seal['round']} of stage {seal['stage']}" for seal in empty[:3])
    more = f" and {len(empty) - 3} more" if len(empty) > 3 else ""
    return f"sealed empty: {named}{more}: the machine was slow or busy, and the work came too late; the result is good"


def tokens_per_second(observed: Observed) -> float | None:
    """Tokens counted by seals per second while this process followed the run, from the first such seal to the last.

    The first round pays for warming up. None where it saw fewer than two.
    """
    first, end = observed.earlier, len(observed.sealed_at)
    if end - first < 2:
        return None
    steps = sum(observed.view.sealed[0, round].steps for round in range(first + 1, end))
    return steps * observed.view.config.tokens_per_step / max(1e-9, observed.sealed_at[-1] - observed.sealed_at[first])


def work_counted(seals: list[dict[str, Any]]) -> tuple[int, int]:
    """Contributions that the seals count, and those that the complete replicas could have made."""
    return sum(seal["count"] for seal in seals), sum(seal["replicas"] for seal in seals)


def sample(checkpoint: Path) -> str:
    """Text that the trained model writes, the likeliest byte every time: a small model's chance is noise."""
    import torch

    from dlx.training.models.evaluate import generate

    torch.set_num_threads(1)  # the model is small: on a busy machine threads would wait for each other
    return generate(checkpoint, PROMPT, SAMPLE_BYTES, temperature=0).decode("utf-8", "replace")


def first_loss(devnet: Devnet) -> float:
    """Held-out loss of the genesis, nats per byte."""
    from dlx.training.data.shards import Dataset
    from dlx.training.models.evaluate import heldout_loss_of_stages

    manifest, blobs = _manifest(devnet)
    dataset = Dataset.open(blobs / manifest.data.manifest.sha256, blobs)
    found = heldout_loss_of_stages(manifest, [blobs / genesis.sha256 for genesis in manifest.genesis], dataset)
    return _noted(devnet, 0, found)


def _heldout(devnet: Devnet, checkpoint: Path, version: int) -> float:
    from dlx.training.data.shards import Dataset
    from dlx.training.models.evaluate import heldout_loss

    manifest, blobs = _manifest(devnet)
    dataset = Dataset.open(blobs / manifest.data.manifest.sha256, blobs)
    return _noted(devnet, version, heldout_loss(checkpoint, dataset, manifest.data.sequence_length))


def _noted(devnet: Devnet, version: int, loss: float) -> float:
    run = bytes.fromhex(devnet.shape.run[2:])
    evaluation_store.add(DataDir(devnet.root), run, Evaluation(version, loss))
    return loss


def manifest_file(devnet: Devnet) -> tuple[Path, Path]:
    """The run's canonical manifest, and the blob folder that holds everything it names."""
    blobs = devnet.folder(devnet.names[0]).blobs
    with open_ledger(devnet.settings, DataDir(devnet.root)) as client:
        (config,) = client.read("runConfig", bytes.fromhex(devnet.shape.run[2:]))
    return blobs / config[0].hex(), blobs


def _manifest(devnet: Devnet) -> tuple[Any, Path]:
    from dlx.training.recipe.manifest import parse

    path, blobs = manifest_file(devnet)
    return parse(path.read_bytes()), blobs


@contextmanager
def stopping(devnet: Devnet) -> Iterator[None]:
    """Whatever happens, every child ends and the folder stays usable: also with a signal that asks to stop."""
    for number in stop_signals():  # also where a shell started us with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that closes says so more than once
        sys.stderr.write(f"\ndlx-node: stopping every process; `{devnet.again}` goes on from here\n")
        raise
    finally:
        devnet.stop()
