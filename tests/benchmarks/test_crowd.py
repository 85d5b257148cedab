"""The short version of the benchmark of many members."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.crowd import cpu_seconds


def test_the_time_of_processes_that_have_ended_counts() -> None:
    before = cpu_seconds()
    burn = "import subprocess, sys, time\nwhile time.process_time() < 0.5: pass\n"
    subprocess.run([sys.executable, "-c", f"{burn}subprocess.run([sys.executable, '-c', {burn!r}])"], check=True)
    assert cpu_seconds() - before >= 1.0


def test_every_round_counts_everybody(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks.crowd", "--members", "4", "--rounds", "2", "--json", str(result)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(result.read_text())
    assert [row["counted"] for row in told["rows"]] == [4, 4]
    assert told["rows"][-1]["cpu_seconds"] > 0 and len(done.stdout.splitlines()) == 3
