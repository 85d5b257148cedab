"""What an address that a stranger named may make this machine do."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from requests.utils import DEFAULT_CA_BUNDLE_PATH

from dlx.node.home import remote
from dlx.node.home.errors import Failure
from tests.node.https_server import serving, trust
from tests.patience import PATIENCE

SEVEN = range(7, 8)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.startswith("/slow"):
            self.send_response(200)
            if self.path == "/slow":
                self.end_headers()
            while True:
                try:
                    self.wfile.write(b"x")
                except OSError:
                    return
                time.sleep(0.05)
        here = f"https://127.0.0.1:{self.server.server_port}"  # type: ignore[attr-defined]
        targets = {"/on": f"{here}/model", "/round": "/round", "/plain": "http://127.0.0.1/x"}
        targets |= {"/metadata": "https://169.254.169.254/latest", "/private": "https://10.0.0.1/x"}
        self.send_response(302 if self.path in targets else 404 if self.path == "/none" else 200)
        self.send_header("Location", targets.get(self.path, ""))
        self.end_headers()
        self.wfile.write(b"content")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[str]:
    """The address of a server that by its path redirects or drips."""
    with serving(_Handler, tmp_path / "certificate.pem") as url:
        yield url


def test_a_strangers_address_leads_to_public_hosts_only(
    stranger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = tmp_path / "file"
    with pytest.raises(Failure, match=r"127\.0\.0\.1, which is no public address"):
        remote.fetch(f"{stranger}/model", into, SEVEN, 60)
    for host in ("[::1]", "[::ffff:127.0.0.1]", "localhost", "10.0.0.1", "169.254.169.254", "0.0.0.0"):
        with pytest.raises(Failure, match="no public address"):
            remote.fetch(f"https://{host}/model", into, SEVEN, 60)
    trust(monkeypatch, tmp_path / "certificate.pem", "127.0.0.1")
    for path in ("/model", "/on"):
        remote.fetch(stranger + path, into, SEVEN, 60)
        assert into.read_bytes() == b"content"
    for path, said in {
        "/plain": "another address than of https",
        "/metadata": "no public address",
        "/private": "no public address",
        "/round": "leads on and on",
    }.items():
        with pytest.raises(Failure, match=said):
            remote.fetch(stranger + path, into, SEVEN, 60)
    for path in ("/slow", "/slow-status"):
        begun = time.monotonic()
        with pytest.raises(Failure), remote.explained(stranger):
            remote.fetch(stranger + path, into, range(1001), 0.5)
        assert time.monotonic() - begun < 10


def test_who_drips_its_handshake_has_no_more_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust(monkeypatch, Path(DEFAULT_CA_BUNDLE_PATH), "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            line, _ = listening.accept()
            line.sendall(b"\x16\x03\x03\x40\x00")  # a record of TLS of 16 KiB, which never comes
            while True:
                try:
                    line.sendall(b"x")
                except OSError:
                    return line.close()
                time.sleep(0.05)

        threading.Thread(target=drip, daemon=True).start()
        begun = time.monotonic()
        with pytest.raises(Failure), remote.explained("it"):
            remote.fetch(f"https://127.0.0.1:{listening.getsockname()[1]}/x", tmp_path / "file", SEVEN, 0.5)
        assert time.monotonic() - begun < PATIENCE, "and not the minutes that it would take"


def test_no_byte_more_is_read_than_was_expected(stranger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust(monkeypatch, tmp_path / "certificate.pem", "127.0.0.1")
    into, moved = tmp_path / "file", list[int]()
    for sizes, said in ((range(7), "at most 6 bytes, got more"), (range(8, 9), "expected 8 bytes, got 7")):
        with pytest.raises(Failure, match=said):
            remote.fetch(f"{stranger}/model", into, sizes, 60, moved.append)
        assert not into.exists(), "no half of a file, nor zeros"
    with pytest.raises(remote.Absent, match="404"):
        remote.fetch(f"{stranger}/none", into, SEVEN, 60)
    with pytest.raises(remote.Absent):
        remote.fetch((tmp_path / "none").as_uri(), into, SEVEN, None)
    remote.fetch(f"{stranger}/model", into, range(100), 60, moved.append)
    assert sum(moved[-1:]) == 7


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_our_full_disk_is_no_fault_of_the_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(OSError, match=re.escape(f"No space left on device: '{tmp_path}/full'")):
        remote.fetch((tmp_path / "file").as_uri(), tmp_path / "full", SEVEN, None)
    with pytest.raises(Failure):
        remote.fetch(tmp_path.as_uri(), tmp_path / "copy", SEVEN, None)


def test_what_is_put_is_there_at_once_whole_and_can_be_removed(tmp_path: Path) -> None:
    (tmp_path / "name").write_text("one")
    place = (tmp_path / "a place").as_uri()
    remote.put(tmp_path / "name", place)
    (tmp_path / "name").write_text("another")
    remote.put(tmp_path / "name", place)
    assert [(path.name, path.read_text()) for path in (tmp_path / "a place").iterdir()] == [("name", "another")]
    for _ in range(2):
        remote.remove(f"{place}/name")
        assert not [*(tmp_path / "a place").iterdir()]
