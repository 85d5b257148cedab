"""What a process remembers of files' hashes, told by several threads at a time."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlx.ground import hash_memory


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_may_remember_more_files_than_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switching: None
) -> None:
    monkeypatch.setattr(hash_memory, "_MOST", 20)
    monkeypatch.setattr(hash_memory, "_known", {})
    descriptors, errors = list[int](), list[Exception]()
    for number in range(200):
        path = tmp_path / str(number)
        path.touch()
        os.utime(path, (1, 1))
        descriptors.append(os.open(path, os.O_RDONLY))

    def remember(mine: list[int]) -> None:
        try:
            for _ in range(60):
                for descriptor in mine:
                    hash_memory.remember(descriptor, b"h" * 32)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=remember, args=(descriptors[one::4],)) for one in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = sum(hash_memory.is_known(one, b"h" * 32) for one in descriptors)
    for one in descriptors:
        os.close(one)
    assert not errors
    assert kept == 20


def test_bytes_that_change_without_a_later_time_are_hashed_again_after_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, name = tmp_path / "file", b"h" * 32
    path.write_bytes(b"as written")
    os.utime(path, (1, 1))
    with open(path, "rb") as file:
        hash_memory.remember(file.fileno(), name)
        path.write_bytes(b"rotten now")
        os.utime(path, (1, 1))
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 3000)
        assert hash_memory.is_known(file.fileno(), name)
        monkeypatch.setattr(time, "monotonic", lambda: now + 3700)
        assert not hash_memory.is_known(file.fileno(), name)


def test_a_large_file_that_was_written_a_moment_ago_is_remembered_and_a_small_one_is_not(tmp_path: Path) -> None:
    for name, size, expected in (("large", hash_memory._WORTH, True), ("small", 1, False)):
        with open(tmp_path / name, "wb") as file:
            file.truncate(size)
            hash_memory.remember(file.fileno(), b"h" * 32)
            assert hash_memory.is_known(file.fileno(), b"h" * 32) == expected
