import socket
import tempfile
from pathlib import Path

import pytest

from dlx.ground import machine


def test_sockets_have_room_whatever_the_temporary_folder_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("a" * 60) / ("b" * 60)
    deep.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    folder = machine.for_sockets("dlx-ranks-")
    try:
        assert folder.stat().st_mode & 0o077 == 0 and not list(deep.iterdir())
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "rendezvous"))
    finally:
        (folder / "rendezvous").unlink(missing_ok=True)
        folder.rmdir()


def test_a_short_temporary_folder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    folder = machine.for_sockets("dlx-")
    folder.rmdir()
    short.rmdir()
    assert folder.parent == short


def test_the_home_folder_is_asked_for_only_where_it_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert machine.expand("~/.dlx") == Path("/home/somebody/.dlx") and machine.expand("a/~b") == Path("a/~b")
    with pytest.raises(machine.Homeless, match=r"^~nobody-of-this-name/x: .* --datadir or DLX_HOME"):
        machine.expand("~nobody-of-this-name/x")
