"""Somebody joins a running devnet from a second terminal, with nothing but the command line and the run's addresses."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from dlx.ledger.events import Evicted, Left
from dlx.node.home.datadir import DataDir
from tests.e2e.devnets import STAGES, Timing, Watched, as_in_a_terminal, create
from tests.node.command import dlx
from tests.patience import PATIENCE, until

pytestmark = pytest.mark.slow

TIMING = Timing(grace=3, proposal=1, timeout=60, eviction=60)
LEAVING = 60.0  # seconds that a clean end may take, of one or two on an idle machine


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    devnet = create(tmp_path_factory.mktemp("stranger") / "devnet", 100_000, steps=5, timing=TIMING)
    try:
        devnet.start()
        watched = Watched(devnet)
        watched.until_all_count()
        yield watched
    finally:
        devnet.stop()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator["Terminal"]:
    terminal = Terminal(tmp_path)
    try:
        yield terminal
    finally:
        terminal.close()


class Terminal:
    """Nodes started as a user starts them: each a process group, which Ctrl-C reaches as a whole."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        """`dlx-node start` in the folder `name`, which goes on running."""
        options = ["--datadir", str(self.place / name), "--listen", "/ip4/127.0.0.1/tcp/0", *arguments]
        command = [sys.executable, "-m", "dlx.node.cli.app", "start", *options]
        with self.log(name).open("ab") as log:
            self._started[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={key: value for key, value in os.environ.items() if not key.startswith("DLX_")},
                start_new_session=True,
                preexec_fn=as_in_a_terminal,
            )

    def wait(self, name: str) -> int:
        """The exit code of a node that ends by itself."""
        return self._started.pop(name).wait(PATIENCE)

    def ctrl_c(self, name: str) -> tuple[int, float]:
        """The exit code, and the seconds it took."""
        process, since = self._started[name], time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        code = process.wait(PATIENCE)
        del self._started[name]
        return code, time.monotonic() - since

    def ask(self, command: str, name: str) -> dict[str, Any]:
        return json.loads(dlx(command, "--datadir", self.place / name, "--json").stdout)

    def log(self, name: str) -> Path:
        return self.place / f"{name}.log"

    def check(self) -> None:
        for name, process in self._started.items():
            assert process.poll() is None, self.log(name).read_text()

    def close(self) -> None:
        for process in self._started.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def refused(*arguments: object, code: int) -> str:
    """The line with which a command refuses: the last one, for `start` says before it that it starts."""
    done = dlx(*arguments, code=code)
    assert not done.stdout
    return done.stderr.splitlines()[-1]


def test_two_strangers_make_a_replica_and_leave(watched: Watched, terminal: Terminal) -> None:
    devnet, accounts = watched.devnet, {}
    where = ["--run", devnet.shape.run, "--rpc-url", *devnet.settings.rpc_url, "--ledger", devnet.settings.ledger]
    for name in ("red", "blue"):
        made = dlx("init", "--datadir", terminal.place / name, "--insecure-devnet", "--json")
        accounts[name] = json.loads(made.stdout)["account"]
        terminal.start(name, *where)

    def counted() -> bool:
        terminal.check()
        return all(watched.read().last_round_counted(account) is not None for account in accounts.values())

    watched.until("seals that count the strangers", counted)
    # One of each stage: in a replica of their own, or in two where it was dealt because it was not counted at once.
    assert sorted((watched.view.slot_of(account) or ())[1] for account in accounts.values()) == [*range(STAGES)]
    for name, account in accounts.items():
        peers = {status.peer_id for status in watched.everybody().values()}
        url = json.loads(DataDir(terminal.place / name).http_address.read_text())["url"]

        def well(name: str = name, peers: set[str] = peers, url: str = url) -> dict[str, Any] | None:
            status = terminal.ask("status", name)
            agreed = {peer["peer_id"] for peer in terminal.ask("peers", name)["peers"] if peer["agreed"]}
            ready = requests.get(f"{url}/readyz", timeout=PATIENCE).status_code == 200
            counts = status["counted_in_last_round"] and status["last_counted_round"] is not None
            return status if counts and ready and not status["not_ready"] and agreed > peers else None

        status = watched.until(f"{name} to say that it counts", well)
        assert (status["account"], status["run"]) == (account, devnet.shape.run)

    for name, account in accounts.items():
        code, seconds = terminal.ctrl_c(name)
        assert (code, seconds < LEAVING) == (0, True), terminal.log(name).read_text()
        assert watched.read().slot_of(account) is None and len(watched.of(Left, account)) == 1, terminal.log(
            name
        ).read_text()
        assert "no node runs in" in refused("status", "--datadir", terminal.place / name, code=3)
    at = watched.until_all_count(after=watched.sealed_rounds())
    watched.until("more rounds without the strangers", lambda: watched.sealed_rounds() > at + 2)
    assert all(seal.count > 0 for seal in watched.seals()) and not watched.of(Evicted)
    watched.assert_sealed_once()


def test_a_folder_serves_one_node(watched: Watched) -> None:
    folder, devnet = watched.devnet.folder("node-0").root, watched.devnet
    line = refused("start", "--datadir", folder, "--rpc-url", devnet.rpc_url, code=1)
    assert f"another dlx-node (pid {devnet.pid('node-0')}) runs in {folder}" in line
    watched.status("node-0")  # it still answers


def test_secrets_that_others_could_read_are_refused(tmp_path: Path) -> None:
    folder = DataDir(tmp_path)
    dlx("init", "--datadir", tmp_path, "--insecure-devnet")
    (keystore,) = folder.keystore.glob("UTC--*")
    for secret in (folder.node_key, keystore):
        secret.chmod(0o644)
        line = refused("start", "--datadir", tmp_path, code=1)
        assert line.endswith(f"{secret} holds a secret but its mode is 0644: run `chmod 600 {secret}`")
        secret.chmod(0o600)


def test_a_chain_that_does_not_answer(tmp_path: Path, terminal: Terminal) -> None:
    dlx("init", "--datadir", tmp_path / "node", "--insecure-devnet")
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"http://127.0.0.1:{server.getsockname()[1]}"
    terminal.start("node", "--rpc-url", closed, "--ledger", "0x" + "11" * 20)
    until("the reason why it waits", lambda: "waiting for the chain" in terminal.log("node").read_text())
    _, line = terminal.log("node").read_text().splitlines()
    assert line.startswith("dlx-node: waiting for the chain, to find the run: no answer from the chain node")
    code, seconds = terminal.ctrl_c("node")
    assert code != 0 and seconds < LEAVING and "Traceback" not in terminal.log("node").read_text()
