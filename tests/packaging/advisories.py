"""Known vulnerabilities of the pinned packages, by pip-audit: `make advisories`.

Every package of requirements/constraints.txt is looked up in the database of the Python Package Index. Where no
database can be reached nothing is looked up, and that is said; with `--required` it is a failure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PINS = ROOT / "requirements" / "constraints.txt"
SECONDS = 300  # for all packages


def main(program: str, required: bool) -> int:
    """Run `program` (pip-audit) on the pins, print what it found, and return the exit code."""
    command = [program, "--requirement", str(PINS), "--no-deps", "--disable-pip", "--format", "json", "--timeout", "10"]
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
    lines = report(looked_up)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.write(f"advisories: {len(looked_up)} of {len(found)} packages looked up, {len(lines)} findings\n")
    return 1 if lines else 0


def report(packages: list[dict[str, Any]]) -> list[str]:
    """A line for each advisory: package, version, id, and the versions that mend it."""
    return [
        f"{package['name']} {package['version']}: {advisory['id']}, "
        f"mended in {', '.join(advisory['fix_versions']) or 'no version'}"
        for package in packages
        for advisory in package["vulns"]
    ]


def unreached(reason: str, required: bool) -> int:
    sys.stderr.write(f"advisories: nothing was looked up: no vulnerability database can be reached ({reason})\n")
    return 1 if required else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "--required" in sys.argv[2:]))
