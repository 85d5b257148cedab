"""What a fresh checkout lacks is said before anything is downloaded: symbolic links, which git on Windows and some
archives leave out, and packages of the system."""

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
    done = make("demo", checkout, os.environ["PATH"])
    assert done.returncode == 2 and "core.symlinks=true" in done.stderr
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("missing", ["gcc", "python3"])
def test_packages_that_are_missing_are_named(tmp_path: Path, missing: str) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "src/dlx/node").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    for tool in {"gcc", "python3"} - {missing}:
        place = os.path.realpath(sys.executable) if tool == "python3" else shutil.which(tool)
        (tmp_path / "bin" / tool).symlink_to(place or pytest.skip(f"missing: {tool}"))
    done = make(".venv/bin/pip", tmp_path, str(tmp_path / "bin"))
    assert done.returncode == 2 and "apt-get install make git gcc libgmp-dev" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_an_environment_that_was_left_half_made_is_made(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "src/dlx/node").mkdir(parents=True)
    half = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / ".venv")]
    subprocess.run(half, check=True)
    assert make(".venv/bin/pip", tmp_path, os.environ["PATH"]).returncode == 0
    assert (tmp_path / ".venv/bin/pip").exists()


def make(target: str, folder: Path, path: str) -> subprocess.CompletedProcess[str]:
    """Without the flags of a make above, and with the tools of this path alone."""
    alone = {name: value for name, value in os.environ.items() if not name.startswith("M")} | {"PATH": path}
    program = shutil.which("make") or "make"
    return subprocess.run([program, target], cwd=folder, capture_output=True, text=True, env=alone, check=False)


def test_the_api_says_so_too(checkout: Path) -> None:
    environment = os.environ | {"PYTHONPATH": "src"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import dlx"], cwd=checkout, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 1 and "core.symlinks=true" in done.stderr.splitlines()[-1]
