"""A ledger's beginning: the contracts say it, so no old state is needed; and a wrong block is never kept."""

import json

import pytest
from fault_proxy import FaultProxy

from dlx.ledger.chain import methods, prune
from dlx.ledger.client import LedgerClient
from dlx.ledger.deployment import deploy, fund
from dlx.ledger.errors import Contradiction, LedgerUnavailable
from dlx.ledger.index.event_index import Contracts
from dlx.ledger.keys import account_of
from tests.ledger.chain_support import serving

KEY = b"\x05" * 32


def test_the_beginning_is_known_where_its_states_are_pruned(tmp_path, monkeypatch):
    for module in (prune, methods):
        monkeypatch.setattr(module, "KEPT_STATES", 4)
    with serving(tmp_path / "chain") as chain:
        account = chain.account()
        contract = chain.deploy(account)
        fund(chain.url, account_of(KEY))
        deployed = deploy(chain.url, KEY)
        assert deployed.since > 1
        for value in range(8):
            chain.mined(chain.use(account, contract, "set", 1, value))
        assert "pruned" in chain.error("eth_getCode", deployed.ledger, hex(deployed.since))["message"]
        found = LedgerClient(chain.url, deployed.ledger).contracts()
        assert found == Contracts(deployed.ledger, deployed.registry, deployed.since)


def test_nothing_is_asked_of_old_blocks_but_a_header(world, tmp_path):
    asked = []
    with FaultProxy(world.url) as proxy:
        proxy.lie = lambda method, params, result: asked.append((method, params[-1:])) or result
        found = LedgerClient(proxy.url, world.ledger, folder=tmp_path).contracts()
    assert found == LedgerClient(world.url, world.ledger).contracts() and len(asked) < 24
    assert all(tag == ["latest"] for method, tag in asked if method in ("eth_call", "eth_getCode"))


def another_number(method, params, result):
    """As of a chain whose contracts count other blocks than its nodes."""
    if method == "eth_getBlockByNumber" and params[0] != "latest":
        return {**result, "timestamp": hex(int(result["timestamp"], 16) + 1)}
    return result


def no_such_block(method, params, result):
    return None if method == "eth_getBlockByNumber" and params[0] != "latest" else result


@pytest.mark.parametrize(
    ("lie", "kind", "line"),
    [
        (another_number, Contradiction, "says that it was created in block"),
        (no_such_block, LedgerUnavailable, "no block"),
    ],
)
def test_a_wrong_block_is_refused_and_not_kept(embedded, tmp_path, lie, kind, line):
    with FaultProxy(embedded.url) as proxy:
        client = LedgerClient(proxy.url, embedded.ledger, folder=tmp_path)
        client.connect()
        proxy.lie = lie
        with pytest.raises(kind, match=line):
            client.contracts()
        proxy.lie = None
        assert client.contracts() == LedgerClient(embedded.url, embedded.ledger).contracts()
    assert not any(tmp_path.iterdir())


def test_deploy_says_the_block_and_contracts_json_has_it(tmp_path):
    from dlx.node.home.datadir import DataDir
    from dlx.node.home.ledgers import deploy_embedded

    folder = DataDir(tmp_path)
    with serving(folder.chain) as chain:
        made = deploy_embedded(folder, chain.url, 31337)
        assert made["block"] == LedgerClient(chain.url, made["ledger"]).contracts().since
    assert json.loads(folder.contracts.read_text()) == made
