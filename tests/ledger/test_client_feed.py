"""Following a chain: increments, confirmations, lag, reorgs, long ranges."""

import pytest
from ledger_logs import ACCOUNT, LEDGER, OTHER, REGISTRY, RUN, STRANGER, deregistered, joined, replicas

from dlx.ledger.errors import LedgerError, RpcError
from dlx.ledger.events import Joined, NodeDeregistered
from dlx.ledger.index.event_index import Contracts, EventIndex
from dlx.ledger.index.feed import EventFeed
from dlx.ledger.index.log_reader import Unsettled
from dlx.ledger.rpc.endpoint import AdaptiveSize
from dlx.ledger.rpc.headers import Header


def follow(run=RUN, confirmations=0, since=0):
    """A feed that starts with an empty index."""
    return EventFeed(lambda: EventIndex(None, 31337, Contracts(LEDGER, REGISTRY, since)), run, confirmations)


@pytest.fixture
def feed():
    return follow()


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("dlx.ledger.index.log_reader._PAUSE", 0.001)


def poll(feed, rpc):
    return feed.poll(rpc)


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
    again = poll(follow(), rpc)
    assert [type(e) for e in again.events] == [NodeDeregistered, Joined]
    assert len(poll(follow(None), rpc).events) == 3


def test_confirmations_hold_events_back(fake_chain, rpc):
    feed = follow(confirmations=2)
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
    with pytest.raises(Unsettled):
        poll(feed, rpc)
    assert replicas(poll(feed, rpc).events) == [2]


def test_pages_shrink_until_the_node_answers(fake_chain, rpc, feed):
    for replica in range(40):
        fake_chain.mine(joined(replica=replica))
    fake_chain.page_limit = 3
    assert replicas(poll(feed, rpc).events) == list(range(40))


def test_a_chain_node_that_never_gives_a_block_is_named(fake_chain, rpc, feed, quick):
    poll(feed, rpc)
    fake_chain.page_limit = 0
    fake_chain.mine(joined(replica=4))
    for _ in range(4):
        assert poll(feed, rpc).events == ()
    with pytest.raises(Unsettled, match=r"does not give the logs of block 1: too many results"):
        poll(feed, rpc)
    fake_chain.page_limit = None
    assert replicas(poll(feed, rpc).events) == [4]


def behind(fake_chain, blocks):
    """A chain node that lacks the newest blocks and yet answers for the whole chain, as one behind a balancer does."""

    def answer(method, params):
        if method != "eth_getLogs":
            return None
        newest, fake_chain.length = fake_chain.length, fake_chain.length - blocks
        try:
            return fake_chain.eth_getLogs(*params)
        finally:
            fake_chain.length = newest

    return answer


def lacks_newest(fake_chain):
    """Another chain node behind the balancer, which knows no newest block."""

    def answer(method, params):
        newest = fake_chain.block_hash(fake_chain.length - 1)
        if method == "eth_getLogs" and params[0].get("blockHash") == newest:
            return {"error": {"code": -32000, "message": "unknown block"}}

    return answer


def test_nothing_read_yet_is_no_empty_history(fake_chain, rpc, quick):
    fake_chain.mine(joined(replica=1))
    feed = follow(since=1)
    fake_chain.faults += [lacks_newest(fake_chain)] * 8
    for _ in range(2):
        with pytest.raises(Unsettled, match="the logs of block 1"):
            feed.poll(rpc)
    fake_chain.length -= 1
    with pytest.raises(Unsettled, match="a chain node at block 0 follows one at 1"):
        feed.poll(rpc)
    fake_chain.length += 1
    update = feed.poll(rpc)
    assert replicas(update.events) == [1] and update.complete


def test_a_chain_node_before_the_contracts_has_no_empty_history(fake_chain, rpc):
    with pytest.raises(Unsettled, match="is at block 0, the contracts came in 2"):
        follow(since=2).poll(rpc)


def test_a_part_of_the_history_says_that_it_is_one(fake_chain, rpc, feed, quick):
    for replica in range(40):
        fake_chain.mine(joined(replica=replica))
    fake_chain.faults += [lacks_newest(fake_chain)] * 4
    first, second = poll(feed, rpc), poll(feed, rpc)
    assert replicas(first.events) == list(range(39)) and not first.complete
    assert replicas(second.events) == [39] and second.complete
    fake_chain.mine(joined(replica=50))
    fake_chain.faults += [lacks_newest(fake_chain)] * 4
    assert not poll(feed, rpc).complete
    fake_chain.length -= 2
    assert not poll(feed, rpc).complete  # of a chain node that is later still
    fake_chain.length += 2
    assert poll(feed, rpc).complete
    fake_chain.length -= 2
    assert poll(feed, rpc).complete


def test_events_that_nothing_confirms_yet_are_not_waited_for(fake_chain, rpc):
    fake_chain.mine(joined(replica=1))
    update = poll(follow(confirmations=9), rpc)
    assert update.events == () and update.complete


def test_pages_read_before_an_error_answer_are_not_read_again(fake_chain, rpc, feed):
    for replica in range(40):
        fake_chain.mine(joined(replica=replica))
    whole = fake_chain.eth_getLogs

    def failing(query):
        wrong = "toBlock" in query and int(query["toBlock"], 16) > 20
        return {"error": {"code": -32603, "message": "internal error"}} if wrong else whole(query)

    fake_chain.eth_getLogs = failing
    first = poll(feed, rpc)
    fake_chain.eth_getLogs = whole
    second = poll(feed, rpc)
    assert replicas(first.events) == list(range(20)) and not first.complete
    assert replicas(second.events) == list(range(20, 40)) and second.complete


@pytest.mark.parametrize("waiting", [1, 2, 5, 100])
@pytest.mark.parametrize("late", [1, 2])
def test_a_late_chain_node_loses_no_event(fake_chain, rpc, feed, quick, waiting, late):
    poll(feed, rpc)
    for replica in range(waiting):
        fake_chain.mine(joined(replica=replica))
    fake_chain.faults += [behind(fake_chain, late)] * 3
    found = []
    for _ in range(3):
        found += replicas(poll(feed, rpc).events)
    assert found == list(range(waiting))
    fake_chain.mine(joined(replica=500))
    fake_chain.faults += [behind(fake_chain, late)] * 9  # longer than one poll insists
    for _ in range(4):
        found += replicas(poll(feed, rpc).events)
    assert found == [*range(waiting), 500]


def test_a_late_chain_node_is_no_reorg(fake_chain, rpc, feed, quick):
    fake_chain.mine(joined(replica=1))
    poll(feed, rpc)
    fake_chain.mine()
    fake_chain.mine(joined(replica=2))

    def lacks(method, params):  # the header of the block read last, asked of a chain node that restarts
        return (
            b'{"jsonrpc": "2.0", "id": 1, "result": null}'
            if method == "eth_getBlockByNumber" and params[0] == "0x1"
            else None
        )

    fake_chain.faults += [lacks] * 2
    updates = [poll(feed, rpc) for _ in range(3)]
    assert not any(update.reorg for update in updates)
    assert [replicas(update.events) for update in updates if update.events] == [[2]]


def test_the_head_never_goes_back(fake_chain, rpc, feed):
    for _ in range(5):
        fake_chain.mine()
    newest = poll(feed, rpc).head
    fake_chain.length -= 3
    assert poll(feed, rpc).head == newest


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


class CappedNode:
    """A provider that answers for at most so many blocks at once, on a long chain."""

    name = "capped"

    def __init__(self, head, cap):
        self.end, self.cap = head, cap
        self.requests = 0
        self.log_range = AdaptiveSize(5_000, 100_000)

    def head(self):
        return self.header(self.end)

    def header(self, block):
        number = int.from_bytes(block, "big") if isinstance(block, bytes) else block
        return Header(number, number.to_bytes(32, "big"), (number - 1).to_bytes(32, "big"), number, 7)

    def headers(self, blocks):
        return map(self.header, blocks)

    def batch(self, method, calls, divisible):
        return [self.call(method, *params) for params in calls]

    def call(self, method, query):
        self.requests += 1
        if "blockHash" not in query:
            assert int(query["toBlock"], 16) <= self.end
            if int(query["toBlock"], 16) - int(query["fromBlock"], 16) + 1 > self.cap:
                raise RpcError(-32600, "range too large")
        return []


@pytest.mark.parametrize("cap", [500, 2_000, 10_000])
def test_a_young_ledger_on_an_old_chain_is_read_with_few_requests(cap):
    node = CappedNode(20_000_000, cap)
    assert follow(since=19_900_000).poll(node).head.block == 20_000_000
    assert node.requests < 2 * (1.35 * 100_000 / cap + 20)
