"""Known vulnerabilities of the pinned packages, by pip-audit: `make advisories`.

Every package of requirements/constraints.txt is looked up in the database of the Python Package Index. What the table
of docs/dependencies.md says is kept from a node is no finding. Where no database can be reached, nothing is looked up,
and that is said. With `--required` it is a failure. So is a version that mends a row of the table and can be installed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PINS = ROOT / "requirements" / "constraints.txt"
PAGE = ROOT / "docs" / "dependencies.md"
SECONDS = 300  # for all packages

_ROW = re.compile(r"\| (GHSA-[\w-]+|PYSEC-[\w-]+|CVE-[\w-]+) \| `(\S+)` \| (\S+) \|.*\| `(\S+)::(\S+)` \|")


@dataclass(frozen=True)
class Answered:
    """A row of the page's table: an advisory that does not reach a node."""

    advisory: str
    package: str
    mended_in: str  # a version
    test: tuple[str, str]  # file, name


def main(program: str, required: bool, page: Path = PAGE, pins: Path = PINS) -> int:
    """Run `program` (pip-audit) on the pins, print what it found, and return the exit code."""
    rows, pinned = answered(page.read_text()), pins.read_text().splitlines()
    over = [
        f"{row.package} {row.mended_in} mends {row.advisory}: "
        f"{'its row in docs/dependencies.md can go' if is_pinned else 'it can be installed, so move the pin'}"
        for row in rows
        if (is_pinned := f"{row.package}=={row.mended_in}" in pinned) or (required and is_installable(row))
    ]
    sys.stdout.write("".join(f"advisories: {line}\n" for line in over))
    return max(bool(over), look_up(program, required, pins, {(row.package, row.advisory) for row in rows}))


def look_up(program: str, required: bool, pins: Path, known: set[tuple[str, str]]) -> int:
    """`known`: packages and advisories that are no finding."""
    command = [program, "--requirement", str(pins), "--no-deps", "--disable-pip", "--format", "json", "--timeout", "10"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return unreached(f"pip-audit did not end within {SECONDS} s", required)
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return unreached(
            done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "pip-audit said nothing", required
        )
    looked_up = [package for package in found if "skip_reason" not in package]
    if not looked_up:
        return unreached("no package was found in the database", required)
    kept, lines = report(looked_up, known)
    sys.stdout.write("".join(f"{line}\n" for line in kept + lines))
    sys.stdout.write(
        f"advisories: {len(looked_up)} of {len(found)} packages looked up, {len(lines)} findings"
        f"{f', {len(kept)} that the page answers' if kept else ''}\n"
    )
    return 1 if lines else 0


def answered(page: str) -> list[Answered]:
    """The rows of the page's table."""
    return [Answered(row[1], row[2], row[3], (row[4], row[5])) for row in _ROW.finditer(page)]


def report(packages: list[dict[str, Any]], known: set[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """A line for each advisory that the page answers, and one for each other: package, version, id, and the versions
    that mend it."""
    kept, findings = [], []
    for package in packages:
        for advisory in package["vulns"]:
            names = {advisory["id"], *advisory.get("aliases", ())}
            mended = ", ".join(advisory["fix_versions"]) or "no version"
            line = f"{package['name']} {package['version']}: {advisory['id']}, mended in {mended}"
            if any((package["name"], name) in known for name in names):
                kept.append(f"{line}: docs/dependencies.md says why it does not reach a node")
            else:
                findings.append(line)
    return kept, findings


def is_installable(row: Answered) -> bool:
    """Whether the package index has the version that mends it."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    pip += ["--no-deps", "--only-binary", ":all:", f"{row.package}=={row.mended_in}", "--dest"]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([*pip, folder], capture_output=True, timeout=SECONDS).returncode == 0


def unreached(reason: str, required: bool) -> int:
    sys.stderr.write(f"advisories: nothing was looked up: no vulnerability database can be reached ({reason})\n")
    return 1 if required else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "--required" in sys.argv[2:]))
