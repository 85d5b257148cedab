"""The dry run of a release: what a package index and a stranger would get, made and looked at. docs/release.md.

`make release-check` runs it; minutes, because environments are made anew. Prints one line for each thing that holds.
With `--final` what only a release needs has to be there as well: an address, and the version's entry in the changelog.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from email.parser import BytesParser
from pathlib import Path

from tests.packaging import installed
from tests.packaging.installed import environment, holds, install, run
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = PROJECT["project"]["version"]
STAND_IN = "https://git.example.org/us/dlx-node"  # for the public address, as long as there is none
STATIC = "node/web/static"
OURS = {"page.js", "style.css", "icon.svg", "LICENSES.txt"}  # in STATIC; all else there is others'
ALLOWED = (
    r"dlx/([a-z0-9_]+/)*[a-z0-9_]+\.py",
    r"dlx/py\.typed",
    r"dlx/contracts/artifacts/[A-Za-z]+\.json",
    rf"dlx/{STATIC}/[A-Za-z0-9.]+\.(js|css|svg|txt)",
    r"dlx/node/web/templates/[a-z_]+\.html",
    r"dlx/node/audit/example/([a-z]+\.jsonl?|blobs/[0-9a-f]{64})",
    rf"dlx_node-{re.escape(VERSION)}\.data/data/share/man/man1/dlx-node[a-z-]*\.1",
    rf"dlx_node-{re.escape(VERSION)}\.dist-info/(METADATA|WHEEL|RECORD|entry_points\.txt|top_level\.txt|licenses/LICENSE)",
)


def main() -> None:
    final = sys.argv[1:] == ["--final"]
    changelog(final)
    vendored()
    with tempfile.TemporaryDirectory(prefix="dlx-release-") as name:
        work = Path(name)
        python = environment(work / "venv")
        install(python, "build", "twine")
        source = tree(work / "source", final)
        sdist, wheel = build(python, source, work / "dist")
        _, again = build(python, tree(work / "again", final), work / "again-dist")
        holds("two builds give the same wheel, byte for byte", digest(wheel) == digest(again), wheel.name)
        contents(sdist, wheel)
        metadata(wheel)
        run(python, "-m", "twine", "check", "--strict", sdist, wheel)
        holds("a package index takes its metadata (twine check --strict)", True)
        installed.check(wheel, work)


def changelog(final: bool) -> None:
    top = next(re.finditer(r"^## \[?([^\]\s]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE))[1]
    named = (VERSION,) if final else (VERSION, "Unreleased")
    holds(f"the changelog begins with {VERSION}{'' if final else ', or what becomes it'}", top in named, top)


def vendored() -> None:
    """Every file of others is named in LICENSES.txt, with its package and version, and none that is not there."""
    folder = ROOT / STATIC
    named = re.findall(r"^== (\S+(?:, \S+)*): .+ \d+\.\d+", (folder / "LICENSES.txt").read_text(), re.MULTILINE)
    files = {name for line in named for name in line.split(", ")}
    there = {path.name for path in folder.iterdir()} - OURS
    holds("each file of others has its licence beside it", files == there, files ^ there)


def tree(folder: Path, final: bool) -> Path:
    """A copy of what git knows, as it is here; in a dry run with an address."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=PATIENCE
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).exists() or (ROOT / name).is_symlink():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    settings = folder / "pyproject.toml"
    if not PROJECT["tool"]["dlx-node"]["source"]:
        if final:
            sys.exit("not true: the source's public address is set (pyproject.toml: [tool.dlx-node] source)")
        settings.write_text(settings.read_text().replace('source = ""', f'source = "{STAND_IN}"'))
    return folder


def build(python: Path, source: Path, dist: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel made from it."""
    when = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True)
    os.environ["SOURCE_DATE_EPOCH"] = when.stdout.strip()
    run(python, "-m", "build", "--outdir", dist, source)
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    return sdist, wheel


def contents(sdist: Path, wheel: Path) -> None:
    with tarfile.open(sdist) as archive:
        kept = [one for one in archive.getmembers() if "/src/dlx/" in one.name]
    links = [one.name for one in kept if one.issym() or one.islnk()]
    whole = any(one.name.endswith("/dlx/node/cli/app.py") for one in kept)
    holds("the sdist has files, not links", whole and not links, links)
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    foreign = [name for name in names if not any(re.fullmatch(one, name) for one in ALLOWED)]
    holds("nothing is in the wheel but what belongs there", not foreign, foreign)
    parts = ("node", "p2p", "ledger", "training", "ground")
    wanted = {f"dlx/{path.relative_to(ROOT)}" for part in parts for path in (ROOT / part).rglob("*.py")}
    wanted |= {f"dlx/{path.relative_to(ROOT)}" for path in (ROOT / "node" / "web").glob("*/*") if path.suffix != ".py"}
    example = (ROOT / "node" / "audit" / "example").rglob("*")
    wanted |= {f"dlx/{path.relative_to(ROOT)}" for path in example if path.is_file()}
    wanted |= {f"dlx/contracts/artifacts/{path.name}" for path in (ROOT / "contracts" / "artifacts").glob("*.json")}
    manual = f"dlx_node-{VERSION}.data/data/share/man/man1"
    wanted |= {"dlx/py.typed", "dlx/api.py"} | {f"{manual}/{path.name}" for path in (ROOT / "docs/man").glob("*.1")}
    wanted = {name for name in wanted if "__pycache__" not in name}
    holds("the wheel has all that it needs, and the manual", wanted <= names, wanted - names)


def metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        raw = archive.read(f"dlx_node-{VERSION}.dist-info/METADATA")
    found = BytesParser().parsebytes(raw)
    holds("the wheel is of the version that pyproject.toml names", found["Version"] == VERSION, found["Version"])
    urls = dict(one.split(", ", 1) for one in found.get_all("Project-URL", ()))
    named = {"Source", "Documentation", "Changelog", "Issues"} == set(urls)
    described = bool(found["Keywords"] and found["Classifier"])
    holds("it has addresses, keywords, classifiers, a licence", named and described, urls)
    readme = str(found.get_payload())
    targets = re.findall(r"!?\[[^\]]*\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"", readme)
    relative = [one or other for one, other in targets if not re.match(r"https://|#", one or other)]
    images = [one for pair in targets for one in pair if one.endswith(".png")]
    holds("its description has absolute links and images only", bool(images) and not relative, relative)
    if STAND_IN in raw.decode():
        sys.stdout.write(f"({STAND_IN} stands for the public address)\n")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
