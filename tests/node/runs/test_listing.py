"""Publishing a version, and telling a true checkpoint from a false one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlx.ledger.client import LedgerClient
from dlx.ledger.deployment import fund
from dlx.ledger.keys import account_of
from dlx.node.audit.sources.blobs import Folder
from dlx.node.checkpoints.pull import pull
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.runs.listing import publish, read_sums
from tests.blob_folders import copied
from tests.history_builder import History, Network

pytest_plugins = ["tests.history_builder"]

OUTSIDER = b"\x0f" * 32


@pytest.fixture
def history(history_network: Network) -> History:
    """Read-only but for what is published."""
    return history_network.run("published")


@pytest.fixture
def pulled(history: History) -> Callable[[int | None, Path], dict[str, Any]]:
    """`pulled(version, out)`, with what the ledger says by then."""
    client = history.client()

    def go(version: int | None, out: Path) -> dict[str, Any]:
        sources = [Folder(history.blobs, own=False)]
        return pull(client.domain, history.view(), version, out, sources, lambda *_: None, lambda line: None)

    return go


def writer(history: History, key: bytes) -> LedgerClient:
    client = LedgerClient(history.rpc_url, history.ledger, key)
    client.connect()
    return client


def test_whoever_pulls_sees_who_tells_the_truth(
    history: History, pulled: Callable[[int | None, Path], dict[str, Any]], tmp_path: Path
) -> None:
    honest, liar = (writer(history, key) for key in list(history.keys.values())[:2])
    made = publish(honest, history.view(), 2, "ipfs://true", None, pulled)
    liar.publish_checkpoint(history.run, 2, b"F" * 32, "https://\x1b[2Jfalse")  # a member, with another model behind it
    found = pulled(2, tmp_path / "model")
    assert [(one["account"], one["uri"], one["same"]) for one in found["published"]] == [
        (honest.account, "ipfs://true", True),
        (liar.account, "https://\ufffd[2Jfalse", False),
    ]
    assert made["checkpoint"] == found["checkpoint"] and made["version"] == 2
    assert pulled(1, tmp_path / "older")["published"] == []


def test_a_folder_is_published_only_as_what_it_is(
    history: History, pulled: Callable[[int | None, Path], dict[str, Any]], tmp_path: Path
) -> None:
    client, view = writer(history, next(iter(history.keys.values()))), history.view()
    found = pulled(None, tmp_path / "model")
    made = publish(client, view, None, "ipfs://x", tmp_path / "model", pulled)
    assert (made["version"], made["checkpoint"]) == (3, found["checkpoint"])
    with pytest.raises(Failure, match="is not version 2 of run"):
        publish(client, view, 2, "ipfs://x", tmp_path / "model", pulled)
    with pytest.raises(Failure, match="no folder that `dlx-node pull` wrote"):
        read_sums(tmp_path, view, 3)
    for change in ("model.safetensors", "extra.py"):
        folder = Path(shutil.copytree(tmp_path / "model", tmp_path / f"with-other-{change}"))
        with (folder / change).open("ab") as file:
            file.write(b"\0")
        said = "has .* bytes, those of the run" if change.startswith("model") else "not those that its SHA256SUMS lists"
        with pytest.raises(Failure, match=said):
            publish(client, view, 3, "ipfs://x", folder, pulled)


def test_who_may_not_publish_is_told_before_anything_is_pulled(
    history: History, pulled: Callable[[int | None, Path], dict[str, Any]]
) -> None:
    fund(history.rpc_url, account_of(OUTSIDER))
    with pytest.raises(Failure, match="only the run's creator and its members may"):
        publish(writer(history, OUTSIDER), history.view(), None, "ipfs://x", None, pulled)
    member = writer(history, next(iter(history.keys.values())))
    for uri in ("", "two words", "line:\nbreak", "no-scheme", "/a/path", "x:" + "x" * 2047):
        with pytest.raises(UsageFailure, match="--uri: expected at most 2,048 bytes like https://"):
            publish(member, history.view(), None, uri, None, pulled)


def test_without_the_runs_tokenizer_nothing_is_compared_or_published(
    history: History, pulled: Callable[[int | None, Path], dict[str, Any]], tmp_path: Path
) -> None:
    client, view = writer(history, next(iter(history.keys.values()))), history.view()
    client.publish_checkpoint(history.run, 2, b"F" * 32, "ipfs://x")
    blobs = copied(history, tmp_path / "blobs")
    (blobs / history.manifest.data.manifest.sha256).unlink()
    sources = [Folder(blobs, own=False)]

    def without(version: int | None, out: Path) -> dict[str, Any]:
        return pull(client.domain, history.view(), version, out, sources, lambda *_: None, lambda line: None)

    found = without(2, tmp_path / "model")
    assert found["checkpoint"] is None and [one["same"] for one in found["published"]] == [None]
    assert not (tmp_path / "model" / "SHA256SUMS").exists()
    with pytest.raises(Failure, match="nobody has the run's tokenizer"):
        publish(client, view, 2, "ipfs://x", None, without)
    with pytest.raises(Failure, match="no folder that `dlx-node pull` wrote"):
        publish(client, view, 2, "ipfs://x", tmp_path / "model", without)
