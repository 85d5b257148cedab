"""What an evaluation costs, and which one a run gets that names none."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from dlx.training.recipe.advice import warnings
from dlx.training.recipe.draft import Draft, DraftModel, draft_from_toml
from dlx.training.recipe.evaluation import (
    MOST_COST,
    MOST_ENDED,
    activations_size,
    chosen,
    cost,
    ended_by_liars,
    evaluators,
)
from dlx.training.recipe.recipe import Evaluation, Stop
from dlx.training.recipe.strict import ManifestError
from tests.training.conftest import tiny_draft

TOML = """
name = "evaluated"
rounds = 20
stages = [[0, 1]]
[model.config]
model_type = "llama"
vocab_size = 256
hidden_size = 16
intermediate_size = 24
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 2
max_position_embeddings = 32
[data]
source = ["*.txt"]
sequence_length = 16
batch_size = 8
"""


@pytest.fixture
def draft() -> Draft:
    tiny = tiny_draft([(0, 1), (1, 3)], rounds=1000, min_replicas=4, max_replicas=8)  # 4 steps of 4 samples
    return replace(tiny, model=DraftModel(tiny.model.config))


def test_a_forward_pass_is_a_third_of_training(draft: Draft) -> None:
    assert cost(draft, Evaluation(every=0)) == 0
    assert cost(draft, Evaluation(every=2, samples=12, replicas=4)) == pytest.approx(12 / (3 * 2 * 16))
    assert cost(draft, Evaluation(every=2, samples=12, replicas=2)) == pytest.approx(12 / (3 * 2 * 16) / 2)
    assert cost(draft, Evaluation(every=2, samples=12, replicas=64)) == pytest.approx(12 / (3 * 2 * 16))
    assert activations_size(draft, 3) == 3 * 16 * 16 * 4
    assert activations_size(replace(draft, precision="bfloat16"), 3) == 3 * 16 * 16 * 2


@pytest.mark.parametrize("rounds", [10, 50, 200, 1000, 100_000])
@pytest.mark.parametrize("held_out", [5, 100, 1_000_000])
def test_what_is_chosen_costs_less_than_a_hundredth(draft: Draft, rounds: int, held_out: int) -> None:
    draft = replace(draft, rounds=rounds)
    found = chosen(draft, held_out)
    assert cost(draft, found) <= MOST_COST and found.samples <= max(held_out, 64)
    assert rounds // 500 <= found.every <= rounds and found.every
    assert found.every < 10 or found.every % draft.retention.every == 0, "the versions are kept"


def test_where_nothing_can_be_afforded_or_held_out_nothing_is_evaluated(draft: Draft) -> None:
    assert chosen(replace(draft, rounds=1), 100) == chosen(draft, 0) == Evaluation(every=0)


@pytest.mark.parametrize("rounds", [30, 200, 1000, 100_000])
@pytest.mark.parametrize("patience", [2, 5, 100])
def test_what_is_chosen_can_tell_a_stop(draft: Draft, rounds: int, patience: int) -> None:
    dear = replace(draft, rounds=rounds, data=replace(draft.data, batch_size=64), stop=Stop(patience))
    found = chosen(dear, 1_000_000)
    assert cost(dear, found) <= MOST_COST
    assert 2 * patience * found.every < rounds
    assert found.every < 10 or found.every % draft.retention.every == 0, "the versions are kept"
    assert (found.every > 0) == (2 * patience < rounds)


@pytest.mark.parametrize(
    ("replicas", "drawn", "patience", "measured"),  # by simulations of 100 evaluations: decision 33
    [(8, 3, 5, 0.39), (8, 3, 10, 0.07), (8, 4, 5, 0.93), (32, 3, 10, 0.23), (32, 9, 5, 0.01), (8, 5, 3, 0)],
)
def test_the_part_of_runs_that_liars_end_is_bounded(
    draft: Draft, replicas: int, drawn: int, patience: int, measured: float
) -> None:
    asked = replace(draft, min_replicas=replicas, max_replicas=replicas, stop=Stop(patience))
    bound = ended_by_liars(asked, 100, drawn)
    assert measured <= bound <= 8 * measured, bound


@pytest.mark.parametrize("most", [1, 3, 4, 8, 16, 64])
@pytest.mark.parametrize("patience", [2, 3, 5, 10])
def test_a_quarter_of_liars_ends_no_run_that_chooses_its_evaluation(draft: Draft, most: int, patience: int) -> None:
    asked = replace(draft, min_replicas=1, max_replicas=most, stop=Stop(patience))
    found = chosen(asked, 1000)
    assert found.replicas % 2 and found.replicas <= max(3, most // 2 + 1)
    assert ended_by_liars(asked, 1000 // found.every, found.replicas) <= MOST_ENDED
    assert evaluators(replace(asked, stop=None), 1000) == 3 == chosen(replace(asked, stop=None), 1000).replicas
    assert not warnings(replace(asked, evaluation=found, invited=True)), "whoever is let in may be judged by nobody"


def test_who_lets_liars_end_a_run_is_warned(draft: Draft) -> None:
    asked = replace(draft, stop=Stop(), evaluation=Evaluation(every=10, samples=4))
    (warning,) = warnings(asked)
    assert "evaluation.replicas 3: if 25% of the replicas lie" in warning and "up to 100% of such runs" in warning
    assert warning.endswith("5 replicas would bear them")
    assert "4: if 25%" in warnings(replace(asked, evaluation=replace(asked.evaluation, replicas=4)))[0]
    assert not warnings(replace(asked, evaluation=replace(asked.evaluation, replicas=5)))
    assert not warnings(replace(asked, stop=None)) and not warnings(replace(asked, min_replicas=1, max_replicas=3))


def test_a_stop_without_an_evaluation_is_refused_where_none_could_tell_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    path = tmp_path / "run.toml"
    path.write_text(TOML + "[stop]\npatience = 9\n")
    assert draft_from_toml(path).stop == Stop(9)
    path.write_text(TOML + "[stop]\npatience = 10\n")
    with pytest.raises(ManifestError, match=r"stop.patience: expected .* \(20 rounds\) to be at most 19"):
        draft_from_toml(path)
    path.write_text(TOML.replace("batch_size = 8", "batch_size = 1") + "[stop]\npatience = 9\n")
    with pytest.raises(ManifestError, match=r"evaluation: missing: .* 1% of the work.* pays for no sample"):
        draft_from_toml(path)


def test_a_dear_evaluation_is_warned_of_and_one_that_never_comes_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    path = tmp_path / "run.toml"
    path.write_text(TOML + "[evaluation]\nevery = 1\nsamples = 64\n")
    (warning,) = warnings(draft_from_toml(path))
    assert "evaluation.samples 64 every 1 rounds take 27% of the work, more than 1%" in warning
    path.write_text(TOML + "[evaluation]\nevery = 21\n")
    with pytest.raises(ManifestError, match=r"evaluation.every: expected at most rounds \(20\), or 0: none, got 21"):
        draft_from_toml(path)
    path.write_text(TOML)
    assert draft_from_toml(path).evaluation is None and not warnings(draft_from_toml(path))
