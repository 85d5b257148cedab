"""Chain nodes as hostile or broken providers have them, before a real chain: what they leave out is noticed, what is
theirs alone is believed of nobody, and nothing is read twice or lost."""

from collections.abc import Iterator
from typing import Any

import pytest
from fault_proxy import FaultProxy
from ledger_logs import LEDGER, REGISTRY, RUN, joined, replicas
from ledger_run import Run, config

from dlx.ground.backoff import Backoff
from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import Contradiction, LedgerError, LedgerUnavailable, WrongLedger
from dlx.ledger.events import Accused, AddressesChanged, Event, Joined, Left, NodeRegistered, event_topic
from dlx.ledger.index.event_index import Contracts, EventIndex
from dlx.ledger.index.feed import EventFeed, RunFeed
from dlx.ledger.index.log_reader import _MOST_LATE, Unsettled
from dlx.ledger.rpc.rpc_client import TIMEOUT, RpcClient
from dlx.node.home.settings import Settings
from dlx.node.runs import find
from tests.ledger.conftest import FakeChain, World
from tests.patience import PATIENCE, until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlx.ledger.index.log_reader._PAUSE", 0.001)


@pytest.fixture
def proxy(embedded: World) -> Iterator[FaultProxy]:
    with FaultProxy(embedded.url) as one:
        yield one


def reader(world: World, *urls: str, **more: Any) -> LedgerClient:
    return LedgerClient(list(urls), world.ledger, chain_id=31337, **more)


def rises(client: LedgerClient, blocks: int) -> None:
    goal = client.head().block + blocks
    until("the chain goes on", lambda: client.head().block >= goal)


# Answers that take long.


def test_slow_answers_are_waited_for_as_long_as_the_setting_says(embedded: World, proxy: FaultProxy) -> None:
    (member,) = embedded.members([1])
    key, proxy.delay = member._key, 0.6
    hasty = reader(embedded, proxy.url, rpc_timeout=0.5)
    with pytest.raises(LedgerUnavailable, match="no answer from the chain node"):
        hasty.poll(hasty.feed())
    patient = LedgerClient(proxy.url, embedded.ledger, key, chain_id=31337, rpc_timeout=PATIENCE)
    assert patient.set_addresses(["/dns4/slow/tcp/1"]) and patient.head().block
    assert Settings().rpc_timeout == TIMEOUT


# Another chain behind the same URL.


def test_another_chain_behind_the_url_takes_nothing_back(
    embedded: World, second_chain: FakeChain, proxy: FaultProxy
) -> None:
    (member,) = embedded.members([1])
    member.set_addresses(["/dns4/ours/tcp/1"])
    second_chain.eth_chainId = lambda: "0x1"  # type: ignore[method-assign]
    client = reader(embedded, proxy.url)
    feed = client.feed()
    seen = client.poll(feed).events
    tip = feed._tracker.index.tip
    assert seen and tip is not None
    for _ in range(tip.block + 5):
        second_chain.mine()
    proxy.target = second_chain.url
    with pytest.raises(WrongLedger, match=r"the chain node at 127\.0\.0\.1:\d+ is on chain 1, not 31337"):
        client.poll(feed)
    assert feed._tracker.index.tip == tip, "nothing that was read is forgotten"


@pytest.mark.parametrize("named", [True, False])
def test_another_chain_is_noticed_without_a_failure_or_a_new_head(
    embedded: World, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    client = LedgerClient(proxy.url, embedded.ledger, chain_id=31337 if named else None)
    client.connect()
    client.head()
    monkeypatch.setattr("dlx.ledger.rpc.failover._CHECK_AGAIN", 0.0)
    proxy.fault("wrong_chain")
    with pytest.raises(WrongLedger, match="is on chain 1, not 31337"):
        client.head()


def test_of_two_urls_the_one_on_another_chain_is_left(
    embedded: World, second_chain: FakeChain, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    (member,) = embedded.members([1])
    second_chain.eth_chainId = lambda: "0x1"  # type: ignore[method-assign]
    client = reader(embedded, proxy.url, embedded.url)
    feed = client.feed()
    tip = client.poll(feed).head.block
    for _ in range(tip + 5):
        second_chain.mine()
    proxy.target = second_chain.url
    receipt = member.set_addresses(["/dns4/still-ours/tcp/1"])
    updates = []

    def told() -> bool:
        updates.append(client.poll(feed))
        return any(event.at.tx == receipt.tx for event in updates[-1].events)

    until("it is told", told)
    assert not any(update.reorg for update in updates) and caplog.text.count("it is never asked again") == 1


# Events that are left out of old blocks.


class Followed:
    """A run of three members whose third came last and was not counted, behind a proxy that may leave events out."""

    def __init__(self, world: World, proxy: FaultProxy) -> None:
        self.members = world.members([1, 2, 3])
        self.run = Run(self.members, config(stages=1, min_replicas=2, max_replicas=3, round_timeout=1))
        for member in self.members[:2]:
            member.join_run(self.run.id, 0)
        self.run.poll()
        names = [member.account for member in self.members[:2]]
        self.run.send(0, names, names)
        self.run.poll()
        self.members[2].join_run(self.run.id, 0)
        self.proxy, self.client = proxy, reader(world, proxy.url)

    def feed(self) -> RunFeed:
        return self.client.follow(self.run.id)

    def leaves_out(self, *kinds: type[Event], account: str) -> None:
        """From now on, of ranges."""
        topics, mine = {"0x" + event_topic(kind).hex() for kind in kinds}, account[2:].lower()

        def is_kept(log: dict[str, Any]) -> bool:
            return log["topics"][0] not in topics or not any(topic.endswith(mine) for topic in log["topics"])

        self.proxy.lie = lambda method, params, result: (
            list(filter(is_kept, result)) if method == "eth_getLogs" and "fromBlock" in params[0] else result
        )


@pytest.fixture
def followed(embedded: World, proxy: FaultProxy) -> Followed:
    return Followed(embedded, proxy)


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ((Joined,), "the slots of stage 0"),
        ((Accused,), "member 0x"),
        ((NodeRegistered, AddressesChanged), "the node of 0x"),
    ],
    ids=["joined", "accused", "registered"],
)
def test_a_range_without_events_of_members_is_not_believed_though_all_heads_are_right(
    embedded: World, followed: Followed, kinds: tuple[type[Event], ...], words: str
) -> None:
    first, _, third = followed.members
    if Accused in kinds:
        until("it may be asked", lambda: accused(first, followed.run.id, third.account))
    rises(first, _MOST_LATE + 2)
    followed.leaves_out(*kinds, account=third.account)
    feed = followed.feed()
    for _ in range(2):
        with pytest.raises(Unsettled, match=rf"left events of run 0x{followed.run.id.hex()} out: .* of {words}"):
            followed.client.poll(feed)
    followed.proxy.lie = None
    until("all are read again", lambda: settled(followed.client, feed) == 3)


def accused(member: LedgerClient, run: bytes, account: str) -> bool:
    try:
        return bool(member.accuse(run, account))
    except LedgerError:
        return False


def settled(client: LedgerClient, feed: RunFeed) -> int:
    try:
        return len(client.poll(feed).view.members())
    except Unsettled:
        return -1


def test_that_somebody_left_and_another_came_is_missed_by_nobody(embedded: World, followed: Followed) -> None:
    """The same slots are held, by others."""
    first, _, third = followed.members
    (fourth,) = embedded.members([4])
    third.leave_run(followed.run.id)
    until("the slot is anybody's", lambda: joins(fourth, followed.run.id))
    rises(first, _MOST_LATE + 2)
    followed.leaves_out(Left, account=third.account)
    kept = followed.proxy.lie
    assert kept is not None
    topic, mine = "0x" + event_topic(Joined).hex(), fourth.account[2:].lower()

    def lie(method: str, params: list[Any], result: Any) -> Any:
        found = kept(method, params, result)
        if method != "eth_getLogs" or "fromBlock" not in params[0]:
            return found
        return [log for log in found if log["topics"][0] != topic or not log["topics"][2].endswith(mine)]

    followed.proxy.lie = lie
    with pytest.raises(Unsettled, match=rf"says otherwise of member {third.account}"):
        followed.client.poll(followed.feed())


def joins(member: LedgerClient, run: bytes) -> bool:
    try:
        return bool(member.join_run(run, 0))
    except LedgerError:
        return False


def test_what_was_missed_in_an_outage_is_compared_too(embedded: World, followed: Followed) -> None:
    first, _, third = followed.members
    feed = followed.feed()
    assert settled(followed.client, feed) == 3
    third.leave_run(followed.run.id)
    rises(first, _MOST_LATE + 2)
    followed.leaves_out(Left, account=third.account)
    with pytest.raises(Unsettled, match="says otherwise of the slots of stage 0"):
        followed.client.poll(feed)


def test_another_url_is_read_where_the_first_leaves_events_out(embedded: World, followed: Followed) -> None:
    first, _, third = followed.members
    rises(first, _MOST_LATE + 2)
    followed.leaves_out(Joined, account=third.account)
    client = reader(embedded, followed.proxy.url, embedded.url)
    feed = client.follow(followed.run.id)
    for _ in range(2):
        assert settled(client, feed) == -1
    until("the other is read", lambda: settled(client, feed) == 3)
    assert followed.proxy.lie is not None


def test_an_event_told_again_in_another_place_is_the_chain_nodes_fault(embedded: World, followed: Followed) -> None:
    topic = "0x" + event_topic(Joined).hex()
    followed.proxy.lie = lambda method, params, result: (
        [*result, *({**log, "logIndex": hex(1000 + i)} for i, log in enumerate(result) if log["topics"][0] == topic)]
        if method == "eth_getLogs"
        else result
    )
    with pytest.raises(Contradiction, match=r"the chain node at 127\.0\.0\.1:\d+ left events of run .* out: "):
        followed.client.poll(followed.feed())


def test_commands_that_read_a_run_compare_it_too(embedded: World, followed: Followed) -> None:
    first, _, third = followed.members
    rises(first, _MOST_LATE + 2)
    followed.leaves_out(Joined, account=third.account)
    with followed.client.events() as index:
        with pytest.raises(Contradiction, match=r"left events of run .* otherwise of the slots of stage 0; "):
            find.view_of(followed.client, index, followed.run.id)
        assert index.tip is None, "it is read again the next time"
    followed.proxy.lie = None
    with followed.client.events() as index:
        assert len(find.view_of(followed.client, index, followed.run.id).members()) == 3


# Few blocks of logs at a time.


def ten_blocks(method: str, params: list[Any], result: Any) -> Any:
    """A lie: the logs of more are refused."""
    if method != "eth_getLogs" or "fromBlock" not in params[0]:
        return result
    wide = int(params[0]["toBlock"], 16) - int(params[0]["fromBlock"], 16) >= 10
    message = "You can make eth_getLogs requests with up to a 10 block range."
    return {"error": {"code": -32600, "message": message}} if wide else result


@pytest.mark.parametrize(
    ("most", "refusal", "patience", "exchanges"),
    [
        (None, None, 20.0, 30),
        (20, None, 20.0, 60),
        (1, None, 20.0, 400),
        (5, (-32007, "5/second request limit reached"), 0.5, 350),  # over the rate is too much once that is over
    ],
    ids=["batches", "small batches", "no batches", "batches over the rate"],
)
def test_ranges_of_ten_blocks_are_asked_for_together(
    fake_chain: FakeChain,
    monkeypatch: pytest.MonkeyPatch,
    most: int | None,
    refusal: Any,
    patience: float,
    exchanges: int,
) -> None:
    """291 of them: one after the other they took 39 s."""
    monkeypatch.setattr("dlx.ledger.rpc.endpoint._RATE_LIMITED", Backoff(0.01, 0.01))
    for block in range(2_910):
        fake_chain.mine(*([joined(replica=block % 8)] if block % 97 == 0 else []))
    feed = EventFeed(lambda: EventIndex(None, 31337, Contracts(LEDGER, REGISTRY)), RUN)
    with FaultProxy(fake_chain.url) as proxy:
        proxy.lie, proxy.most, proxy.refusal = ten_blocks, most, refusal or proxy.refusal
        rpc = RpcClient(proxy.url, patience=patience)
        told: list[Event] = []

        def all_told() -> bool:  # an answer that is late on a busy machine leaves the rest to the next poll
            try:
                update = feed.poll(rpc)
            except LedgerUnavailable:
                return False
            told.extend(update.events)
            return update.complete

        until("all is told", all_told, lambda: len(told))
        assert replicas(told) == [block % 8 for block in range(0, 2_910, 97)]
        assert proxy.seen.count("eth_getLogs") < exchanges


# Heads that are late, or of blocks that nobody has.


def test_a_chain_node_that_is_twenty_blocks_behind_takes_nothing_back(embedded: World, proxy: FaultProxy) -> None:
    (member,) = embedded.members([1])
    rises(member, 40)
    client = reader(embedded, proxy.url)
    feed = client.feed()
    client.poll(feed)
    receipt = member.set_addresses(["/dns4/before/tcp/1"])
    told: list[Event] = []
    until("it is told", lambda: told.extend(client.poll(feed).events) or told)
    head = client.poll(feed).head.block
    proxy.behind = 20
    proxy.fault("late")
    updates = [client.poll(feed) for _ in range(3)]
    assert not any(update.reorg or update.events for update in updates)
    assert all(update.head.block >= head for update in updates)
    later = member.set_addresses(["/dns4/after/tcp/1"])
    proxy.fault("none")
    until("the next is told", lambda: told.extend(client.poll(feed).events) or len(told) >= 2)
    assert [event.at.tx for event in told] == [receipt.tx, later.tx]


def test_a_head_whose_block_nobody_has_is_named_and_read_once_it_is_there(embedded: World, proxy: FaultProxy) -> None:
    (member,) = embedded.members([1])
    client = reader(embedded, proxy.url)
    feed = client.feed()
    client.poll(feed)
    known = client.head().block

    def lie(method: str, params: list[Any], result: Any) -> Any:
        is_header = method == "eth_getBlockByHash" or (method == "eth_getBlockByNumber" and params[0] != "latest")
        return None if is_header and result is not None and int(result["number"], 16) > known else result

    proxy.lie = lie
    receipt = member.set_addresses(["/dns4/nobody/tcp/1"])
    rises(member, 3)
    refusals: list[str] = []

    def refused() -> bool:
        try:
            assert not client.poll(feed).events
        except LedgerUnavailable as error:
            refusals.append(str(error))
        return bool(refusals)

    until("it is said", refused)
    assert "the chain node does not give block" in refusals[0]
    proxy.lie = None
    until("it is told", lambda: receipt.tx in {event.at.tx for event in client.poll(feed).events})
