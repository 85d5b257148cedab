"""What a ledger consists of: contracts that name one another, libraries that they link, and a code that is not ours."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dlx import contracts
from dlx.ledger import deployment
from dlx.ledger.bindings import Interface
from dlx.ledger.client import LedgerClient
from dlx.ledger.deployment import deploy, fund
from dlx.ledger.errors import Contradiction, LedgerError, WrongLedger
from dlx.ledger.keys import account_of
from dlx.ledger.parts import parts_of
from tests.ledger.chain_support import serving
from tests.patience import PATIENCE

KEY = b"\x07" * 32
CONTRACTS = Path(contracts.__file__).parent
OURS = ["Bonds", "Membership", "NodeRegistry", "OuterProofs", "Sums", "TrainingLedger"]
SUMS = """
pragma solidity 0.8.37;
library Sums {
    function twice(uint256 value) external pure returns (uint256) { return 2 * value; }
}
"""
MEMBERSHIP = """
pragma solidity 0.8.37;
import {Sums} from "./Sums.sol";
library Membership {
    function add(mapping(uint256 => uint256) storage sums, uint256 key, uint256 value) external {
        sums[key] += Sums.twice(value);
    }
    function clear(mapping(uint256 => uint256) storage sums, uint256 key) external { sums[key] = 0; }
}
"""
LEDGER = """
pragma solidity 0.8.37;
import {Membership} from "./Membership.sol";
contract TrainingLedger {
    mapping(uint256 => uint256) private _sums;
    address public immutable registry;
    address public immutable bonds;
    constructor(address bonds_, address registry_) { (registry, bonds) = (registry_, bonds_); }
    function add(uint256 key, uint256 value) external { Membership.add(_sums, key, value); }
    function clear(uint256 key) external { Membership.clear(_sums, key); }
    function sumOf(uint256 key) external view returns (uint256) { return _sums[key]; }
}
"""


@pytest.fixture(scope="module")
def linked(tmp_path_factory):
    """The artifacts of a small ledger that links a library, which links another; the other contracts are as ever."""
    if shutil.which("node") is None or not (CONTRACTS / "node_modules" / "solc").exists():
        pytest.skip("needs node and contracts/node_modules (`npm ci`)")
    folder = tmp_path_factory.mktemp("contracts")
    (folder / "node_modules").symlink_to(CONTRACTS / "node_modules")
    for name in ("cached-solc.cjs", "package-lock.json"):
        shutil.copy(CONTRACTS / name, folder)
    for name in ("src", "artifacts"):
        (folder / name).mkdir()
    for name, text in {"Sums": SUMS, "Membership": MEMBERSHIP, "TrainingLedger": LEDGER}.items():
        (folder / "src" / f"{name}.sol").write_text(f"// SPDX-License-Identifier: Apache-2.0{text}")
    script, found = re.subn(
        r"(?<=^const CONTRACTS = )\[.*?\]",
        '["TrainingLedger"]',
        (CONTRACTS / "compile.mjs").read_text(),
        flags=re.M | re.S,
    )
    assert found == 1
    (folder / "compile.mjs").write_text(script)
    subprocess.run(["node", folder / "compile.mjs"], check=True, capture_output=True, timeout=PATIENCE)
    assert {path.stem for path in (folder / "artifacts").iterdir()} == {"Sums", "Membership", "TrainingLedger"}
    subprocess.run(["node", folder / "compile.mjs", "--check"], check=True, capture_output=True, timeout=PATIENCE)
    return folder / "artifacts"


@pytest.fixture
def small(linked, monkeypatch):
    load = contracts.load

    def small_load(name):
        path = linked / f"{name}.json"
        return json.loads(path.read_bytes()) if path.exists() else load(name)

    monkeypatch.setattr(contracts, "load", small_load)


@pytest.fixture
def chain(tmp_path):
    with serving(tmp_path / "chain") as chain:
        fund(chain.url, account_of(KEY))
        yield chain


def test_libraries_are_created_and_linked(small, chain, tmp_path):
    found = deploy(chain.url, KEY)
    client = LedgerClient(chain.url, found.ledger, KEY, tmp_path)
    assert client.registry == found.registry
    client._write("add", 1, 5, gas=200_000)
    client._write("add", 1, 6, gas=200_000)
    assert client.read("sumOf", 1) == (22,)
    parts = list(parts_of(found.ledger, client.code, client._read_soon))
    assert sorted(part.name for part in parts) == OURS
    assert all(part.is_ours for part in parts) and len({part.address for part in parts}) == len(OURS)


def test_code_is_compared_wherever_its_libraries_are(small, chain):
    found = deploy(chain.url, KEY)
    client, interface = LedgerClient(chain.url, found.ledger), Interface("TrainingLedger")
    code = client.code(found.ledger)
    first, *others = interface.artifact["deployedLinks"]["Membership"]
    assert others and interface.same_code(code)
    elsewhere = bytearray(code)
    for start in (first, *others):
        elsewhere[start : start + 20] = b"\x11" * 20
    assert interface.same_code(bytes(elsewhere))
    assert interface.linked(bytes(elsewhere)) == {"Membership": "0x" + "11" * 20}
    elsewhere[others[0]] ^= 1  # two places of one library
    assert not interface.same_code(bytes(elsewhere))


@pytest.mark.parametrize("name", ["Membership", "Sums", "Bonds"])
def test_foreign_code_of_a_part_is_no_ledger_of_ours(small, chain, monkeypatch, name):
    found = deploy(chain.url, KEY)
    client = LedgerClient(chain.url, found.ledger)
    code = {part.address: part for part in parts_of(found.ledger, client.code, client._read_soon)}
    (bad,) = (address for address, part in code.items() if part.name == name)
    honest = LedgerClient._code_soon
    monkeypatch.setattr(
        LedgerClient,
        "_code_soon",
        lambda self, address: honest(self, address)[:-1] + b"\x99" if address == bad else honest(self, address),
    )
    with pytest.raises(WrongLedger, match=f"{bad} on chain 31337 is not this version's {name}"):
        LedgerClient(chain.url, found.ledger).connect()


def test_a_chain_node_cannot_name_another_part(small, chain, monkeypatch):
    found = deploy(chain.url, KEY)
    honest = LedgerClient._read_soon
    monkeypatch.setattr(
        LedgerClient,
        "_read_soon",
        lambda self, name, address, view: ("0x" + "22" * 20,) if view == "bonds" else honest(self, name, address, view),
    )
    with pytest.raises(Contradiction, match="is not the Bonds that the code of the TrainingLedger"):
        LedgerClient(chain.url, found.ledger).connect()


def test_another_transaction_between_the_contracts_is_said(small, chain, monkeypatch):
    monkeypatch.setattr(deployment, "_created", lambda account, nonce: "0x" + f"{nonce + 1:040x}")
    with pytest.raises(LedgerError, match=r"came before the NodeRegistry \(contract 1 of 8\): deploy again"):
        deploy(chain.url, KEY)
