"""The attack suite's halves that need no run: a lie changes what is trained, and the table shows it."""

import json
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks import attacks, likeness
from benchmarks.harm import POLICIES, Company, proven
from benchmarks.trainings import Setting, prepare
from tests.attacks.acts import NeverLied, prove
from tests.attacks.lies import LIES, Lie

SETTING = Setting(attacks.SOURCE, hidden=32, layers=2, sequence=32, batch=4)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("harm")
    prepare(SETTING, folder)
    return folder


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


@pytest.mark.parametrize("name", LIES)
def test_what_every_liar_sends_differs_from_its_honest_work(name: str, prepared: Path) -> None:
    proven(LIES[name], SETTING, 10, prepared)


def test_a_liar_that_does_honest_work_only_is_no_attack(prepared: Path) -> None:
    idle = Lie(name="idle", about="says that it lies", skips=lambda done: done >= 10)
    with pytest.raises(NeverLied, match="idle: what it sends is 0 from"):
        proven(idle, SETTING, 10, prepared)
    with pytest.raises(NeverLied, match="node-1 took part and never lied"):
        prove(idle, {"node-0": [None], "node-1": []})
    with pytest.raises(NeverLied, match="what node-0 sent is 0\\.5 from its honest work"):
        prove(LIES["sign-flip"], {"node-0": [0.5, 0.5, 2.0]})
    prove(LIES["sign-flip"], {"node-0": [2.0, 2.0]})
    prove(LIES["honest"], {"node-0": []})


def test_honest_payloads_are_alike_and_within_the_reach_of_a_step(prepared: Path) -> None:
    found = likeness.Found()
    likeness.look(Company(), SETTING, 0, 3, prepared, found)
    assert found.pairs == 3 * 6 and found.dropped == found.clipped == 0
    assert 0 < found.lowest < 1 and 0 < found.longest < 1
