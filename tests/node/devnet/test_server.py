"""Nodes of a devnet are forks of one process."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from dlx.ground.forks import Forked
from dlx.node.devnet.server import NodeServer, Wanted
from tests.patience import PATIENCE, until


@pytest.fixture(scope="module")
def server() -> Iterator[NodeServer]:
    one = NodeServer()
    yield one
    one.stop()


def fork(server: NodeServer, log: Path, *arguments: str) -> Forked:
    wanted = Wanted("dlx test", list(arguments), dict(os.environ))
    with log.open("ab") as out:
        return Forked(server.path, msgspec.json.encode(wanted), [out.fileno(), out.fileno()])


def test_a_fork_does_what_the_program_does(server: NodeServer, tmp_path: Path) -> None:
    log, wrong = tmp_path / "help", tmp_path / "wrong"
    assert fork(server, log, "start", "--help").wait(PATIENCE) == 0
    assert "Join a run" in log.read_text()
    assert fork(server, wrong, "start", "--datadir", str(tmp_path)).wait(PATIENCE) == 2
    (line,) = wrong.read_text().splitlines()
    assert line.startswith("dlx-node: ")
    assert psutil.Process(server.pid).num_threads() == 1, "only then is a fork safe"


class Broken(NodeServer):
    MODULE = "dlx.nothing"


def test_what_a_server_dies_of_is_in_its_log_and_not_on_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "log").open("wb") as log:
        broken = Broken(errors=log)
    until("its end", lambda: not broken.alive)
    broken.stop()
    assert "No module named dlx.nothing" in (tmp_path / "log").read_text()
    assert capfd.readouterr().err == ""
