"""Chain nodes that leave out logs of a block whose header tells of them: nothing later is read, and nothing is lost."""

import pytest
from fault_proxy import FaultProxy
from ledger_run import Run, config

from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerUnavailable
from dlx.ledger.events import AddressesChanged, Sealed, event_topic
from dlx.ledger.index.feed import EventFeed
from dlx.ledger.index.log_reader import _MOST_LATE, Unsettled
from dlx.ledger.rpc.failover import LAG
from tests.ledger.conftest import World
from tests.patience import PATIENCE, until


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("dlx.ledger.index.log_reader._PAUSE", 0.001)


@pytest.fixture
def young(monkeypatch):
    """However far the chain goes on while the machine is busy, its blocks are asked for by hash."""
    monkeypatch.setattr("dlx.ledger.index.log_reader._MOST_LATE", 4096)


class Follower:
    """Whoever follows the registry through these chain nodes, and the addresses that it was told of."""

    def __init__(self, world: World, *urls: str) -> None:
        self.client = LedgerClient(list(urls), world.ledger, chain_id=31337)
        self._feed: EventFeed = self.client.feed()
        self.told: list[str] = []

    def poll(self, wait: float = 0.0) -> None:
        for event in self.client.poll(self._feed, wait).events:
            if isinstance(event, AddressesChanged):
                self.told += event.multiaddrs


def left_out(times: int, *methods: str):
    """A lie: so many answers about a block's logs by its hash, and by these methods, are of nothing."""
    lies = []

    def lie(method, params, result):
        if (method in methods or (method == "eth_getLogs" and "blockHash" in params[0])) and len(lies) < times:
            lies.append(method)
            return []
        return result

    return lie


def mined(member: LedgerClient, name: str) -> str:
    address = f"/dns4/{name}/tcp/1"
    member.set_addresses([address])
    return address


def rises(member: LedgerClient, blocks: int) -> None:
    goal = member.head().block + blocks
    until("the chain goes on", lambda: member.head().block >= goal)


@pytest.mark.parametrize("times", [1, 3, 20])
def test_a_block_whose_logs_are_left_out_is_asked_for_again(world, times):
    (member,) = world.members([1])
    with FaultProxy(world.url) as proxy:
        follower = Follower(world, proxy.url)
        follower.poll()
        follower.told.clear()
        proxy.lie = left_out(times, "eth_getBlockReceipts")
        expected = [mined(member, f"first-{times}"), mined(member, f"second-{times}")]
        until("both are told", lambda: not follower.poll() and len(follower.told) >= 2)
        assert follower.told == expected


def test_who_never_gives_them_is_named_and_not_passed_by_while_the_block_is_young(embedded, young):
    (member,) = embedded.members([1])
    with FaultProxy(embedded.url) as proxy:
        follower = Follower(embedded, proxy.url)
        follower.poll()
        follower.told.clear()
        proxy.lie = left_out(10**9, "eth_getBlockReceipts")
        expected = mined(member, "withheld")
        refusals = []

        def refused() -> bool:
            try:
                follower.poll()
            except LedgerUnavailable as error:
                refusals.append(str(error))
            return len(refusals) >= 2

        until("it is named", refused)
        assert proxy.url.removeprefix("http://") in refusals[-1] and "--rpc-url" in refusals[-1]
        rises(member, 3 * LAG)
        with pytest.raises(Unsettled):
            follower.poll()
        proxy.lie = None
        follower.poll()
        assert follower.told == [expected]


@pytest.mark.parametrize("news", [{"hasLogs": False}, {"hasLogs": False, "logs": []}, {"logs": []}])
def test_that_there_are_none_is_believed_of_the_proven_bloom_only(embedded, news):
    """Whoever tells of blocks, and of their logs with them, may say anything beside what the hash proves."""
    (member,) = embedded.members([1])
    with FaultProxy(embedded.url) as proxy:
        follower = Follower(embedded, proxy.url)
        follower.poll()
        until("it tells of blocks", lambda: not follower.poll(0.01) and follower.client.tells)
        follower.told.clear()
        proxy.lie = lambda method, params, result: (
            result | news if isinstance(result, dict) and "parentHash" in result else result
        )
        expected = mined(member, "denied")
        member.set_addresses([])
        until("it is told", lambda: not follower.poll(0.2) and follower.told)
        assert follower.told == [expected] and "dlx_waitForBlock" in proxy.seen


def test_where_an_old_block_was_passed_by_the_heads_are_compared_again(embedded, young, monkeypatch):
    """A chain node that never gives a block's logs by its hash stops nobody, and has its word checked."""
    clients = embedded.members([1, 2])
    run = Run(clients, config(stages=1, min_replicas=2, round_timeout=10**6))
    for client in clients:
        client.join_run(run.id, 0)
    run.poll()
    names = [client.account for client in clients]
    with FaultProxy(embedded.url) as proxy:
        client = LedgerClient(proxy.url, embedded.ledger, chain_id=31337)
        feed = client.follow(run.id)
        assert client.poll(feed).complete
        proxy.lie = left_out(10**9, "eth_getBlockReceipts")
        run.send(0, names, names)
        run.poll()
        until("the block is suspect", lambda: not client.poll(feed).complete)
        monkeypatch.setattr("dlx.ledger.index.log_reader._MOST_LATE", _MOST_LATE)
        rises(clients[0], _MOST_LATE + 2)
        refusals = []

        def sealed() -> bool:
            try:
                return client.poll(feed).view.next_round(0) == 1
            except Unsettled as error:
                refusals.append(str(error))
                return False

        until("it is read by ranges", sealed)
        assert f"left events of run 0x{run.id.hex()} out" in refusals[-1]


def test_a_block_that_is_suspect_for_others_bits_is_read_whole_once(embedded, monkeypatch):
    """One small request, then all its logs."""
    (member,) = embedded.members([1])
    monkeypatch.setattr("dlx.ledger.index.log_reader._has", lambda bloom, value: bloom != 0)
    wholes = []

    def busy(method, params, result):
        if method == "eth_getLogs" and "address" not in params[0]:
            wholes.append(params[0]["blockHash"])
            first = {**result[0], "address": "0x" + "33" * 20, "topics": ["0x" + "44" * 32] * 3}
            return result + [{**first, "logIndex": hex(1000 + i)} for i in range(1000)]
        return result

    with FaultProxy(embedded.url) as proxy:
        follower = Follower(embedded, proxy.url)
        follower.poll()
        follower.told.clear()
        proxy.lie = busy
        block = member.set_addresses(["/dns4/busy/tcp/1"]).block
        asked = len(proxy.seen)
        until("it is told", lambda: not follower.poll() and follower.told)
        assert proxy.seen[asked:].count("eth_getLogs") == 2, "by address, then whole"
        follower.poll()
        assert wholes == ["0x" + member.rpc.header(block).hash.hex()]


def test_another_chain_node_is_asked_by_address_before_a_block_is_read_whole(embedded):
    (member,) = embedded.members([1])
    with FaultProxy(embedded.url) as proxy, FaultProxy(embedded.url) as other:
        follower = Follower(embedded, proxy.url, other.url)
        follower.poll()
        follower.told.clear()
        wholes = []
        proxy.lie = left_out(10**9, "eth_getBlockReceipts")
        other.lie = lambda method, params, result: (
            wholes.append(params) or result if method == "eth_getLogs" and "address" not in params[0] else result
        )
        expected = mined(member, "by-address")
        until("it is told", lambda: not follower.poll() and follower.told)
        assert follower.told == [expected] and "eth_getLogs" in other.seen and not wholes


def test_another_chain_node_is_asked_for_them(embedded):
    (member,) = embedded.members([1])
    with FaultProxy(embedded.url) as proxy:
        follower = Follower(embedded, proxy.url, embedded.url)
        follower.poll()
        follower.told.clear()
        proxy.lie = left_out(10**9, "eth_getBlockReceipts")
        expected = mined(member, "elsewhere")
        until("it is told", lambda: not follower.poll() and follower.told)
        assert follower.told == [expected]


def test_who_gives_logs_of_named_contracts_only_is_asked_for_receipts(embedded):
    (member,) = embedded.members([1])
    with FaultProxy(embedded.url) as proxy:
        follower = Follower(embedded, proxy.url)
        follower.poll()
        follower.told.clear()
        proxy.lie = left_out(10**9)
        expected = mined(member, "receipts")
        until("it is told", lambda: not follower.poll() and follower.told)
        assert follower.told == [expected] and "eth_getBlockReceipts" in proxy.seen


def test_bits_that_others_set_hold_nobody_up(embedded, monkeypatch):
    """Every block with logs is suspect, and its own logs say that none of ours is missing."""
    (member,) = embedded.members([1])
    monkeypatch.setattr("dlx.ledger.index.log_reader._has", lambda bloom, value: bloom != 0)
    with FaultProxy(embedded.url) as proxy:
        follower = Follower(embedded, proxy.url)
        follower.poll()
        follower.told.clear()
        expected = mined(member, "suspect")
        until("it is told", lambda: not follower.poll() and follower.told)
        assert follower.told == [expected]


def test_a_chain_of_quick_blocks_is_late_by_seconds(embedded, young):
    """A range over blocks that a late chain node lacks is answered with nothing: `LAG` blocks may be two seconds."""
    (member,) = embedded.members([1])
    rises(member, 3 * LAG)
    with FaultProxy(embedded.url) as proxy:
        follower = Follower(embedded, proxy.url)
        follower.poll()
        follower.told.clear()
        expected = mined(member, "quick")
        rises(member, LAG + 2)
        head = member.head().block
        proxy.lie = lambda method, params, result: (
            [log for log in result if int(log["blockNumber"], 16) < head - LAG - 4]
            if method == "eth_getLogs" and "fromBlock" in params[0]
            else result
        )
        follower.poll()
        assert follower.told == [expected]


@pytest.mark.parametrize("what", ["all", "seals"])
def test_a_history_that_lacks_events_does_not_give_the_heads_of_the_ledger(embedded, what, monkeypatch):
    """As of a chain node that has no old logs and answers for them with nothing."""
    clients = embedded.members([1, 2])
    run = Run(clients, config(stages=1, min_replicas=2, round_timeout=10**6))
    for client in clients:
        client.join_run(run.id, 0)
    run.poll()
    names = [client.account for client in clients]
    run.send(0, names, names)
    run.poll()
    rises(clients[0], _MOST_LATE + 2)
    sealed = "0x" + event_topic(Sealed).hex()
    with FaultProxy(embedded.url) as proxy:
        client = LedgerClient(proxy.url, embedded.ledger, chain_id=31337)
        feed = client.follow(run.id)
        proxy.lie = lambda method, params, result: (
            [log for log in result if what == "seals" and log["topics"][0] != sealed]
            if method == "eth_getLogs" and "fromBlock" in params[0]
            else result
        )
        tips = []
        for _ in range(2):
            with pytest.raises(Unsettled, match=rf"left events of run 0x{run.id.hex()} out: .* --rpc-url"):
                client.poll(feed)
            tips.append(feed.index.tip)
        assert tips[0] is not None and tips[1] is None, "a reorg just then looks the same, once"
        with pytest.raises(Unsettled):
            client.poll(feed)
        proxy.lie = None
        monkeypatch.setattr("dlx.ledger.index.event_index._READ_ANEW", 10 * PATIENCE)
        with pytest.raises(Unsettled):  # what was read before is not read again for a while
            client.poll(feed)
        assert feed.index.tip is not None
        monkeypatch.setattr("dlx.ledger.index.event_index._READ_ANEW", 0)
        with pytest.raises(Unsettled):
            client.poll(feed)
        view = client.poll(feed).view
        assert view.next_round(0) == 1 and view.head(0) == run.view.head(0)


def test_a_run_that_the_ledger_does_not_know_is_none(embedded):
    client = LedgerClient(embedded.url, embedded.ledger, chain_id=31337)
    assert not client.poll(client.follow(bytes(31) + b"\x01")).view.created


def test_a_log_told_twice_is_the_chain_nodes_fault(embedded):
    (member,) = embedded.members([1])
    mined(member, "twice")
    with FaultProxy(embedded.url) as proxy:
        proxy.lie = lambda method, params, result: 2 * result if method == "eth_getLogs" else result
        with pytest.raises(Exception, match=r"the chain node at 127\.0\.0\.1:\d+ told of a log twice"):
            Follower(embedded, proxy.url).client.runs()
