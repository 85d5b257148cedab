"""The event index on disk: grows with the chain, survives reopening, takes reorgs back."""

import sqlite3

import pytest
from ledger_logs import LEDGER, OTHER, REGISTRY, RUN, STRANGER, deregistered, joined, replicas

from dlx.ledger.errors import LedgerError
from dlx.ledger.index.event_index import REGISTRY as REGISTRY_LOGS
from dlx.ledger.index.event_index import Contracts, EventIndex
from dlx.ledger.index.feed import EventFeed
from dlx.ledger.index.log_reader import IndexLost

CONTRACTS = Contracts(LEDGER, REGISTRY)


@pytest.fixture
def index(tmp_path):
    return EventIndex(tmp_path / "index.db", 31337, CONTRACTS)


def test_the_index_grows_with_the_chain(fake_chain, rpc, index, tmp_path):
    assert index.sync(rpc).block == 0 and list(index.events()) == []
    fake_chain.page_limit = 10
    for replica in range(60):
        fake_chain.mine(joined(replica=replica), joined(OTHER))
    seen = []
    assert index.sync(rpc, progress=lambda block, end: seen.append((block, end))).block == 60
    assert seen[-1] == (60, 60) and seen == sorted(seen)
    index.close()
    again = EventIndex(tmp_path / "index.db", 31337, CONTRACTS)
    fake_chain.requests.clear()
    assert again.sync(rpc).block == 60 and "eth_getLogs" not in fake_chain.requests
    assert replicas(again.events(RUN)) == list(range(60)) and len(list(again.events())) == 120
    assert replicas(again.events(RUN, after=(10, 0), until=12)) == [10, 11]
    first = next(again.events(RUN))
    assert (first.at.block, first.at.log_index, first.at.time, first.at.tx) == (1, 0, 1001, b"\x77" * 32)


def test_the_index_equals_the_feed(fake_chain, rpc, index):
    for replica in range(5):
        fake_chain.mine(joined(replica=replica), deregistered())
    index.sync(rpc)
    assert tuple(index.events()) == EventFeed(lambda: EventIndex(None, 31337, CONTRACTS)).poll(rpc).events
    assert len(list(index.events(REGISTRY_LOGS))) == 5


@pytest.mark.parametrize("depth", [1, 3, 20, 59])
def test_the_index_takes_back_what_a_reorg_undid(fake_chain, rpc, index, depth):
    for replica in range(60):
        fake_chain.mine(joined(replica=replica))
    index.sync(rpc)
    mark = index.mark()
    fake_chain.reorg(61 - depth, "b")
    fake_chain.mine(joined(replica=99))
    fake_chain.requests.clear()
    for _ in range(80):
        fake_chain.mine()
    index.sync(rpc)
    assert replicas(index.events(RUN)) == [*range(60 - depth), 99]
    assert index.undone(mark) == 60 - depth
    assert fake_chain.requests.count("eth_getBlockByNumber") < 20, "the fork is searched for, not walked to"


def test_a_reorg_to_a_shorter_chain_is_no_late_chain_node(fake_chain, rpc, index):
    for replica in range(20):
        fake_chain.mine(joined(replica=replica))
    index.sync(rpc)
    fake_chain.reorg(15, "b")
    fake_chain.mine(joined(replica=99))
    assert index.sync(rpc).block == 15 and replicas(index.events(RUN)) == [*range(14), 99]


def test_another_chain_has_another_history(fake_chain, rpc, index):
    for replica in range(20):
        fake_chain.mine(joined(replica=replica))
    index.sync(rpc)
    fake_chain.reorg(0, "b")
    fake_chain.mine()
    fake_chain.mine(joined(replica=7))
    index.sync(rpc)
    assert replicas(index.events(RUN)) == [7]


def test_another_chain_may_have_the_contracts_later(fake_chain, rpc, index, tmp_path):
    """As a devnet that is made anew: the same addresses and chain id, so the same file."""
    for replica in range(20):
        fake_chain.mine(joined(replica=replica))
    index.sync(rpc)
    index.close()
    fake_chain.reorg(0, "b")
    for replica in range(30, 60):
        fake_chain.mine(joined(replica=replica))
    later = EventIndex(tmp_path / "index.db", 31337, Contracts(LEDGER, REGISTRY, since=10))
    assert later.sync(rpc).block == fake_chain.length - 1
    assert replicas(later.events(RUN)) == list(range(40, 60))


def test_two_processes_share_an_index(fake_chain, rpc, index, tmp_path):
    """Each reads what the other has not; a page that comes second is left out, a late chain node takes nothing back."""
    other = EventIndex(tmp_path / "index.db", 31337, CONTRACTS)
    for replica in range(30):
        fake_chain.mine(joined(replica=replica))
    quicker = []

    def overtake(block, last):  # after the first page
        if not quicker:
            quicker.append(other.sync(rpc))

    index.sync(rpc, overtake)
    assert replicas(index.events(RUN)) == replicas(other.events(RUN)) == list(range(30))
    fake_chain.mine(joined(replica=30))
    other.sync(rpc)
    mark = index.mark()
    fake_chain.length -= 1
    assert index.sync(rpc).block == 31 and index.undone(mark) is None
    assert replicas(index.events(RUN)) == list(range(31))


def test_a_locked_index_is_waited_for_and_then_done_without(fake_chain, rpc, index, tmp_path, monkeypatch):
    fake_chain.mine(joined(replica=1))
    monkeypatch.setattr("dlx.ledger.index.database._BUSY_SECONDS", 0.05)
    other = EventIndex(tmp_path / "index.db", 31337, CONTRACTS)
    owner = sqlite3.connect(tmp_path / "index.db", isolation_level=None)
    owner.execute("BEGIN IMMEDIATE")
    other.sync(rpc)
    assert "locked" in other.trouble and replicas(other.events(RUN)) == [1]
    owner.execute("ROLLBACK")
    index.sync(rpc)
    assert index.trouble is None and replicas(index.events(RUN)) == [1]


def test_a_full_disk_is_named_and_the_ledger_read_into_memory(fake_chain, rpc, index, tmp_path):
    fake_chain.mine(joined(replica=1))
    index.sync(rpc)
    (pages,) = index._file.db.execute("PRAGMA page_count").fetchone()
    index._file.db.execute(f"PRAGMA max_page_count = {pages}")  # sqlite's own error of a full disk
    for replica in range(2, 60):
        fake_chain.mine(joined(replica=replica))
    feed = EventFeed(lambda: index, RUN)
    with pytest.raises(
        IndexLost, match=rf"^the index of events {tmp_path}/index.db cannot be used: .* is full: the ledger"
    ):
        for _ in range(60):
            feed.poll(rpc)
    assert replicas(feed.poll(rpc).events) == list(range(1, 60)) and index.trouble is not None


def test_an_index_that_cannot_be_kept_is_read_all_the_same(fake_chain, rpc, tmp_path):
    fake_chain.mine(joined(replica=1))
    for path in (tmp_path / "no folder" / "index.db", tmp_path):
        index = EventIndex(path, 31337, CONTRACTS)
        index.sync(rpc)
        assert index.trouble is not None and replicas(index.events(RUN)) == [1]


def test_what_contradicts_itself_is_read_anew(fake_chain, rpc, index):
    fake_chain.mine(joined(replica=1))
    index.sync(rpc)
    mark = index.mark()
    index.forget()
    assert index.undone(mark) == -1 and list(index.events()) == []
    index.sync(rpc)
    assert replicas(index.events(RUN)) == [1]


def test_what_contradicts_itself_again_and_again_is_read_anew_once_a_minute(
    fake_chain, rpc, index, tmp_path, monkeypatch
):
    """By all processes together: one run that cannot be read must not have everybody read the ledger for ever."""
    fake_chain.mine(joined(replica=1))
    index.sync(rpc)
    index.forget()
    other = EventIndex(tmp_path / "index.db", 31337, CONTRACTS)
    other.sync(rpc)
    mark = other.mark()
    other.forget()
    with other.forgetting_at_end():
        other.forget()
    assert other.undone(mark) is None and replicas(other.events(RUN)) == [1]
    monkeypatch.setattr("dlx.ledger.index.event_index._READ_ANEW", 0)
    other.forget()
    assert other.undone(mark) == -1 and list(index.events()) == []


def test_the_index_of_another_ledger_is_refused(index, tmp_path):
    index.close()
    with pytest.raises(LedgerError, match="belongs to another ledger"):
        EventIndex(tmp_path / "index.db", 1, CONTRACTS)


def test_a_damaged_index_or_an_older_one_is_read_again(fake_chain, rpc, index, tmp_path):
    fake_chain.mine(joined(replica=1))
    index.sync(rpc)
    index.close()
    path = tmp_path / "index.db"

    def change(*statements):
        with sqlite3.connect(path) as db:
            for statement in statements:
                db.execute(statement)
        db.close()

    def is_whole():
        again = EventIndex(path, 31337, CONTRACTS)
        again.sync(rpc)
        assert replicas(again.events()) == [1] and again.trouble is None
        again.close()

    change("PRAGMA user_version = 2", "DELETE FROM logs")
    is_whole()
    path.write_text("no database, but long enough to look like one " * 500)
    is_whole()
    change("DELETE FROM origin")
    is_whole()
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))  # found out while it is used
    is_whole()


def test_a_damaged_index_that_another_process_uses_is_left_to_it(fake_chain, rpc, index, tmp_path):
    fake_chain.mine(joined(replica=1))
    index.sync(rpc)
    path = tmp_path / "index.db"
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 2")
    newer.close()
    again = EventIndex(path, 31337, CONTRACTS)
    again.sync(rpc)
    assert "older" in again.trouble and replicas(again.events()) == [1]
    assert path.exists() and replicas(index.events()) == [1]


def test_an_index_of_a_newer_release_is_left_alone(fake_chain, rpc, index, tmp_path):
    fake_chain.mine(joined(replica=1))
    index.close()
    path = tmp_path / "index.db"
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    before = path.read_bytes()
    again = EventIndex(path, 31337, CONTRACTS)
    again.sync(rpc)
    assert "written by a newer dlx-node" in again.trouble and replicas(again.events()) == [1]
    assert path.read_bytes() == before


def test_logs_of_other_contracts_are_refused(fake_chain, rpc, index):
    fake_chain.mine(joined(replica=1))
    stray = {**joined(), "blockNumber": "0x1", "logIndex": "0x0", "transactionHash": "0x" + "77" * 32}
    stray |= {"address": STRANGER, "blockHash": fake_chain.block_hash(1)}
    fake_chain.eth_getLogs = lambda query: [stray] if query.get("blockHash") == stray["blockHash"] else []
    with pytest.raises(LedgerError, match="no contract of ours"):
        index.sync(rpc)


def test_a_late_chain_node_leaves_no_hole_in_the_index(fake_chain, rpc, index, monkeypatch):
    monkeypatch.setattr("dlx.ledger.index.log_reader._PAUSE", 0.001)
    fake_chain.mine(joined(replica=1))
    fake_chain.mine(joined(replica=2))

    def late(method, params):  # a chain node behind a balancer: it lacks the newest block
        if method != "eth_getLogs":
            return None
        fake_chain.length -= 1
        try:
            return fake_chain.eth_getLogs(*params)
        finally:
            fake_chain.length += 1

    fake_chain.faults += [late] * 2
    index.sync(rpc)
    assert replicas(index.events()) == [1, 2]
