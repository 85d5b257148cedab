"""Locks between processes, and file systems that have none. Their answers are made: a mount needs more rights."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from dlx.ground import locks
from dlx.ground.errors import Unsuited


def test_one_holds_it_or_several_share_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    one, other, third = (os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(3))
    try:
        assert locks.take(one, path) and not locks.take(other, path) and not locks.take(other, path, shared=True)
        locks.free(one)
        assert locks.take(other, path, shared=True) and locks.take(third, path, shared=True)
        assert not locks.take(one, path)
    finally:
        for file in (one, other, third):
            os.close(file)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(file: int, what: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuses)
    with pytest.raises(Unsuited, match=rf"^{tmp_path} is on a file system without locks .*: choose a place on a disk"):
        locks.take(0, tmp_path)
