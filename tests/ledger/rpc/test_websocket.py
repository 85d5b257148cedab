"""A chain node by websocket: asked as by HTTP, and heard when it has a new head, whatever happens to the line."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerUnavailable, RpcError
from dlx.ledger.events import Event
from dlx.ledger.index.event_index import Contracts, EventIndex
from dlx.ledger.index.feed import EventFeed
from dlx.ledger.rpc.rpc_client import RpcClient
from tests.ledger.conftest import FakeChain, World
from tests.ledger.ledger_logs import LEDGER, REGISTRY
from tests.patience import PATIENCE


class Node:
    """The fake chain by websocket; `tell` what subscribers are told, `hang_up` on all. `says`: in place of answers."""

    def __init__(self, chain: FakeChain) -> None:
        self.chain, self.says, self.subscribes, self.opened = chain, None, True, 0
        self.is_silent = False  # though the line stays open
        self.lines: list[ServerConnection] = []
        self._lock = threading.Lock()
        self._server = serve(self._talk, "127.0.0.1", 0)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"ws://127.0.0.1:{self._server.socket.getsockname()[1]}"

    def close(self) -> None:
        self.hang_up()
        self._server.shutdown()
        self._thread.join()

    def hang_up(self) -> None:
        for line in self.lines:
            line.close()

    def tell(self) -> None:
        head = self.chain.eth_getBlockByNumber("latest", False)
        news = {"jsonrpc": "2.0", "method": "eth_subscription", "params": {"subscription": "0x1", "result": head}}
        for line in self.lines:
            line.send(json.dumps(news))

    def _talk(self, line: ServerConnection) -> None:
        self.opened += 1
        self.lines.append(line)
        try:
            for text in line:
                asked = json.loads(text)
                members = asked if isinstance(asked, list) else [asked]
                with self._lock:
                    answers = [self._answer(member) for member in members]
                answer = json.dumps(answers if isinstance(asked, list) else answers[0])
                if not self.is_silent:
                    line.send(answer if self.says is None else self.says)
        except ConnectionClosed:
            pass
        finally:
            self.lines.remove(line)

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["method"] == "eth_subscribe":
            found: Any = "0x1" if self.subscribes else {"error": {"code": -32601, "message": "no such method"}}
        else:
            found = self.chain.answer(asked["method"], asked["params"])
        answer = found if isinstance(found, dict) and "error" in found else {"result": found}
        return {"jsonrpc": "2.0", "id": asked["id"], **answer}


@pytest.fixture
def node(fake_chain: FakeChain) -> Iterator[Node]:
    node = Node(fake_chain)
    yield node
    node.close()


def test_requests_batches_and_refusals_are_what_they_are_by_http(fake_chain: FakeChain, node: Node) -> None:
    fake_chain.mine()
    by_http, rpc = RpcClient(fake_chain.url), RpcClient(node.url)
    assert rpc.head() == by_http.head() and rpc.chain_id() == 31337
    blocks = [bytes.fromhex(fake_chain.block_hash(number)[2:]) for number in (0, 1, 9)]
    assert list(rpc.headers(blocks)) == list(by_http.headers(blocks)) and list(rpc.headers(blocks))[2] is None
    fake_chain.eth_call = lambda call, tag: {"error": {"code": 3, "message": "execution reverted", "data": "0x12"}}
    with pytest.raises(RpcError) as caught:
        rpc.call("eth_call", {}, "latest")
    head, (refused, tip) = rpc.head_and(("eth_call", ({}, "latest")), ("eth_maxPriorityFeePerGas", ()))
    assert caught.value.revert == refused.revert == b"\x12" and (head, tip) == (by_http.head(), "0x1")
    assert node.opened == 1


def test_threads_share_a_line_and_each_gets_its_own_answer(fake_chain: FakeChain, node: Node) -> None:
    for _ in range(20):
        fake_chain.mine()
    rpc = RpcClient(node.url)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(rpc.header, [number % 21 for number in range(200)]))
    assert [header and header.number for header in found] == [number % 21 for number in range(200)]
    assert node.opened == 1


def test_a_new_head_is_heard_of_at_once_and_nothing_is_asked_meanwhile(fake_chain: FakeChain, node: Node) -> None:
    rpc = RpcClient(node.url)
    head = rpc.head()
    assert rpc.newer(head, 0.05) == head and rpc.tells
    asked = len(fake_chain.requests)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(rpc.newer, head, 10.0)
        fake_chain.mine()
        node.tell()
        assert waiting.result(timeout=PATIENCE).number == 1
    assert len(fake_chain.requests) == asked


def test_a_feed_follows_by_websocket_and_goes_on_where_it_breaks(fake_chain: FakeChain, node: Node) -> None:
    rpc, feed = RpcClient(node.url), EventFeed(lambda: EventIndex(None, 31337, Contracts(LEDGER, REGISTRY)))
    for block in range(5):
        assert feed.poll(rpc, 0.1).head.block == block
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(feed.poll, rpc, 10.0)
            fake_chain.mine()
            (node.hang_up if block % 2 else node.tell)()
            found = waiting.result(timeout=PATIENCE).head.block
        assert found == block + 1 or feed.poll(rpc, 10.0).head.block == block + 1
    assert node.opened >= 3


def test_a_subscription_that_ends_without_a_word_is_noticed(
    fake_chain: FakeChain, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlx.ledger.rpc.websocket._SILENCE", 0.05)
    rpc = RpcClient(node.url)
    head = rpc.newer(rpc.head(), 0.1)
    fake_chain.mine()  # and nobody tells
    assert any(rpc.newer(head, 0.1).number == 1 for _ in range(20))


def test_a_line_that_is_open_and_silent_is_given_up_and_opened_again(
    fake_chain: FakeChain, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlx.ledger.rpc.websocket._SILENCE", 0.05)
    rpc = RpcClient(node.url, timeout=3.0, patience=3.0)
    head = rpc.newer(rpc.head(), 0.1)
    node.is_silent = True
    with pytest.raises(LedgerUnavailable, match="no answer in time"):
        for _ in range(20):
            rpc.newer(head, 0.1)
    node.is_silent = False
    fake_chain.mine()
    assert rpc.with_patience(PATIENCE).newer(head, 0.1).number == 1 and node.opened >= 2


def test_a_chain_node_without_subscriptions_is_looked_at(fake_chain: FakeChain, node: Node) -> None:
    node.subscribes = False
    rpc = RpcClient(node.url)
    head = rpc.newer(rpc.head(), 10.0)
    fake_chain.mine()
    assert rpc.newer(head, 10.0).number == 1 and not rpc.tells


def test_anvil_tells_of_its_blocks(world: World) -> None:
    if world.kind != "anvil":
        pytest.skip("the embedded chain has no websockets: it tells by HTTP")
    client = LedgerClient(world.url.replace("http", "ws"), world.ledger, chain_id=31337)
    feed, seen = client.feed(), list[Event]()
    (member,) = world.members([7])
    receipt = member.set_addresses(["/ip4/127.0.0.1/tcp/4007"])
    while receipt.tx not in {event.at.tx for event in seen}:
        seen += client.poll(feed, 5.0).events
    assert any(client.poll(feed, 0.5) and client.tells for _ in range(50))


@pytest.mark.parametrize("says", ["no JSON", "[]", "{}", "7", '{"id": 1}', '{"method": "eth_subscription"}', "[[]]"])
def test_nonsense_and_silence_end_in_time(fake_chain: FakeChain, node: Node, says: str) -> None:
    node.says = says
    with pytest.raises(LedgerUnavailable):
        RpcClient(node.url, timeout=0.3, patience=0.6).head()
    node.says = None
    assert RpcClient(node.url).head().number == 0
