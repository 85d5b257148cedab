import errno
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlx.ground import durable
from dlx.ground.blobs import BlobError, Damaged, read_blob, write_blob
from dlx.ground.durable import write_bytes, write_chunks
from dlx.ground.errors import Unsuited


def test_a_write_replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_bytes(path, b"a longer old content")
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["state"]


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_bytes(path, b"old")

    def chunks():
        yield b"half of the new"
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_chunks(path, chunks())
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state"]


def test_a_blob_is_named_by_its_sha256(tmp_path: Path) -> None:
    digest = write_blob(tmp_path, [b"some ", memoryview(b"bytes")])
    assert digest == hashlib.sha256(b"some bytes").digest()
    assert os.listdir(tmp_path) == [digest.hex()]
    assert read_blob(tmp_path / digest.hex(), 10) == b"some bytes"


def test_a_bad_blob_is_refused(tmp_path: Path) -> None:
    path = tmp_path / write_blob(tmp_path, [b"some bytes"]).hex()
    with pytest.raises(BlobError, match="more than 9 bytes"):
        read_blob(path, 9)
    path.write_bytes(b"some bytez")
    for limit in (9, 10):
        with pytest.raises(Damaged, match="do not match its name"):
            read_blob(path, limit)
    with pytest.raises(Damaged, match="No such file") as caught:
        read_blob(tmp_path / ("0" * 64), 10)
    assert caught.value.blob == bytes(32)


_WRITER = """\
import os, sys, pathlib
from dlx.ground import durable
def chunks():
    yield b"half"
    print(flush=True)
    sys.stdin.read()
durable.write_chunks(pathlib.Path(sys.argv[1]) / "file", chunks())
"""


def test_what_a_killed_writer_left_goes_and_what_is_being_written_stays(tmp_path: Path) -> None:
    (tmp_path / ".hidden.tmp").write_bytes(b"not ours")
    command = [sys.executable, "-c", _WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        durable.drop_drafts(tmp_path)
        assert len(os.listdir(tmp_path)) == 2, "it still writes"
        writer.kill()
    durable.drop_drafts(tmp_path)
    assert os.listdir(tmp_path) == [".hidden.tmp"]


def test_a_link_is_pointed_elsewhere_at_once(tmp_path: Path) -> None:
    link = tmp_path / "latest"
    for target in ("one", "two"):
        durable.point(link, target)
        assert os.readlink(link) == target
    assert list(tmp_path.iterdir()) == [link]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_new_file_is_made_where_there_are_no_hard_links(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAT, some networks' file systems: their answer is made, since a mount needs more rights."""

    def refuses(source: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuses)
    durable.create(tmp_path / "key", b"secret")
    assert (tmp_path / "key").read_bytes() == b"secret" and (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        durable.create(tmp_path / "key", b"another")
    durable.share(tmp_path / "key", tmp_path / "copy")
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == [b"secret"] * 2


def test_no_secret_is_written_where_everybody_could_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on FAT or WSL's /mnt/c, where a mode is taken and forgotten."""
    opened = os.open
    monkeypatch.setattr(os, "open", lambda path, flags, mode=0o777: opened(path, flags, mode | 0o055))
    with pytest.raises(Unsuited, match=r"on a file system without modes, .* choose a place"):
        durable.create(tmp_path / "key", b"secret")
    assert not list(tmp_path.iterdir()) and not durable.keeps_modes(tmp_path)
    write_bytes(tmp_path / "weights", b"public")
    monkeypatch.undo()
    assert durable.keeps_modes(tmp_path)
