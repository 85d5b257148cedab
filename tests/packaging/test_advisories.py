"""What the look at known vulnerabilities says, with pip-audit's answers played by a script."""

import json
import sys
from pathlib import Path

import pytest

from tests.packaging.advisories import PAGE, PINS, ROOT, answered, main


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


def page_with(folder: Path, mended_in: str) -> Path:
    page = folder / "page.md"
    page.write_text(f"| CVE-1 | `aiohttp` | {mended_in} | what | why | `tests/test_it.py::test_it` |\n")
    return page


@pytest.mark.parametrize("name", [{"id": "CVE-1"}, {"id": "PYSEC-1", "aliases": ["CVE-1"]}])
def test_what_the_page_answers_is_named_and_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: dict[str, object]
) -> None:
    bad = {"name": "aiohttp", "version": "3.0", "vulns": [{"fix_versions": ["3.1"], **name}]}
    assert main(answering(tmp_path, [bad]), required=False, page=page_with(tmp_path, "3.1")) == 0
    out = capsys.readouterr().out
    assert "docs/dependencies.md says why it does not reach a node" in out and "0 findings, 1 that the page" in out


@pytest.mark.parametrize("elsewhere", [{"name": "attrs"}, {"vulns": [{"id": "CVE-2", "fix_versions": []}]}])
def test_the_page_answers_for_one_advisory_of_one_package(tmp_path: Path, elsewhere: dict[str, object]) -> None:
    bad = {"name": "aiohttp", "version": "3.0", "vulns": [{"id": "CVE-1", "fix_versions": []}]} | elsewhere
    assert main(answering(tmp_path, [bad]), required=False, page=page_with(tmp_path, "3.1")) == 1


def test_a_row_goes_when_the_pin_is_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pins = tmp_path / "pins.txt"
    pins.write_text("aiohttp==3.1\n")
    good = {"name": "aiohttp", "version": "3.1", "vulns": []}
    assert main(answering(tmp_path, [good]), required=False, page=page_with(tmp_path, "3.1"), pins=pins) == 1
    assert "aiohttp 3.1 mends CVE-1: its row in docs/dependencies.md can go" in capsys.readouterr().out


def test_each_row_of_the_page_is_of_a_pin_that_is_not_mended_and_has_a_test() -> None:
    rows, pins = answered(PAGE.read_text()), PINS.read_text().splitlines()
    assert rows
    for row in rows:
        assert any(pin.startswith(f"{row.package}==") for pin in pins), row
        assert f"{row.package}=={row.mended_in}" not in pins, row
        file, name = row.test
        assert f"def {name}(" in (ROOT / file).read_text(), row
