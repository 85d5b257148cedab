"""A served chain that is killed loses nothing that it acknowledged."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from eth_account import Account

from dlx.ledger.chain.evm import decode_header
from dlx.ledger.chain.state_tries import reachable
from dlx.ledger.chain.store import Reader
from tests.patience import PATIENCE, until
from tests.ports import lasting_port
from tests.signals import to_another_thread

CLIENTS = 4
# Old states are removed all the time, so that kills hit that too.
SERVE = """
import sys
from pathlib import Path
from dlx.ledger.chain import prune, serve
prune._SECONDS, prune._GARBAGE, prune.KEPT_STATES = 0.02, 0, 4
serve(Path(sys.argv[1]), port=int(sys.argv[2]), block_time=0.1, on_ready=lambda url: print(url, flush=True))
"""


def start(directory: Path, port: int) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(directory), str(port)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def rpc(session: requests.Session, url: str, method: str, *params: Any) -> dict[str, Any]:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return session.post(url, json=body, timeout=PATIENCE).json()


class Client(threading.Thread):
    """Sends transfers one after another through every outage, and keeps what the chain said about them."""

    def __init__(self, url: str, finish: threading.Event) -> None:
        super().__init__()
        self.url, self.finish, self.account = url, finish, Account.create()
        self.session = requests.Session()
        self.acknowledged: list[str] = []
        self.receipts: dict[str, dict[str, Any]] = {}
        self.outages = 0
        self.refused: list[str] = []

    def run(self) -> None:
        for nonce in itertools.count():
            fields = {"chainId": 31337, "nonce": nonce, "to": self.account.address, "value": 1, "gas": 30_000}
            fees = {"maxFeePerGas": 10**9, "maxPriorityFeePerGas": 10**6}
            signed = self.account.sign_transaction(fields | fees)
            while True:
                if self.finish.is_set():
                    return
                try:
                    answer = rpc(self.session, self.url, "eth_sendRawTransaction", signed.raw_transaction.to_0x_hex())
                except requests.RequestException:
                    self.outages += 1
                    self.finish.wait(0.05)
                    continue
                message = answer.get("error", {}).get("message", "")
                if "result" in answer or message == "already known" or "nonce too low" in message:
                    break
                self.refused.append(message)
                return
            self.acknowledged.append(signed.hash.to_0x_hex())
            try:
                for seen in random.sample(self.acknowledged, min(3, len(self.acknowledged))):
                    if receipt := rpc(self.session, self.url, "eth_getTransactionReceipt", seen)["result"]:
                        assert self.receipts.setdefault(seen, receipt) == receipt
            except requests.RequestException:
                self.outages += 1


@pytest.mark.slow
def test_killed_under_load_it_loses_no_acknowledged_transaction_and_changes_no_receipt(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    kills: int = pytestconfig.getoption("kills")
    process, url = start(tmp_path, lasting_port())
    try:
        finish, session = threading.Event(), requests.Session()
        clients = [Client(url, finish) for _ in range(CLIENTS)]
        for client in clients:
            assert rpc(session, url, "dlx_faucet", client.account.address)["result"]

        def balance(client: Client) -> str:
            return rpc(session, url, "eth_getBalance", client.account.address, "latest")["result"]

        until("funds", lambda: all(balance(client) != "0x0" for client in clients))
        for client in clients:
            client.start()
        for kill in range(kills):
            until("something from everybody", lambda least=kill: all(len(c.acknowledged) > least for c in clients))
            time.sleep(random.uniform(0.1, 0.5))  # the moment of the kill is what is varied
            process.kill()
            process.wait()
            process, again = start(tmp_path, int(url.rsplit(":", 1)[1]))
            assert again == url
        until("something more from everybody", lambda: all(len(c.acknowledged) > kills for c in clients))
        finish.set()
        for client in clients:
            client.join()
            assert client.refused == [] and client.outages
        deadline = time.monotonic() + PATIENCE
        for client in clients:
            for transaction in client.acknowledged:
                while not (receipt := rpc(session, url, "eth_getTransactionReceipt", transaction)["result"]):
                    assert time.monotonic() < deadline, "an acknowledged transaction is lost"
                    time.sleep(0.02)
                assert client.receipts.get(transaction, receipt) == receipt and receipt["status"] == "0x1"
            nonce = int(rpc(session, url, "eth_getTransactionCount", client.account.address, "latest")["result"], 16)
            assert nonce >= len(client.acknowledged)
        reader = Reader(tmp_path / "chain.sqlite")
        assert reachable(reader.node, [decode_header(reader.last_headers(1)[0]).state_root]), "a state node is lost"
        print(f"{sum(len(c.acknowledged) for c in clients)} transactions, {kills} kills")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_cleanly_while_a_client_is_connected(tmp_path: Path, sent: signal.Signals) -> None:
    process, url = start(tmp_path, lasting_port())
    try:
        with requests.Session() as session:
            body = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId"}
            assert session.post(url, json=body, timeout=PATIENCE).json()["result"] == "0x7a69"
            os.kill(process.pid, sent)
            assert process.wait(PATIENCE) == 0
    finally:
        process.kill()


def test_a_signal_that_another_thread_hears_ends_it_too(tmp_path: Path) -> None:
    process, _ = start(tmp_path, lasting_port())
    try:
        to_another_thread(process.pid, signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()


def test_the_processes_of_calls_end_with_a_killed_chain(tmp_path: Path) -> None:
    process, url = start(tmp_path, lasting_port())
    try:
        with requests.Session() as session:
            assert rpc(session, url, "eth_call", {"to": "0x" + "00" * 20})["result"] == "0x"
        (caller,) = psutil.Process(process.pid).children()
    finally:
        process.kill()
        process.wait()
    caller.wait(PATIENCE)
