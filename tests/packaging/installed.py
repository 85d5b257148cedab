"""What a stranger gets: a wheel, installed into a clean environment, and used from a hostile folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.patience import patient

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"
TORCH = next(line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch=="))
EXTRAS = "[train,chain,plot]"


def check(wheel: Path, work: Path) -> None:
    """Prints one line for each thing that holds; ends everything at the first that does not."""
    clean = environment(work / "clean")
    install(clean, str(wheel))
    base_alone(clean, stranger(work / "base"))
    install(clean, TORCH)  # first and by its pin, as make demo does
    install(clean, f"{wheel}{EXTRAS}")
    trains(clean, stranger(work / "cwd"))


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
    code = "import dlx.node.audit.outer, dlx.node.checkpoints.pull, dlx.node.audit.sources.peers"
    run(python, "-c", code, cwd=cwd)
    said = run(python.with_name("dlx-node"), "audit", "--example", cwd=cwd)
    holds("the base alone audits the example", "verdict: ledger PASS, outer steps PASS" in said, said)
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


def install(python: Path, *what: str) -> None:
    run(python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--constraint", CONSTRAINTS, *what)


def run(program: Path, *arguments: object, cwd: Path | None = None, code: int = 0) -> str:
    """What the program prints; ends everything where its exit code is another."""
    command = [str(program), *map(str, arguments)]
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=patient(900), check=False, env=ours)
    if done.returncode != code:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def holds(what: str, true: bool, found: object = "") -> None:
    if not true:
        sys.exit(f"not true: {what} ({found})")
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()
