"""The fast tests that are nearest to a change, for as long as there is time: `make quick` runs them.

Nearest are the tests that changed, then those of a changed module's name, then those that import one.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath

ROOT = Path(__file__).parents[1]
SECONDS = 30  # after this no test begins
ELSEWHERE = ("tests/benchmarks/", "tests/docs/")  # `make test` does not run them either


def main() -> None:
    base = sys.argv[1] if len(sys.argv) > 1 else _base()
    changed = _changed(base)
    tests = {name: (ROOT / name).read_text(encoding="utf-8") for name in _git("ls-files", "-co", "tests/**test_*.py")}
    chosen = nearest(changed, {name: text for name, text in tests.items() if not name.startswith(ELSEWHERE)})
    print(f"quick: {len(changed)} files changed since {base}; {len(chosen)} files of tests are near", flush=True)
    if chosen:
        parallel = ["--numprocesses", "3", "--dist", "loadfile", "--no-loadscope-reorder"]
        limits = ["-m", "not slow", "--begin-within", str(SECONDS)]
        sys.exit(subprocess.call([sys.executable, "-m", "pytest", *parallel, *limits, *chosen], cwd=ROOT))


def nearest(changed: Sequence[str], tests: dict[str, str]) -> list[str]:
    """Of tests, by path and with their text, those that have to do with changed files: the nearest first."""
    paths = [PurePath(name) for name in changed if name.endswith(".py")]
    stems = {f"test_{path.stem}" for path in paths}
    modules = {_module(path) for path in paths}
    near = dict[str, int]()
    for name, text in tests.items():
        if name in changed:
            near[name] = 0
        elif PurePath(name).stem in stems:
            near[name] = 1
        elif modules & _imported(text):
            near[name] = 2
    return sorted(near, key=lambda name: near[name])


def _module(path: PurePath) -> str:
    """Its name for `import`: all but tests and benchmarks lie under `dlx`."""
    parts = path.with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else parts if parts[0] in ("tests", "benchmarks") else ("dlx", *parts)
    return ".".join(parts).removesuffix(".__init__")


def _imported(text: str) -> set[str]:
    """Modules that a text may import; of `from a import b` both `a` and `a.b`."""
    names = set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def _base() -> str:
    """Where this branch left the published one, or the last commit where nothing is published."""
    found = subprocess.run(["git", "merge-base", "HEAD", "@{upstream}"], cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip()[:12] or "HEAD~1"


def _changed(base: str) -> list[str]:
    """Of commits since then, of what is not committed, and new."""
    return [*_git("diff", "--name-only", "--diff-filter=d", base), *_git("ls-files", "--others", "--exclude-standard")]


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


if __name__ == "__main__":
    main()
