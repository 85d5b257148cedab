"""The attack suite's halves that need no run: a lie changes what is trained, and the table shows it."""

import json
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks import attacks
from benchmarks.harm import POLICIES
from tests.attacks.lies import LIES


def test_a_poisoned_payload_harms_the_mean_most(tmp_path: Path) -> None:
    app, file = Typer(), tmp_path / "rows.json"
    app.command()(attacks.main)
    chosen = ["--only", "honest", "--only", "poison", "--no-runs", "--harm-rounds", "3", "--json", str(file)]
    result = CliRunner().invoke(app, chosen)
    assert result.exit_code == 0, result.output
    honest, poison = json.loads(file.read_text())["rows"]
    assert honest["loss"].keys() == set(POLICIES)
    assert honest["loss"]["clip"] < poison["loss"]["clip"] < poison["loss"]["mean"]
    dropped, whole = poison["loss"]["clip+cosine"], honest["loss"]["clip+cosine"]
    assert dropped == pytest.approx(whole, rel=0.01), "what is dropped takes nothing from the others"
    assert "| `poison`" in result.output


def test_an_unknown_attack_is_named() -> None:
    app = Typer()
    app.command()(attacks.main)
    result = CliRunner().invoke(app, ["--only", "sabotage"])
    assert result.exit_code == 2 and "sabotage" in result.output


def test_every_lie_differs_from_honest_work() -> None:
    honest = LIES["honest"]
    for lie in LIES.values():
        same = lie.update is lie.end is None and not (lie.copies or lie.node or lie.bfloat16 or lie.skips(9))
        same = same and not lie.resets(1)
        same = same and (lie.rate, lie.loss, lie.lots(2, 4), lie.seen, lie.frozen("norm")) == (1, 1, 0, None, False)
        assert same == (lie in (honest, LIES["honest-bfloat16"])), lie.name
