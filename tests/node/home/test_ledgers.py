"""A folder's chain is the one in the folder, whatever answers at its URL."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlx.ledger import deployment
from dlx.ledger.chain import ChainError
from dlx.ledger.chain.on_disk import newest_block
from dlx.ledger.index.event_index import Contracts
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.ledger.transactions.sender import Pending, Sender
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import UsageFailure
from dlx.node.home.ledgers import _OWN_SECONDS, ask_first_funds, deploy_embedded, open_ledger, reachable_chain
from dlx.node.home.settings import Settings
from tests.history_builder import History, Network, embedded_chain
from tests.ledger.fault_proxy import FaultProxy
from tests.patience import patient, until

pytest_plugins = ["tests.history_builder"]


def _folder(root: Path, history: History) -> tuple[DataDir, Settings]:
    """One that says that its chain is at the history's URL."""
    folder = DataDir(root)
    folder.chain.mkdir(parents=True, exist_ok=True)
    found = {"rpc_url": history.rpc_url, "chain_id": 31337, "registry": history.registry, "ledger": history.ledger}
    folder.contracts.write_text(json.dumps({**found, "campaigns": "0x" + "00" * 20, "block": 1}))
    return folder, Settings(rpc_url=(history.rpc_url,), ledger=history.ledger)


def test_a_folder_takes_its_own_chain_and_no_other(
    history_network: Network, honest_history: History, tmp_path: Path
) -> None:
    own = history_network.blobs.parent / "chain"
    number, digest = newest_block(own)
    found = RpcClient(honest_history.rpc_url).header(number)
    assert found is not None and found.hash == digest
    folder, settings = _folder(tmp_path / "own", honest_history)
    shutil.copytree(own, folder.chain, dirs_exist_ok=True)
    with reachable_chain(settings, folder) as here:
        assert here == settings
    other, settings = _folder(tmp_path / "other", honest_history)
    with embedded_chain(other.chain):
        pass  # one of its own is made there
    with pytest.raises(UsageFailure, match=r"does not serve the chain in .*: its block \d+ is 0x"):
        _enter(settings, other)


@pytest.mark.parametrize("content", [None, b"", b"no database"])
def test_a_folder_without_a_chain_that_can_be_read_is_refused(
    honest_history: History, tmp_path: Path, content: bytes | None
) -> None:
    folder, settings = _folder(tmp_path, honest_history)
    if content is not None:
        (folder.chain / "chain.sqlite").write_bytes(content)
    with pytest.raises(ChainError):
        newest_block(folder.chain)
    with pytest.raises(UsageFailure, match="cannot be told"):
        _enter(settings, folder)


def test_a_command_waits_for_the_chain_that_it_starts_and_says_nothing_of_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = DataDir(tmp_path)
    folder.create()
    with embedded_chain(folder.chain) as url:
        found = deploy_embedded(folder, url, 31337)
    impatient = Settings(rpc_url=(url,), ledger=found["ledger"], rpc_timeout=0.2)  # loading an EVM takes longer
    with open_ledger(impatient, folder) as client:
        assert client.contracts().ledger == found["ledger"]
    assert (folder.logs / "chain.log").exists() and capfd.readouterr().err == ""


def test_an_embedded_chain_has_as_long_to_mine_as_to_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    had, wait, fund = list[float](), Sender.wait, deployment.fund

    def noted(sender: Sender, pending: Pending, timeout: float) -> dict[str, Any]:
        had.append(timeout)
        return wait(sender, pending, timeout)

    def funded(rpc_url: str, account: str, chain_id: int, rpc_timeout: float) -> None:
        had.append(rpc_timeout)
        fund(rpc_url, account, chain_id, rpc_timeout)

    monkeypatch.setattr(Sender, "wait", noted)
    monkeypatch.setattr(deployment, "fund", funded)
    folder = DataDir(tmp_path)
    folder.create()
    with embedded_chain(folder.chain) as url:
        deploy_embedded(folder, url, 31337)
        ask_first_funds(Settings(rpc_url=(url,), chain_id=31337), "0x" + "11" * 20)
    assert len(had) > 2 and set(had) == {_OWN_SECONDS}


def test_a_chain_that_answers_late_is_not_started_again(
    history_network: Network, honest_history: History, tmp_path: Path
) -> None:
    folder, settings = _folder(tmp_path, honest_history)
    shutil.copytree(history_network.blobs.parent / "chain", folder.chain, dirs_exist_ok=True)
    with FaultProxy(honest_history.rpc_url) as proxy:
        proxy.delay = 1.0
        slow = replace(settings, rpc_url=(proxy.url,), rpc_timeout=0.2)
        folder.contracts.write_text(folder.contracts.read_text().replace(honest_history.rpc_url, proxy.url))
        with reachable_chain(slow, folder) as here:
            assert here == slow


def test_a_command_asks_a_chain_node_for_longer_than_a_poll_does(honest_history: History, tmp_path: Path) -> None:
    def contracts() -> Contracts:
        with open_ledger(settings, DataDir(tmp_path)) as client:
            return client.contracts()

    with FaultProxy(honest_history.rpc_url) as proxy, ThreadPoolExecutor(1) as threads:
        settings = Settings(rpc_url=(proxy.url,), ledger=honest_history.ledger, rpc_timeout=patient(2.0))
        proxy.fault("hang", methods=["eth_call"])
        found = threads.submit(contracts)
        until("another try", lambda: proxy.seen.count("eth_call") > 1 or found.done())
        proxy.fault("none")
        assert found.result().ledger == honest_history.ledger


def _enter(settings: Settings, folder: DataDir) -> None:
    with reachable_chain(settings, folder):
        pass
