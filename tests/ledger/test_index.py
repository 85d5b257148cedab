"""The event index on disk: grows with the chain, survives reopening, takes reorgs back."""

import pytest
from ledger_logs import LEDGER, OTHER, REGISTRY, RUN, deregistered, joined, replicas

from dlx.ledger.errors import LedgerError
from dlx.ledger.feed import EventFeed
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
    assert tuple(index.events()) == EventFeed().poll(rpc, LEDGER, REGISTRY).events


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
    (tmp_path / "text").write_text("no database, but long enough to look like one " * 50)
    with pytest.raises(LedgerError, match="no event index"):
        EventIndex(tmp_path / "text", 1, LEDGER, REGISTRY)
