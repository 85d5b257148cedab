"""Folders of a run that trains an adapter: pulled for PEFT or merged, verified, and never taken for one another."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from dlx.node.audit.sources.blobs import Blobs, Folder
from dlx.node.checkpoints.pull import pull
from dlx.node.checkpoints.verify import verify
from dlx.node.home.errors import Failure
from dlx.node.runs.listing import read_provenance, read_sums, write_sums
from dlx.training.models.model_files import MERGED, Form
from dlx.training.recipe.draft import draft_from_toml
from dlx.training.recipe.recipe import Adapter
from dlx.training.recipe.strict import ManifestError
from tests.history_builder import History, Network

pytest_plugins = ["tests.history_builder"]

ALONE = Form()


@pytest.fixture(scope="module")
def history(history_network: Network) -> History:
    return history_network.run("adapter", adapter=Adapter(rank=2, alpha=4, base="org/tiny"))


@pytest.fixture(scope="module")
def pulled(history: History, tmp_path_factory: pytest.TempPathFactory) -> dict[Form, Path]:
    """The newest version: for PEFT, and merged."""
    found, client, view = {}, history.client(), history.view()
    for form in (ALONE, MERGED):
        found[form] = tmp_path_factory.mktemp("pulled") / "model"
        sources = [Folder(history.blobs, own=False)]
        pull(client.domain, view, 3, found[form], sources, lambda *what: None, lambda line: None, form=form)
    return found


@pytest.fixture
def verdicts(history: History, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Check -> verdict; without the base among the `blobs` that can be had, unless it is asked for."""

    def go(folder: Path, base: bool = True) -> dict[str, str]:
        blobs, work = tmp_path / f"blobs {base}", tmp_path / f"work {base}"
        shutil.copytree(history.blobs, blobs, dirs_exist_ok=True)
        work.mkdir(exist_ok=True)
        for one in () if base else history.manifest.base:
            (blobs / one.sha256).unlink()
        some = Blobs([Folder(blobs, own=False)], work, lambda *what: None)
        domain, view = history.client().domain, history.view()
        return {one.check: one.verdict for one in verify(folder, read_provenance(folder), domain, view, some)}

    return go


def test_peft_gives_what_the_merged_model_gives(history: History, pulled: dict[Form, Path], tmp_path: Path) -> None:
    alone, merged = (json.loads((pulled[form] / "provenance.json").read_text()) for form in (ALONE, MERGED))
    assert (alone["merged"], merged["merged"]) == (False, True)
    assert alone["base"] == merged["base"] == [one.sha256 for one in history.manifest.base]
    assert json.loads((pulled[ALONE] / "adapter_config.json").read_text())["base_model_name_or_path"] == "org/tiny"
    assert "PeftModel" in (pulled[ALONE] / "README.md").read_text()

    client, sources = history.client(), [Folder(history.blobs, own=False)]
    out = tmp_path / "base"  # version 0 is the base
    pull(client.domain, history.view(), 0, out, sources, lambda *what: None, lambda line: None, form=MERGED)
    ids = torch.arange(24).view(2, 12)
    whole = AutoModelForCausalLM.from_pretrained(pulled[MERGED])
    base = AutoModelForCausalLM.from_pretrained(out)
    first = base(ids).logits
    loaded = PeftModel.from_pretrained(base, str(pulled[ALONE]))
    torch.testing.assert_close(loaded(ids).logits, whole(ids).logits)
    assert not torch.allclose(first, whole(ids).logits)


def test_both_folders_are_what_the_ledger_says(
    pulled: dict[Form, Path], verdicts: Callable[..., dict[str, str]]
) -> None:
    for folder in pulled.values():
        assert set(verdicts(folder).values()) == {"PASS"}
    assert set(verdicts(pulled[ALONE], base=False).values()) == {"PASS"}, "the base is not needed for that"
    without = verdicts(pulled[MERGED], base=False)
    assert without.pop("weights") == "WARN" and set(without.values()) == {"PASS"}


@pytest.mark.parametrize("form", [ALONE, MERGED], ids=["alone", "merged"])
def test_weights_that_nobody_sealed_are_found(
    form: Form, pulled: dict[Form, Path], verdicts: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(pulled[form], tmp_path / "model"))
    (weights,) = folder.glob("*.safetensors")
    content = bytearray(weights.read_bytes())
    content[-3] ^= 1
    weights.write_bytes(content)
    write_sums(folder)
    assert verdicts(folder)["weights"] == "FAIL"


def test_a_run_publishes_its_adapter(history: History, pulled: dict[Form, Path]) -> None:
    assert read_sums(pulled[ALONE], history.view(), 3)
    with pytest.raises(Failure):
        read_sums(pulled[MERGED], history.view(), 3)


def test_a_new_run_starts_from_the_merged_folder_alone(pulled: dict[Form, Path], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("text")
    draft: dict[str, Any] = {}
    for form, folder in pulled.items():
        path = tmp_path / "run.toml"
        path.write_text(
            f'name = "next"\nrounds = 2\nstages = [[0, 2]]\nmodel = {{source = "{folder}"}}\n'
            'data = {source = ["text.txt"], sequence_length = 16, batch_size = 4}\n[adapter]\nrank = 4\n'
        )
        if form == ALONE:
            with pytest.raises(ManifestError, match="an adapter alone: merge it with its base"):
                draft_from_toml(path)
        else:
            draft[folder.name] = draft_from_toml(path)
    assert len(draft) == 1
