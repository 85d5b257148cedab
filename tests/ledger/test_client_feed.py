"""Following a chain: increments, confirmations, lag, reorgs, long ranges."""

import pytest
from ledger_logs import ACCOUNT, LEDGER, OTHER, REGISTRY, RUN, STRANGER, deregistered, joined, replicas

from dlx.ledger.errors import LedgerError
from dlx.ledger.events import Joined, NodeDeregistered
from dlx.ledger.feed import EventFeed
from dlx.ledger.rpc import Rpc


@pytest.fixture
def rpc(fake_chain):
    return Rpc(fake_chain.url, patience=1)


@pytest.fixture
def feed():
    return EventFeed(RUN)


def poll(feed, rpc):
    return feed.poll(rpc, LEDGER, REGISTRY)


def test_only_what_is_new_is_read(fake_chain, rpc, feed):
    fake_chain.mine(joined(replica=1))
    update = poll(feed, rpc)
    assert replicas(update.events) == [1] and not update.reorg and update.head.block == 1
    event = update.events[0]
    assert (event.run, event.account, event.at.block, event.at.time) == (RUN, ACCOUNT, 1, 1001)
    fake_chain.requests.clear()
    assert poll(feed, rpc).events == () and fake_chain.requests == ["eth_getBlockByNumber"]
    fake_chain.requests.clear()
    fake_chain.mine()
    assert poll(feed, rpc).events == () and fake_chain.requests == [
        "eth_getBlockByNumber",
        "eth_getLogs",
    ]
    fake_chain.mine(joined(replica=2), joined(replica=3))
    assert replicas(poll(feed, rpc).events) == [2, 3]


def test_other_runs_are_left_out_and_the_registry_is_not(fake_chain, rpc, feed):
    fake_chain.mine(joined(OTHER), deregistered(), joined(replica=5), joined(address=STRANGER))
    assert [type(e) for e in poll(feed, rpc).events] == [NodeDeregistered, Joined]
    for _ in range(100):  # a longer range is asked for by run
        fake_chain.mine()
    again = poll(EventFeed(RUN), rpc)
    assert [type(e) for e in again.events] == [NodeDeregistered, Joined]
    assert len(poll(EventFeed(), rpc).events) == 3


def test_confirmations_hold_events_back(fake_chain, rpc):
    feed = EventFeed(RUN, confirmations=2)
    fake_chain.mine(joined(replica=1))
    assert poll(feed, rpc).events == ()
    fake_chain.mine()
    fake_chain.mine()
    assert replicas(poll(feed, rpc).events) == [1]


def test_a_reorg_starts_over(fake_chain, rpc, feed):
    for replica in range(3):
        fake_chain.mine(joined(replica=replica))
    assert replicas(poll(feed, rpc).events) == [0, 1, 2]
    fake_chain.reorg(3, "b")
    fake_chain.mine(joined(replica=9))
    update = poll(feed, rpc)
    assert update.reorg and replicas(update.events) == [0, 1, 9]
    fake_chain.mine(joined(replica=4))
    update = poll(feed, rpc)
    assert not update.reorg and replicas(update.events) == [4]


@pytest.mark.parametrize("more", [1, 2, 20])
def test_a_reorg_below_a_longer_chain_is_noticed(fake_chain, rpc, feed, more):
    fake_chain.mine(joined(replica=1))
    fake_chain.mine(joined(replica=2))
    poll(feed, rpc)
    fake_chain.reorg(2, "b")
    for _ in range(more):
        fake_chain.mine()
    update = poll(feed, rpc)
    assert update.reorg and replicas(update.events) == [1]


def test_a_chain_node_that_lags_is_no_reorg(fake_chain, rpc, feed):
    for replica in range(4):
        fake_chain.mine(joined(replica=replica))
    poll(feed, rpc)
    fake_chain.length -= 2
    update = poll(feed, rpc)
    assert not update.reorg and update.events == ()
    fake_chain.length += 2
    fake_chain.mine(joined(replica=7))
    update = poll(feed, rpc)
    assert not update.reorg and replicas(update.events) == [7]


def test_a_new_chain_is_a_reorg(fake_chain, rpc, feed):
    for replica in range(20):
        fake_chain.mine(joined(replica=replica))
    poll(feed, rpc)
    fake_chain.reorg(1, "b")
    fake_chain.mine(joined(replica=30))
    update = poll(feed, rpc)
    assert update.reorg and replicas(update.events) == [30]


def test_a_reorg_while_reading_is_read_again(fake_chain, rpc, feed):
    fake_chain.mine(joined(replica=1))

    def meanwhile(method, params):
        if method == "eth_getLogs":
            fake_chain.reorg(1, "b")
            fake_chain.mine(joined(replica=2))
            return fake_chain.eth_getLogs(*params)

    fake_chain.faults.append(meanwhile)
    assert poll(feed, rpc).events == ()
    assert replicas(poll(feed, rpc).events) == [2]


def test_pages_shrink_until_the_node_answers(fake_chain, rpc, feed):
    for replica in range(40):
        fake_chain.mine(joined(replica=replica))
    fake_chain.page_limit = 3
    assert replicas(poll(feed, rpc).events) == list(range(40))
    fake_chain.page_limit = 0
    fake_chain.mine(joined())
    with pytest.raises(LedgerError, match="too many results"):
        poll(feed, rpc)


@pytest.mark.parametrize(
    "garbage",
    [{"logs": []}, ["x"], [{"address": "0x00"}], [{**joined(), "blockNumber": "0x1"}], "0x"],
)
def test_garbage_from_the_node_is_an_error_and_nothing_is_lost(fake_chain, rpc, feed, garbage):
    fake_chain.mine(joined(replica=1))
    fake_chain.faults.append(lambda method, params: garbage if method == "eth_getLogs" else None)
    with pytest.raises(LedgerError):
        poll(feed, rpc)
    assert replicas(poll(feed, rpc).events) == [1]


def test_logs_of_other_blocks_are_refused(fake_chain, rpc, feed):
    fake_chain.mine(joined(replica=1))
    fake_chain.mine()
    poll(feed, rpc)
    fake_chain.mine()
    stale = fake_chain.eth_getLogs({"fromBlock": "0x1", "toBlock": "0x1", "address": LEDGER})
    fake_chain.faults.append(lambda method, params: stale if method == "eth_getLogs" else None)
    with pytest.raises(LedgerError, match="other blocks"):
        poll(feed, rpc)
