"""The published average of a real history: pulled, verified, evaluated, cited."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlx.ledger.abi import checksum
from dlx.node.audit.sources.blobs import Blobs, Folder
from dlx.node.checkpoints.evaluation import evaluate
from dlx.node.checkpoints.pull import pull
from dlx.node.checkpoints.verify import verify
from dlx.node.home import citation
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.runs.create import _lineage
from dlx.node.runs.listing import read_provenance, read_sums, write_sums
from dlx.training.models import weights
from dlx.training.models.shapes import pieces, stage_shapes
from dlx.training.recipe.draft import DraftModel, DraftRetention
from dlx.training.recipe.recipe import Average
from tests.blob_folders import copied
from tests.history_builder import History, Network
from tests.node.command import dlx

pytest_plugins = ["tests.history_builder"]

Pull = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def history(history_network: Network) -> History:
    """3 rounds; the average of version 3 is that of 1, 2 and 3."""
    return history_network.run("average", average=Average(versions=3, every=1), retention=DraftRetention(every=1))


@pytest.fixture
def blobs(history: History, tmp_path: Path) -> Path:
    return copied(history, tmp_path / "blobs")


@pytest.fixture
def pulled(history: History, blobs: Path, tmp_path: Path) -> Pull:
    def go(name: str, version: int | None = None, averaged: bool | None = None) -> dict[str, Any]:
        client, sources = history.client(), [Folder(blobs, own=False)]
        out = tmp_path / name
        return pull(
            client.domain, history.view(), version, out, sources, lambda *what: None, lambda line: None, averaged
        )

    return go


def _mean(history: History, versions: list[int]) -> dict[str, np.ndarray]:
    """As anybody would write it: x += (V - x) / i in float32."""
    found: dict[str, np.ndarray] = {}
    for stage in range(2):
        shapes, names = stage_shapes(history.manifest, stage), [history.versions[stage, one] for one in versions]
        arrays = [weights.read_arrays(history.blobs / name.hex(), shapes) for name in names]
        for name, values in arrays[0].items():
            mean = values.copy()
            for number, each in enumerate(arrays[1:], 2):
                mean = mean + (each[name] - mean) * np.float32(1 / number)
            found |= {one.name: mean[one.place] for one in pieces(name, mean.shape)}
    return found


def _model(folder: Path, like: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    shapes = {name: one.shape for name, one in like.items()}
    return dict(weights.Stored(folder / "model.safetensors", shapes, exported=True))


def _verdicts(history: History, folder: Path, blobs: Path | None, work: Path) -> dict[str, str]:
    work.mkdir()
    sources = [] if blobs is None else [Folder(blobs, own=False)]
    some = Blobs(sources, work, lambda *what: None)
    findings = verify(folder, read_provenance(folder), history.client().domain, history.view(), some)
    return {one.check: one.verdict for one in findings}


def test_what_is_pulled_is_the_mean_to_the_bit_and_says_so(history: History, pulled: Pull, tmp_path: Path) -> None:
    found, expected = pulled("model"), _mean(history, [1, 2, 3])
    for name, values in _model(tmp_path / "model", expected).items():
        assert values.tobytes() == expected[name].tobytes(), name
    assert found["average"] == [1, 2, 3] == json.loads((tmp_path / "model" / "provenance.json").read_text())["average"]
    assert found["stages"][0]["weights"] == history.versions[0, 3].hex(), "what was sealed is still named"
    card = (tmp_path / "model" / "README.md").read_text()
    assert "@3/average" in card and "the versions 1, 2, 3" in card


def test_the_version_itself_can_still_be_had(history: History, pulled: Pull, tmp_path: Path) -> None:
    found = pulled("model", averaged=False)
    digest = hashlib.sha256((tmp_path / "model" / "model.safetensors").read_bytes()).hexdigest()
    assert found["average"] is None and found["model"] == digest
    expected = _mean(history, [3])
    assert all(np.array_equal(values, expected[name]) for name, values in _model(tmp_path / "model", expected).items())
    assert pulled("first", 1)["average"] is None, "there is nothing before it but the genesis"


def test_a_mean_comes_from_no_other_place(history: History, blobs: Path, tmp_path: Path) -> None:
    where = history.client().domain, history.view(), 3, tmp_path / "model", [Folder(blobs, own=False)]
    for averaged in (None, True):
        with pytest.raises(UsageFailure, match="name --sealed too"):
            pull(*where, lambda *what: None, lambda line: None, averaged, wanted="published")
    assert pull(*where, lambda *what: None, lambda line: None, False, wanted="published")["average"] is None


def test_a_member_that_nobody_keeps_is_replayed(history: History, pulled: Pull, blobs: Path, tmp_path: Path) -> None:
    whole = pulled("model")["checkpoint"]
    for stage in range(2):
        (blobs / history.versions[stage, 2].hex()).unlink()
    assert pulled("again")["checkpoint"] == whole
    for stage in range(2):
        (blobs / history.versions[stage, 1].hex()).unlink()
    assert pulled("from-genesis")["checkpoint"] == whole


def test_verify_computes_the_mean_anew(history: History, pulled: Pull, blobs: Path, tmp_path: Path) -> None:
    pulled("model")
    fine = dict.fromkeys(("files", "ledger", "manifest", "weights", "config"), "PASS")
    assert _verdicts(history, tmp_path / "model", blobs, tmp_path / "a") == fine
    nowhere = _verdicts(history, tmp_path / "model", None, tmp_path / "b")
    assert nowhere["weights"] == "WARN", "no seal has its hash: who lacks the versions cannot tell"


@pytest.mark.parametrize("lie", ["weights", "fewer", "sealed"])
def test_a_mean_that_is_none_is_found(history: History, pulled: Pull, blobs: Path, tmp_path: Path, lie: str) -> None:
    """Who publishes a checkpoint gains by passing off other weights, or the better one of two, as the run's."""
    pulled("model", averaged=False if lie == "sealed" else None)
    folder = tmp_path / "model"
    if lie == "weights":
        content = bytearray((folder / "model.safetensors").read_bytes())
        content[-1] ^= 1
        (folder / "model.safetensors").write_bytes(content)
    else:
        stated = json.loads((folder / "provenance.json").read_text())
        stated["average"] = [2, 3] if lie == "fewer" else [1, 2, 3]
        (folder / "provenance.json").write_text(json.dumps(stated, indent=2) + "\n")
    write_sums(folder)
    found = _verdicts(history, folder, blobs, tmp_path / "work")
    assert found["ledger" if lie == "fewer" else "weights"] == "FAIL"


def test_a_run_without_an_average_has_none(honest_history: History, pulled: Pull, tmp_path: Path) -> None:
    client, sources = honest_history.client(), [Folder(honest_history.blobs, own=False)]
    where = client.domain, honest_history.view(), 3, tmp_path / "model", sources
    with pytest.raises(Failure, match="has no average"):
        pull(*where, lambda *what: None, lambda line: None, averaged=True)
    assert pull(*where, lambda *what: None, lambda line: None)["average"] is None
    stated = json.loads((tmp_path / "model" / "provenance.json").read_text()) | {"average": [2, 3]}
    (tmp_path / "model" / "provenance.json").write_text(json.dumps(stated))
    write_sums(tmp_path / "model")
    assert _verdicts(honest_history, tmp_path / "model", honest_history.blobs, tmp_path / "work")["ledger"] == "FAIL"


def test_only_what_the_run_publishes_is_published(history: History, pulled: Pull, tmp_path: Path) -> None:
    """Else every pull of it would find another list, and say that it differs."""
    found = pulled("mean")
    assert read_sums(tmp_path / "mean", history.view(), 3).hex() == found["checkpoint"]
    pulled("sealed", averaged=False)
    with pytest.raises(Failure, match="the run publishes means"):
        read_sums(tmp_path / "sealed", history.view(), 3)


def test_both_are_evaluated(history: History, blobs: Path, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    found = evaluate(
        history.client().domain, history.view(), None, tmp_path / "work", [Folder(blobs, own=False)], None, 4, "cpu",
        lambda *what: None, lambda line: None,
    )  # fmt: skip
    assert found["average"]["versions"] == [1, 2, 3] and found["average"]["model"] != found["model"]
    assert found["average"]["heldout"]["loss"] != found["heldout"]["loss"]


def test_no_run_starts_from_a_mean_as_if_it_were_a_version(pulled: Pull, tmp_path: Path) -> None:
    pulled("model")
    heard: list[str] = []
    draft: Any = type("Draft", (), {"model": DraftModel(source=str(tmp_path / "model"))})()
    assert _lineage(draft, heard.append) is None and "pull --sealed" in heard[0]


def test_a_citation_says_which_it_is(history: History, tmp_path: Path) -> None:
    cited = citation.Citation(10, checksum(b"\xab" * 20), "0x" + "cd" * 32, 100, average=True)
    assert citation.parse(str(cited)) == cited and str(cited).endswith("@100/average")
    client = history.client()
    of = citation.Citation(client.chain_id, history.ledger, "0x" + history.run.hex(), 3)
    where = ["--rpc-url", history.rpc_url, "--blobs", history.blobs, "--datadir", tmp_path]
    said = dlx("pull", str(of), "--out", tmp_path / "one", *where).stdout
    assert f"cite as {of}\n" in said, "who names a version gets that version"
    said = dlx("pull", str(of._replace(average=True)), "--out", tmp_path / "two", *where).stdout
    assert f"cite as {of}/average" in said and "the mean of the versions 1, 2, 3" in said
    refused = dlx("pull", f"{of}/average", "--sealed", "--out", tmp_path / "three", *where, code=2)
    assert "is a mean" in refused.stderr
