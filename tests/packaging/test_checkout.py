"""A checkout without symbolic links, as git makes on Windows and some archives do, is told in one line."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_links_that_are_files_are_told_before_anything_is_installed(tmp_path: Path) -> None:
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
    for path in (tmp_path / "src" / "dlx").iterdir():
        if path.is_symlink():
            target = path.readlink()
            path.unlink()
            path.write_text(str(target))
    done = subprocess.run([sys.executable, "setup.py", "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and not done.stdout
    assert len(done.stderr.splitlines()) == 1 and "core.symlinks=true" in done.stderr
