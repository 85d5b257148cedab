import json
import subprocess
import sys
from pathlib import Path

from tests.patience import patient


def test_the_benchmark_measures_a_round_and_the_slot_holds_no_second_copy_of_its_stage(tmp_path: Path) -> None:
    """Structure, memory and disk: seconds are for a machine that has nothing else to do."""
    file = tmp_path / "round.json"
    command = [sys.executable, "-m", "benchmarks.round", "--params", "10M", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(300))
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(file.read_text())["rows"]
    assert 9_000_000 < row["parameters"] < 11_000_000
    assert row["slot"].keys() >= {"inner steps", "round but steps", "load", "end", "commit", "outer step"}
    assert row["received_payload"].keys() >= {"check", "measure", "outer step", "all"}
    assert row["slot"]["all but the inner steps"]["processor"] > 0
    # Weights, gradients and Muon's state are a little more than 12 bytes a parameter, a whole copy of the stage 4 more.
    assert row["private_bytes"]["training"] < 16
    assert row["written_times_the_weights"] < 3.6
    assert row["kept_times_the_weights"] < 4.7  # inner state, change and payload, before and after
    assert all(label in done.stdout for label in ("slot", "received payload", "private bytes", "written"))
