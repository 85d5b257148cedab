"""Finds deadlines of tests that do not know how slow the machine is: `make check` runs it.

A wait of 10 s or more is a deadline: `patient(seconds)` of tests/patience.py says how long it is here. A shorter one
is a pause between two looks, or has to end in vain.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

LEAST_SECONDS = 10
FOLDER = Path(__file__).parent
WAITS = {"communicate", "fail_after", "join", "result", "wait", "wait_for"}  # their last argument is how long
TIMED = {
    *WAITS,
    "AsyncClient",
    "Client",
    "NotebookClient",
    "create_connection",
    "get",
    "post",
    "request",
    "run",
    "until",
}
KEYWORDS = {"timeout", "seconds"}
IMPATIENT = {"gate.py", "packaging/advisories.py"}  # run without what tests/patience.py needs


def main() -> None:
    lines = [
        f"{path.relative_to(FOLDER.parent)}:{line}: a wait of {seconds:g} s: write patient({seconds:g})"
        for path in sorted(FOLDER.rglob("*.py"))
        if path.relative_to(FOLDER).as_posix() not in IMPATIENT
        for line, seconds in impatient(path.read_text(encoding="utf-8"))
    ]
    sys.exit("\n".join(lines) or None)


def impatient(text: str) -> list[tuple[int, float]]:
    """Lines and seconds of a module's waits that are plain numbers, or names that it gives to one."""
    tree = ast.parse(text)
    named = {
        target.id: _seconds(one.value, {})
        for one in tree.body
        if isinstance(one, ast.Assign)
        for target in one.targets
        if isinstance(target, ast.Name)
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = ((call.lineno, _seconds(value, named)) for call in calls for value in _limits(call))
    return [(line, seconds) for line, seconds in found if seconds >= LEAST_SECONDS]


def _limits(call: ast.Call) -> Iterator[ast.expr]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    takes = 2 if name in ("wait", "wait_for") else 1  # of `join(9, 4, 0)` no argument is a time
    if name in WAITS and 0 < len(call.args) <= takes:
        yield call.args[-1]
    if name in TIMED:
        yield from (keyword.value for keyword in call.keywords if keyword.arg in KEYWORDS)


def _seconds(value: ast.expr, named: Mapping[str, float]) -> float:
    """Of a plain number or such a name; 0 of all else."""
    if isinstance(value, ast.Constant) and isinstance(value.value, (int, float)):
        return float(value.value)
    return named.get(value.id, 0.0) if isinstance(value, ast.Name) else 0.0


if __name__ == "__main__":
    main()
