"""The embedded chain as its clients see it: web3.py and raw JSON-RPC against a served chain."""

from __future__ import annotations

import itertools
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import requests
from eth_account import Account
from eth_account.signers.local import LocalAccount
from web3.contract import Contract
from web3.exceptions import ContractCustomError, ContractLogicError

from dlx.ledger.chain import ChainError, filters, serve
from dlx.ledger.chain.blockchain import Blockchain
from dlx.ledger.rpc.headers import proven_bloom
from tests.ledger.chain_support import GWEI, PROBE, Chain, serving, wait_for
from tests.patience import PATIENCE


def test_web3_fills_in_fees_and_gas_deploys_calls_and_decodes_events(chain: Chain) -> None:
    w3, account = chain.w3, chain.account()
    assert w3.client_version.startswith("dlx-chain/") and w3.eth.chain_id == 31337 and w3.net.version == "31337"
    assert w3.eth.syncing is False

    def send(transaction: Any) -> Any:
        filled = transaction | {"nonce": w3.eth.get_transaction_count(account.address, "pending")}
        raw = account.sign_transaction(filled).raw_transaction
        sent = w3.eth.send_raw_transaction(raw)
        return w3.eth.wait_for_transaction_receipt(sent, timeout=PATIENCE, poll_latency=0.02)

    factory = w3.eth.contract(abi=PROBE["abi"], bytecode=PROBE["bytecode"])
    receipt = send(factory.constructor().build_transaction({"from": account.address}))
    contract = w3.eth.contract(address=receipt["contractAddress"], abi=PROBE["abi"])
    receipt = send(contract.functions.set(7, 8).build_transaction({"from": account.address}))
    (event,) = contract.events.Set().process_receipt(receipt)
    assert event["args"] == {"by": account.address, "key": 7, "value": 8}
    assert contract.functions.values(7).call() == 8
    assert contract.functions.values(7).call(block_identifier=receipt["blockNumber"] - 1) == 0
    assert w3.eth.get_code(contract.address) and w3.eth.get_transaction(receipt["transactionHash"])["input"]
    block = w3.eth.get_block(receipt["blockHash"], full_transactions=True)
    assert [t["hash"] for t in block["transactions"]] == [receipt["transactionHash"]]
    assert w3.eth.fee_history(3, "latest", [10, 90])["baseFeePerGas"][-1] == block["baseFeePerGas"]
    assert w3.eth.get_block("pending")["number"] > block["number"]


def test_importing_the_package_does_not_load_the_evm() -> None:
    check = "import dlx.ledger.chain, sys; sys.exit('eth' in sys.modules or 'sqlite3' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=PATIENCE, cwd=Path(__file__).parents[2])


def test_the_faucet_pays_an_address_once(chain: Chain) -> None:
    address = Account.create().address
    granted = chain.result("dlx_faucet", address)
    assert chain.result("dlx_faucet", address) is None
    chain.mined(granted)
    assert int(chain.result("eth_getBalance", address, "latest"), 16) == 100 * 10**18


def test_transactions_behind_a_nonce_gap_wait_and_are_mined_in_order(chain: Chain) -> None:
    account = chain.account()
    late = [chain.send(account, nonce=nonce) for nonce in (2, 1)]
    assert chain.result("eth_getTransactionCount", account.address, "pending") == "0x0"
    assert chain.result("eth_getTransactionByHash", late[0])["blockNumber"] is None
    assert chain.result("eth_getTransactionReceipt", late[0]) is None
    first = chain.send(account, nonce=0)
    receipts = [chain.mined(h) for h in (first, late[1], late[0])]
    places = [(int(r["blockNumber"], 16), int(r["transactionIndex"], 16)) for r in receipts]
    assert places == sorted(places)
    assert chain.result("eth_getTransactionCount", account.address, "latest") == "0x3"


def test_a_replacement_must_pay_a_tenth_more(chain: Chain) -> None:
    account = chain.account()
    old = chain.send(account, nonce=1)
    for fields in ({"value": 2}, {"maxFeePerGas": 11 * GWEI}, {"maxPriorityFeePerGas": 2 * GWEI}):
        error = chain.error("eth_sendRawTransaction", chain.sign(account, nonce=1, **fields))
        assert error == {"code": -32000, "message": "replacement transaction underpriced"}
    fees = {"maxFeePerGas": 11 * GWEI, "maxPriorityFeePerGas": 11 * GWEI // 10}
    new = chain.send(account, nonce=1, **fees)
    assert chain.result("eth_getTransactionByHash", old) is None
    chain.send(account, nonce=0)
    assert chain.mined(new)["status"] == "0x1"


def test_known_transactions_and_used_nonces_are_refused_in_geths_words(chain: Chain) -> None:
    account = chain.account()
    waiting = chain.sign(account, nonce=1)
    chain.result("eth_sendRawTransaction", waiting)
    assert chain.error("eth_sendRawTransaction", waiting)["message"] == "already known"
    mined = chain.sign(account, nonce=0)
    chain.mined(chain.result("eth_sendRawTransaction", mined))
    assert "nonce too low" in chain.error("eth_sendRawTransaction", mined)["message"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"chainId": 1}, "invalid chain id"),
        ({"gas": 30_000_001}, "exceeds block gas limit"),
        ({"gas": 20_999}, "intrinsic gas too low"),
        ({"data": "0x" + "11" * 10_000, "gas": 200_000}, "intrinsic gas too low"),  # EIP-7623's floor
        ({"value": 101 * 10**18}, "insufficient funds"),
        ({"gas": 21_000, "maxFeePerGas": 10**16, "maxPriorityFeePerGas": 0}, "insufficient funds"),
        ({"maxFeePerGas": 1, "maxPriorityFeePerGas": 0}, "max fee per gas less than block base fee"),
        ({"maxFeePerGas": GWEI, "maxPriorityFeePerGas": 2 * GWEI}, "max priority fee per gas higher"),
        ({"nonce": 1_000}, "nonce too high"),
        ({"data": b"\x01" * (128 * 1024), "gas": 10_000_000}, "oversized data"),
        ({"to": None, "data": b"\x01" * 49_153, "gas": 10_000_000}, "max initcode size exceeded"),
    ],
)
def test_a_transaction_that_cannot_be_mined_is_refused(
    chain: Chain, owner: LocalAccount, fields: dict[str, Any], message: str
) -> None:
    error = chain.error("eth_sendRawTransaction", chain.sign(owner, **fields))
    assert error["code"] == -32000 and message in error["message"]


def test_the_sum_of_waiting_transactions_must_be_covered(chain: Chain) -> None:
    account = chain.account()
    chain.send(account, nonce=1, value=60 * 10**18)
    error = chain.error("eth_sendRawTransaction", chain.sign(account, nonce=2, value=60 * 10**18))
    assert "insufficient funds" in error["message"]


def test_legacy_and_access_list_transactions_are_mined(chain: Chain, owner: LocalAccount, probe: Contract) -> None:
    data = probe.encode_abi("set", (1, 2))
    base = {"chainId": 31337, "to": probe.address, "value": 0, "gas": 200_000, "gasPrice": GWEI, "data": data}
    access = [{"address": probe.address, "storageKeys": ["0x" + "00" * 32]}]
    for kind, extra in (("0x0", {}), ("0x1", {"type": 1, "accessList": access})):
        nonce = int(chain.result("eth_getTransactionCount", owner.address, "pending"), 16)
        signed = owner.sign_transaction(base | extra | {"nonce": nonce})
        receipt = chain.mined(chain.result("eth_sendRawTransaction", signed.raw_transaction.to_0x_hex()))
        assert receipt["status"] == "0x1" and receipt["type"] == kind and len(receipt["logs"]) == 1
        assert int(receipt["effectiveGasPrice"], 16) == GWEI
        assert chain.w3.eth.get_transaction(signed.hash)["type"] == int(kind, 16)
    unprotected = {k: v for k, v in base.items() if k != "chainId"} | {"nonce": nonce + 1}
    raw = owner.sign_transaction(unprotected).raw_transaction.to_0x_hex()
    assert "replay-protected" in chain.error("eth_sendRawTransaction", raw)["message"]


def test_failures_carry_revert_data_that_web3_decodes(chain: Chain, owner: LocalAccount, probe: Contract) -> None:
    with pytest.raises(ContractCustomError) as caught:
        probe.functions.fail(5).call({"from": owner.address})
    message = {"from": owner.address, "to": probe.address, "data": probe.encode_abi("fail", (5,))}
    for method in ("eth_call", "eth_estimateGas"):
        error = chain.error(method, message)
        assert error["code"] == 3 and error["message"] == "execution reverted" and error["data"] == caught.value.data
    assert probe.w3.codec.decode(["address", "uint256"], bytes.fromhex(error["data"][10:])) == (
        owner.address.lower(),
        5,
    )
    with pytest.raises(ContractLogicError, match="no luck"):
        probe.functions.failText().call()
    receipt = chain.mined(chain.use(owner, probe, "fail", 5))
    assert receipt["status"] == "0x0" and receipt["logs"] == []


def test_gas_estimates_suffice_and_are_close(chain: Chain, owner: LocalAccount, probe: Contract) -> None:
    for name, arguments in (("set", (99, 1)), ("create", ()), ("deep", (20,)), ("emitMany", (10,))):
        message = {"from": owner.address, "to": probe.address, "data": probe.encode_abi(name, arguments)}
        estimate = int(chain.result("eth_estimateGas", message), 16)
        receipt = chain.mined(chain.use(owner, probe, name, *arguments, gas=estimate))
        assert receipt["status"] == "0x1"
        assert estimate < 1.5 * int(receipt["gasUsed"], 16) + 10_000
    transfer = {"from": owner.address, "to": Account.create().address, "value": "0x1"}
    assert chain.result("eth_estimateGas", transfer) == hex(21_000)


def test_contracts_see_the_block_they_run_in(chain: Chain, probe: Contract) -> None:
    block = chain.w3.eth.get_block("latest")
    identity, number, timestamp, _, parent = probe.functions.context().call(block_identifier=block["number"])
    assert (identity, number, timestamp, parent) == (31337, block["number"], block["timestamp"], block["parentHash"])


def test_a_call_at_latest_runs_in_the_next_block_whose_time_is_now(tmp_path: Path) -> None:
    with serving(tmp_path / "chain", empty_block_time=3600.0, heartbeat=3600.0) as chain:
        probe = chain.deploy(chain.account())
        head = chain.w3.eth.get_block("latest")
        with patch("time.time", return_value=head["timestamp"] + 1000.5):
            seen = [probe.functions.context().call(block_identifier=tag) for tag in ("latest", "pending")]
        assert all(s[1:3] == [head["number"] + 1, head["timestamp"] + 1000] and s[4] == head["hash"] for s in seen)


def test_logs_are_found_by_block_address_and_topics(chain: Chain, owner: LocalAccount, probe: Contract) -> None:
    other = chain.deploy(owner)
    first = chain.mined(chain.use(owner, probe, "set", 1, 10))
    second = chain.mined(chain.use(owner, other, "emitMany", 3))
    last = chain.mined(chain.use(owner, probe, "blob", b"x" * 100))
    span = {"fromBlock": first["blockNumber"], "toBlock": last["blockNumber"]}
    set_topic, by = first["logs"][0]["topics"][:2]

    def found(**query: Any) -> list[tuple[str, str]]:
        return [(log["transactionHash"], log["logIndex"]) for log in chain.result("eth_getLogs", {**span, **query})]

    a, c = (first["transactionHash"], "0x0"), (last["transactionHash"], "0x0")
    b = [(second["transactionHash"], hex(i)) for i in range(3)]
    assert found() == [a, *b, c]
    assert chain.result("eth_getLogs", span)[0] == first["logs"][0]
    assert found(address=probe.address) == [a, c]
    assert found(address=[probe.address, other.address], topics=[set_topic]) == [a, *b]
    assert found(topics=[None, by]) == [a, *b]
    assert found(topics=[[set_topic, "0x" + "11" * 32], None, "0x" + (2).to_bytes(32).hex()]) == [b[2]]
    assert found(topics=[None, None]) == [a, *b]
    assert found(address=owner.address) == []
    whole = chain.result("eth_getLogs", {"blockHash": second["blockHash"]})
    assert [log["logIndex"] for log in whole] == ["0x0", "0x1", "0x2"]
    assert chain.error("eth_getLogs", {"fromBlock": last["blockNumber"], "toBlock": "earliest"})["code"] == -32602
    assert chain.error("eth_getLogs", {"blockHash": "0x" + "11" * 32})["message"] == "unknown block"


def test_log_queries_beyond_the_caps_say_too_many_results(
    chain: Chain, owner: LocalAccount, probe: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts = [chain.mined(chain.use(owner, probe, "emitMany", 30)) for _ in range(2)]
    both = {"address": probe.address, "fromBlock": receipts[0]["blockNumber"], "toBlock": receipts[1]["blockNumber"]}
    monkeypatch.setattr(filters, "MAX_LOGS", 59)
    assert "too many results" in chain.error("eth_getLogs", both)["message"]
    assert len(chain.result("eth_getLogs", {**both, "fromBlock": both["toBlock"]})) == 30
    monkeypatch.setattr(filters, "MAX_LOGS", 60)
    assert len(chain.result("eth_getLogs", both)) == 60
    monkeypatch.setattr(filters, "MAX_LOG_BYTES", 60 * 32 - 1)
    assert "too many results" in chain.error("eth_getLogs", both)["message"]


def test_a_waiting_transaction_is_mined_soon_and_empty_blocks_come_slowly(tmp_path: Path) -> None:
    # Each block is awaited before the next can be made, so the lower bounds are strict however busy the machine is.
    with serving(tmp_path / "idle", block_time=0.02, empty_block_time=0.1, heartbeat=3600.0) as chain:
        began = time.monotonic()
        for _ in range(2):
            transaction = chain.result("dlx_faucet", Account.create().address)
            number = int(chain.mined(transaction)["blockNumber"], 16)
            wait_for(lambda: chain.w3.eth.block_number >= number + 8)  # noqa: B023
            assert chain.w3.eth.block_number == number + 8, "the ninth empty block waits for the heartbeat"
        assert time.monotonic() - began > 2 * 8 * 0.1
    with serving(tmp_path / "busy", block_time=0.3, empty_block_time=3600.0, heartbeat=3600.0) as chain:
        account, began = Account.create(), time.monotonic()
        chain.mined(chain.result("dlx_faucet", account.address))
        for _ in range(3):
            chain.mined(chain.send(account))
        assert time.monotonic() - began > 3 * 0.3
        blocks = [chain.w3.eth.get_block(n) for n in range(chain.w3.eth.block_number + 1)]
        times = [block["timestamp"] for block in blocks]
        assert times == sorted(times) and abs(times[-1] - time.time()) < 60
        assert all(b["parentHash"] == a["hash"] for a, b in itertools.pairwise(blocks))


def test_fast_blocks_share_a_second_and_never_run_ahead_of_the_clock(tmp_path: Path) -> None:
    with serving(tmp_path / "fast", block_time=0.02, empty_block_time=0.02, heartbeat=0.02) as chain:
        first = chain.w3.eth.get_block("latest")
        wait_for(lambda: chain.w3.eth.block_number > first["number"] + 20)
        last = chain.w3.eth.get_block("latest")
        assert first["timestamp"] <= last["timestamp"] <= time.time()


def test_who_waits_for_a_block_hears_of_it_at_once_and_else_of_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "chain", empty_block_time=3600.0, heartbeat=3600.0) as chain:
        head = chain.result("eth_getBlockByNumber", "latest", False)
        assert chain.result("dlx_waitForBlock", head["hash"], 0.05) is None
        answers: list[Any] = []
        waiting = threading.Thread(target=lambda: answers.append(chain.result("dlx_waitForBlock", head["hash"], 30)))
        waiting.start()
        receipt = chain.mined(chain.result("dlx_faucet", Account.create().address))
        waiting.join(PATIENCE)
        (news,) = answers
        block = chain.result("eth_getBlockByHash", receipt["blockHash"], False)
        assert news == {name: block[name] for name in news} and proven_bloom(news) == 0
        assert chain.result("dlx_waitForBlock", head["hash"], 30) == news, "who knows an older head does not wait"
        for wrong in (["0x00", 1], [head["hash"], 31], [head["hash"], -1], [head["hash"], "1"], [head["hash"], True]):
            assert "invalid argument" in chain.error("dlx_waitForBlock", *wrong)["message"]


def test_an_answer_is_compressed_for_who_takes_that(tmp_path: Path) -> None:
    with serving(tmp_path / "chain") as chain:
        request = {"jsonrpc": "2.0", "id": 1, "method": "eth_getBlockByNumber", "params": ["latest", False]}
        plain, packed = (
            requests.post(chain.url, json=request, headers={"Accept-Encoding": how}, timeout=PATIENCE)
            for how in ("identity", "gzip")
        )
        assert plain.json().keys() == packed.json().keys()
        assert "Content-Encoding" not in plain.headers and packed.headers["Content-Encoding"] == "gzip"
        assert 2 * int(packed.headers["Content-Length"]) < int(plain.headers["Content-Length"])


def test_blocks_of_a_second_have_a_second_each(tmp_path: Path) -> None:
    node = Blockchain(tmp_path, 31337, block_time=1.0, empty_block_time=3.0, heartbeat=30.0, time_lapse=False)
    try:
        with patch("time.time", return_value=node.head.timestamp - 10.0):  # a clock that was set back
            assert node.next_timestamp() == node.head.timestamp + 1
    finally:
        node.close()


def test_a_chain_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with serving(tmp_path / "chain") as chain:
        account = chain.account()
        contract = chain.deploy(account)
        receipt = chain.mined(chain.use(account, contract, "set", 3, 4))
        gapped = chain.send(account, nonce=3)
        block = chain.result("eth_getBlockByHash", receipt["blockHash"], True)
    with serving(tmp_path / "chain") as chain:
        assert chain.result("eth_getTransactionReceipt", receipt["transactionHash"]) == receipt
        assert chain.result("eth_getBlockByHash", receipt["blockHash"], True) == block
        assert chain.w3.eth.contract(contract.address, abi=PROBE["abi"]).functions.values(3).call() == 4
        assert chain.result("dlx_faucet", account.address) is None
        chain.send(account, nonce=2)
        assert chain.mined(gapped)["status"] == "0x1"


def test_a_directory_serves_one_process_and_one_chain_id(tmp_path: Path) -> None:
    with serving(tmp_path / "chain") as chain:
        modes = {path.name: stat.S_IMODE(os.stat(path).st_mode) for path in chain.directory.iterdir()}
        assert set(modes.values()) == {0o600} and "faucet.key" in modes
        assert stat.S_IMODE(os.stat(chain.directory).st_mode) == 0o700
        with pytest.raises(ChainError, match=rf"already runs on .* \(process {os.getpid()}\)"):
            serve(chain.directory)
        port = int(chain.url.rsplit(":", 1)[1])
        with pytest.raises(ChainError, match="choose another port"):
            serve(tmp_path / "other", port=port)
    with pytest.raises(ChainError, match="holds chain id 31337, not 5"):
        serve(tmp_path / "chain", chain_id=5)
    (tmp_path / "chain" / "faucet.key").unlink()
    with pytest.raises(ChainError, match=r"faucet\.key is missing"):
        serve(tmp_path / "chain")


@pytest.mark.parametrize("host", ["::1", "::"])
def test_a_chain_listens_by_ip6_and_a_wildcard_by_both(tmp_path: Path, host: str) -> None:
    with serving(tmp_path, host=host) as chain:
        assert chain.url.startswith(f"http://[{host}]:") and chain.result("eth_chainId") == hex(31337)
        four = chain.url.replace(f"[{host}]", "127.0.0.1")
        request = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}
        if host == "::":
            assert requests.post(four, json=request, timeout=PATIENCE).json()["result"] == hex(31337)
        else:
            with pytest.raises(requests.ConnectionError):
                requests.post(four, json=request, timeout=PATIENCE)
