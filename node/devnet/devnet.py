"""A whole run on one machine, of real processes: the embedded chain, and nodes started with `dlx-node start`.

Layout of the folder: chain/ (the embedded chain), nodes/node-0 ... (one data folder each; node-0 created the run),
run.toml (the draft of the manifest), text/ (the demo's documents), devnet.json (what resuming needs).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import IO, ClassVar, Literal, Self

import msgspec

from dlx.ground import durable
from dlx.ground.forks import LOAD_SECONDS, Forked
from dlx.ground.limits import cores
from dlx.node.daemon.api.status import NodeStatus
from dlx.node.devnet.server import NODES, PROGRAM, NodeServer, Wanted, end_with_parent
from dlx.node.devnet.times import measured_round, times
from dlx.node.home import config
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.home.keys import identity
from dlx.node.home.program import line
from dlx.node.home.settings import DEFAULTS
from dlx.node.home.values import is_loopback
from dlx.node.trainer.spawn import SHARED, ForkServer

STOP_SECONDS = 20.0
FILE = "devnet.json"
FORMAT = 1  # of it
_OPEN = "--insecure-listen"  # of a chain that other machines reach
_MOST_REPLICAS = 14
Kind = Literal["demo", "devnet"]  # the command that made it, and that goes on with it
ROOM = 6  # replicas that may join, beside those that it starts

_DRAFT = """\
# The run of `dlx-node {name}`: a byte-level Llama of 0.9M parameters on the Python standard library's source text.
name = "{name}"
rounds = {rounds}
stages = {stages}
min_replicas = {replicas}
max_replicas = {max_replicas}
confirmations = 0  # the embedded chain never takes a block back

[model.config]
model_type = "llama"
vocab_size = 256
hidden_size = 128
intermediate_size = 344
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 4
max_position_embeddings = 128

[data]
source = ["text/*.py"]
licence = "PSF-2.0"
sequence_length = 128
batch_size = 8
micro_batches = 4
heldout = 0.05

[inner]
lr = 4e-3
warmup = {warmup:g}  # one round of it

[outer]
lr = 0.8
alpha = 0.8
delay = 1

[plan]
inner_steps = 10

[timing]  # of a machine on which a round trains for {trains:.1f} s
{times}

[audit]
share = {share:g}  # more than usual, so that a short run shows some
"""


@dataclass(frozen=True)
class DevnetShape:
    """What is fixed at creation."""

    run: str  # 0x hex
    rounds: int  # at most, where the plan adapts
    replicas: int
    stages: int
    block_time: float | None = None  # seconds; None: the embedded chain's own pace
    kind: Kind = "demo"
    format: int = FORMAT


def draft(rounds: int, replicas: int, stages: int, name: Kind = "demo", trains: float = 1.0) -> str:
    """The draft manifest of a demo, or of another command of this name, where a round trains for so many seconds.
    Raises UsageFailure for a shape it cannot have."""
    layers = 4
    if not 1 <= stages <= layers:
        raise UsageFailure(f"--stages {stages}: the demo's model has {layers} layers, so 1 to {layers} stages")
    if not 1 <= replicas <= _MOST_REPLICAS:
        raise UsageFailure(f"--replicas {replicas}: expected 1 to {_MOST_REPLICAS}")
    bounds = [layers * stage // stages for stage in range(stages + 1)]
    ranges = [list(pair) for pair in pairwise(bounds)]
    return _DRAFT.format(
        name=name,
        rounds=rounds,
        warmup=min(0.05, 1 / rounds),
        replicas=replicas,
        stages=ranges,
        max_replicas=replicas + ROOM,
        share=0.25 if name == "demo" else DEFAULTS.audit_share,  # what newcomers' own settings allow
        trains=trains,
        times="\n".join(f"{key} = {seconds}" for key, seconds in times(trains).items()),
    )


@dataclass
class Devnet:
    """`create` or `open` it, `start`, and always `stop`."""

    kind: ClassVar[Kind] = "demo"
    forks_nodes: ClassVar[bool] = True  # of a process that has everything imported; else `command` is executed

    root: Path
    shape: DevnetShape
    rpc_url: str = ""
    _processes: dict[str, subprocess.Popen[bytes] | Forked] = field(default_factory=dict)
    _trainers: ForkServer | None = None
    _nodes: NodeServer | None = None

    # ---- making and finding one ----

    @classmethod
    def create(
        cls,
        root: Path,
        rounds: int,
        replicas: int,
        stages: int,
        progress: Callable[[str], None],
        text: str | None = None,
        block_time: float | None = None,
    ) -> Self:
        """A new folder with a running chain and a registered run. Raises Failure; the folder must be new or empty.

        `text` is the draft of another model than the demo's, of just these rounds and stages; `block_time`: seconds
        between blocks while transactions wait.
        """
        devnet = cls(root, DevnetShape("", rounds, replicas, stages, block_time))
        devnet.make(text, progress)
        return devnet

    def make(self, text: str | None, progress: Callable[[str], None]) -> None:
        """The folder, which is new or empty, with the chain, the nodes' keys and the run of this draft; None: of the
        demo's. Raises Failure."""
        shape = self.shape.rounds, self.shape.replicas, self.shape.stages, self.kind
        toml = text or draft(*shape)
        check_new(self.root, self.kind)
        DataDir(self.root).create()
        try:
            self._keep_shape()
            (self.root / "run.toml").write_text(toml)
            if text is None:
                copy_documents(self.root / "text")
                progress("measuring how fast this machine trains")
                trains = measured_round(self.root / "run.toml", self.shape.replicas, self.threads())
                (self.root / "run.toml").write_text(draft(*shape, trains))
            self.start_chain()
            progress("keys for the nodes")
            for name in self.names:
                folder = self.folder(name)
                folder.create()
                identity.create(folder, lambda: "", insecure_devnet=True)
                config.write(folder.config, {"network": "devnet"})
            self.shape = replace(self.shape, run=self._create_run(progress))
            self._keep_shape()
        except BaseException as error:
            self.stop()
            if isinstance(error, KeyboardInterrupt):
                shutil.rmtree(self.root)  # half made, and all of it ours: there is nothing to resume
            raise

    @classmethod
    def open(cls, root: Path) -> Self:
        """An earlier one, stopped. Raises Failure when there is none, and UsageFailure where another command made
        it."""
        shape = shape_of(root)
        if shape.kind != cls.kind:
            raise UsageFailure(f"{root} holds a {shape.kind}: {_goes_on(root, shape.kind)}")
        return cls(root, shape)

    @property
    def again(self) -> str:
        """The command that goes on with it."""
        return _again(self.root, self.kind)

    @property
    def names(self) -> list[str]:
        return [f"node-{index}" for index in range(self.shape.replicas * self.shape.stages)]

    def folder(self, name: str) -> DataDir:
        return DataDir(self.root / "nodes" / name)

    @property
    def settings(self) -> config.Settings:
        """Of the devnet's own folder: its chain and contracts."""
        return config.load(DataDir(self.root), {"rpc_url": self.rpc_url} if self.rpc_url else {}, {})

    # ---- where they run ----

    def address(self, name: str) -> str:
        """The IP address on which the chain ("chain") or a node listens."""
        return "127.0.0.1"

    def command(self, name: str, module: Sequence[str]) -> list[str]:
        """What is executed to run the Python module with these arguments as the chain or as a node."""
        return [sys.executable, "-m", *module]

    def more_arguments(self, name: str) -> list[str]:
        """Of a node's `dlx-node start`."""
        return []

    def threads(self) -> int:
        """Of a node: the machine is shared out among all."""
        return max(1, cores() // len(self.names))

    # ---- processes ----

    def start_chain(self, port: int = 0) -> None:
        """Start the embedded chain, or restart it where its nodes look for it; `rpc_url` is known afterwards."""
        port = port or (self.last_port() if self._processes else 0)
        arguments = ["chain", "--datadir", str(self.root), "--port", str(port)]
        arguments += ["--host", self.address("chain"), *([] if is_loopback(self.address("chain")) else [_OPEN])]
        pace = [] if self.shape.block_time is None else ["--block-time", str(self.shape.block_time)]
        process = self._spawn("chain", [*PROGRAM, *arguments, *pace])
        url_file = DataDir(self.root).contracts
        before = url_file.stat().st_mtime_ns if url_file.exists() else 0
        deadline = time.monotonic() + LOAD_SECONDS
        while not url_file.exists() or url_file.stat().st_mtime_ns == before:
            if process.poll() is not None:
                raise Failure(f"the chain did not start: see {self.log('chain')}")
            if time.monotonic() > deadline:
                raise Failure(f"the chain did not answer within {LOAD_SECONDS:.0f} s: see {self.log('chain')}")
            time.sleep(0.1)
        self.rpc_url = json.loads(url_file.read_text())["rpc_url"]

    def start_node(self, name: str, program: Sequence[str] = PROGRAM) -> None:
        """`program`: what is run as `dlx-node`."""
        settings = self.settings
        arguments = ["start", "--datadir", str(self.folder(name).root), "--run", self.shape.run]
        arguments += ["--rpc-url", " ".join(settings.rpc_url), "--ledger", settings.ledger]
        address = self.address(name)
        arguments += ["--listen", f"/{'ip6' if ':' in address else 'ip4'}/{address}/tcp/0"]  # many on one machine
        arguments += self.more_arguments(name)
        arguments += ["--threads", str(self.threads())]
        if program != PROGRAM:
            self._spawn(name, [*program, *arguments])
        elif self.forks_nodes:
            self._fork(name, arguments)
        else:
            self._spawn(name, [*program, *arguments], {SHARED: self._trainer_server()})

    def start(self) -> None:
        """The chain if it does not run yet, then every node."""
        if "chain" not in self._processes:
            self.start_chain()
        for name in self.names:
            self.start_node(name)

    def kill(self, name: str) -> None:
        """SIGKILL, as a power cut would: with the training process, which ends with its socket."""
        self._processes[name].kill()
        self._processes.pop(name).wait()

    def stop_nodes(self) -> None:
        """Ask all nodes to leave, wait, and kill what hangs."""
        self._stop([name for name in self._processes if name != "chain"])

    def stop(self) -> None:
        """Nodes first, while the chain still answers; they keep their slots for the next start."""
        self.stop_nodes()
        self._stop(list(self._processes))
        for server in filter(None, (self._trainers, self._nodes)):
            server.stop()
        self._trainers = self._nodes = None

    def check(self) -> None:
        """Raises Failure when a process ended by itself."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise Failure(f"{name} ended with exit code {process.returncode}: see {self.log(name)}")

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.log"

    def status(self, name: str) -> NodeStatus | None:
        """What a node's own HTTP endpoint says; None while it does not answer."""
        import requests

        try:
            url = json.loads(self.folder(name).http_address.read_text())["url"]
            body = requests.get(f"{url}/v1/status", timeout=2).content
            return msgspec.json.decode(body, type=NodeStatus)
        except (OSError, ValueError, KeyError, msgspec.MsgspecError, requests.RequestException):
            return None

    # ---- helpers ----

    def _create_run(self, progress: Callable[[str], None]) -> str:
        from dlx.node.home.ledgers import open_ledger
        from dlx.node.runs import create

        folder = self.folder(self.names[0])
        settings = self.settings
        account = identity.load_account(folder, settings)
        with open_ledger(settings, folder, account.secret) as client:
            return create.create_run(self.root / "run.toml", folder, client, lambda what: None, progress).run

    def _keep_shape(self) -> None:
        durable.write_bytes(self.root / FILE, json.dumps(self.shape.__dict__, indent=2).encode() + b"\n")

    def last_port(self) -> int:
        """Where its chain answered last; 0, a free one, at first."""
        try:
            return int(json.loads(DataDir(self.root).contracts.read_text())["rpc_url"].rpartition(":")[2])
        except FileNotFoundError:
            return 0

    def _trainer_server(self) -> str:
        """The socket of one server for all nodes, so that torch is imported once and shares its memory."""
        if SHARED in os.environ:
            return os.environ[SHARED]
        if self._trainers is None:
            with self._open_log("trainers") as log:
                self._trainers = ForkServer(log)
        return str(self._trainers.path)

    def _node_server(self) -> Path:
        if NODES in os.environ:
            return Path(os.environ[NODES])
        if self._nodes is None:
            with self._open_log("nodes") as log:
                self._nodes = NodeServer(self._environment(), log)
        return self._nodes.path

    def _environment(self) -> dict[str, str]:
        return {key: value for key, value in os.environ.items() if not key.startswith("DLX_")}

    def _fork(self, name: str, arguments: list[str]) -> None:
        environment = self._environment() | {SHARED: self._trainer_server()}
        wanted = msgspec.json.encode(Wanted(f"dlx {name}", arguments, environment))
        with self._open_log(name) as log:
            self._processes[name] = Forked(self._node_server(), wanted, [log.fileno(), log.fileno()])

    def _spawn(
        self, name: str, arguments: list[str], more_environment: Mapping[str, str] = MappingProxyType({})
    ) -> subprocess.Popen[bytes]:
        with self._open_log(name) as log:
            process = subprocess.Popen(
                self.command(name, arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self._environment(), **more_environment},
                start_new_session=True,  # a terminal's Ctrl-C is ours to pass on, in the right order
                preexec_fn=end_with_parent,
            )
        self._processes[name] = process
        return process

    def _open_log(self, name: str) -> IO[bytes]:
        self.log(name).parent.mkdir(parents=True, exist_ok=True)
        return self.log(name).open("ab")

    def _stop(self, names: list[str]) -> None:
        processes = {name: self._processes.pop(name) for name in names if name in self._processes}
        for process in processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for process in processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def check_new(root: Path, kind: Kind) -> None:
    """Raises UsageFailure unless the folder is new or empty. `kind`: what is to be made there."""
    if (root / FILE).exists():
        shape = shape_of(root)
        raise UsageFailure(f"{root} holds a {shape.kind}: {_goes_on(root, shape.kind)}")
    if root.exists() and any(root.iterdir()):
        raise UsageFailure(f"{root} is not empty and holds no {kind}: name a new --datadir")


def shape_of(root: Path) -> DevnetShape:
    """Of the devnet in a folder, which was made whole. Raises Failure."""
    try:
        found = json.loads((root / FILE).read_text())
        if found.get("format", FORMAT) > FORMAT:
            raise UsageFailure(f"{root} was made by a newer dlx-node (format {found['format']}): use that one")
        shape = DevnetShape(**found)
    except FileNotFoundError:
        raise UsageFailure(f"{root} holds no demo to resume: start one without --resume") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise Failure(f"{root / FILE} is damaged ({error}): start a new demo in another folder") from None
    if not shape.run:
        raise UsageFailure(f"{root} holds a {shape.kind} that was not finished: remove it, or name a new --datadir")
    return shape


def _again(root: Path, kind: Kind) -> str:
    verb = "demo --resume" if kind == "demo" else kind
    return line(*verb.split(), folder=root)


def _goes_on(root: Path, kind: Kind) -> str:
    return f"`{_again(root, kind)}` goes on with it, or name a new --datadir"


def copy_documents(folder: Path) -> None:
    """The demo's documents: copied, so that its draft means the same wherever the folder lies."""
    folder.mkdir()
    for path in Path(sysconfig.get_paths()["stdlib"]).glob("*.py"):
        shutil.copyfile(path, folder / path.name)
