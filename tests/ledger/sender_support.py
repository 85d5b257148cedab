"""What tests of the sender share: an account, its outbox, and what goes wrong with a chain node."""

import json
import threading
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Any, Protocol

from dlx.ledger.keys import account_of
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.ledger.transactions.sender import Sender
from tests.patience import PATIENCE

KEY = b"\x11" * 32
ACCOUNT = account_of(KEY)
TO = account_of(b"\x22" * 32)
REFUSED = {"error": {"code": 3, "message": "execution reverted", "data": "0x12345678"}}


class ScriptedChain(Protocol):
    """What is asked here of the tests' FakeChain."""

    url: str
    eth_call: Callable[[dict[str, Any], str], Any]

    @property
    def pool(self) -> Sized:
        """The transactions that wait."""

    def mine(self) -> int: ...


def reopen(fake_chain: ScriptedChain, tmp_path: Path) -> Sender:
    return Sender(RpcClient(fake_chain.url, patience=PATIENCE), 31337, KEY, tmp_path)


def entries(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.rglob("0*.json"))


def files(tmp_path: Path) -> list[Path]:
    """Of what no block has had yet."""
    return [path for path in entries(tmp_path) if not json.loads(path.read_text())["mined"]]


def once(method: str, result: object) -> Callable[[str, list[Any]], Any]:
    """A fault for the next call of a method."""
    return lambda called, params: result if called == method else None


def refusing(chain: ScriptedChain, *names: bytes) -> None:
    """The contract refuses calls with these data from now on."""
    chain.eth_call = lambda call, tag: REFUSED if bytes.fromhex(call["data"][2:]) in names else "0x"


class Miner:
    """Mines as soon as something waits."""

    def __init__(self, chain: ScriptedChain) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(chain,))
        self._thread.start()

    def _run(self, chain: ScriptedChain) -> None:
        while not self._stop.wait(0.01):
            if chain.pool:
                chain.mine()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
