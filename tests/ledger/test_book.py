"""The address book: a deployment is looked for once, and again where the chain is another one."""

import json

import pytest

from dlx.ledger import book, client
from dlx.ledger.client import LedgerClient


def refuse(*_):
    raise AssertionError("the chain was searched")


@pytest.fixture
def connect(embedded, tmp_path):
    return lambda: LedgerClient(embedded.url, embedded.ledger, folder=tmp_path)


def test_a_deployment_is_looked_for_once(connect, tmp_path, monkeypatch):
    found = connect().contracts()
    monkeypatch.setattr(client, "birth", refuse)
    assert connect().contracts() == found
    (entry,) = json.loads((tmp_path / book.NAME).read_text())
    assert (entry["ledger"], entry["registry"], entry["block"]) == (found.ledger, found.registry, found.since)


@pytest.mark.parametrize("wrong", [{"block_hash": "00" * 32}, {"block": 10**9}, {"ledger_code": "00" * 32}])
def test_a_deployment_on_another_chain_is_looked_for_again(connect, tmp_path, wrong):
    found = connect().contracts()
    path = tmp_path / book.NAME
    (entry,) = json.loads(path.read_text())
    path.write_text(json.dumps([entry | wrong]))
    assert connect().contracts() == found
    assert json.loads(path.read_text()) == [entry]


@pytest.mark.parametrize("damage", ["", "{}", "[1]", '[{"chain_id": 1}]'])
def test_a_damaged_book_is_written_anew(connect, tmp_path, damage):
    (tmp_path / book.NAME).write_text(damage)
    found = connect().contracts()
    assert book.find(tmp_path, 31337, found.ledger).block == found.since


def test_who_deploys_knows_the_block(embedded, connect, tmp_path, monkeypatch):
    monkeypatch.setattr(client, "birth", refuse)
    connect().remember(2)
    assert connect().contracts().since == 2
