"""The contracts' own tests, with the pinned tools from npm; `make check` compares the committed artifacts."""

import shutil
import subprocess
from pathlib import Path

import pytest

CONTRACTS = Path(__file__).parents[2] / "contracts"

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not (CONTRACTS / "node_modules" / "solc").is_dir(),
    reason="needs Node.js and `npm ci` in contracts/",
)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=CONTRACTS, capture_output=True, text=True)


def test_contract_tests_pass():
    done = run("npx", "--offline", "forge", "test")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
