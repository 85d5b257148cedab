"""An auditor's blobs from mailboxes: those that the user named, and strangers' on the ledger."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from dlx.ledger.view.node_registry import RegisteredNode
from dlx.node.audit.sources import mailboxes as module
from dlx.node.audit.sources.mailboxes import Mailboxes
from dlx.node.home import remote
from dlx.node.home.errors import Failure

DATA = b"payload"
NAME = sha256(DATA).digest()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float | None]]:
    """Which addresses were asked, and whether as a stranger's: those have nothing, and one is down."""
    found, fetch = list[tuple[str, float | None]](), remote.fetch

    def noted(uri: str, into: Path, sizes: range, stranger_s: float | None, *more: Any) -> None:
        found.append((uri, stranger_s))
        if stranger_s is None:
            return fetch(uri, into, sizes, stranger_s, *more)
        raise Failure(f"{uri}: 500") if "down" in uri else remote.Absent(uri)

    monkeypatch.setattr(remote, "fetch", noted)
    return found


def nodes(*addresses: str) -> Any:
    return lambda: {f"0x{at}": RegisteredNode(b"", (one,)) for at, one in enumerate(addresses)}


def test_a_good_copy_is_had_and_a_false_one_named(asked: list[tuple[str, float | None]], tmp_path: Path) -> None:
    good, false, into = tmp_path / "good", tmp_path / "false", tmp_path / "into"
    for folder, content in ((good, DATA), (false, b"other")):
        folder.mkdir()
        (folder / NAME.hex()).write_bytes(content)
    into.mkdir()
    source = Mailboxes([false.as_uri(), good.as_uri()], nodes())
    found = source.fetch(NAME, 100, into)
    assert found.path == into / NAME.hex() and found.path.read_bytes() == DATA
    assert [(one.where, one.differs) for one in found.wrong] == [(f"the mailbox {false.as_uri()}", True)]
    assert [path.name for path in into.iterdir()] == [NAME.hex()]
    assert not source.fetch(NAME, 3, into).path, "it is larger than allowed"


def test_strangers_are_asked_as_such_and_not_for_ever_where_they_are_down(
    asked: list[tuple[str, float | None]], tmp_path: Path
) -> None:
    source = Mailboxes([], nodes("https://one/x", "/ip4/1.2.3.4/tcp/1", "https://down/x", "https://one/x", "s3://x/y"))
    for _ in range(module._FAILURES + 2):
        assert source.fetch(NAME, 100, tmp_path) == module.Attempt(None)
    uris = [uri for uri, _ in asked]
    assert all(seconds for _, seconds in asked)
    assert uris.count(f"https://one/x/{NAME.hex()}") == module._FAILURES + 2
    assert uris.count(f"https://down/x/{NAME.hex()}") == module._FAILURES and len({*uris}) == 2
