"""A version whose held-out loss members state on the ledger, as everybody sees it who reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dlx
from dlx.node.audit.sources.blobs import Blobs
from dlx.node.audit.sources.places import Places
from dlx.node.checkpoints.pull import pull_run
from dlx.node.checkpoints.verify import verify
from dlx.node.home.diagnostics import Diagnosis
from dlx.node.runs.held_out import read_held_out
from dlx.node.web.reading.reader import Reader
from dlx.training.recipe.recipe import Audit, Evaluation, Outer
from tests.history_builder import History, Network, embedded_chain
from tests.node.command import dlx as command

COUNT, LOSSES = 64, {1: (5.0, 5.5), 2: (4.5, 4.25)}  # of each evaluated version, what the two members say


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    """Three rounds; versions 1 and 2 have what both members of the last stage say, version 3 what nobody says."""
    folder = tmp_path_factory.mktemp("held-out")
    with embedded_chain(folder / "chain") as url:
        evaluation = Evaluation(every=1, samples=4, replicas=2)
        network = Network(url, folder, rounds=3)
        made = network.run("held-out", outer=Outer(delay=0), evaluation=evaluation, audit=Audit(draw_after=1))
        last = sorted(account for account, (_, stage) in made.slots.items() if stage == 1)
        for version, losses in LOSSES.items():
            for account, loss in zip(last, losses, strict=True):
                network.clients[account].evaluate(made.run, version, round(loss * COUNT * 1e6), COUNT, b"\1" * 32)
        yield made


@pytest.fixture
def pulled(history: History, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    out, places = tmp_path / "model", Places(own=(history.blobs,))
    return out, pull_run(history.client(), history.view(), 2, out, places, lambda line: None, lambda line: None)


def findings(history: History, folder: Path, work: Path) -> dict[str, Diagnosis]:
    from dlx.node.audit.sources.blobs import Folder
    from dlx.node.runs.listing import read_provenance

    work.mkdir(exist_ok=True)
    blobs = Blobs([Folder(history.blobs, own=False)], work, lambda *what: None)
    client = history.client()
    return {one.check: one for one in verify(folder, read_provenance(folder), client.domain, history.view(), blobs)}


def test_the_record_is_the_lower_median_of_what_drawn_members_say(history: History) -> None:
    record = read_held_out(history.client(), history.view(), history.manifest)
    assert {version: one.loss for version, one in record.items() if one.loss} == {1: 5.0, 2: 4.25}
    assert {len(one.said) for version, one in record.items() if version < 3} == {2}


def test_history_api_and_page_say_it(history: History, tmp_path: Path) -> None:
    run = dlx.connect(history.rpc_url, history.ledger, blobs=[history.blobs]).run(history.run.hex())
    assert [row["held_out"] for row in run.history()] == [5.0, 4.25, None]
    rows = run.accounts()
    assert len(rows) == 4 and sum(row["improvement"] or 0.0 for row in rows) == pytest.approx(0.75)
    assert rows[0]["improvement"] == pytest.approx(0.75 / 4), "all did as much between the two"
    assert all(row["drawn"] is not None and row["honest"] is None for row in rows)
    reader = Reader(history.client(), (history.blobs,), "--datadir x")
    page = reader.run_page(history.run)
    assert page.held_out and (page.held_out.version, page.held_out.loss) == (2, 4.25)
    assert [row.held_out for row in page.rows] == [None, 4.25, 5.0]
    assert sum(row.improvement or 0.0 for row in page.board.accounts) == pytest.approx(0.75)
    reader.close()


def test_pull_writes_what_was_said_beside_the_version(history: History, pulled: tuple[Path, dict[str, Any]]) -> None:
    folder, found = pulled
    said = json.loads((folder / "held_out.json").read_text())
    assert said == found["held_out"] and (said["version"], said["loss"], said["per"]) == (2, 4.25, "byte")
    assert sorted(said["said"].values()) == [4.25, 4.5] and said["missing"] == []
    assert "held_out.json" not in (folder / "SHA256SUMS").read_text()
    assert "| held-out loss | [held_out.json](held_out.json)" in (folder / "README.md").read_text()


def test_verify_compares_it_with_the_ledger(
    history: History, pulled: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, _ = pulled
    found = findings(history, folder, tmp_path / "work")
    assert {one.verdict for one in found.values()} == {"PASS"} and "2 accounts said" in found["held-out"].text
    path = folder / "held_out.json"
    honest = json.loads(path.read_text())
    account = min(honest["said"])
    lies: list[tuple[dict[str, Any] | str, str]] = [
        (honest | {"loss": 1.0}, "lower median"),
        (honest | {"said": honest["said"] | {account: 1.0}}, f"lets {account} say"),
        (honest | {"said": {"0x" + "11" * 20: 4.25}}, "does not have"),
        (honest | {"version": 1}, "another version"),
        ("{", "cannot be read"),
        ("x" * 100_000, "no small file"),
    ]
    for lie, why in lies:
        path.write_text(lie if isinstance(lie, str) else json.dumps(lie))
        result = findings(history, folder, tmp_path / "work")
        assert (result["held-out"].verdict, why in result["held-out"].text) == ("FAIL", True), result["held-out"]
        assert result["files"].verdict == "PASS", "it is in no list"
    path.unlink()
    assert "held-out" not in findings(history, folder, tmp_path / "work"), "a version is whole without"


def test_the_commands_show_it(history: History, tmp_path: Path) -> None:
    chain = ("--rpc-url", history.rpc_url, "--ledger", history.ledger, history.run.hex())
    said = command("pull", *chain, "--round", "1", "--blobs", history.blobs, "--out", tmp_path / "out").stdout
    assert "held-out loss 5.0000 nats per byte (said by 2 of 2), training loss" in said
