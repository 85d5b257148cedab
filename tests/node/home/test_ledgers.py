"""A folder's chain is the one in the folder, whatever answers at its URL."""

import json
import shutil
from pathlib import Path

import pytest

from dlx.ledger.chain import ChainError
from dlx.ledger.chain.on_disk import newest_block
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import UsageFailure
from dlx.node.home.ledgers import reachable_chain
from dlx.node.home.settings import Settings
from tests.history_builder import History, Network, embedded_chain

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


def _enter(settings: Settings, folder: DataDir) -> None:
    with reachable_chain(settings, folder):
        pass
