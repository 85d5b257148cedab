"""What pyproject.toml cannot say: the project's public addresses, and its README as a package index shows it, where a
relative link leads nowhere. Both follow from `source` in [tool.dlx-node]; without one there are none."""

import re
import sys
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCE, TAG = SETTINGS["tool"]["dlx-node"]["source"].rstrip("/"), "v" + SETTINGS["project"]["version"]
_RELATIVE = r"(?!https?://|#)([^)\"\s]+)"

PACKAGES = ("contracts", "ground", "ledger", "node", "p2p", "training")

if any(not (ROOT / "src" / "dlx" / name).is_dir() for name in PACKAGES):
    sys.exit(
        "the links in src/dlx lead to no folders: this checkout has no symbolic links. Clone with "
        "`git clone -c core.symlinks=true` (on Windows inside WSL), or unpack with a program that keeps links."
    )


def absolute(text: str) -> str:
    """Markdown with its relative links and images at this version's tag."""
    text = re.sub(rf"(!\[[^\]]*\]\(|<img src=\"){_RELATIVE}", rf"\g<1>{SOURCE}/raw/{TAG}/\g<2>", text)
    return re.sub(rf"((?<!!)\[[^\]]*\]\(){_RELATIVE}", rf"\g<1>{SOURCE}/blob/{TAG}/\g<2>", text)


readme = (ROOT / "README.md").read_text()
setup(
    long_description=absolute(readme) if SOURCE else readme,
    long_description_content_type="text/markdown",
    project_urls={
        "Source": SOURCE,
        "Documentation": f"{SOURCE}/tree/{TAG}/docs",
        "Changelog": f"{SOURCE}/blob/{TAG}/CHANGELOG.md",
        "Issues": f"{SOURCE}/issues",
    }
    if SOURCE
    else {},
)
