"""How good a version is: the held-out loss with no more shards than it takes, and tasks of lm-evaluation-harness."""

import json
import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dlx.node.audit.sources.blobs import Folder
from dlx.node.checkpoints.evaluation import Tasks, evaluate
from dlx.node.home.errors import Failure, UsageFailure
from dlx.training.data.shards import Dataset, parse_data_manifest
from dlx.training.models.evaluate import heldout_loss_of_stages
from tests.history_builder import History
from tests.node.command import dlx

pytest_plugins = ["tests.history_builder"]

TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {file}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
doc_to_choice: "{{{{choices}}}}"
metric_list:
  - metric: acc
metadata:
  version: 2.5
"""


def _evaluate(
    history: History, folder: Path, work: Path, version: int | None = None, tasks: Tasks | None = None
) -> dict[str, Any]:
    client = history.client()
    work.mkdir()
    return evaluate(
        client.domain, history.view(), version, work, [Folder(folder, own=False)], tasks, 64, "cpu",
        lambda *what: None, lambda line: None,
    )  # fmt: skip


def test_the_held_out_loss_is_that_of_the_version_with_its_shards_alone(
    honest_history: History, folder: Path, tmp_path: Path
) -> None:
    data = parse_data_manifest((folder / honest_history.manifest.data.manifest.sha256).read_bytes())
    for shard in data.train:
        (folder / shard.sha256).unlink(missing_ok=True)
    found = _evaluate(honest_history, folder, tmp_path / "work")
    assert (found["run"], found["version"]) == ("0x" + honest_history.run.hex(), 3)
    assert [one["weights"] for one in found["stages"]] == [honest_history.versions[s, 3].hex() for s in range(2)]
    heldout = found["heldout"]
    files = [folder / honest_history.versions[stage, 3].hex() for stage in range(2)]
    known = heldout_loss_of_stages(honest_history.manifest, files, Dataset(data, folder))
    assert heldout["loss"] == pytest.approx(known)
    assert heldout["perplexity"] == pytest.approx(math.exp(heldout["loss"]))
    assert heldout["per"] == "byte" and heldout["samples"] >= 1
    assert _evaluate(honest_history, folder, tmp_path / "genesis", 0)["heldout"]["loss"] != heldout["loss"]
    for shard in data.heldout:
        (folder / shard.sha256).write_bytes(b"x" * shard.size)
    with pytest.raises(Failure, match="held-out data cannot be had"):
        _evaluate(honest_history, folder, tmp_path / "lost")


def test_a_person_reads_the_loss_and_what_it_is_of(honest_history: History, tmp_path: Path) -> None:
    where = ["--rpc-url", honest_history.rpc_url, "--ledger", honest_history.ledger, honest_history.run.hex()]
    where += ["--blobs", honest_history.blobs, "--datadir", tmp_path, "--device", "cpu"]
    said = dlx("evaluate", *where, "--samples", "2").stdout
    assert "version 3" in said and honest_history.versions[1, 3].hex() in said
    assert "nats per byte, perplexity" in said and "in 2 samples" in said
    assert "are of --tasks" in dlx("evaluate", *where, "--limit", "3", code=2).stderr


def _task(folder: Path, name: str, rows: Sequence[dict[str, Any]]) -> Path:
    folder.mkdir()
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / f"{name}.yaml").write_text(TASK.format(name=name, file=folder / "rows.jsonl"))
    return folder


@pytest.mark.skipif(find_spec("lm_eval") is None, reason="needs the extra evaluate")
def test_a_task_of_ones_own_needs_no_internet(honest_history: History, folder: Path, tmp_path: Path) -> None:
    rows = [{"question": f"{n} and", "choices": [" a", " b"], "answer": n % 2} for n in range(6)]
    own = _task(tmp_path / "tasks", "pairs", rows)
    found = _evaluate(honest_history, folder, tmp_path / "work", tasks=Tasks(["pairs"], [own], None, 2))
    task = found["tasks"]["pairs"]
    assert (task["version"], task["samples"]) == (2.5, 6)
    assert task["metrics"]["acc"]["value"] == pytest.approx(0.5, abs=0.5) and task["metrics"]["acc"]["stderr"] >= 0
    assert found["version"] == 3 and found["harness"]
    with pytest.raises(UsageFailure, match=r"--tasks pears: lm_eval [0-9.]+ knows no such task"):
        _evaluate(honest_history, folder, tmp_path / "none", tasks=Tasks(["pears"], [own], None, 1))
    (own / "rows.jsonl").unlink()
    with pytest.raises(Failure, match="the tasks cannot be run"):
        _evaluate(honest_history, folder, tmp_path / "lost", tasks=Tasks(["pairs"], [own], None, 1))


@pytest.mark.skipif(find_spec("lm_eval") is None, reason="needs the extra evaluate")
def test_what_tasks_give_is_signed_and_others_see_it(honest_history: History, tmp_path: Path) -> None:
    rows = [{"question": f"{n} and", "choices": [" a", " b"], "answer": n % 2} for n in range(2)]
    own, home = _task(tmp_path / "tasks", "pairs", rows), tmp_path / "home"
    dlx("init", "--datadir", home, "--insecure-devnet")
    where = ["--rpc-url", honest_history.rpc_url, "--ledger", honest_history.ledger, honest_history.run.hex()]
    where += ["--blobs", honest_history.blobs, "--datadir", home]
    tasks = ["--tasks", "pairs", "--include-path", own, "--device", "cpu", "--publish", "--json"]
    published = json.loads(dlx("evaluate", *where, *tasks).stdout)["published"]
    assert published["standing"] == "no member" and published["tasks"]["pairs"]["samples"] == 2
    assert (home / "blobs" / published["blob"]).is_file()
    said = dlx("pull", *where, "--out", tmp_path / "model").stdout
    assert f"scores {published['told']}" in said
