import json
import subprocess
import sys
from pathlib import Path

from tests.patience import patient


def test_a_slow_replica_never_raises_the_loss(tmp_path: Path) -> None:
    """Under the default policy, in half of the benchmark's rounds."""
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks.uneven", "--seeds", "1", "--rounds", "6", "--only", "muon"]
    done = subprocess.run(
        [*command, "--policy", "clip+cosine", "--out", str(tmp_path / "out"), "--json", str(result)],
        capture_output=True,
        text=True,
        timeout=patient(300),
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(result.read_text())["rows"]
    assert [row["steps"] for row in rows][:2] == [[20, 5], [20, 2]]
    chance = 0.015  # one seed
    assert {tuple(row["steps"]): row["difference"] for row in rows if row["difference"] > chance} == {}, done.stdout
