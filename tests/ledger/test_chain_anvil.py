"""The embedded chain executes like an independent one: the same signed transactions on it and on anvil."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from eth_account import Account
from web3 import Web3

from tests.ledger.chain_support import PROBE, serving
from tests.patience import PATIENCE
from tests.ports import lasting_port

ROOT = Path(__file__).parents[2]
ANVIL = ROOT / "contracts" / "node_modules" / ".bin" / "anvil"
ARTIFACTS = ROOT / "contracts" / "artifacts"
SENDER = Account.from_key("0x" + "5a" * 32)


@pytest.fixture
def anvil(tmp_path: Path) -> Iterator[str]:
    if not ANVIL.exists():
        pytest.skip("missing: anvil: npm ci in contracts/")
    port = lasting_port()
    # Prague on both sides: its calldata floor (EIP-7623) shows in the gas of large transactions.
    options = ["--block-time", "1", "--hardfork", "prague", "--chain-id", "31337", "--silent", "--accounts", "1"]
    command = [str(ANVIL), "--host", "127.0.0.1", "--port", str(port), "--cache-path", str(tmp_path), *options]
    process = subprocess.Popen(command, start_new_session=True)  # a wrapper: the binary is its child
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                rpc(url, "anvil_setBalance", SENDER.address, hex(100 * 10**18))
                break
            except requests.ConnectionError:
                assert time.monotonic() < deadline and process.poll() is None, "anvil does not start"
                time.sleep(0.05)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[str]:
    with serving(tmp_path / "chain", block_time=0.2) as chain:
        chain.mined(chain.result("dlx_faucet", SENDER.address))
        yield chain.url


def rpc(url: str, method: str, *params: Any) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    response = requests.post(url, json=body, timeout=PATIENCE).json()
    assert "error" not in response, response
    return response["result"]


def receipt_of(url: str, transaction: str) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE
    while not (receipt := rpc(url, "eth_getTransactionReceipt", transaction)):
        assert time.monotonic() < deadline, "not mined"
        time.sleep(0.05)
    return receipt


def transactions() -> list[str]:
    """Signed transactions of every kind, in the order of their nonces, among them failing ones."""
    signed: list[str] = []

    def add(**fields: Any) -> str:
        fees = {} if "gasPrice" in fields else {"maxFeePerGas": 10 * 10**9, "maxPriorityFeePerGas": 10**9}
        base = {"chainId": 31337, "nonce": len(signed), "value": 0, "gas": 3_000_000}
        raw = SENDER.sign_transaction(base | fees | fields).raw_transaction
        signed.append(raw.to_0x_hex())
        return created(len(signed) - 1)

    probe = Web3().eth.contract(abi=PROBE["abi"])
    address = add(data=PROBE["bytecode"])

    def use(name: str, *arguments: Any, **fields: Any) -> None:
        add(to=address, data=probe.encode_abi(name, arguments), **fields)

    for name, *arguments in (
        ("set", 1, 5), ("set", 1, 6), ("set", 1, 0), ("set", 1, 0), ("set", 2, 2**255), ("emitMany", 40),
        ("fail", 7), ("failText",), ("deep", 50), ("create",), ("create",), ("values", 1), ("context",),
        ("pay", "0x" + "77" * 20, 5), ("blob", b""), ("blob", b"\x00" * 5_000), ("blob", bytes(range(256)) * 120),
        ("hash", b"x" * 1_000, 50),
    ):  # fmt: skip
        use(name, *arguments)
    use("burn", gas=100_000)
    add(to=address, value=10**15)
    use("pay", "0x" + "77" * 20, 10**14)
    use("pay", "0x" + "77" * 20, 10**16)
    use("deep", 300, gas=2_000_000)
    use("set", 9, 9, gas=40_000)  # runs out of gas
    use("set", 3, 3, gasPrice=10**10)
    slots = [{"address": address, "storageKeys": ["0x" + "00" * 32, "0x" + "01" * 32]}]
    use("set", 4, 4, accessList=slots)
    use("set", 4, 5, gasPrice=10**10, type=1, accessList=slots)
    add(to="0x" + "99" * 20, value=1, gas=21_000)
    add(to="0x" + "00" * 19 + "02", data="0x1234", gas=60_000)  # a precompiled contract
    add(data="0xef00", gas=100_000)  # code that may not be deployed
    add(data="0x60006000fd", gas=100_000)
    for _ in range(2):  # transient storage, empty again in the next transaction
        add(data="0x60015c600160015d60015c0160005260206000f3", gas=100_000)
    add(data="0x" + "5b" * 2_000, gas=1_000_000)
    for artifact in sorted(ARTIFACTS.glob("*.json")):
        contract = json.loads(artifact.read_text())
        constructor = next((e for e in contract["abi"] if e["type"] == "constructor"), {"inputs": []})
        arguments = Web3().codec.encode(
            ["address"] * len(constructor["inputs"]), [created(0)] * len(constructor["inputs"])
        )
        add(data=contract["bytecode"] + arguments.hex(), gas=8_000_000)
    return signed


def created(nonce: int) -> str:
    encoded = bytes.fromhex("d694" + SENDER.address[2:]) + (bytes([nonce]) if nonce else b"\x80")
    return Web3.to_checksum_address(Web3.keccak(encoded)[12:])


def test_status_gas_logs_and_addresses_are_those_of_anvil(embedded: str, anvil: str) -> None:
    signed = transactions()
    hashes = []
    for raw in signed:
        one, other = (rpc(url, "eth_sendRawTransaction", raw) for url in (embedded, anvil))
        assert one == other
        hashes.append(one)
    statuses = []
    for index, transaction in enumerate(hashes):
        ours, theirs = (receipt_of(url, transaction) for url in (embedded, anvil))
        for field in ("status", "gasUsed", "from", "to", "contractAddress", "type"):
            assert (ours[field] or "").lower() == (theirs[field] or "").lower(), (index, field)
        logs = [[(x["address"].lower(), x["topics"], x["data"]) for x in r["logs"]] for r in (ours, theirs)]
        assert logs[0] == logs[1], index
        assert ours["logsBloom"] == theirs["logsBloom"]
        statuses.append(ours["status"])
        mine, other = (rpc(url, "eth_getTransactionByHash", transaction) for url in (embedded, anvil))
        for field in ("nonce", "value", "gas", "input", "type", "r", "s", "v", "chainId", "accessList", "yParity"):
            if field in other:
                assert json.dumps(mine.get(field)).lower() == json.dumps(other[field]).lower(), (index, field)
    assert statuses.count("0x0") >= 8 and statuses.count("0x1") >= 20
    for position in (0, 1, 2, 4):
        slot = Web3.keccak(position.to_bytes(32, "big") + bytes(32)).to_0x_hex()
        one, other = (rpc(url, "eth_getStorageAt", created(0), slot, "latest") for url in (embedded, anvil))
        assert one == other
    assert len({rpc(url, "eth_getCode", created(0), "latest") for url in (embedded, anvil)}) == 1
