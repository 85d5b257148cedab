"""Our own mailbox, read once before anything is signed."""

from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import trio

from dlx.ledger.typed import SignedContribution
from dlx.node.daemon.mailbox import messages_file
from dlx.node.daemon.mailbox.messages_file import MESSAGES, pack
from dlx.node.daemon.mailbox.own import said_before, still_open
from dlx.p2p import wire
from tests.ledger.ledger_run import contribution
from tests.node.https_server import serving, trust
from tests.patience import PATIENCE


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of https that says what it is asked to, or nothing under /silent."""
    over = Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/silent"):
                over.wait(PATIENCE)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(pack([b"there"]))

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with serving(Handler, tmp_path / "certificate.pem") as url:
        trust(monkeypatch, tmp_path / "certificate.pem", "127.0.0.1")
        yield url
        over.set()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "published"
    made.mkdir()
    return made


@pytest.fixture
def read(tmp_path: Path, place: Path) -> Callable[..., list[bytes]]:
    """By one who publishes to the folder `place`."""

    def read(registered: str | None, to: str | None = place.as_uri()) -> list[bytes]:
        return trio.run(partial(said_before, to, registered, tmp_path / "work"))

    return read


def test_where_it_publishes_counts_and_else_what_the_ledger_names(
    read: Callable[..., list[bytes]], place: Path, registered: str
) -> None:
    assert read(None) == [] and read(None, None) == [], "the first start of all"
    assert read(f"{registered}/box") == [b"there"], "a new place has nothing yet"
    (place / MESSAGES).write_bytes(pack([b"here", b"too"]))
    assert read(f"{registered}/box") == [b"here", b"too"]
    assert read(f"{registered}/box", None) == [b"there"], "its operator named no mailbox this time"


def test_what_does_not_answer_holds_up_no_start_for_long_and_is_said(
    read: Callable[..., list[bytes]], place: Path, registered: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(messages_file, "SECONDS", 0.5)
    (place / MESSAGES).write_bytes(b"\xff" * 9)
    assert read(f"{registered}/silent") == []
    said = [record.getMessage() for record in caplog.records if "our own mailbox" in record.getMessage()]
    assert len(said) == 2


def test_what_it_showed_of_open_rounds_stays_there() -> None:
    mine, other = f"0x{1:040x}", f"0x{2:040x}"

    def of(account: str, round: int) -> bytes:
        signed = SignedContribution(contribution(b"R" * 32, round, 0, 0, account), bytes(65))
        return wire.encode(wire.ContributionMessage(signed.encode()))

    messages = [b"junk", of(mine, 3), of(mine, 4), of(other, 4), of(mine, 5)]
    assert still_open(messages, mine, 4) == [messages[2], messages[4]]
