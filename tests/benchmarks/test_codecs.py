import json
import subprocess
import sys
from pathlib import Path


def test_the_benchmark_measures_every_codec(tmp_path: Path) -> None:
    """Structure and sanity: speed is for a machine that has nothing else to do."""
    file = tmp_path / "codecs.json"
    command = [sys.executable, "-m", "benchmarks.codecs", "--quick", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = {row["codec"]: row for row in json.loads(file.read_text())["rows"]}
    assert all(codec in done.stdout for codec in rows)
    assert rows["int4"]["ratio"] > 7.5 and rows["lowrank"]["ratio"] > 10 and rows["topk"]["ratio"] > 105
    for row in rows.values():
        assert set(row) == {"codec", "params", "encode_mb_s", "decode_mb_s", "ratio", "bits", "peak_extra"}
        assert 1_500_000 < row["params"] < 2_500_000
        assert row["encode_mb_s"] > 1 and row["decode_mb_s"] > 1
        assert row["peak_extra"] < 5  # libraries weigh on so small an input
