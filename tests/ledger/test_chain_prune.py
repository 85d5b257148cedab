"""State nodes that no recent state has are removed, and nothing else is."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from eth.constants import BLANK_ROOT_HASH, EMPTY_SHA3
from trie.exceptions import MissingTrieNode
from web3 import Web3

from dlx.ledger.chain import evm, methods, prune, store
from dlx.ledger.chain.blockchain import Blockchain
from dlx.ledger.chain.state_tries import reachable
from tests.ledger.chain_support import PROBE, Chain, serving, wait_for

CONTRACT = Web3().eth.contract(abi=PROBE["abi"])


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Blockchain]:
    monkeypatch.setattr(prune, "KEPT_STATES", 3)
    opened = Blockchain(tmp_path, 31337, block_time=60.0, empty_block_time=60.0, heartbeat=60.0, time_lapse=True)
    yield opened
    opened.close()


class Sender:
    """Mines one transaction a block, without the pool."""

    def __init__(self, node: Blockchain) -> None:
        self._node, self._nonce = node, 0

    def mine(self, to: bytes, data: bytes, value: int = 0) -> store.Mined:
        unsigned = evm._Builder.new_unsigned_dynamic_fee_transaction(
            chain_id=31337, nonce=self._nonce, max_priority_fee_per_gas=1, max_fee_per_gas=1000, gas=3_000_000,
            to=to, value=value, data=data, access_list=(),
        )  # fmt: skip
        self._nonce += 1
        signed = unsigned.as_signed_transaction(evm.PrivateKey(self._node._key), 31337)
        self._node._mine([evm.decode(signed.encode())])
        (mined,) = self._node.store.transactions(self._node.head.block_number)
        assert mined.status == 1
        return mined

    def deploy(self) -> bytes:
        mined = self.mine(b"", bytes.fromhex(PROBE["bytecode"][2:]))
        return evm.created_address(mined.sender, self._nonce - 1)

    def set(self, contract: bytes, key: int, value: int) -> None:
        self.mine(contract, bytes.fromhex(CONTRACT.encode_abi("set", (key, value))[2:]))


def slot(key: int) -> int:
    return int.from_bytes(Web3.keccak(key.to_bytes(32, "big") + bytes(32)), "big")


def names(node: Blockchain) -> set[bytes]:
    return {name for page in node.store.node_names() for name in page}


def test_kept_states_are_whole_and_nothing_else_is_kept(node: Blockchain) -> None:
    chance, sender = random.Random(5), Sender(node)
    contracts = [sender.deploy() for _ in range(2)]
    values: dict[tuple[bytes, int], int] = {}
    history = []
    for _ in range(60):
        contract, key = chance.choice(contracts), chance.randrange(12)
        value = chance.choice([0, 1, 2])  # few, so that states and nodes come back after they were removed
        sender.set(contract, key, value)
        values[contract, key] = value
        history.append((node.head.state_root, dict(values)))
        if chance.random() < 0.5:
            before = len(names(node))
            prune.prune(node.store, threading.Event())
            assert len(names(node)) == node.store.nodes <= before
        fresh = evm.Evm(31337, node.store.node, node.store.hashes_before)  # without nodes in its memory
        for root, expected in history[-3:]:
            assert {at: fresh.storage(root, at[0], slot(at[1])) for at in expected} == expected
            assert all(fresh.code(root, contract) for contract in contracts)
    prune.prune(node.store, threading.Event())
    contract, key = next(iter(history[-4][1]))
    with pytest.raises(MissingTrieNode):
        fresh.storage(history[-4][0], contract, slot(key))
    needed = reachable(node.store.node, [root for root, _ in history[-3:]])
    assert names(node) == needed - {BLANK_ROOT_HASH, EMPTY_SHA3}


def test_what_a_block_brings_back_while_nodes_are_removed_stays(
    node: Blockchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = Sender(node)
    contract = sender.deploy()
    sender.set(contract, 1, 1)
    first = node.head.state_root
    for value in (2, 3, 4, 5):
        sender.set(contract, 1, value)
    remove = store.Store.remove_nodes

    def mine_first(self: store.Store, dead: list[bytes]) -> int:
        monkeypatch.setattr(store.Store, "remove_nodes", remove)
        sender.set(contract, 1, 1)
        return remove(self, dead)

    monkeypatch.setattr(store.Store, "remove_nodes", mine_first)
    prune.prune(node.store, threading.Event())
    fresh = evm.Evm(31337, node.store.node, node.store.hashes_before)
    assert fresh.storage(node.head.state_root, contract, slot(1)) == 1 and first != node.head.state_root


def test_a_state_that_is_gone_is_named_and_everything_else_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (prune, methods):
        monkeypatch.setattr(module, "KEPT_STATES", 4)
    monkeypatch.setattr(prune, "_SECONDS", 0.01)
    monkeypatch.setattr(prune, "_GARBAGE", 0)
    with serving(tmp_path / "chain") as chain:
        account = chain.account()
        contract = chain.deploy(account)
        receipts = [chain.mined(chain.use(account, contract, "set", 1, value)) for value in range(8)]
        old = receipts[0]["blockNumber"]
        for method, *arguments in (
            ("eth_getCode", contract.address), ("eth_getBalance", contract.address),
            ("eth_getStorageAt", contract.address, "0x0"), ("eth_getTransactionCount", account.address),
            ("eth_getProof", contract.address, []), ("eth_call", {"to": contract.address}),
        ):  # fmt: skip
            assert chain.error(method, *arguments, old) == {
                "code": -32000,
                "message": f"the state of block {int(old, 16)} is pruned: only those of the newest 4 are kept",
            }
        assert [chain.result("eth_getTransactionReceipt", r["transactionHash"]) for r in receipts] == receipts
        assert len(chain.result("eth_getLogs", {"fromBlock": old, "address": contract.address})) == 8
        wait_for(lambda: count(chain) < 40)
        assert contract.functions.values(1).call() == 7
    with serving(tmp_path / "chain") as chain:
        assert chain.w3.eth.contract(contract.address, abi=PROBE["abi"]).functions.values(1).call() == 7


def count(chain: Chain) -> int:
    with closing(sqlite3.connect(chain.directory / "chain.sqlite")) as connection:
        return connection.execute("SELECT count(*) FROM nodes").fetchone()[0]
