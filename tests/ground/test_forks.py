"""Processes of a fork server: they begin, end and are ended as others do."""

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dlx.ground import machine
from dlx.ground.forks import Forked, ForkServer
from tests.patience import PATIENCE


class Server(ForkServer):
    MODULE = "tests.ground.forked"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.stop()


def fork(server: Server, text: str, log: Path) -> Forked:
    with log.open("ab") as out:
        return Forked(server.path, text.encode(), [out.fileno(), out.fileno()])


@pytest.mark.parametrize(
    "text, status",
    [
        ("print('done')", 0),
        ("import sys; sys.exit(3)", 3),
        ("raise ValueError('it broke')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
    ],
)
def test_it_says_how_it_ended(server: Server, text: str, status: int, tmp_path: Path) -> None:
    forked = fork(server, text, tmp_path / "log")
    assert forked.wait(PATIENCE) == status
    assert (forked.poll(), forked.returncode) == (status, status)
    forked.send_signal(signal.SIGTERM)  # nobody is hit


def test_what_it_says_goes_where_it_was_told(server: Server, tmp_path: Path) -> None:
    text = "import sys; print('out'); print('err', file=sys.stderr); raise ValueError('it broke')"
    fork(server, text, log := tmp_path / "log").wait(PATIENCE)
    assert {"out", "err", "ValueError: it broke"} <= set(log.read_text().splitlines())


def test_it_runs_until_it_is_told(server: Server, tmp_path: Path) -> None:
    forked = fork(server, "import signal; signal.pause()", tmp_path / "log")
    assert forked.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        forked.wait(0.01)
    forked.send_signal(signal.SIGTERM)
    assert forked.wait(PATIENCE) == -signal.SIGTERM


def test_it_is_signalled_while_somebody_waits_for_it(server: Server, tmp_path: Path) -> None:
    forked = fork(server, "import signal; signal.pause()", tmp_path / "log")
    before = signal.signal(signal.SIGUSR1, lambda *_: forked.send_signal(signal.SIGTERM))
    try:
        other = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        other.start()
        assert forked.wait() == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGUSR1, before)
        other.join()


def test_it_ends_with_whoever_forgets_it(server: Server, tmp_path: Path) -> None:
    forked = fork(server, "import signal; signal.pause()", tmp_path / "log")
    process = psutil.Process(forked.pid)
    assert forked.end() == -signal.SIGKILL
    process.wait(PATIENCE)


def test_each_has_numbers_of_chance_of_its_own(server: Server, tmp_path: Path) -> None:
    logs = [tmp_path / str(number) for number in range(2)]
    for log in logs:
        fork(server, "import random; print(random.random())", log).wait(PATIENCE)
    one, other = (log.read_text() for log in logs)
    assert one != other


def test_a_large_request_comes_whole(server: Server, tmp_path: Path) -> None:
    text = f"print(len('{'x' * 300_000}'))"
    fork(server, text, log := tmp_path / "log").wait(PATIENCE)
    assert log.read_text() == "300000\n"


def test_a_server_that_stopped_says_so(tmp_path: Path) -> None:
    server = Server()
    forked = fork(server, "import signal; signal.pause()", tmp_path / "log")
    process = psutil.Process(forked.pid)
    server.stop()
    assert forked.wait(PATIENCE) < 0
    process.kill()
    process.wait(PATIENCE)
    with pytest.raises(OSError):
        fork(server, "pass", tmp_path / "log")
    assert not os.path.exists(server.path)


@pytest.mark.parametrize("at", ["subprocess.Popen", "socket.socket"])
def test_a_server_that_cannot_start_leaves_nothing(at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor tries again and again."""

    def refuses(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(machine, "_SOCKET_PATH", 1000)
    monkeypatch.setattr(f"dlx.ground.forks.{at}", refuses)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        Server()
    assert not list(tmp_path.iterdir())
