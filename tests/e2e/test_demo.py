"""A demo that ends in the middle and goes on, as a user starts and stops it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from dlx.node.devnet.devnet import Devnet
from tests.e2e.devnets import PASSED, Watched, alive, as_in_a_terminal
from tests.node.command import dlx
from tests.patience import until

MODEL = "model.safetensors"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_demo_goes_on_after_ctrl_c(tmp_path: Path) -> None:
    root, rounds = tmp_path / "demo", 3
    with process(
        tmp_path / "first.log", "demo", "--datadir", root, "--rounds", rounds, "--replicas", 1, "--stages", 2
    ) as demo:

        def works() -> bool:
            assert demo.poll() is None, (tmp_path / "first.log").read_text()
            return True

        def written() -> int:
            return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())

        until("the demo's nodes", lambda: works() and (root / "logs" / "node-0.log").exists(), written)
        watched = Watched(Devnet.open(root))
        watched.until("the first seals", lambda: works() and watched.sealed_rounds())
        family = psutil.Process(demo.pid)
        # A chain, the fork servers, two processes of each node; and the chain's for calls, as many as were wanted.
        until("all processes", lambda: len(family.children(recursive=True)) >= 6)
        children = family.children(recursive=True)
        demo.send_signal(signal.SIGINT)
        demo.communicate()
    assert demo.returncode == 130
    until("the end of all processes", lambda: not [child for child in children if alive(child)])

    with process(tmp_path / "second.log", "demo", "--datadir", root, "--resume", "--json") as demo:
        answer, _ = demo.communicate()
    assert demo.returncode == 0, (tmp_path / "second.log").read_text()
    assert "<title>demo" in (root / "run.html").read_text(), "a page that opens"
    told = json.loads(answer)
    assert (told["rounds"], told["audit"]["verdict"], len(told["loss"])) == (rounds, PASSED, rounds)
    assert all(seal["count"] == 1 for seal in told["seals"])

    # The chain has ended with the demo: each command starts it for itself.
    history = json.loads(dlx("history", "--datadir", root, "--json").stdout)
    assert [row["loss"] for row in history["rounds"]] == told["loss"]
    assert json.loads(dlx("audit", "--datadir", root, "--json").stdout)["verdict"] == PASSED
    dlx("pull", "--datadir", root, "--out", tmp_path / "model")
    checkpoint = Path(told["checkpoint"])
    assert (tmp_path / "model" / MODEL).read_bytes() == (checkpoint / MODEL).read_bytes()


@contextmanager
def process(log: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """`dlx-node` in a process of its own, ended with this; its remarks go to `log`."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("DLX_")}
    command = [sys.executable, "-m", "dlx.node.cli.app", *map(str, arguments)]
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=plain, preexec_fn=as_in_a_terminal
        ) as started,
    ):
        try:
            yield started
        finally:
            started.terminate()
