"""Reading a run: whole, or not at all."""

from collections.abc import Iterator

import pytest

from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerUnavailable, RpcError
from dlx.ledger.index import seal_rows
from dlx.ledger.index.event_index import Head
from dlx.ledger.index.feed import RunUpdate
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.ledger.typed import Domain
from dlx.ledger.view.node_registry import NodeTable
from dlx.ledger.view.run_view import RunView
from dlx.node.runs import find
from tests.node.stated_run import STEPS, StatedRun

RUN, DOMAIN = b"\x01" * 32, Domain(31337, f"0x{1:040x}")
HEAD = Head(9, bytes(32), 1_700_000_009)


class SaysNothing(RpcClient):
    """A chain node that has no state."""

    def batch(self, *_: object, **more: object) -> Iterator[object]:
        raise RpcError(-32000, "missing trie node")


class Client(LedgerClient):
    """Polls give these updates."""

    def __init__(self, *updates: RunUpdate) -> None:
        super().__init__("http://127.0.0.1:9", DOMAIN.ledger, chain_id=DOMAIN.chain_id)
        self.updates = iter(updates)

        self.rpc = SaysNothing("http://127.0.0.1:9")

    def poll(self, feed: object, wait: float = 0.0) -> RunUpdate:
        return next(self.updates)


def test_half_a_run_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "_READ_ON_SECONDS", 0.0)
    half, whole = RunView(RUN, DOMAIN), RunView(RUN, DOMAIN)
    client = Client(
        RunUpdate(HEAD, half, NodeTable(), True, False, complete=False),
        RunUpdate(HEAD, whole, NodeTable(), True, False, complete=True),
    )
    assert find.RunReader(client, RUN).view() is whole


def test_a_run_that_cannot_be_shown_hides_no_other() -> None:
    """Whatever is wrong with it, and although what was read of it is forgotten then."""
    stated = StatedRun()
    for replica in range(2):
        stated.join(replica)
    stated.open()
    stated.seal(0, {0: STEPS, 1: STEPS})
    evil, late = bytes([2]) * 32, bytes([3]) * 32
    stated.create(evil, tokens_per_step=2**64 - 1)
    stated.create(late)
    mark = stated.index.mark()
    runs, unreadable = find.list_runs(Client(), stated.index, ())
    assert [(run.run, run.sealed_rounds) for run in runs] == [("0x" + RUN.hex(), 1), ("0x" + late.hex(), 0)]
    (found,) = unreadable
    assert found.run == "0x" + evil.hex() and "tokens_per_step: expected 1 to 1099511627775, got 1844" in found.why
    assert stated.index.undone(mark) is not None, "the chain node is asked for everything again"


def test_what_no_sum_can_hold_ends_nothing() -> None:
    """As in a history that no contract of ours has: an overflow in SQLite would have closed the index."""
    stated = StatedRun(stages=1)
    for replica in range(2):
        stated.join(replica)
    stated.open()
    for round in range(3):
        stated.seal(round, {0: STEPS, 1: STEPS})
    find.list_runs(Client(), stated.index, ())
    stated.index.keep(stated.index.mark(), (0, 0), lambda db: db.execute("UPDATE seals SET tokens = ?", (2**63 - 1,)))
    assert seal_rows.tokens_before(stated.index, RUN, 3) == 3 * (2**63 - 1)
    assert seal_rows.tokens_before(stated.index, RUN, 0) == 0


def test_an_error_of_any_kind_is_one_run_s_own() -> None:
    stated = StatedRun()
    stated.create(bytes([2]) * 32)

    def read(run: bytes) -> bytes:
        if run == RUN:
            raise OverflowError("a number \x1b[31m too large")
        return run

    found, (unreadable,) = find.readable(stated.index, stated.index.runs(), read)
    assert found == [bytes([2]) * 32] and unreadable.why == "OverflowError: a number \ufffd[31m too large"


def test_a_silent_chain_node_is_no_run_s_fault() -> None:
    def silent(run: bytes) -> bytes:
        raise LedgerUnavailable("nobody answers")

    with pytest.raises(LedgerUnavailable):
        find.readable(StatedRun().index, [RUN], silent)
