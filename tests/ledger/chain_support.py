"""A served chain and a client, for the tests of the embedded chain."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from eth_account import Account
from eth_account.signers.local import LocalAccount
from web3 import Web3
from web3.contract import Contract

from dlx.ledger.chain import serve
from tests.patience import PATIENCE

PROBE = json.loads(Path(__file__).with_name("chain_probe.json").read_text())
GWEI = 10**9


@dataclass
class Chain:
    """A served chain with a client; `call` returns the whole response, `result` its result."""

    url: str
    directory: Path
    session: requests.Session

    def __post_init__(self) -> None:
        self.w3 = Web3(Web3.HTTPProvider(self.url))
        self._ids = itertools.count(1)

    def call(self, method: str, *params: Any) -> dict[str, Any]:
        request = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        response = self.session.post(self.url, json=request, timeout=PATIENCE).json()
        assert response["id"] == request["id"]
        return response

    def result(self, method: str, *params: Any) -> Any:
        response = self.call(method, *params)
        assert "error" not in response, response
        return response["result"]

    def error(self, method: str, *params: Any) -> dict[str, Any]:
        return self.call(method, *params)["error"]

    def account(self) -> LocalAccount:
        """A new account that holds 100 ETH."""
        account = Account.create()
        self.mined(self.result("dlx_faucet", account.address))
        return account

    def sign(self, account: LocalAccount, **fields: Any) -> str:
        """A signed raw transaction: a transfer of 1 wei to itself unless `fields` say otherwise."""
        transaction: dict[str, Any] = {
            "chainId": 31337,
            "nonce": int(self.result("eth_getTransactionCount", account.address, "pending"), 16),
            "to": account.address,
            "value": 1,
            "gas": 100_000,
            "maxFeePerGas": 10 * GWEI,
            "maxPriorityFeePerGas": GWEI,
        } | fields
        return account.sign_transaction(transaction).raw_transaction.to_0x_hex()

    def send(self, account: LocalAccount, **fields: Any) -> str:
        return self.result("eth_sendRawTransaction", self.sign(account, **fields))

    def mined(self, transaction_hash: str) -> dict[str, Any]:
        return wait_for(lambda: self.result("eth_getTransactionReceipt", transaction_hash))

    def deploy(self, account: LocalAccount) -> Contract:
        receipt = self.mined(self.send(account, to=None, value=0, gas=2_000_000, data=PROBE["bytecode"]))
        assert receipt["status"] == "0x1"
        return self.w3.eth.contract(address=receipt["contractAddress"], abi=PROBE["abi"])

    def use(self, account: LocalAccount, contract: Contract, name: str, *arguments: Any, **fields: Any) -> str:
        data = contract.encode_abi(name, arguments)
        return self.send(account, **({"to": contract.address, "value": 0, "gas": 5_000_000, "data": data} | fields))


def wait_for(condition: Callable[[], Any], timeout: float = PATIENCE) -> Any:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError("timed out")


@contextmanager
def serving(directory: Path, **options: Any) -> Iterator[Chain]:
    urls: list[str] = []
    ready, stop = threading.Event(), threading.Event()

    def on_ready(url: str) -> None:
        urls.append(url)
        ready.set()

    fast = {"block_time": 0.05, "empty_block_time": 0.2, "heartbeat": 0.2} | options
    thread = threading.Thread(target=serve, args=(directory,), kwargs={**fast, "on_ready": on_ready, "stop": stop})
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        with requests.Session() as session:
            yield Chain(urls[0], directory, session)
    finally:
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()
