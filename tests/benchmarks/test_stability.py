import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import patient


@pytest.mark.parametrize(("alpha", "stable_below"), [("0", 0.364), ("1", 0.55)])
def test_pairs_are_tried_until_one_stays_stable(tmp_path: Path, alpha: str, stable_below: float) -> None:
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks.stability", "--rounds", "4", "--inner-steps", "2", "--alpha", alpha]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out"), "--json", str(result)],
        capture_output=True,
        text=True,
        timeout=patient(170),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(result.read_text())
    assert (found["rows"][0]["lr"], found["rows"][0]["momentum"]) == (0.7, 0.9), "the paper's come first"
    assert found["rows"][0]["stable_below"] == stable_below
    stable = [[row["lr"], row["momentum"]] for row in found["rows"] if row["stable"]]
    assert found["nearest"] == (stable[0] if stable else None)
    assert f"nearest to (0.7, 0.9): {tuple(stable[0]) if stable else 'none'}" in done.stdout
