"""Contracts of contracts/test in Python's tests, compiled as the deployed ones are, and a chain in this process.

`python -m tests.contracts.solidity` compiles them anew, with solc of contracts/node_modules.
"""

import hashlib
import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import eth_abi
from eth_hash.auto import keccak
from eth_keys.datatypes import PrivateKey
from eth_utils.abi import collapse_if_tuple

from dlx import contracts
from dlx.ledger.abi import checksum
from dlx.ledger.chain import evm
from dlx.ledger.keys import account_of

ROOT = Path(__file__).parents[2] / "contracts"
COMPILED = Path(__file__).parent / "proofs.json"
SOURCES = ("test/Proofs.sol", "src/SoftFloat.sol")
CHAIN_ID = 31337
SENDER = keccak(b"sender")
_GAS = 30_000_000
_COMPILE = """
const solc = require("solc"), { readFileSync } = require("fs"), { join } = require("path");
const read = (path) => readFileSync(path, "utf8"), root = process.cwd(), file = process.argv[1];
const place = (path) => /^(src|test)\\//.test(path) ? path : join("node_modules", path);
const find = (path) => ({ contents: read(join(root, place(path))) });
const settings = { evmVersion: "cancun", viaIR: true, optimizer: { enabled: true, runs: 500 },
  metadata: { bytecodeHash: "none" }, outputSelection: { "*": { "*": ["abi", "evm.bytecode.object"] } } };
const input = { language: "Solidity", sources: { [file]: { content: read(join(root, file)) } }, settings };
const found = JSON.parse(solc.compile(JSON.stringify(input), { import: find }));
for (const one of found.errors ?? []) if (one.severity === "error") throw new Error(one.formattedMessage);
const kept = Object.entries(found.contracts[file]).map(([name, one]) =>
  [name, { abi: one.abi, bytecode: "0x" + one.evm.bytecode.object }]);
console.log(JSON.stringify(Object.fromEntries(kept)));
"""


def hashes() -> dict[str, str]:
    return {name: hashlib.sha256((ROOT / name).read_bytes()).hexdigest() for name in SOURCES}


@cache
def compiled() -> dict[str, Any]:
    """name -> {abi, bytecode}; what the sources are now."""
    found = json.loads(COMPILED.read_text())
    assert found["sources"] == hashes(), "contracts/test changed: python -m tests.contracts.solidity"
    return {**found["contracts"], "OuterProofs": contracts.load("OuterProofs")}


class Chain:
    """A chain in this process: each transaction is a block, and one account sends them all."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, bytes] = {}
        self._evm = evm.Evm(CHAIN_ID, self._nodes.__getitem__, lambda number: iter(()))
        genesis = self._evm.genesis(bytes.fromhex(account_of(SENDER)[2:]), 1_000_000)
        self._nodes |= genesis.nodes
        self._header, self._nonce, self._now = genesis.header, 0, 1_000_000

    def deploy(self, name: str, *args: Any) -> "Contract":
        entry = compiled()[name]
        kinds = [
            collapse_if_tuple(one) for item in entry["abi"] if item["type"] == "constructor" for one in item["inputs"]
        ]
        made = evm.created_address(bytes.fromhex(account_of(SENDER)[2:]), self._nonce)
        executed = self.mine(b"", bytes.fromhex(entry["bytecode"][2:]) + eth_abi.encode(kinds, args))
        assert executed.status == 1
        return Contract(self, checksum(made), entry["abi"])

    def mine(self, to: bytes, data: bytes, key: bytes = SENDER) -> evm.Executed:
        self._now += 1
        unsigned = evm._Builder.new_unsigned_dynamic_fee_transaction(
            chain_id=CHAIN_ID, nonce=self._nonce, max_priority_fee_per_gas=1, max_fee_per_gas=100, gas=_GAS, to=to,
            value=0, data=data, access_list=(),
        )  # fmt: skip
        self._nonce += 1
        transaction = evm.decode(unsigned.as_signed_transaction(PrivateKey(key), CHAIN_ID).encode())
        block = self._evm.build(self._header, self._now, [transaction], 60)
        self._nodes |= block.nodes
        self._header = block.header
        return block.executed[0]

    def call(self, to: bytes, data: bytes, sender: bytes = bytes(20)) -> evm.Outcome:
        header = self._evm.next_header(self._header, self._now + 1)
        return self._evm.call(header, evm.Call(sender, to, data, 0, _GAS))


class Refused(Exception):
    """The name of the contract's error."""


class Contract:
    def __init__(self, chain: Chain, address: str, abi: list[dict[str, Any]]) -> None:
        self.chain, self.address, self._to = chain, address, bytes.fromhex(address[2:])
        self._calls, self._errors = {}, {}
        for item in abi:
            kinds = [collapse_if_tuple(one) for one in item.get("inputs", ())]
            if item["type"] in ("function", "error"):
                selector = keccak(f"{item['name']}({','.join(kinds)})".encode())[:4]
                if item["type"] == "error":
                    self._errors[selector] = item["name"]
                else:
                    outputs = [collapse_if_tuple(one) for one in item["outputs"]]
                    self._calls[item["name"]] = (selector, kinds, outputs)

    def data(self, function: str, *args: Any) -> bytes:
        selector, kinds, _ = self._calls[function]
        return selector + eth_abi.encode(kinds, args)

    def read(self, function: str, *args: Any) -> Any:
        """What a call answers; Refused where it reverts."""
        outcome = self.chain.call(self._to, self.data(function, *args), bytes.fromhex(account_of(SENDER)[2:]))
        if outcome.error is not None:
            raise Refused(self._errors.get(outcome.output[:4], outcome.error))
        values = eth_abi.decode(self._calls[function][2], outcome.output)
        return values[0] if len(values) == 1 else values

    def write(self, function: str, *args: Any) -> evm.Executed:
        """A mined call; Refused where it reverts."""
        self.read(function, *args)
        executed = self.chain.mine(self._to, self.data(function, *args))
        assert executed.status == 1
        return executed


if __name__ == "__main__":
    done = subprocess.run(["node", "-e", _COMPILE, SOURCES[0]], cwd=ROOT, capture_output=True, text=True, check=True)
    COMPILED.write_text(json.dumps({"sources": hashes(), "contracts": json.loads(done.stdout)}, indent=1) + "\n")
