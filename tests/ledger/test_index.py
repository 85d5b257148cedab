"""The event index on disk: grows with the chain, survives reopening, takes reorgs back."""

import sqlite3

import pytest
from ledger_logs import LEDGER, OTHER, REGISTRY, RUN, deregistered, joined, replicas

from dlx.ledger.errors import LedgerError
from dlx.ledger.feed import Contracts, EventFeed
from dlx.ledger.index import EventIndex
from dlx.ledger.rpc import Rpc


@pytest.fixture
def rpc(fake_chain):
    return Rpc(fake_chain.url, patience=1)


@pytest.fixture
def index(tmp_path):
    return EventIndex(tmp_path / "index.db", 31337, LEDGER, REGISTRY)


def test_the_index_grows_with_the_chain(fake_chain, rpc, index, tmp_path):
    assert index.sync(rpc) == 0 and list(index.events()) == []
    fake_chain.page_limit = 10
    for replica in range(60):
        fake_chain.mine(joined(replica=replica), joined(OTHER))
    seen = []
    assert index.sync(rpc, confirmations=1, progress=lambda block, end: seen.append((block, end))) == 59
    assert seen[-1] == (59, 59) and seen == sorted(seen)
    assert index.sync(rpc) == 60
    index.close()
    again = EventIndex(tmp_path / "index.db", 31337, LEDGER, REGISTRY)
    fake_chain.requests.clear()
    assert again.sync(rpc) == 60 and "eth_getLogs" not in fake_chain.requests
    assert replicas(again.events(RUN)) == list(range(60)) and len(list(again.events())) == 120
    first = next(again.events(RUN))
    assert (first.at.block, first.at.log_index, first.at.time, first.at.tx) == (1, 0, 1001, b"\x77" * 32)


def test_the_index_equals_the_feed(fake_chain, rpc, index):
    for replica in range(5):
        fake_chain.mine(joined(replica=replica), deregistered())
    index.sync(rpc)
    assert tuple(index.events()) == EventFeed().poll(rpc, Contracts(LEDGER, REGISTRY)).events


def test_the_index_takes_back_what_a_reorg_undid(fake_chain, rpc, index):
    for replica in range(6):
        fake_chain.mine(joined(replica=replica))
    index.sync(rpc)
    fake_chain.reorg(4, "b")
    fake_chain.mine(joined(replica=9))
    assert index.sync(rpc) == 4
    assert replicas(index.events(RUN)) == [0, 1, 2, 9]


def test_the_index_of_another_ledger_is_refused(index, tmp_path):
    index.close()
    with pytest.raises(LedgerError, match="belongs to another ledger"):
        EventIndex(tmp_path / "index.db", 1, LEDGER, REGISTRY)


def test_a_damaged_index_or_an_older_one_is_read_again(fake_chain, rpc, index, tmp_path):
    fake_chain.mine(joined(replica=1))
    index.sync(rpc)
    index.close()
    path = tmp_path / "index.db"
    older = sqlite3.connect(path)
    older.execute("PRAGMA user_version = 1")
    older.execute("DELETE FROM logs")
    older.commit()
    older.close()
    again = EventIndex(path, 31337, LEDGER, REGISTRY)
    again.sync(rpc)
    assert replicas(again.events()) == [1]
    again.close()
    path.write_text("no database, but long enough to look like one " * 500)
    again = EventIndex(path, 31337, LEDGER, REGISTRY)
    again.sync(rpc)
    assert replicas(again.events()) == [1]
    again.close()
    unfinished = sqlite3.connect(path)
    unfinished.execute("DELETE FROM origin")
    unfinished.commit()
    unfinished.close()
    again = EventIndex(path, 31337, LEDGER, REGISTRY)
    again.sync(rpc)
    assert replicas(again.events()) == [1]
    again.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))  # found out while it is used
    again = EventIndex(path, 31337, LEDGER, REGISTRY)
    again.sync(rpc)
    assert replicas(again.events()) == [1]


def test_an_index_of_a_newer_release_is_left_alone(index, tmp_path):
    index.close()
    path = tmp_path / "index.db"
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="written by a newer dlx-node"):
        EventIndex(path, 31337, LEDGER, REGISTRY)
    assert path.read_bytes() == before


def test_a_late_chain_node_leaves_no_hole_in_the_index(fake_chain, rpc, index, monkeypatch):
    monkeypatch.setattr("dlx.ledger.logs._PAUSE", 0.001)
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
