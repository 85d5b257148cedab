"""What the look at known vulnerabilities says, with pip-audit's answers played by a script."""

import json
import sys
from pathlib import Path

import pytest

from tests.packaging.advisories import main


def answering(folder: Path, dependencies: list[dict[str, object]]) -> str:
    """A program that answers as pip-audit does."""
    answer = folder / "answer.json"
    answer.write_text(json.dumps({"dependencies": dependencies, "fixes": []}))
    program = folder / "pip-audit"
    program.write_text(f"#!{sys.executable}\nprint(open({str(answer)!r}).read())\n")
    program.chmod(0o755)
    return str(program)


def test_a_vulnerable_pin_is_named_with_what_mends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = {"name": "aiohttp", "version": "3.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.1"]}]}
    good = {"name": "attrs", "version": "26.1.0", "vulns": []}
    assert main(answering(tmp_path, [bad, good]), required=False) == 1
    out = capsys.readouterr().out
    assert out.splitlines() == [
        "aiohttp 3.0: PYSEC-1, mended in 3.1",
        "advisories: 2 of 2 packages looked up, 1 findings",
    ]


def test_no_findings(tmp_path: Path) -> None:
    assert main(answering(tmp_path, [{"name": "attrs", "version": "26.1.0", "vulns": []}]), required=True) == 0


@pytest.mark.parametrize("required", [False, True])
def test_where_no_database_is_reached_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], required: bool
) -> None:
    program = answering(tmp_path, [{"name": "attrs", "skip_reason": "Dependency not found on PyPI"}])
    assert main(program, required) == required
    assert "nothing was looked up" in capsys.readouterr().err
