"""The Python examples of the guides and of the API's docstrings, run as they stand against a small real history."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dlx
from dlx import api
from tests.history_builder import History, Network, embedded_chain

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    folder = tmp_path_factory.mktemp("docs")
    with embedded_chain(folder / "chain") as url:
        yield Network(url, folder, rounds=2).run("guides")


def examples(guide: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / guide).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("guide", ["agent.md", "auditor.md"])
def test_the_examples_run(
    guide: str, history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my-blobs").symlink_to(history.blobs)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"rpc_url": history.rpc_url, "address": history.ledger, "run": history.run.hex()}
    (example,) = examples(guide)
    exec(compile(example, guide, "exec"), names)
    if guide == "agent.md":
        assert names["found"]["version"] == 2 and len(names["rows"]) == 2
        assert "guides 2 of 2 finished" in capsys.readouterr().out
        assert names["model"].num_parameters() > 0
    else:
        assert not names["report"].failed


def test_the_docstrings_examples_run(history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = dlx.connect(history.rpc_url, history.ledger, blobs=[history.blobs])
    names = {"rpc_url": history.rpc_url, "address": history.ledger, "ledger": ledger, "run": ledger.run()}
    found = doctest.testmod(api, extraglobs=names, optionflags=doctest.ELLIPSIS)
    assert found.attempted > 0 and found.failed == 0
