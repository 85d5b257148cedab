"""A mapped blob that is cut short while a command reads it."""

import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE

PROGRAM = """
import mmap, os, sys
from dlx.node.home import sigbus
sigbus.end_with_a_line()
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    file.truncate(1)
print(mapped[1 << 16])
"""


def test_it_ends_in_one_line_and_not_as_a_finding(tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    blob.write_bytes(bytes(1 << 17))
    found = subprocess.run([sys.executable, "-c", PROGRAM, str(blob)], capture_output=True, text=True, timeout=PATIENCE)
    assert found.returncode == 3, found
    assert found.stderr.strip().startswith("dlx-node: a blob was cut short while it was read")
    assert found.stderr.strip().count("\n") == 0
