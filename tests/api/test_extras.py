"""What each extra is needed for, with its packages blocked: base commands work, others name the extra."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from dlx.node.home.extras import EXTRAS, install
from tests.history_builder import History
from tests.patience import patient

pytest_plugins = ["tests.history_builder"]

ROOT = Path(__file__).parents[2]


def without(extras: tuple[str, ...], *arguments: object, code: int = 0) -> tuple[str, str]:
    """What `dlx-node` prints where the packages of these extras are not installed."""
    blocked = [package for extra in extras for package in EXTRAS[extra]]
    script = f"import sys; sys.modules |= dict.fromkeys({blocked!r}); "
    script += "from dlx.node.cli.app import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=patient(170),
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


@pytest.mark.slow
def test_the_base_alone_audits_and_pulls(honest_history: History, tmp_path: Path) -> None:
    where = ["--rpc-url", honest_history.rpc_url, "--ledger", honest_history.ledger, honest_history.run.hex()]
    where += ["--blobs", honest_history.blobs, "--datadir", tmp_path]
    report, _ = without((*EXTRAS,), "audit", *where)
    assert "verdict: ledger PASS, outer steps PASS" in report and "replay" in report
    without((*EXTRAS,), "pull", *where, "--out", tmp_path / "model")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").num_parameters() > 0
    assert AutoTokenizer.from_pretrained(tmp_path / "model").encode("a")


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("train", ["demo"]),
        ("train", ["start"]),
        ("train", ["run", "create", "--manifest", "run.toml"]),
        ("train", ["run", "plan", "--manifest", str(ROOT / "docs/107b.toml")]),
        ("chain", ["demo"]),
        ("chain", ["chain"]),
        ("plot", ["demo"]),
        ("train", ["evaluate"]),
        ("evaluate", ["evaluate", "--tasks", "arc_easy"]),
        ("web", ["web"]),
    ],
)
def test_a_command_says_which_extra_it_needs(extra: str, arguments: list[str], tmp_path: Path) -> None:
    if arguments[0] not in ("run", "demo"):
        arguments = [*arguments, "--datadir", str(tmp_path / "home")]
    _, error = without((extra,), *arguments, code=3)
    assert re.fullmatch(rf'dlx-node: this needs the extra "{extra}": pip install .*\[{extra}\]"\n', error)
    assert not (tmp_path / "home" / "chain").exists()


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, 'pip install ".[web]" in a clone of the source, or "FILE.whl[web]" of its wheel'),
        ({"url": "file:///a%20b/dlx", "dir_info": {"editable": True}}, 'pip install --editable "/a b/dlx[web]"'),
        ({"url": "file:///b/dlx", "dir_info": {}}, 'pip install "/b/dlx[web]"'),
        ({"url": "file:///b/dlx_node-0.1.0-py3-none-any.whl"}, 'pip install "/b/dlx_node-0.1.0-py3-none-any.whl[web]"'),
        (
            {"url": "https://example.org/dlx", "vcs_info": {"vcs": "git", "commit_id": "ab"}},
            'pip install "dlx-node[web] @ git+https://example.org/dlx"',
        ),
        ({"nonsense": 1}, 'pip install ".[web]" in a clone of the source, or "FILE.whl[web]" of its wheel'),
    ],
)
def test_an_extra_comes_from_where_the_rest_came_from(
    origin: object, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No index is asked for a name that nobody may have registered there."""
    text = None if origin is None else json.dumps(origin)
    found = SimpleNamespace(read_text=lambda name: {"direct_url.json": text}[name])
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: found)
    assert install("web") == command


def test_a_plot_says_which_extra_it_needs(honest_history: History, tmp_path: Path) -> None:
    where = ["--rpc-url", honest_history.rpc_url, "--ledger", honest_history.ledger, honest_history.run.hex()]
    where += ["--datadir", tmp_path]
    _, error = without(("plot",), "history", *where, "--plot", tmp_path / "loss.png", code=3)
    assert '[plot]"' in error
    assert "5.5000" in without((*EXTRAS,), "history", *where)[0]


def test_the_base_takes_no_torch_and_the_extra_only_a_tested_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not [one for one in project["dependencies"] if one.startswith("torch")]
    assert "torch>=2.13,<2.14" in project["optional-dependencies"]["train"]
