"""Real nodes on each chain there is, whose URLs fail in every way and whose blocks are taken back. Every round is
sealed, nothing is paid twice, and the nodes say what is wrong while it lasts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from eth_hash.auto import keccak

from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.node.daemon.api.status import NodeStatus
from dlx.node.devnet.devnet import Devnet, DevnetShape
from dlx.node.home.datadir import DataDir
from dlx.node.home.keys import identity
from tests.e2e.devnets import BLOCK_TIME, PASSED, Timing, Watched, draft
from tests.ledger.conftest import ANVIL, HARDHAT, World
from tests.ledger.fault_proxy import FaultProxy
from tests.node.command import dlx
from tests.patience import until

TIMING = Timing(grace=3, proposal=2, timeout=60, eviction=60)
REPLICAS = 2
CONFIRMATIONS = 1  # a reorg of one block takes back what no node has acted on; deeper ones take back what all have
TROUBLES = (("hang", 1.0), ("429", 1.0), ("html", 1.0))  # all the time: until every node says so
NUISANCES = (("hang", 0.2), ("drip", 0.1), ("limited", 0.2), ("lost", 0.3), ("late", 0.4))  # a round is sealed in each
ROUNDS = {"embedded": 24, "anvil": 30, "hardhat": 30}  # more than are sealed while something is wrong

pytestmark = pytest.mark.timeout(1200)


@dataclass
class ElsewhereDevnet(Devnet):
    """A devnet whose nodes have three URLs of their chain: one of another chain, and two that can fail. The chain is an
    embedded one, or is there already."""

    world: World | None = None
    url: str = ""  # the chain's own
    proxies: tuple[FaultProxy, ...] = ()

    def start_chain(self, port: int = 0) -> None:
        if self.world is None:
            super().start_chain(port)
            self.url = self.rpc_url
        else:
            self.url = self.world.url
            found = {"registry": self.world.registry, "ledger": self.world.ledger, "campaigns": ""}
            contracts = DataDir(self.root).contracts
            contracts.parent.mkdir()
            contracts.write_text(json.dumps({"rpc_url": self.url, "chain_id": 31337, **found}))
        self.proxies = FaultProxy(self.url), FaultProxy(self.url), FaultProxy(self.url)
        self.proxies[0].fault("wrong_chain")
        self.rpc_url = " ".join(proxy.url for proxy in self.proxies)

    def _create_run(self, progress: Callable[[str], None]) -> str:
        for name in self.names if self.world else ():
            self.world.endow(identity.account_address(self.folder(name)))
        return super()._create_run(progress)

    def start(self) -> None:
        for name in self.names:
            self.start_node(name)

    def stop(self) -> None:
        super().stop()
        for proxy in self.proxies:
            proxy.close()

    def fault(self, kind: str, share: float = 1.0) -> None:
        for proxy in self.proxies[1:]:
            proxy.fault(kind, share)


@pytest.fixture(params=["embedded", "anvil", "hardhat"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param not in request.config.getoption("--chains").split(","):
        pytest.skip(f"{request.param} takes minutes: `make chaos`")
    for name, program in (("anvil", ANVIL), ("hardhat", HARDHAT)):
        if request.param == name and not program.exists():
            pytest.skip(f"missing: {name}: npm ci in contracts/")
    return str(request.param)


@pytest.fixture
def devnet(kind: str, tmp_path: Path) -> Iterator[ElsewhereDevnet]:
    """Its nodes are not started yet."""
    world = None if kind == "embedded" else World(kind, tmp_path)
    try:
        root = tmp_path / "devnet"
        shape = DevnetShape("", ROUNDS[kind], REPLICAS, stages=1, block_time=BLOCK_TIME)
        made = ElsewhereDevnet(root, shape, world=world)
        text = draft(ROUNDS[kind], 10, TIMING, REPLICAS, stages=1, confirmations=CONFIRMATIONS)
        made.make(text, lambda line: None)
        try:
            yield made
        finally:
            made.stop()
    finally:
        if world:
            world.stop(kill=True)


def test_a_run_whose_chain_fails_loses_nothing_and_pays_nothing_twice(kind: str, devnet: ElsewhereDevnet) -> None:
    devnet.start()
    watched = Watched(devnet, devnet.url)
    watched.until("the first round", watched.sealed_rounds)
    for fault, share in TROUBLES:
        devnet.fault(fault, share)
        watched.until(
            f"everybody saying that the chain does not answer: {fault}", lambda: all_say(watched, is_troubled)
        )
        devnet.fault("none")
        watched.until(f"everybody well again: {fault}", lambda: all_say(watched, is_well))
    for fault, share in NUISANCES:
        devnet.fault(fault, share)
        until_a_round_more(watched, fault)
    devnet.fault("none")
    wrong, failing, _ = devnet.proxies
    failing.fault("html")
    until_a_round_more(watched, "one of two URLs fails")
    failing.fault("none")
    assert set(wrong.seen) == {"eth_chainId"}, "nobody believes another chain"
    if kind != "embedded":  # it never takes a block back
        for depth in (1, 3, 20):
            reorganise(watched, depth)
            until_a_round_more(watched, f"a reorg of {depth}")
    rounds = ROUNDS[kind]
    assert watched.sealed_rounds() < rounds, "every fault was met"
    watched.until("the end of the run", lambda: all_say(watched, lambda one: one.phase == "finished"))
    watched.assert_sealed_once()
    assert watched.sealed_rounds() == rounds and all(seal.count for seal in watched.seals())
    check_paid(watched)
    devnet.stop_nodes()
    where = ["--datadir", devnet.root, "--rpc-url", devnet.url]
    assert json.loads(dlx("audit", *where, "--json").stdout)["verdict"] == PASSED


def all_say(watched: Watched, what: Callable[[NodeStatus], bool]) -> bool:
    said = [what(status) for status in watched.statuses().values()]
    return said == [True] * len(watched.devnet.names)


def is_troubled(status: NodeStatus) -> bool:
    return not status.ledger.reachable and any("the chain does not answer" in reason for reason in status.not_ready)


def is_well(status: NodeStatus) -> bool:
    return status.ledger.reachable and not status.not_ready


def until_a_round_more(watched: Watched, fault: str) -> None:
    at = watched.sealed_rounds()
    watched.until(f"a round more: {fault}", lambda: watched.sealed_rounds() > at)


def reorganise(watched: Watched, depth: int) -> None:
    """The chain takes so many blocks back, the oldest of which sealed a round, and goes on with more empty ones."""
    rpc = RpcClient(watched.rpc_url)

    def height() -> int:
        return rpc.number("eth_blockNumber")

    def blocks_sealed() -> set[int]:
        watched.read()
        return {seal.at.block for seal in watched.seals()}

    snapshot, base = rpc.call("evm_snapshot"), height()

    def sealed_first() -> bool:
        nonlocal snapshot, base
        if height() == base:
            return False
        if blocks_sealed() & {base + 1}:
            return True
        snapshot, base = rpc.call("evm_snapshot"), height()
        return False

    watched.until("a seal", sealed_first)
    watched.until("the last block that is taken back", lambda: height() >= base + depth)
    assert rpc.call("evm_revert", snapshot)
    for _ in range(depth + 1):
        rpc.call("evm_mine")


AGAIN = {  # calls that are right again later, as of a member that was silent twice: each has an event of its own
    "0x" + keccak(signature)[:4].hex()
    for signature in (b"accuse(bytes32,address)", b"answer(bytes32)", b"deal(bytes32,uint16)")
}


def check_paid(watched: Watched) -> None:
    """No node paid for a call twice, nor, but for a seal that another sent at the same time, for what was done already;
    each knows of all that it has paid."""
    rpc = RpcClient(watched.rpc_url)
    nodes = {identity.account_address(watched.devnet.folder(name)): name for name in watched.devnet.names}
    sent: dict[str, list[dict[str, Any]]] = {account.lower(): [] for account in nodes}
    for number in range(rpc.number("eth_blockNumber") + 1):
        for transaction in rpc.call("eth_getBlockByNumber", hex(number), True)["transactions"]:
            sent.get(transaction["from"].lower(), []).append(transaction)
    did, seals = ({"0x" + event.at.tx.hex() for event in events} for events in (watched.events, watched.seals()))
    seal = next(one["input"][:10] for own in sent.values() for one in own if one["hash"] in seals)
    failed = 0
    for account, name in nodes.items():
        own = sent[account.lower()]
        assert len(own) == rpc.number("eth_getTransactionCount", account, "latest")
        receipts = [rpc.call("eth_getTransactionReceipt", one["hash"]) for one in own]
        calls = [one["input"] for one in own if one["input"] != "0x"]  # without a nonce that was filled
        twice = [(receipt["blockNumber"], receipt["status"], one) for one, receipt in zip(own, receipts, strict=True)
                 if calls.count(one["input"]) > 1 and one["input"][:10] not in AGAIN]  # fmt: skip
        assert not twice, "no call twice"
        for one, receipt in zip(own, receipts, strict=True):
            if receipt["status"] != "0x1":
                assert one["input"].startswith(seal)
                failed += 1
            else:
                assert one["hash"] in did or one["input"] == "0x", "no call for nothing"
        cost = sum(int(receipt["gasUsed"], 16) * int(receipt["effectiveGasPrice"], 16) for receipt in receipts)
        until(f"what {name} paid in its books", partial(books_say, watched.devnet.folder(name), cost))
    assert failed <= len(seals) // 2, "now and then two nodes send a seal before either sees the other's"


def books_say(folder: DataDir, cost: int) -> bool:
    """What a reorg took back for good may stay in the books: the budget is spent sooner, never later."""
    (spent,) = folder.outbox.rglob("spent.json")
    return sum(json.loads(spent.read_text())["hours"].values()) >= cost
