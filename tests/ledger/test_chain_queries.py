"""What ethers and viem ask beyond web3.py: filters, receipts of a block, proofs."""

from __future__ import annotations

from typing import Any

import pytest
import rlp
from eth_account import Account
from eth_account.signers.local import LocalAccount
from trie import HexaryTrie
from web3 import Web3
from web3.contract import Contract

from dlx.ledger.chain import filters
from tests.ledger.chain_support import Chain, wait_for


def test_a_log_filter_tells_each_log_once(chain: Chain, owner: LocalAccount, probe: Contract) -> None:
    old = chain.mined(chain.use(owner, probe, "set", 1, 2))
    identity = chain.result("eth_newFilter", {"address": probe.address, "fromBlock": old["blockNumber"]})
    assert chain.result("eth_getFilterChanges", identity) == []
    new = chain.mined(chain.use(owner, probe, "set", 3, 4))
    chain.mined(chain.use(owner, chain.deploy(owner), "set", 5, 6))
    assert chain.result("eth_getFilterChanges", identity) == new["logs"]
    assert chain.result("eth_getFilterChanges", identity) == []
    assert chain.result("eth_getFilterLogs", identity) == old["logs"] + new["logs"]
    assert chain.result("eth_uninstallFilter", identity) is True
    assert chain.result("eth_uninstallFilter", identity) is False
    for method in ("eth_getFilterChanges", "eth_getFilterLogs"):
        assert chain.error(method, identity) == {"code": -32000, "message": "filter not found"}


def test_a_log_filter_gives_what_is_too_much_for_one_answer_in_several(
    chain: Chain, owner: LocalAccount, probe: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = chain.result("eth_newFilter", {"address": probe.address})
    receipts = [chain.mined(chain.use(owner, probe, "emitMany", 30)) for _ in range(4)]
    monkeypatch.setattr(filters, "MAX_LOGS", 70)
    told: list[Any] = []
    while new := chain.result("eth_getFilterChanges", identity):
        assert len(new) <= 70
        told += new
    assert told == [log for receipt in receipts for log in receipt["logs"]]


def test_a_filter_tells_of_blocks(chain: Chain, owner: LocalAccount) -> None:
    blocks = chain.result("eth_newBlockFilter")
    first = chain.w3.eth.block_number
    sent = [chain.send(owner) for _ in range(3)]
    last = int([chain.mined(h) for h in sent][-1]["blockNumber"], 16)
    told = chain.result("eth_getFilterChanges", blocks)
    hashes = [chain.result("eth_getBlockByNumber", hex(n), False)["hash"] for n in range(first, last + 1)]
    assert [h for h in hashes[1:] if h not in told] == []
    wait_for(lambda: chain.w3.eth.block_number > last)
    more = chain.result("eth_getFilterChanges", blocks)
    assert more and not set(more) & set(told)
    assert chain.error("eth_getFilterLogs", blocks)["message"] == "filter not found"


def test_filters_are_bounded_and_end_when_nobody_asks(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "_EXPIRY_SECONDS", 0.0)
    forgotten = chain.result("eth_newBlockFilter")
    assert chain.error("eth_getFilterChanges", forgotten)["message"] == "filter not found"
    chain.result("eth_newBlockFilter")  # removes the forgotten ones of all tests
    monkeypatch.setattr(filters, "_EXPIRY_SECONDS", 300.0)
    monkeypatch.setattr(filters, "MAX_FILTERS", 3)
    kept = [chain.result("eth_newBlockFilter") for _ in range(2)]
    assert chain.error("eth_newBlockFilter")["code"] == -32005
    chain.result("eth_uninstallFilter", kept[0])
    chain.result("eth_newBlockFilter")
    assert isinstance(chain.result("eth_getFilterChanges", kept[1]), list)


def test_blocks_give_their_receipts(chain: Chain, owner: LocalAccount, probe: Contract) -> None:
    nonce = int(chain.result("eth_getTransactionCount", owner.address, "pending"), 16)
    sent = [chain.use(owner, probe, "set", n, n, nonce=nonce + n) for n in (1, 2)]
    first = chain.use(owner, probe, "set", 0, 0, nonce=nonce)  # fills the gap: all that there is time for get into one
    receipts = [chain.mined(h) for h in (first, *sent)]
    number, block_hash = receipts[0]["blockNumber"], receipts[0]["blockHash"]
    receipts = [one for one in receipts if one["blockHash"] == block_hash]
    for place in (number, block_hash, {"blockHash": block_hash}, {"blockNumber": number}):
        assert chain.result("eth_getBlockReceipts", place) == receipts
    assert chain.result("eth_getBlockReceipts", hex(10**6)) is None


def test_proofs_hold_against_the_state_root(chain: Chain, owner: LocalAccount, probe: Contract) -> None:
    for key in range(20):
        last = chain.use(owner, probe, "set", key, key + 1000)
    block = chain.result("eth_getBlockByNumber", chain.mined(last)["blockNumber"], False)
    slots = [Web3.keccak(key.to_bytes(32, "big") + bytes(32)).to_0x_hex() for key in (0, 7, 99)] + ["0x1"]
    proved = chain.result("eth_getProof", probe.address, slots, block["number"])
    account = [bytes.fromhex(proved[name][2:].zfill(64)) for name in ("storageHash", "codeHash")]
    assert value(block["stateRoot"], probe.address, proved["accountProof"])[2:] == account
    assert proved["codeHash"] == Web3.keccak(chain.w3.eth.get_code(probe.address)).to_0x_hex()
    for slot, entry in zip(slots, proved["storageProof"], strict=True):
        assert entry["key"] == slot
        key = slot[2:].zfill(64)
        found = value(proved["storageHash"], key, entry["proof"]) or b""
        assert int.from_bytes(found, "big") == int(entry["value"], 16)
        assert entry["value"] == hex(int(chain.result("eth_getStorageAt", probe.address, slot, block["number"]), 16))
    assert [int(entry["value"], 16) for entry in proved["storageProof"][:3]] == [1000, 1007, 0]
    nobody = Account.create().address
    absent = chain.result("eth_getProof", nobody, ["0x0"], block["number"])
    assert absent["balance"] == absent["nonce"] == absent["storageProof"][0]["value"] == "0x0"
    assert value(block["stateRoot"], nobody, absent["accountProof"]) is None
    assert chain.error("eth_getProof", nobody, ["0x0"] * 1025, "latest")["code"] == -32602


def value(root: str, key: str, proof: list[str]) -> Any:
    """What the proof shows to be in the trie under the key's hash, decoded; None where it shows that nothing is."""
    nodes = [rlp.decode(bytes.fromhex(node[2:])) for node in proof]
    found = HexaryTrie.get_from_proof(
        bytes.fromhex(root[2:]), Web3.keccak(hexstr=key if key.startswith("0x") else "0x" + key), nodes
    )
    return rlp.decode(found) if found else None


def test_a_client_that_looks_for_accounts_finds_none(chain: Chain) -> None:
    assert chain.result("eth_accounts") == []
