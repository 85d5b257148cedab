"""Small devnets of real processes: a tiny run, what its ledger and its nodes say, and waiting while they get on."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from dlx.ledger.abi import checksum
from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerUnavailable
from dlx.ledger.events import Event, Sealed
from dlx.ledger.typed import Contribution, Record
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.api.status import NodeStatus
from dlx.node.devnet import demo
from dlx.node.devnet.devnet import Devnet
from tests.node.command import dlx
from tests.patience import LOOK_SECONDS, PATIENCE, until
from tests.ports import lasting_port

REPLICAS, STAGES = 2, 2
BLOCK_TIME = 0.2  # seconds
MANY = 200  # rounds: what has not happened by then, while rounds were sealed, does not happen
PASSED = {"ledger": "PASS", "outer_steps": "PASS", "training": "not checked"}  # an audit's verdict

_DRAFT = """\
name = "e2e"
rounds = {rounds}
stages = {ranges}
min_replicas = {replicas}
max_replicas = {room}
confirmations = {confirmations}
arithmetic = "{arithmetic}"

[model.config]
model_type = "llama"
vocab_size = 256
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 2
max_position_embeddings = 32

[data]
source = ["{source}"]
sequence_length = 32
batch_size = 4
micro_batches = 2

[outer]
lr = 0.8
alpha = {alpha}
ahead = {ahead}
delay = {delay}

[plan]
inner_steps = {steps}

[timing]
straggler_grace = {grace}
proposal_timeout = {proposal}
round_timeout = {timeout}
eviction_time = {eviction}
"""

T = TypeVar("T")


@dataclass
class ToughDevnet(Devnet):
    """Its chain comes back at a port that nobody took meanwhile, and nodes that are to end by themselves may."""

    may_end: set[str] = field(default_factory=set)

    def start_chain(self, port: int = 0) -> None:
        super().start_chain(port or (self.last_port() if self._processes else lasting_port()))

    def check(self) -> None:
        for name in self.may_end & self._processes.keys():
            if self._processes[name].poll() is not None:
                del self._processes[name]
        super().check()

    def has_ended(self, name: str) -> bool:
        """By itself, and it may."""
        self.check()
        return name not in self._processes

    def end(self, names: list[str]) -> None:
        """As a person would, who gives the slot back. First a node serves what was drawn of its work."""
        processes = {name: self._processes.pop(name) for name in names if name in self._processes}
        for process in processes.values():
            process.send_signal(signal.SIGINT)
        for process in processes.values():
            process.wait(2 * PATIENCE)


@dataclass(frozen=True)
class Timing:
    """Seconds, as in the manifest."""

    grace: float
    proposal: float
    timeout: int
    eviction: int


def create(
    root: Path,
    rounds: int,
    steps: int,
    timing: Timing,
    replicas: int = REPLICAS,
    more: str = "",
    stages: int = STAGES,
    ahead: float = 0.0,
    arithmetic: str = "device",
) -> ToughDevnet:
    """A devnet with its chain running and its nodes not yet started; `more` ends the draft."""
    text = draft(rounds, steps, timing, replicas, stages, ahead=ahead, arithmetic=arithmetic) + more
    return ToughDevnet.create(root, rounds, replicas, stages, lambda line: None, text, BLOCK_TIME)


def draft(
    rounds: int,
    steps: int,
    timing: Timing,
    replicas: int,
    stages: int = STAGES,
    confirmations: int = 0,
    ahead: float = 0.0,
    delay: int = 1,
    room: int = 4,
    arithmetic: str = "device",
) -> str:
    """Of a manifest: a model of two layers in one stage or two."""
    source, ranges = (
        Path(sysconfig.get_paths()["stdlib"]) / "argparse.py",
        [[0, 1], [1, 2]] if stages == 2 else [[0, 2]],
    )
    return _DRAFT.format(
        rounds=rounds, steps=steps, replicas=replicas, ranges=ranges, confirmations=confirmations, source=source,
        room=room, ahead=ahead, delay=delay, arithmetic=arithmetic, alpha=0.8 * delay, **timing.__dict__,
    )  # fmt: skip


@dataclass
class Watched:
    """A running devnet and the events of its run so far, read at `rpc_url` (none: where the nodes do)."""

    devnet: Devnet
    rpc_url: str = ""
    view: RunView = field(init=False)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        run = bytes.fromhex(self.devnet.shape.run[2:])
        settings = self.devnet.settings
        self._client = LedgerClient(self.rpc_url or settings.rpc_url, checksum(bytes.fromhex(settings.ledger[2:])))
        self._feed = self._client.feed(run)
        self.view = RunView(run, self._client.domain)

    def until(self, what: str, condition: Callable[[], T | None], look: float = 0.25) -> T:
        """See `patience.until`: progress is whatever the ledger or a node says that is new.

        Fails at once when a process of the devnet has ended by itself, and after `MANY` rounds.
        """
        last = self.sealed_rounds() + MANY

        def checked() -> T | None:
            self.devnet.check()
            return condition()

        def progress() -> object:
            rounds = self.sealed_rounds()
            if rounds > last:
                pytest.fail(f"{what}: not within {MANY} rounds\n{self._logs()}")
            works = [(name, one.phase, one.round, one.step, one.peers) for name, one in self.statuses().items()]
            return len(self.events), works

        return until(what, checked, progress, explain=self._logs, look=look)

    def read(self) -> RunView:
        """The run as its ledger has it now, or as it was last seen while the chain does not answer."""
        with contextlib.suppress(LedgerUnavailable):
            update = self._client.poll(self._feed)
            if update.reorg:
                self.view = RunView(self.view.run, self.view.domain)
                self.events.clear()
            for event in update.events:
                self.view.apply(event)
                self.events.append(event)
        return self.view

    def until_all_count(self, after: int = 0) -> int:
        """Waits for a round from `after` on whose seals, of every stage, count all replicas; returns it."""

        def full() -> int | None:
            view = self.read()
            done = min(map(view.next_round, range(self.devnet.shape.stages)))
            counts = {
                round: min(view.sealed[stage, round].count for stage in range(self.devnet.shape.stages))
                for round in range(after, done)
            }
            return next((round + 1 for round, count in counts.items() if count == self.devnet.shape.replicas), None)

        return self.until(f"a round from {after} on that counts everybody", full) - 1

    def sealed_rounds(self) -> int:
        """Rounds that every stage has sealed."""
        view = self.read()
        return min(map(view.next_round, range(self.devnet.shape.stages)))

    def seals(self) -> list[Sealed]:
        """As the view has them: with the makers of their records."""
        return [self.view.sealed[event.stage, event.round] for event in self.events if isinstance(event, Sealed)]

    def stated(self, record: Record) -> Contribution:
        """All that a counted contribution says, from whichever node's disk has it."""
        places = [self.devnet.folder(name).blobs / record.statement.hex() for name in self.devnet.names]
        return Contribution.decode(next(path for path in places if path.exists()).read_bytes())

    def of(self, kind: type[T], account: str | None = None) -> list[T]:
        """The events of a kind, and about an account if one is given."""
        return [
            event
            for event in self.events
            if isinstance(event, kind) and account in (None, getattr(event, "account", None))
        ]

    def statuses(self) -> dict[str, NodeStatus]:
        """What the nodes say that answer within moments."""
        found = {name: self.devnet.status(name) for name in self.devnet.names}
        return {name: status for name, status in found.items() if status is not None}

    def status(self, name: str) -> NodeStatus:
        """What the node says, as soon as it does."""
        return self.until(f"{name}'s status", lambda: self.devnet.status(name))

    def everybody(self) -> dict[str, NodeStatus]:
        """What each node says, as soon as it does."""
        return {name: self.status(name) for name in self.devnet.names}

    def member_at(self, replica: int, stage: int) -> str:
        """The name of the node that holds a slot."""
        found = self.everybody()
        return next(n for n, status in found.items() if (status.replica, status.stage) == (replica, stage))

    def until_inside_a_round(self, name: str) -> NodeStatus:
        """Waits until the node has done some, but not half, of its round's inner steps."""

        def inside() -> NodeStatus | None:
            status = self.devnet.status(name)
            here = status is not None and status.phase == "training" and 0 < status.step <= status.steps // 2
            return status if here else None

        return self.until(f"{name} in the middle of a round", inside, LOOK_SECONDS)

    def kill(self, name: str) -> None:
        """SIGKILL; the node's training process must end by itself."""
        trainer = psutil.Process(self.trainer(name))
        self.devnet.kill(name)
        self.until(f"the end of {name}'s training process", lambda: not alive(trainer))

    def trainer(self, name: str) -> int:
        """The process id of the node's newest training process, which is a child of the fork server."""
        started = re.findall(r"training process started pid=(\d+)", self.devnet.log(name).read_text())
        return int(started[-1])

    def assert_sealed_once(self) -> None:
        """Every (stage, round) has one seal, each names the one before, and each version is another."""
        seals = self.seals()
        assert len({(seal.stage, seal.round) for seal in seals}) == len(seals)
        for stage in range(self.devnet.shape.stages):
            chain = sorted((seal for seal in seals if seal.stage == stage), key=lambda seal: seal.round)
            assert [seal.round for seal in chain] == list(range(len(chain)))
            head = self.view.genesis[stage]
            for seal in chain:
                assert seal.seal(head).digest(self._client.domain) == seal.digest, "it names the one before"
                head = seal.digest
            versions = [self.view.genesis[stage], *(seal.outcome.weights for seal in chain if seal.records)]
            assert len(set(versions)) == len(versions), "an honest round that counts somebody changes the weights"

    def _logs(self) -> str:
        parts = []
        for name in ["chain", *self.devnet.names]:
            path = self.devnet.log(name)
            lines = path.read_text(errors="replace").splitlines()[-25:] if path.exists() else ["(none)"]
            parts.append(f"--- {name}, {self.devnet.status(name)}\n" + "\n".join(lines))
        return "\n".join(parts)


@dataclass(frozen=True)
class Ended:
    """A devnet that ran until its run was finished at every node, and what was then read of it."""

    watched: Watched
    rounds: int
    waiting: set[str | None]  # for what each node said that it waits
    listed: Any  # as `run list --json` says
    history: Any  # rows, as `history --json` says
    result: dict[str, Any]  # the demo's, with its audit


SOURCE = Path(sysconfig.get_paths()["stdlib"]) / "argparse.py"


def until_finished(root: Path, text: str, rounds: int, replicas: int, stages: int, source: Path = SOURCE) -> Ended:
    """Runs a draft's nodes until each says that the run is finished; audits it, and ends them."""
    devnet = Devnet.create(root, rounds, replicas, stages, lambda line: None, text.format(source=source), BLOCK_TIME)
    try:
        devnet.start()
        watched = Watched(devnet)
        seen = demo.follow(devnet, lambda seen, round: None, lambda seen: None)
        phases = ["finished"] * replicas * stages
        watched.until(
            "the end of the run at every node", lambda: [one.phase for one in watched.statuses().values()] == phases
        )
        return Ended(
            watched,
            watched.read().next_round(0),
            {status.waiting_for for status in watched.statuses().values()},
            json.loads(dlx("run", "list", "--datadir", root, "--json").stdout),
            json.loads(dlx("history", "--datadir", root, "--json").stdout)["rounds"],
            demo.outcome(devnet, seen, lambda line: None),
        )
    finally:
        devnet.stop()


def alive(process: psutil.Process) -> bool:
    """Whether it still runs; one that only waits to be reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def as_in_a_terminal() -> None:
    """For `preexec_fn`: Ctrl-C is heard, also where these tests run in the background of a shell, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
