"""The short version of the convergence benchmark: what the long one prints and writes, on a tiny model."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks import convergence
from benchmarks.convergence import ROWS
from benchmarks.trainings import Setting, tokens_of
from dlx.training.recipe.presets import PRESETS

KEYS = {"method", "seeds", "loss", "gap_percent", "bytes_per_round", "traffic_ratio", "steps", "seconds"}


def test_methods_are_compared_at_equal_tokens(tmp_path: Path) -> None:
    out, result = tmp_path / "out", tmp_path / "result.json"
    chosen = ["--only", "all-reduce AdamW", "--only", "sparse", "--workers", "1", "--source", argparse.__file__]
    command = [sys.executable, "-m", "benchmarks.convergence", "--quick", "--out", str(out), "--json", str(result)]

    first = subprocess.run([*command, *chosen], capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    rows = {row["method"]: row for row in json.loads(result.read_text())["rows"]}
    assert set(rows) == {"all-reduce AdamW", "sparse"}
    assert all(row.keys() >= KEYS for row in rows.values())
    assert {row["steps"] for row in rows.values()} == {60}
    assert rows["all-reduce AdamW"]["traffic_ratio"] == 1 and rows["all-reduce AdamW"]["gap_percent"] == 0
    ratio, bytes_ratio = rows["sparse"]["traffic_ratio"], rows["sparse"]["all_bytes_ratio"]
    assert ratio > 300  # 5 steps, and 0.44 bits a value instead of 32
    # A payload goes to 3 others, a ring takes 1.5 gradients; of so small a model gossip and chain are the most.
    assert 1 / bytes_ratio > 2 * 1.03 / ratio and bytes_ratio < 0.2 * ratio
    assert all(row["loss"] < 5 for row in rows.values()), "untrained it is 5.5"
    assert (out / "quick/convergence.png").stat().st_size > 10_000
    for kept in (out / "quick/jobs").glob("*.json"):
        trained = json.loads(kept.read_text())
        assert trained["curve"][-1][2] == trained["loss"], "a curve ends where the table says"
    assert "sparse" in (out / "quick/table.txt").read_text()

    app = Typer()
    app.command()(convergence.main)
    for more, said in {
        ("--replicas", "3"): "does not divide",
        ("--only", "dense"): "no method has dense in its name",
        ("--set", "inner.beta2"): "inner.beta2=0.99, got inner.beta2",
        ("--set", "data.seed=1"): "got data.seed=1",
        ("--set", "plan.inner_steps=0"): "expected a number above 0, got 0",
        ("--set", "inner.beta2=2"): "inner.beta2: ",
        ("--set", "outer.sideways=1"): "sideways",
    }.items():
        refused = CliRunner().invoke(app, [*command[3:], *chosen, *more])
        assert refused.exit_code == 2 and said in " ".join(refused.output.replace("│", "").split()), refused.output
    again = CliRunner().invoke(app, [*command[3:], *chosen])
    assert json.loads(result.read_text())["rows"] == list(rows.values()), "an interrupted run goes on from the folder"
    assert again.exit_code == 0, again.output


def test_what_is_set_wins_over_what_a_row_states_and_is_searched() -> None:
    setting, (row,) = Setting("*.py"), [row for row in ROWS if row.method.name == "sparse"]
    tokens = 100 * tokens_of(setting)
    plain = convergence.job(row.method, setting, row.start, 0, tokens)
    changes = ["inner.matrix_lr=0.004", "inner.beta2=0.95", "outer.nesterov=false", "plan.inner_steps=1"]
    method = convergence._changed(row.method, changes)
    changed = convergence.job(method, setting, row.start, 0, tokens)
    assert (plain.lr, changed.lr) == (pytest.approx(0.008), 0.004) and changed.steps == plain.steps == 100
    assert plain.method.inner | {"beta2": 0.95} == changed.method.inner
    assert changed.method.outer == plain.method.outer | {"nesterov": False}
    assert changed.method.plan == plain.method.plan | {"inner_steps": 1}


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("dilocox", "dilocox"),
        ("sparse", "sparse"),
        ("Shampoo, 216 of 4,096", "shampoo"),
        ("ternary, H 20", "ternary"),
    ],
)
def test_the_rows_are_the_presets(name: str, preset: str) -> None:
    (row,) = [row for row in ROWS if row.method.name == name]
    measured = convergence.job(row.method, Setting("*.py"), row.start, 0, 1)
    inner = measured.method.inner | {"lr" if preset == "dilocox" else "matrix_lr": measured.lr}
    for key, value in PRESETS[preset]["inner"].items():
        assert inner[key] == (value if isinstance(value, str) else pytest.approx(value, rel=0.01)), key
    assert measured.method.outer == PRESETS[preset]["outer"] and measured.method.plan == PRESETS[preset]["plan"]


def test_what_a_delay_costs_is_told_of_rows_that_there_are() -> None:
    methods = {row.method.name: row.method for row in ROWS}
    for late, prompt in convergence.DELAYED.items():
        outer = methods[late].outer
        assert outer["delay"] == 1 and outer["alpha"] == outer.get("lr", 1.0)
        assert methods[late].plan == methods[prompt].plan and "delay" not in methods[prompt].outer


def test_tokens_for_a_loss_follow_from_the_mean_losses_of_two_lengths() -> None:
    found = [{"steps": 400, "loss": loss} for loss in (0.9, 1.1)]
    shorter = [{"steps": 100, "loss": loss} for loss in (1.8, 2.2)]  # half of it with four times the tokens
    assert convergence._tokens(found, shorter, 0.5) == pytest.approx(400)
    assert convergence._tokens(found, shorter, 1.0) == pytest.approx(100)
    assert convergence._tokens(found, [], 0.5) is None and convergence._tokens(found, found, 0.5) is None
