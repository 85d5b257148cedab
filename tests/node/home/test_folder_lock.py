"""One folder, and who runs in it: on one machine, on several that share a disk, and in a copy."""

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dlx.ground import locks, machine
from dlx.node.home import folder_lock
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import Failure
from tests.patience import PATIENCE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataDir:
    monkeypatch.setattr(folder_lock, "LOOK_SECONDS", 0.4)
    monkeypatch.setattr(folder_lock, "_LOOKERS", 0.2)
    made = DataDir(tmp_path / "node")
    made.create()
    return made


@contextmanager
def other_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is called meanwhile is on another machine: of another boot, and without locks of this one."""
    with monkeypatch.context() as patched:
        patched.setattr(machine, "boot", lambda: "another-boot")
        patched.setattr(locks, "take", lambda file, path, shared=False: True)
        patched.setattr(folder_lock.platform, "node", lambda: "elsewhere")
        yield


def test_only_one_process_runs_in_a_folder(folder: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import sys; from pathlib import Path; from dlx.node.home.datadir import DataDir\n"
        "with DataDir(Path(sys.argv[1])).lock(): print('held', flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(folder.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None and owner.stdout.readline() == "held\n" and folder.is_held
        with pytest.raises(Failure, match=rf"another dlx-node \(pid {owner.pid}\) runs in"), folder.lock():
            pass
    finally:
        owner.kill()
        owner.wait()
    assert not folder.is_held, "the dead process holds nothing"
    monkeypatch.setattr(folder_lock, "LOOK_SECONDS", 2 * PATIENCE)
    before = time.monotonic()
    with folder.lock():
        assert time.monotonic() < before + PATIENCE, "and on its machine nobody looks whether it lives"


def test_another_machine_that_sees_the_folder_is_refused_while_the_first_one_lives(
    folder: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_lock, "LOOK_SECONDS", PATIENCE)  # a busy machine may beat late
    ended = threading.Event()
    with folder.lock() as lock:

        def beat() -> None:
            while not ended.wait(0.1):
                lock.beat()

        beats = threading.Thread(target=beat)
        beats.start()
        try:
            with (
                other_machine(monkeypatch),
                pytest.raises(Failure, match=r"another dlx-node \(pid \d+ on \S+\) runs in"),
                folder.lock(),
            ):
                pass
        finally:
            ended.set()
            beats.join()


def test_a_machine_that_is_gone_keeps_the_folder_for_a_moment_only(
    folder: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    with other_machine(monkeypatch):
        kept = folder.lock()
        kept.__enter__()  # and never ends
    before = time.monotonic()
    with folder.lock():
        assert time.monotonic() >= before + 0.4


def test_who_lost_the_folder_to_another_machine_ends(folder: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with folder.lock() as lock:
        lock.beat()
        with other_machine(monkeypatch):
            both = folder.lock()  # they looked in the same moment
            other = both.__enter__()
        with pytest.raises(Failure, match="on elsewhere\\) runs in"):
            lock.beat()
        other.beat()


@pytest.mark.parametrize("name", ["Jürgens-PC", "Anna's PC", "h" * 70, "日本", "\x1b[2J\n", "a\u2028b", ""])
def test_a_machine_may_have_any_name(folder: DataDir, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(folder_lock.platform, "node", lambda: name)
    for boot in (machine.boot(), f"{name}-1700000000"):
        monkeypatch.setattr(machine, "boot", lambda boot=boot: boot)
        with folder.lock() as lock:
            for _ in range(3):
                lock.beat()
            assert folder_lock._read(lock.path) == lock.entry
            assert lock.entry.boot.endswith(boot[-6:]), "which tells two starts apart"
            with pytest.raises(Failure, match=rf"\(pid {lock.entry.pid}\) runs in"), folder.lock():
                pass


def test_a_clean_end_leaves_nothing_to_wait_for(folder: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with other_machine(monkeypatch), folder.lock():
        pass
    monkeypatch.setattr(folder_lock, "LOOK_SECONDS", 2 * PATIENCE)
    before = time.monotonic()
    with folder.lock():
        assert time.monotonic() < before + PATIENCE


def test_nobody_runs_in_a_copy(folder: DataDir) -> None:
    with folder.lock():
        copy = DataDir(folder.root.with_name("copy"))
        shutil.copytree(folder.root, copy.root)
        assert folder.is_held and not copy.is_held
    assert not DataDir(folder.root.with_name("none")).is_held
