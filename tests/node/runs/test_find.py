"""Reading a run: whole, or not at all."""

from typing import Any

import pytest

from dlx.ledger.feed import RunUpdate
from dlx.ledger.index import Head
from dlx.ledger.nodes import NodeTable
from dlx.ledger.typed import Domain
from dlx.ledger.view import RunView
from dlx.node.runs import find

RUN, DOMAIN = b"\x01" * 32, Domain(31337, f"0x{1:040x}")
HEAD = Head(9, bytes(32), 1_700_000_009)


class Client:
    """Polls give these updates."""

    def __init__(self, *updates: RunUpdate) -> None:
        self.updates = iter(updates)

    def follow(self, run: bytes) -> None:
        pass

    def poll(self, feed: None) -> RunUpdate:
        return next(self.updates)


def test_half_a_run_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "_READ_ON_SECONDS", 0.0)
    half, whole = RunView(RUN, DOMAIN), RunView(RUN, DOMAIN)
    client: Any = Client(
        RunUpdate(HEAD, half, NodeTable(), True, False, complete=False),
        RunUpdate(HEAD, whole, NodeTable(), True, False, complete=True),
    )
    assert find.RunReader(client, RUN).view() is whole
