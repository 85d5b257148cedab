"""A checkout without symbolic links, as git makes on Windows and some archives do, is told in one line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "Makefile"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    shutil.copytree(ROOT / "src", tmp_path / "src", symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
    for path in (tmp_path / "src" / "dlx").iterdir():
        if path.is_symlink():
            target = path.readlink()
            path.unlink()
            path.write_text(str(target))
    return tmp_path


def test_links_that_are_files_are_told_before_anything_is_installed(checkout: Path) -> None:
    done = subprocess.run([sys.executable, "setup.py", "--version"], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 1 and not done.stdout
    assert len(done.stderr.splitlines()) == 1 and "core.symlinks=true" in done.stderr
    alone = {name: value for name, value in os.environ.items() if not name.startswith("M")}  # no flags of a make above
    done = subprocess.run(["make", "demo"], cwd=checkout, capture_output=True, text=True, env=alone)
    assert done.returncode == 2 and "core.symlinks=true" in done.stderr
    assert not (checkout / ".venv").exists()


def test_the_api_says_so_too(checkout: Path) -> None:
    environment = os.environ | {"PYTHONPATH": "src"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import dlx"], cwd=checkout, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 1 and "core.symlinks=true" in done.stderr.splitlines()[-1]
