"""What a stranger gets: sdist and wheel are built, installed into a clean environment, and used from a hostile folder.

`make wheel-test` runs it; minutes, because the environment is made anew. Prints one line for each thing that holds.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"
TORCH = next(line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch=="))
EXTRAS = "[train,chain,plot]"
MAN = sorted((ROOT / "docs" / "man").glob("*.1"))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dlx-wheel-") as name:
        work = Path(name)
        python = environment(work / "venv")
        wheel = build(work, python)
        clean = environment(work / "clean")
        install(clean, str(wheel))
        base_alone(clean, stranger(work / "base"))
        install(clean, TORCH)  # first and by its pin, as make demo does
        install(clean, f"{wheel}{EXTRAS}")
        trains(clean, stranger(work / "cwd"))


def build(work: Path, python: Path) -> Path:
    """The wheel, made from the sdist."""
    install(python, "build")
    run(python, "-m", "build", "--outdir", work / "dist", ROOT)
    (sdist,), (wheel,) = (work / "dist").glob("*.tar.gz"), (work / "dist").glob("*.whl")
    with tarfile.open(sdist) as archive:
        kept = [one for one in archive.getmembers() if "/src/dlx/" in one.name]
        links = [one.name for one in kept if one.issym() or one.islnk()]
        holds(
            "the sdist has files, not links",
            not links and any(one.name.endswith("/dlx/node/cli/app.py") for one in kept),
            links,
        )
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top = {name.partition("/")[0] for name in names}
    name = wheel.name.rsplit("-", 3)[0]
    holds("installed are dlx, its manual and its metadata", top == {"dlx", f"{name}.data", f"{name}.dist-info"}, top)
    manual = {one for one in names if one.startswith(f"{name}.data/")}
    holds("man finds the manual", {*manual} == {f"{name}.data/data/share/man/man1/{one.name}" for one in MAN}, manual)
    wanted = {"dlx/py.typed", "dlx/contracts/artifacts/TrainingLedger.json", "dlx/training/codecs/int4.py"}
    wanted |= {f"dlx/node/web/{name}" for name in ("templates/run.html", "static/page.js", "static/LICENSES.txt")}
    holds("the wheel has what it needs", wanted <= set(names), wanted - set(names))
    foreign = [name for name in names if {"tests", "benchmarks", "node_modules", "src"} & {*name.split("/")}]
    holds("neither tests nor benchmarks are in it", not foreign, foreign)
    return wheel


def base_alone(python: Path, cwd: Path) -> None:
    packages = run(python, "-m", "pip", "list", "--format=freeze", cwd=cwd).lower()
    heavy = [one for one in ("torch==", "nvidia", "pyarrow==", "matplotlib==", "py-evm==") if one in packages]
    holds("the base brings no torch", not heavy, heavy)
    holds("it says its version", "dlx-node 0." in run(python.with_name("dlx-node"), "--version", cwd=cwd))
    code = "import time; t = time.perf_counter(); import dlx; print(time.perf_counter() - t)"
    seconds = min(float(run(python, "-c", code, cwd=cwd)) for _ in range(3))
    holds("import dlx takes under 0.3 s", seconds < 0.3, seconds)
    where = run(python, "-c", "import dlx.training; print(dlx.training.__file__)", cwd=cwd)
    holds("a folder training/ does not shadow ours", "site-packages" in where, where)
    code = "import dlx.node.audit.outer, dlx.node.runs.pull, dlx.node.archive.peers"
    run(python, "-c", code, cwd=cwd)
    said = run(python.with_name("dlx-node"), "demo", cwd=cwd, code=3)
    holds("a missing extra is named", 'this needs the extra "train"' in said, said)


def trains(python: Path, cwd: Path) -> None:
    demo = ["demo", "--rounds", "1", "--replicas", "1", "--stages", "1", "--datadir", cwd / "demo"]
    said = run(python.with_name("dlx-node"), *demo, cwd=cwd)
    holds("a demo of one node trains and passes its audit", "PASS" in said, said)


def environment(folder: Path) -> Path:
    """The python of a new virtual environment."""
    run(Path(sys.executable), "-m", "venv", folder)
    return folder / "bin" / "python"


def stranger(folder: Path) -> Path:
    """A working folder with packages of the same names as our parts."""
    for name in ("training", "node", "ledger", "p2p", "contracts", "ground"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise ImportError('a folder of the user')\n")
    return folder


def install(python: Path, what: str) -> None:
    run(python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--constraint", CONSTRAINTS, what)


def run(program: Path, *arguments: object, cwd: Path | None = None, code: int = 0) -> str:
    """What the program prints; ends everything where its exit code is another."""
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != code:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def holds(what: str, true: bool, found: object = "") -> None:
    if not true:
        sys.exit(f"not true: {what} ({found})")
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
