"""A client and its sender in front of real chain nodes that fail, are late and take blocks back: nothing is lost, and
nothing is paid twice."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import requests
from fault_proxy import FaultProxy
from ledger_run import NAME, config

from dlx.ledger.client import LedgerClient
from dlx.ledger.deployment import deploy
from dlx.ledger.errors import LedgerUnavailable
from dlx.ledger.keys import account_of
from dlx.ledger.transactions.sender import Unconfirmed
from tests.ledger.conftest import World, key
from tests.patience import PATIENCE, until


class Account:
    """One that sends through `url`, and what it did by the chain's own word."""

    def __init__(self, world: World, url: str, index: int, folder, timeout: float = PATIENCE) -> None:
        self._world, self._folder = world, folder
        secret = world.fund(key(index))
        self.name = account_of(secret)
        self._rpc = LedgerClient(world.url, world.ledger).rpc
        self._before, self._sent = self.balance, self.sent
        self.client = LedgerClient(url, world.ledger, secret, folder, chain_id=31337, timeout=timeout)

    @property
    def balance(self) -> int:
        return self._rpc.number("eth_getBalance", self.name, "latest")

    @property
    def sent(self) -> int:
        return self._rpc.number("eth_getTransactionCount", self.name, "latest")

    def check_sent(self, count: int) -> None:
        """Exactly so many transactions were paid for, and `spent.json` says so."""
        assert self.sent == self._sent + count
        (spent,) = self._folder.rglob("spent.json")
        assert sum(json.loads(spent.read_text())["hours"].values()) == self._before - self.balance


def insist(call: Callable[[], object]) -> object:
    """Asks again as the node's actions do, until it is done."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except (LedgerUnavailable, Unconfirmed):
            assert time.monotonic() < deadline


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, share",
    [("hang", 0.4), ("drip", 0.4), ("429", 0.2), ("limited", 0.2), ("html", 0.5), ("lost", 0.5), ("late", 0.5)],
)
def test_nothing_is_lost_or_paid_twice(any_chain, tmp_path, kind, share):
    with FaultProxy(any_chain.url) as proxy:
        account = Account(any_chain, proxy.url, 300, tmp_path, timeout=5)
        account.client.connect()
        names = [[f"/dns4/{kind}-{at}/tcp/1"] for at in range(3)]
        sends = [partial(account.client.set_addresses, one) for one in names]
        insist(partial(account.client.register, key(10_300), []))
        with ThreadPoolExecutor(3) as pool:
            done = [pool.submit(insist, send) for send in sends]
            while not all(one.done() for one in done):
                for fault, requests_ in ((kind, 6), ("none", 4)):
                    proxy.fault(fault, share)
                    enough = len(proxy.seen) + requests_
                    meet(lambda at=enough: len(proxy.seen) >= at or all(one.done() for one in done))
            for one in done:
                one.result()
        proxy.fault("none")
        insist(partial(account.client.set_addresses, ["/dns4/last/tcp/1"]))
        account.check_sent(5)
        assert account.client.nodes().nodes[account.name].multiaddrs == ("/dns4/last/tcp/1",)


def meet(condition: Callable[[], bool]) -> None:
    """Waits for it, for a second at most: what hangs comes no further until the fault is over."""
    deadline = time.monotonic() + 1
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.parametrize("depth", [1, 3, 20])
def test_what_a_reorg_takes_back_is_sent_again(any_chain, tmp_path, monkeypatch, depth):
    if any_chain.kind == "embedded":
        pytest.skip("the embedded chain never takes a block back")
    monkeypatch.setattr("dlx.ledger.client._TEND_EVERY", 0.0)
    account = Account(any_chain, any_chain.url, 310 + depth, tmp_path)
    client, feed = account.client, account.client.feed()
    call(any_chain, "evm_mine")
    client.poll(feed)
    snapshot, height = call(any_chain, "evm_snapshot"), client.head().block
    runs = {client.create_run(config(), NAME, [bytes([n + 1]) * 32] * 2) for n in range(1 if depth == 1 else 2)}
    while client.head().block < height + depth:
        call(any_chain, "evm_mine")
    client.poll(feed)
    assert call(any_chain, "evm_revert", snapshot)
    assert account.sent == 0

    def again() -> bool:
        client.poll(feed)
        return account.sent == len(runs)

    until("what was sent is mined again", again)
    until("the index has it", lambda: client.poll(feed) and runs <= {*client.runs()})
    client._sender.tend()
    account.check_sent(len(runs))


@pytest.mark.parametrize("asks_again", [False, True])
def test_receipts_that_are_long_late_are_waited_for(world, tmp_path, quick, asks_again):
    """As behind a load balancer: the transaction is mined, and for 20 blocks nobody has its receipt."""
    with FaultProxy(world.url) as proxy:
        account = Account(world, proxy.url, 370 + asks_again, tmp_path)
        account.client.register(key(10_370 + asks_again), [])
        if asks_again:
            account.client._timeout = 0.5
        call = partial(account.client.set_addresses, ["/dns4/late/tcp/1"])
        came: list[int] = []  # blocks in which it was looked for, once it was mined

        def late(method: str, params: list[object], result: object) -> object:
            if method != "eth_getTransactionReceipt" or result is None:
                return result
            came.append(int(proxy.ask("eth_blockNumber"), 16))
            return result if came[-1] >= came[0] + 20 else None

        proxy.lie = late
        insist(call) if asks_again else call()
        assert came[-1] >= came[0] + 20
        account.check_sent(2)


def call(world: World, method: str, *params: object) -> object:
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return requests.post(world.url, json=request, timeout=PATIENCE).json()["result"]


def test_of_several_urls_one_is_enough(any_chain, tmp_path):
    """One hangs, one is on another chain, one is late by turns; all the while the last is well."""
    with FaultProxy(any_chain.url) as hangs, FaultProxy(any_chain.url) as wrong, FaultProxy(any_chain.url) as well:
        hangs.fault("hang")
        wrong.fault("wrong_chain")
        account = Account(any_chain, [hangs.url, wrong.url, well.url], 350, tmp_path)
        insist(lambda: account.client.register(key(10_350), []))
        account.client.set_addresses(["/dns4/a/tcp/1"])
        account.check_sent(2)
        assert set(wrong.seen) == {"eth_chainId"}


def test_nothing_is_deployed_on_another_chain(any_chain):
    with FaultProxy(any_chain.url) as wrong:
        wrong.fault("wrong_chain")
        contracts = deploy([wrong.url, any_chain.url], any_chain.fund(key(360)), chain_id=31337)
        assert LedgerClient(any_chain.url, contracts.ledger).code(contracts.ledger)
        assert set(wrong.seen) == {"eth_chainId"}
