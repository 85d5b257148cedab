"""What the embedded chain does with requests, transactions and code that mean harm: it says no, and goes on."""

from __future__ import annotations

import socket
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from eth_account import Account
from eth_account.signers.local import LocalAccount
from hypothesis import given, settings
from hypothesis import strategies as st
from requests.adapters import HTTPAdapter

from dlx.ledger.chain import calls, evm, pool, server
from dlx.ledger.chain.blockchain import Blockchain
from dlx.ledger.chain.on_disk import FILE
from dlx.ledger.chain.store import Store
from dlx.ledger.rpc.rpc_client import RpcClient
from tests.ledger.chain_support import Chain, serving
from tests.patience import PATIENCE, until

GENERATORS = "".join(
    number.to_bytes(32, "big").hex()
    for number in (
        1,
        2,
        11559732032986387107991004021392285783925812861821192530917403151452391805634,
        10857046999023057135944570762232829481370756359578518086990519993285655852781,
        4082367875863433681332203403145435568316851327593401208105741076214120093531,
        8495653923123431417604973247489272438418190587263600148770280649306958101930,
    )
)


def test_runaway_code_ends_with_an_error_and_nothing_else(chain: Chain, owner: LocalAccount) -> None:
    probe = chain.deploy(owner)
    burn = {"to": probe.address, "data": probe.encode_abi("burn", ()), "gas": hex(300_000)}
    assert chain.error("eth_call", burn)["message"] == "out of gas"
    deep = chain.call("eth_call", {"to": probe.address, "data": probe.encode_abi("deep", (2_000,))})
    assert deep["error"]["code"] in (3, -32000)
    assert probe.functions.deep(100).call() == 100
    receipt = chain.mined(chain.use(owner, probe, "burn", gas=300_000))
    assert receipt["status"] == "0x0" and int(receipt["gasUsed"], 16) == 300_000


def test_calls_without_end_are_aborted_and_hold_up_no_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SECONDS", 8.0)  # in which a busy machine makes a block too
    with serving(tmp_path / "chain") as chain, ThreadPoolExecutor() as threads:
        account = chain.account()
        probe = chain.deploy(account)
        loop = {"to": probe.address, "data": probe.encode_abi("burn", ())}
        # One opcode that takes minutes: the pairing of 800 times the two generators of alt_bn128.
        pairing = {"to": "0x" + "08".zfill(40), "data": "0x" + GENERATORS * 800}
        asked = [threads.submit(chain.error, "eth_estimateGas", loop), threads.submit(chain.error, "eth_call", pairing)]
        mined = 0
        while not any(answer.done() for answer in asked):
            assert chain.mined(chain.send(account))["status"] == "0x1"
            mined += 1
        assert mined > 1, "one at least before the calls ended"
        ended = {"code": -32000, "message": "execution aborted (timeout = 8s of processor time)"}
        assert [answer.result(PATIENCE) for answer in asked] == [ended, ended]
        assert probe.functions.deep(10).call() == 10


def test_a_call_that_the_machine_lets_wait_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SECONDS", 5.0)
    with serving(tmp_path / "chain") as chain, ThreadPoolExecutor() as threads:
        probe = chain.deploy(chain.account())
        assert probe.functions.deep(1).call() == 1
        (process,) = _processes(chain)
        begun = sum(process.cpu_times()[:2])
        asked = threads.submit(chain.error, "eth_call", {
            "to": probe.address, "data": probe.encode_abi("burn", ()), "gas": hex(2_000_000),
        })  # fmt: skip
        until("the midst of the call", lambda: sum(process.cpu_times()[:2]) > begun + 0.1)
        process.suspend()
        stopped = time.monotonic()
        until("more than a call's time", lambda: time.monotonic() > stopped + calls.SECONDS)
        process.resume()
        assert asked.result(PATIENCE)["message"] == "out of gas"


def test_what_runs_calls_starts_with_the_chain(tmp_path: Path) -> None:
    with serving(tmp_path / "chain") as chain:
        started = _processes(chain)
        assert len(started) == 1, "and not with the first who asks, and would wait for it"
        assert chain.call("eth_call", {"to": Account.create().address})["result"] == "0x"
        assert _processes(chain) == started


def test_what_a_process_for_calls_dies_of_is_a_line_in_the_log_and_no_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    without = calls.Calls(tmp_path / "nothing", 31337)
    with pytest.raises(calls.CallFailed, match="ended with status 1"):
        without.run(calls.Question(b"", evm.Call(bytes(20), bytes(20), b"", 0, 21_000), False))
    assert "ended with status 1: rlp.exceptions.DecodingError: " in caplog.text
    assert capfd.readouterr().err == ""


def test_a_call_that_finds_no_free_process_is_told_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "SECONDS", 0.1)
    monkeypatch.setattr(calls, "_PROCESSES", 0)
    with serving(tmp_path / "chain") as chain:
        error = chain.error("eth_call", {"to": Account.create().address})
        assert error["code"] == -32005 and "too many requests" in error["message"]


def test_transactions_behind_gaps_are_bounded(
    chain: Chain, owner: LocalAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "MAX_GAPPED_PER_SENDER", 2)
    account = chain.account()
    chain.send(account, nonce=2)
    chain.send(account, nonce=3)
    assert "nonce too high" in chain.error("eth_sendRawTransaction", chain.sign(account, nonce=4))["message"]
    monkeypatch.setattr(pool, "MAX_GAPPED", 2)
    assert "nonce too high" in chain.error("eth_sendRawTransaction", chain.sign(owner, nonce=99))["message"]
    last = [chain.send(account, nonce=nonce) for nonce in (0, 1, 4)][-1]
    assert chain.mined(last)["status"] == "0x1"


def test_a_transaction_that_became_invalid_is_dropped_and_the_others_are_mined(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Blockchain(tmp_path, 31337, block_time=1.0, empty_block_time=3.0, heartbeat=30.0, time_lapse=False)
    rich, poor = node._key, b"\x01" * 32
    sent = [
        evm.transfer(key, 31337, n, bytes(20), 1, 100, 1) for key, n in ((rich, 0), (poor, 0), (poor, 1), (rich, 1))
    ]
    block = node.evm.build(node.head, node.next_timestamp(), sent, 10.0)
    assert [e.transaction for e in block.executed] == [sent[0], sent[3]]
    assert block.dropped == (sent[1],) and sent[1].hash.hex() in caplog.text
    node.close()


def test_a_block_that_cannot_be_written_is_tried_again(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    written, failures = Store.commit_block, iter(range(2))

    def commit(store: Store, block: evm.Block) -> None:
        if next(failures, None) is not None:
            raise sqlite3.OperationalError("database or disk is full")
        written(store, block)

    monkeypatch.setattr(Store, "commit_block", commit)
    address = Account.create().address
    assert chain.mined(chain.result("dlx_faucet", address))["status"] == "0x1"
    assert next(failures, None) is None


def test_batches_answer_each_member_in_order(chain: Chain) -> None:
    batch = [
        {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId"},
        {"jsonrpc": "2.0", "id": 2, "method": "eth_nonsense", "params": []},
        {"jsonrpc": "2.0", "id": 3, "method": "eth_getBalance", "params": []},
        17,
    ]
    answers = chain.session.post(chain.url, json=batch, timeout=PATIENCE).json()
    assert answers[0] == {"jsonrpc": "2.0", "id": 1, "result": "0x7a69"}
    assert [a.get("error", {}).get("code") for a in answers[1:]] == [-32601, -32602, -32600]
    assert chain.session.post(chain.url, json=[], timeout=PATIENCE).json()["error"]["code"] == -32600
    with chain.w3.batch_requests() as requested:
        requested.add(chain.w3.eth.get_block(0))
        requested.add(chain.w3.eth.get_block("latest"))
        assert [block["number"] >= 0 for block in requested.execute()] == [True, True]


def test_what_is_no_request_is_refused(chain: Chain) -> None:
    def post(body: bytes, **headers: str) -> requests.Response:
        return requests.post(chain.url, data=body, headers=headers, timeout=PATIENCE)

    assert post(b"{nonsense").json()["error"]["code"] == -32700
    assert post(b"[" * 100_000).json()["error"]["code"] == -32700
    assert requests.get(chain.url, timeout=PATIENCE).status_code == 405
    assert post(b"{}", Origin="http://example.org").status_code == 403
    assert post(b"x" * (5 * 2**20)).status_code == 413
    assert chain.result("eth_chainId") == "0x7a69"


def test_one_address_does_not_use_up_the_connections(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_PER_ADDRESS", 5)
    place = ("127.0.0.1", int(chain.url.rsplit(":", 1)[1]))
    request = b'POST / HTTP/1.1\r\nContent-Length: 53\r\n\r\n{"jsonrpc": "2.0", "id": 1, "method": "eth_chainId" }'

    def answers(connection: socket.socket) -> bool:
        try:
            connection.sendall(request)
            return connection.recv(15) == b"HTTP/1.1 200 OK"
        except ConnectionError:
            return False

    with ExitStack() as opened:
        greedy = [opened.enter_context(socket.create_connection(place, timeout=PATIENCE)) for _ in range(8)]
        other = opened.enter_context(socket.create_connection(place, timeout=PATIENCE, source_address=("127.0.0.2", 0)))
        assert answers(other), "who came last: all others were let in or refused before"
        assert 0 < [answers(connection) for connection in greedy].count(True) <= 5


def test_more_clients_than_there_are_places_follow_the_chain(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_PER_ADDRESS", 8)
    chain.session.mount("http://", _Elsewhere())  # places are an address's own
    target, together = int(chain.result("eth_blockNumber"), 16) + 3, threading.Barrier(25, timeout=PATIENCE)

    def follow() -> bool:
        rpc = RpcClient(chain.url)
        known = rpc.head()
        together.wait()
        while known.number < target:
            known = rpc.newer(known, 10.0)
        return rpc.tells

    with ThreadPoolExecutor(24) as pool:
        followers = [pool.submit(follow) for _ in range(24)]
        together.wait()
        for _ in range(3):
            chain.account()
        assert all(one.result(timeout=PATIENCE) for one in followers)


def _processes(chain: Chain) -> list[psutil.Process]:
    """Those that run the chain's calls."""
    return [one for one in psutil.Process().children() if str(chain.directory / FILE) in one.cmdline()]


class _Elsewhere(HTTPAdapter):
    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, source_address=("127.0.0.2", 0), **options)


@settings(max_examples=150)
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda b: b"\x02" + b)))
def test_hostile_bytes_are_malformed_and_nothing_else(raw: bytes) -> None:
    with pytest.raises(evm.Malformed):
        evm.decode(raw)


def test_deeply_nested_input_is_refused() -> None:
    nested = b""
    while len(nested) < 100_000:
        nested = _rlp_list(nested)
    for raw in (nested, b"\x02" + nested):
        with pytest.raises(evm.Malformed):
            evm.decode(raw)


def _rlp_list(payload: bytes) -> bytes:
    if len(payload) < 56:
        return bytes([0xC0 + len(payload)]) + payload
    size = len(payload).to_bytes((len(payload).bit_length() + 7) // 8)
    return bytes([0xF7 + len(size)]) + size + payload


def test_no_byte_of_a_signed_transaction_can_be_changed(chain: Chain, owner: LocalAccount) -> None:
    raw = bytes.fromhex(chain.sign(owner, nonce=0)[2:])
    for position in range(len(raw)):
        changed = bytearray(raw)
        changed[position] ^= 1
        try:
            assert evm.decode(bytes(changed)).sender.hex() != owner.address[2:].lower()
        except evm.Malformed:
            pass


_SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
)
FIELDS = ["fromBlock", "toBlock", "blockHash", "blockNumber", "topics", "address", "to", "data", "gas"]
_JSON = st.recursive(
    _SCALARS | st.sampled_from(["latest", "0x1", "0x" + "ab" * 20, "0x" + "cd" * 32]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner),
    max_leaves=6,
)


@settings(max_examples=150)
@given(st.data())
def test_hostile_parameters_are_answered_with_an_error_that_blames_them(chain: Chain, data: st.DataObject) -> None:
    methods = ["eth_call", "eth_estimateGas", "eth_feeHistory", "eth_getBalance", "eth_getBlockByHash", "eth_getLogs"]
    methods += ["eth_getBlockByNumber", "eth_getStorageAt", "eth_getTransactionCount", "eth_getTransactionReceipt"]
    methods += ["eth_getProof", "eth_getBlockReceipts", "eth_newFilter", "eth_getFilterChanges", "eth_uninstallFilter"]
    methods += ["eth_getTransactionByBlockNumberAndIndex", "eth_getTransactionByBlockHashAndIndex", "web3_sha3"]
    method = data.draw(st.sampled_from([*methods, "dlx_faucet", "eth_sendRawTransaction"]))
    response = chain.call(method, *data.draw(st.lists(_JSON, max_size=4)))
    assert response.get("error", {}).get("code") != -32603, response
