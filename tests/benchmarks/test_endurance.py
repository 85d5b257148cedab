"""The short version of the endurance benchmark: what the long one prints and writes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.endurance import SO_FAR, growth

ROUNDS, EVERY = 8, 2


def test_growth_is_per_round_and_of_the_last_half_only() -> None:
    rows = [{"rounds": 10 * i, SO_FAR: i, "memory": memory} for i, memory in enumerate([0, 900, 1000, 1030])]
    assert growth(rows) == {"memory": pytest.approx(3)}


def test_a_node_is_measured_every_few_rounds(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks.endurance", "--rounds", str(ROUNDS), "--every", str(EVERY)]
    done = subprocess.run([*command, "--json", str(result)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(result.read_text())
    assert [row["rounds"] for row in told["rows"]] == list(range(EVERY, ROUNDS + 1, EVERY))
    assert len(done.stdout.splitlines()) == 1 + ROUNDS // EVERY + 2, "a heading, the rows, and the growth"
    for row in told["rows"]:
        assert row["trainer_memory"] > row["node_memory"] > 10e6 and min(row["node_files"], row["trainer_files"]) > 2
        assert row["public_blobs"] > 0 and row["chain"] > 0 and row["state"] > 0
    assert told["growth_per_round"].keys() == told["rows"][0].keys() - {"rounds", SO_FAR}
