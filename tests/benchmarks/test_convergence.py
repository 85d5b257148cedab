"""The short version of the convergence benchmark: what the long one prints and writes, on a tiny model."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from typer import Typer
from typer.testing import CliRunner

from benchmarks import convergence

KEYS = {"method", "seeds", "loss", "gap_percent", "bytes_per_round", "traffic_ratio", "steps", "seconds"}


def test_methods_are_compared_at_equal_tokens(tmp_path: Path) -> None:
    out, result = tmp_path / "out", tmp_path / "result.json"
    chosen = ["--only", "all-reduce AdamW", "--only", "sparse", "--workers", "1", "--source", argparse.__file__]
    command = [sys.executable, "-m", "benchmarks.convergence", "--quick", "--out", str(out), "--json", str(result)]

    first = subprocess.run([*command, *chosen], capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    rows = {row["method"]: row for row in json.loads(result.read_text())["rows"]}
    assert set(rows) == {"all-reduce AdamW", "sparse"}
    assert all(row.keys() >= KEYS for row in rows.values())
    assert {row["steps"] for row in rows.values()} == {60}
    assert rows["all-reduce AdamW"]["traffic_ratio"] == 1 and rows["all-reduce AdamW"]["gap_percent"] == 0
    assert rows["sparse"]["traffic_ratio"] > 300  # 5 steps, and 0.44 bits a value instead of 32
    assert all(row["loss"] < 5 for row in rows.values()), "untrained it is 5.5"
    assert (out / "quick/convergence.png").stat().st_size > 10_000
    for kept in (out / "quick/jobs").glob("*.json"):
        trained = json.loads(kept.read_text())
        assert trained["curve"][-1][2] == trained["loss"], "a curve ends where the table says"
    assert "sparse" in (out / "quick/table.txt").read_text()

    app = Typer()
    app.command()(convergence.main)
    assert "does not divide" in CliRunner().invoke(app, [*command[3:], *chosen, "--replicas", "3"]).output
    again = CliRunner().invoke(app, [*command[3:], *chosen])
    assert json.loads(result.read_text())["rows"] == list(rows.values()), "an interrupted run goes on from the folder"
    assert again.exit_code == 0, again.output
