"""Chain nodes that leave out what is in old blocks, or whose headers prove nothing.

What is read has to be as much as the contracts count. Else another URL is asked, and nothing is shown by halves."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from eth_hash.auto import keccak
from fault_proxy import FaultProxy
from ledger_logs import LEDGER, REGISTRY, deregistered
from ledger_run import Run, config

from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import EventsLeftOut, LedgerUnavailable
from dlx.ledger.events import Event, RunCreated, Sealed, event_topic
from dlx.ledger.index.crosscheck import read_all
from dlx.ledger.index.event_index import Contracts, EventIndex
from dlx.ledger.index.feed import EventFeed, RunFeed
from dlx.ledger.index.log_reader import _MOST_LATE, Unsettled
from dlx.ledger.rpc.failover import LAG
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.node.runs import find
from dlx.node.web.reading.reader import Reader
from tests.ledger.conftest import FakeChain, World
from tests.patience import until

Lie = Callable[[str, list[Any], Any], Any]
RUNS, CHANGES = ("0x" + keccak(name)[:4].hex() for name in (b"runs()", b"changes()"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlx.ledger.index.log_reader._PAUSE", 0.001)


class Old:
    """Members, and runs of two of them, all in old blocks: what a client has to read."""

    def __init__(self, world: World) -> None:
        self.world, self.members = world, world.members([1, 2, 3])
        (self.first, self.second, _) = self.members
        self.runs = [Run(self.members[:2], config(stages=1, min_replicas=2, max_replicas=2)) for _ in range(2)]
        for member in self.members[:2]:
            member.join_run(self.runs[0].id, 0)
        self.runs[0].poll()
        names = [member.account for member in self.members[:2]]
        self.runs[0].send(0, names, names)
        self.age()
        self.last = self.first.head().block - _MOST_LATE - 1  # of the old blocks
        with world.client(0).events() as index:
            self.counts = index.counts(self.last)

    def age(self) -> None:
        goal = self.first.head().block + _MOST_LATE + 2
        until("the blocks are old", lambda: self.first.head().block >= goal)

    def client(self, *urls: str, folder: Path | None = None) -> LedgerClient:
        return LedgerClient(list(urls), self.world.ledger, chain_id=31337, folder=folder)


@pytest.fixture(scope="module")
def old(embedded: World) -> Old:
    return Old(embedded)


@pytest.fixture
def proxy(embedded: World) -> Iterator[FaultProxy]:
    with FaultProxy(embedded.url) as one:
        yield one


def empty_ranges(method: str, params: list[Any], result: Any) -> Any:
    """A lie: no block that is asked for in a range has a log."""
    return [] if method == "eth_getLogs" and "fromBlock" in params[0] else result


def without(topic: bytes) -> Lie:
    """A lie: no range has a log of this kind."""

    def lie(method: str, params: list[Any], result: Any) -> Any:
        if method != "eth_getLogs" or "fromBlock" not in params[0]:
            return result
        return [log for log in result if log["topics"][0] != "0x" + topic.hex()]

    return lie


def read(client: LedgerClient, old: Old) -> tuple[int, int]:
    """How many runs and events of the registry there are in the old blocks."""
    with client.events() as index:
        return index.counts(old.last)


def refuses(client: LedgerClient, words: str) -> None:
    with pytest.raises(EventsLeftOut, match=words) as refused, client.events():
        pass
    assert refused.value.exit_code == 3 and "\n" not in str(refused.value)


# What commands read.


@pytest.mark.parametrize("lie", [empty_ranges, without(event_topic(RunCreated))], ids=["all", "runs"])
def test_old_blocks_without_events_are_a_clear_line_and_no_partial_list(
    old: Old, proxy: FaultProxy, tmp_path: Path, lie: Lie
) -> None:
    proxy.lie = lie
    client = old.client(proxy.url, folder=tmp_path)
    refuses(
        client, r"^the chain node at 127\.0\.0\.1:\d+ left events out: 0 of \d+ runs up to block \d+, .* --rpc-url$"
    )
    proxy.lie = None  # another one, named at once
    assert read(old.client(proxy.url, folder=tmp_path), old) == old.counts


def test_an_honest_second_url_gives_all(old: Old, proxy: FaultProxy, tmp_path: Path) -> None:
    proxy.lie = empty_ranges
    client = old.client(proxy.url, old.world.url, folder=tmp_path)
    assert read(client, old) == old.counts
    assert len(client.nodes().nodes) >= 3 and set(client.runs()) >= {run.id for run in old.runs}
    with client.events() as index:
        assert find.resolve(index, old.runs[1].id.hex()) == old.runs[1].id


def test_a_hole_of_an_earlier_reading_is_mended(old: Old, proxy: FaultProxy, tmp_path: Path) -> None:
    proxy.lie = empty_ranges
    client = old.client(proxy.url, folder=tmp_path)
    index = client.open_index()
    index.sync(client.rpc)
    assert index.counts(old.last) == (0, 0)
    index.close()
    proxy.lie = None
    assert read(old.client(proxy.url, folder=tmp_path), old) == old.counts


def consistent(registry: str, counts: Callable[[], tuple[int, int]]) -> Lie:
    """A lie: a registry in whose old blocks there is nothing, and a ledger that counts what is left."""

    def lie(method: str, params: list[Any], result: Any) -> Any:
        if method == "eth_getLogs" and "fromBlock" in params[0]:
            return []
        if method == "eth_call" and params[0].get("data") in (RUNS, CHANGES):
            runs, changes = counts()
            less = runs if params[0]["data"] == RUNS else changes
            return "0x" + (int(result, 16) - less).to_bytes(32, "big").hex()
        return result

    return lie


def test_one_that_counts_as_few_as_it_tells_is_contradicted_by_another_url(
    old: Old, proxy: FaultProxy, tmp_path: Path
) -> None:
    """Alone it is believed: nothing that it says contradicts itself."""
    with old.world.client(0).events() as index:
        hidden = index.counts(index.tip.block - _MOST_LATE) if index.tip else (0, 0)
    proxy.lie = consistent(old.world.registry, lambda: hidden)
    alone = old.client(proxy.url, folder=tmp_path)
    assert read(alone, old) < old.counts
    both = old.client(proxy.url, old.world.url)
    refuses(both, r"as the contracts at 127\.0\.0\.1:\d+ count them; the chain node at .* left events out: ")
    assert read(old.client(old.world.url, folder=tmp_path), old) == old.counts, "and what it left is mended"


def test_a_contract_without_code_counts_nothing(old: Old, proxy: FaultProxy) -> None:
    def lie(method: str, params: list[Any], result: Any) -> Any:
        return "0x" if method == "eth_call" and params[0].get("data") in (RUNS, CHANGES) else result

    proxy.lie = lie
    refuses(old.client(proxy.url), "left events out: runs: a contract gave another answer than expected")
    assert read(old.client(proxy.url, old.world.url), old) == old.counts


def test_a_chain_node_that_is_late_with_its_state_is_asked_again(old: Old, proxy: FaultProxy, tmp_path: Path) -> None:
    late = {"error": {"code": -32000, "message": "header not found"}}
    times = [late, late]

    def lie(method: str, params: list[Any], result: Any) -> Any:
        asks = method == "eth_call" and params[0].get("data") == RUNS
        return times.pop() if asks and times else result

    client = old.client(proxy.url, folder=tmp_path)
    assert read(client, old) == old.counts
    proxy.lie = lie
    with closing(client.open_index()) as index:
        mark = index.mark()
        read_all(index, client.rpc)
        assert not times and index.undone(mark) is None, "nothing is read anew"
    proxy.lie = lambda method, params, result: (
        late if method == "eth_call" and params[0].get("data") in (RUNS, CHANGES) else result
    )
    with closing(client.open_index()) as index:
        with pytest.raises(LedgerUnavailable, match="its counts of block"):
            read_all(index, client.rpc)
        assert index.undone(mark) is None
        assert index.counts(old.last) == old.counts


# What a reorg and another process change meanwhile.


def scripted(rpc: RpcClient) -> EventIndex:
    index = EventIndex(None, 31337, Contracts(LEDGER, REGISTRY))
    read_all(index, rpc)
    return index


def test_a_reorg_between_reading_and_comparing_has_nothing_read_anew(fake_chain: FakeChain, rpc: RpcClient) -> None:
    for _ in range(40):
        fake_chain.mine(deregistered())
    index = scripted(rpc)
    mark = index.mark()
    for _ in range(20):
        fake_chain.mine(deregistered())

    def reorg(method: str, params: list[Any]) -> None:
        if method == "eth_call":
            fake_chain.faults.clear()
            fake_chain.reorg(50, "b")
            for _ in range(20):
                fake_chain.mine()

    fake_chain.faults.append(reorg)
    read_all(index, rpc)
    assert index.counts(100) == (0, 49) and index.undone(mark) == 49


def test_few_blocks_after_a_comparison_are_not_compared_and_many_are(fake_chain: FakeChain, rpc: RpcClient) -> None:
    fake_chain.mine(deregistered())
    index = scripted(rpc)
    fake_chain.requests.clear()
    fake_chain.mine(deregistered())
    read_all(index, rpc)
    assert "eth_call" not in fake_chain.requests
    for _ in range(LAG):
        fake_chain.mine()
    read_all(index, rpc)
    assert fake_chain.requests.count("eth_call") == 2


def test_a_silent_second_url_is_no_reason_to_refuse(
    fake_chain: FakeChain, second_chain: FakeChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_chain.mine(deregistered())
    second_chain.faults += [lambda method, params: {"error": {"code": -32000, "message": "no state"}}] * 9
    assert scripted(RpcClient([fake_chain.url, second_chain.url])).counts(9) == (0, 1)


# What one run is.


def test_a_run_whose_seals_are_left_out_is_read_from_another_url(old: Old, proxy: FaultProxy) -> None:
    proxy.lie = without(event_topic(Sealed))
    run = old.runs[0].id
    alone = old.client(proxy.url)
    with alone.events() as index:
        with pytest.raises(EventsLeftOut, match=rf"left events of run 0x{run.hex()} out: .* of the head of stage 0"):
            find.view_of(alone, index, run)
        assert index.tip is None, "nothing is kept"
    with (client := old.client(proxy.url, old.world.url)).events() as index:
        assert find.view_of(client, index, run).next_round(0) == 1


def test_a_list_of_runs_without_their_seals_is_not_shown(old: Old, proxy: FaultProxy) -> None:
    proxy.lie = without(event_topic(Sealed))
    alone, run = old.client(proxy.url), old.runs[0].id.hex()
    with alone.events() as index, pytest.raises(EventsLeftOut, match="says otherwise of the head of stage 0 of run 0x"):
        find.list_runs(alone, index, ())
    with (client := old.client(proxy.url, old.world.url)).events() as index:
        listed, unreadable = find.list_runs(client, index, ())
        assert not unreadable and {one.run: one.sealed_rounds for one in listed}["0x" + run] == 1


def test_a_page_says_what_is_left_out_and_leaves_the_chain_node_alone(
    old: Old, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.lie = empty_ranges
    reader = Reader(old.client(proxy.url), (), "")
    monkeypatch.setattr("dlx.node.web.reading.reader._FRESH_SECONDS", 0.0)
    source = reader.runs_page().source
    assert source.silence is not None and "left events out: 0 of " in source.silence
    asked = len(proxy.seen)
    assert reader.runs_page().source.silence and len(proxy.seen) == asked
    reader.close()
    both = Reader(old.client(proxy.url, old.world.url), (), "")
    page = both.runs_page()
    assert page.source.silence is None and page.total >= 2
    both.close()


def test_pages_without_seals_are_said_to_be_and_read_again_from_another_url(
    old: Old, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlx.node.web.reading.reader._FRESH_SECONDS", 0.0)
    proxy.lie = without(event_topic(Sealed))
    run = old.runs[0].id
    alone = Reader(old.client(proxy.url), (), "")
    for page in (alone.runs_page(), alone.run_page(run)):
        assert page.source.silence is not None and f"the head of stage 0 of run 0x{run.hex()}" in page.source.silence
    alone.close()
    both = Reader(old.client(proxy.url, old.world.url), (), "")
    for look in (both.runs_page, lambda: both.run_page(run)):
        until("the other is read", lambda look=look: look().source.silence is None)  # type: ignore[misc]
    assert both.sealed(run) == [1]
    both.close()


# Who follows.


def test_a_feed_of_all_runs_tells_all_or_nothing(old: Old, proxy: FaultProxy) -> None:
    proxy.lie = empty_ranges
    client = old.client(proxy.url)
    feed = client.feed()
    for _ in range(2):
        with pytest.raises(Unsettled, match=r"left events out: 0 of .* all are read again"):
            client.poll(feed)
    proxy.lie = None
    assert whole(client, feed) >= old.counts[1]
    proxy.lie = empty_ranges
    both = old.client(proxy.url, old.world.url)
    assert whole(both, both.feed()) >= old.counts[1]


def whole(client: LedgerClient, feed: EventFeed) -> int:
    """How many events there are once all are told."""
    told: list[Event] = []

    def is_told() -> bool:
        try:
            update = client.poll(feed)
        except Unsettled:
            return False
        told.extend(update.events)
        return update.complete

    until("all is told", is_told)
    return len(told)


def blind(method: str, params: list[Any], result: Any) -> Any:
    """A lie: no block has a log, and headers have a bloom of zeros."""
    if method in ("eth_getLogs", "eth_getBlockReceipts"):
        return []
    if method == "dlx_waitForBlock" and isinstance(result, dict):
        return {key: value for key, value in result.items() if key != "logs"} | {"logsBloom": "0x" + "00" * 256}
    return result | {"logsBloom": "0x" + "00" * 256} if isinstance(result, dict) and "logsBloom" in result else result


def bare(method: str, params: list[Any], result: Any) -> Any:
    """A lie: no block has a log, and headers have no bloom."""
    found = blind(method, params, result)
    return {key: value for key, value in found.items() if key != "logsBloom"} if isinstance(found, dict) else found


@pytest.mark.parametrize("lie", [blind, bare])
def test_an_event_of_a_new_block_is_not_lost_where_headers_prove_nothing(old: Old, proxy: FaultProxy, lie: Lie) -> None:
    client = old.client(proxy.url)
    feed = client.feed()
    whole(client, feed)
    proxy.lie = lie
    receipt = old.first.set_addresses(["/dns4/blind/tcp/1"])
    refusals: list[str] = []

    def is_noticed() -> bool:
        try:
            assert receipt.tx not in {event.at.tx for event in client.poll(feed).events}
        except Unsettled as error:
            refusals.append(str(error))
        return bool(refusals)

    until("it is noticed", is_noticed)
    assert "events of the registry up to block" in refusals[0]
    proxy.lie = None
    told: set[bytes] = set()

    def is_told() -> bool:
        try:
            told.update(event.at.tx for event in client.poll(feed).events)
        except Unsettled:
            return False
        return receipt.tx in told

    until("it is told", is_told)


def test_a_runs_event_of_a_new_block_is_not_lost_where_headers_prove_nothing(old: Old, proxy: FaultProxy) -> None:
    client, run = old.client(proxy.url), old.runs[1].id
    feed: RunFeed = client.follow(run)
    assert client.poll(feed).view.members() == {}
    proxy.lie = blind
    old.second.join_run(run, 0)
    until("it is noticed", lambda: members(client, feed) < 0)
    proxy.lie = None
    until("it is told", lambda: members(client, feed) == 1)
    old.second.leave_run(run)


def members(client: LedgerClient, feed: RunFeed) -> int:
    try:
        return len(client.poll(feed).view.members())
    except Unsettled:
        return -1
