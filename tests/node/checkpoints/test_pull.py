"""Pulling versions of a real history from folders of every kind, and from peers."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dlx.node.audit.sources.blobs import Folder
from dlx.node.checkpoints.pull import pull
from dlx.node.home.errors import Failure
from dlx.training.models import weights
from dlx.training.models.stages import StageModel, stage_shapes
from tests.blob_folders import flip
from tests.history_builder import History

pytest_plugins = ["tests.history_builder"]


@pytest.fixture
def run_pull(honest_history: History, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """`run_pull(version, [folders], wrong=[])` into tmp_path/model; leaves nothing else behind."""
    client, view = honest_history.client(), honest_history.view()

    def go(version: int | None, folders: list[Path], wrong: list[str] | None = None) -> dict[str, Any]:
        before = set(tmp_path.iterdir())
        said = [] if wrong is None else wrong
        sources = [Folder(path, own=False) for path in folders]
        out = tmp_path / "model"
        try:
            return pull(client.domain, view, version, out, sources, said.append, lambda line: None)
        finally:
            assert set(tmp_path.iterdir()) - before <= {out}

    return go


def test_the_newest_version_loads_and_says_where_it_comes_from(
    honest_history: History, folder: Path, tmp_path: Path, run_pull: Callable[..., dict[str, Any]]
) -> None:
    found = run_pull(None, [folder])
    out = tmp_path / "model"
    assert found.pop("checkpoint") == hashlib.sha256((out / "SHA256SUMS").read_bytes()).hexdigest()
    assert subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=out, capture_output=True).returncode == 0
    assert set((out / "SHA256SUMS").read_text().split()[1::2]) == {path.name for path in out.iterdir()} - {"SHA256SUMS"}
    assert found.pop("published") == []
    assert json.loads((out / "provenance.json").read_text()) == found
    assert (found["run"], found["version"]) == ("0x" + honest_history.run.hex(), 3)
    assert found["loss"] == pytest.approx(4.9)
    sealed = {e.stage: e for e in _seals(honest_history) if e.round == 2}
    for stage, entry in enumerate(found["stages"]):
        assert entry["weights"] == honest_history.versions[stage, 3].hex()
        assert entry["transaction"] == "0x" + sealed[stage].at.tx.hex()
        assert entry["seal"] == "0x" + sealed[stage].digest.hex()
        assert entry["block"] == sealed[stage].at.block
    _assert_same_logits(honest_history, 3, out)


def test_an_older_version_and_the_genesis_can_be_pulled(
    honest_history: History, folder: Path, tmp_path: Path, run_pull: Callable[..., dict[str, Any]]
) -> None:
    found = run_pull(0, [folder])
    assert found["loss"] is None and found["stages"][0]["seal"] is None
    _assert_same_logits(honest_history, 0, tmp_path / "model")
    shutil.rmtree(tmp_path / "model")
    assert run_pull(1, [folder])["stages"][1]["weights"] == honest_history.versions[1, 1].hex()


def test_weights_that_somebody_keeps_take_nothing_else(
    honest_history: History, folder: Path, tmp_path: Path, run_pull: Callable[..., dict[str, Any]]
) -> None:
    view = honest_history.view()
    for stage in range(2):
        (folder / view.momentum(stage, 3).hex()).unlink()
        for payload in honest_history.payloads[stage, 2]:
            (folder / payload.hex()).unlink()
    run_pull(3, [folder])
    _assert_same_logits(honest_history, 3, tmp_path / "model")


def test_wrong_weights_are_named_and_a_good_copy_is_used(
    honest_history: History, folder: Path, tmp_path: Path, run_pull: Callable[..., dict[str, Any]]
) -> None:
    bad = Path(shutil.copytree(folder, tmp_path / "bad"))
    digest = honest_history.versions[1, 3]
    flip(bad, digest)
    wrong: list[str] = []
    run_pull(3, [bad, folder], wrong)
    assert len(wrong) == 1 and f"{bad / digest.hex()} has wrong bytes for {digest.hex()}" in wrong[0]
    _assert_same_logits(honest_history, 3, tmp_path / "model")


def test_a_version_that_nobody_keeps_is_rebuilt_from_payloads(
    honest_history: History, folder: Path, tmp_path: Path, run_pull: Callable[..., dict[str, Any]]
) -> None:
    for (_, version), digest in honest_history.versions.items():
        if version:
            (folder / digest.hex()).unlink()
    run_pull(2, [folder])
    _assert_same_logits(honest_history, 2, tmp_path / "model")


def test_weights_that_are_wrong_everywhere_are_rebuilt_too(
    honest_history: History, folder: Path, tmp_path: Path, run_pull: Callable[..., dict[str, Any]]
) -> None:
    flip(folder, honest_history.versions[0, 3])
    run_pull(3, [folder])
    _assert_same_logits(honest_history, 3, tmp_path / "model")


def test_what_can_be_neither_fetched_nor_rebuilt_fails_and_leaves_nothing(
    honest_history: History, folder: Path, tmp_path: Path, run_pull: Callable[..., dict[str, Any]]
) -> None:
    (folder / honest_history.versions[0, 3].hex()).unlink()
    payload = honest_history.payloads[0, 2][0].hex()
    (folder / payload).unlink()
    with pytest.raises(Failure, match=f"stage 0, round 2.*{payload}"):
        run_pull(3, [folder])
    assert not (tmp_path / "model").exists()


def test_impossible_wishes_are_refused_in_one_line(
    honest_history: History, folder: Path, tmp_path: Path, run_pull: Callable[..., dict[str, Any]]
) -> None:
    with pytest.raises(Failure, match=r"no version .* yet.*choose 0 to 3"):
        run_pull(4, [folder])
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine").touch()
    with pytest.raises(Failure, match="already exists"):
        run_pull(3, [folder])


def _seals(history: History) -> list[Any]:
    client = history.client()
    return [e for e in client.poll(client.feed(history.run)).events if type(e).__name__ == "Sealed"]


def _assert_same_logits(history: History, version: int, folder: Path) -> None:
    """transformers' unsplit model gives what the stages give."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.arange(16)[None] * 17 % 256
    hidden = ids
    with torch.inference_mode():
        for stage in range(len(history.manifest.stages)):
            part = StageModel(history.manifest, stage)
            shapes = stage_shapes(history.manifest, stage)
            part.load_state_dict(weights.read(history.blobs / history.versions[stage, version].hex(), shapes))
            hidden = part(hidden)
        assert torch.equal(model(ids).logits, hidden)
