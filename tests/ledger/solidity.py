"""Contracts of contracts/test for tests on a chain: compiled as they are needed, so they cannot grow old."""

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.patience import patient

CONTRACTS = Path(__file__).parents[2] / "contracts"
_COMPILE = """
const fs = require("fs"), solc = require("solc"), file = process.argv[1];
const read = (path) => ({ contents: fs.readFileSync(fs.existsSync(path) ? path : "node_modules/" + path, "utf8") });
const settings = { evmVersion: "cancun", optimizer: { enabled: true, runs: 1 }, viaIR: true,
  outputSelection: { "*": { "*": ["abi", "evm.bytecode.object"] } } };
const sources = { [file]: { content: read(file).contents } };
process.stdout.write(solc.compile(JSON.stringify({ language: "Solidity", sources, settings }), { import: read }));
"""


@cache
def compiled(file: str, name: str) -> dict[str, Any]:
    """The ABI and bytecode ("0x" hex) of a contract in a file of contracts/test."""
    if not (CONTRACTS / "node_modules" / "solc").is_dir():
        pytest.skip("missing: the contracts' tools (`npm ci` in contracts/)")
    command = ["node", "-e", _COMPILE, f"test/{file}"]
    done = subprocess.run(command, cwd=CONTRACTS, capture_output=True, text=True, check=True, timeout=patient(300))
    found = json.loads(done.stdout)
    assert "contracts" in found, found
    made = found["contracts"][f"test/{file}"][name]
    return {"abi": made["abi"], "bytecode": "0x" + made["evm"]["bytecode"]["object"]}
