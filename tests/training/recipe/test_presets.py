import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from dlx.training.recipe.advice import FINE_TUNING, stable_below, warnings
from dlx.training.recipe.draft import draft_from_toml
from dlx.training.recipe.recipe import Adapter, Outer
from dlx.training.recipe.strict import ManifestError
from tests.training.recipe.test_families import CASES

PAPER = Outer(lr=0.7, momentum=0.9, nesterov=True, delay=1)


def draft(folder: Path, text: str = "", tables: str = "") -> Path:
    path = folder / "run.toml"
    (folder / "text.txt").write_text("some text")
    path.write_text(
        f"""
name = "preset"
rounds = 4
stages = [[0, 1]]
{text}
[model.config]
model_type = "llama"
vocab_size = 256
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 2
max_position_embeddings = 32
[data]
source = ["text.txt"]
sequence_length = 32
batch_size = 2
{tables}"""
    )
    return path


def test_a_preset_stands_for_its_keys_and_stated_keys_win(tmp_path: Path) -> None:
    found = draft_from_toml(draft(tmp_path, 'preset = "dilocox"', "[plan]\ninner_steps = 50\n"))
    assert (found.inner.optimiser, found.codec.name) == ("adamw", "lowrank")
    assert found.outer == Outer(lr=0.7, momentum=0.5, nesterov=True, delay=1, alpha=0.7)
    assert stable_below(found.outer) == 1
    assert (found.plan.inner_steps, found.plan.rank) == (50, 32)
    assert found.adaptive is not None and found.adaptive.inner_steps == 4 * 50
    assert found.rounds == 40, "as many as it takes if the rounds shrink to 5 inner steps"
    assert draft_from_toml(draft(tmp_path, 'preset = "default"')) == draft_from_toml(draft(tmp_path))
    sparse = draft_from_toml(draft(tmp_path, 'preset = "sparse"'))
    assert (sparse.codec.name, sparse.plan.level, sparse.outer.delay, sparse.outer.ahead) == ("topk", 2, 0, 0.5)
    assert (sparse.inner.matrix_lr, sparse.inner.matrix_momentum, sparse.inner.beta2) == (0.008, 0.9, 0.99)
    shampoo = draft_from_toml(draft(tmp_path, 'preset = "shampoo"'))
    assert (shampoo.inner.optimiser, shampoo.inner.matrix_lr, shampoo.inner.beta2) == ("shampoo", 0.0057, 0.99)
    assert (shampoo.codec, shampoo.plan, shampoo.outer) == (sparse.codec, replace(sparse.plan, rank=216), sparse.outer)
    ternary = draft_from_toml(draft(tmp_path, 'preset = "ternary"', "[inner]\nmatrix_momentum = 0.95\n"))
    assert (ternary.codec.name, ternary.plan.inner_steps, ternary.outer.momentum) == ("ternary", 20, 0.6)
    assert (ternary.inner.matrix_lr, ternary.inner.matrix_momentum) == (0.008, 0.95)


@pytest.mark.parametrize("preset", ['"fast"', "3", "[]"])
def test_an_unknown_preset_is_refused(tmp_path: Path, preset: str) -> None:
    with pytest.raises(ManifestError, match="preset: expected one of default, dilocox, sparse, shampoo, ternary, got"):
        draft_from_toml(draft(tmp_path, f"preset = {preset}"))


@pytest.mark.parametrize("rounds", ["-3", "0"])
def test_of_a_plan_that_adapts_a_bad_number_of_rounds_is_named_as_it_stands(tmp_path: Path, rounds: str) -> None:
    path = draft(tmp_path, 'preset = "dilocox"')
    path.write_text(path.read_text().replace("rounds = 4", f"rounds = {rounds}"))
    with pytest.raises(ManifestError, match=f"rounds: expected .*, got {rounds}$"):
        draft_from_toml(path)


def test_the_stability_of_nesterov_with_a_delay() -> None:
    assert stable_below(PAPER) == pytest.approx(0.364, abs=0.001)
    assert stable_below(Outer(lr=0.4, momentum=0.9, nesterov=True, delay=1)) == pytest.approx(0.632, abs=0.001)
    for lr, momentum in ((0.2, 0.9), (0.4, 0.7), (0.4, 0.5), (1.0, 0.0), (1e-17, 0.0)):
        assert stable_below(Outer(lr=lr, momentum=momentum, nesterov=momentum > 0, delay=1)) == 1
    assert stable_below(Outer(lr=0.8, alpha=0.8, delay=1)) == 1


@pytest.mark.parametrize(
    ("lr", "momentum", "alpha", "limit"),
    [(0.7, 0.9, 0.7, 0.55), (0.7, 0.9, 1.4, 0.55), (0.7, 0.5, 0.7, 1), (1.0, 0.5, 1.0, 0.915), (0.7, 0.5, 2.5, 0.493)],
)
def test_a_start_ahead_by_the_own_change_is_stable_neither_whatever_the_momentum_nor_however_far(
    lr: float, momentum: float, alpha: float, limit: float
) -> None:
    outer = Outer(lr=lr, momentum=momentum, nesterov=True, delay=1, alpha=alpha)
    assert stable_below(outer) == pytest.approx(limit, abs=0.001)


def test_who_asks_for_a_divergent_outer_optimiser_is_warned(tmp_path: Path) -> None:
    outer = "[outer]\nlr = 0.7\nmomentum = 0.9\nnesterov = true\n"
    (warning,) = warnings(draft_from_toml(draft(tmp_path, tables=outer + "delay = 1\n")))
    assert "outer.momentum 0.9" in warning and "over 36% of the error" in warning
    assert "one: lower outer.momentum or outer.lr" in warning
    (warning,) = warnings(draft_from_toml(draft(tmp_path, tables=outer + "delay = 1\nalpha = 0.7\n")))
    assert "lower outer.momentum or outer.lr" in warning, "the own change alone does not tell what all found"
    (warning,) = warnings(draft_from_toml(draft(tmp_path, 'preset = "shampoo"', "[outer]\ndelay = 1\n")))
    assert "one: set outer.alpha = 1 (outer.lr), or lower outer.momentum or outer.lr" in warning
    assert not warnings(draft_from_toml(draft(tmp_path, 'preset = "shampoo"', "[outer]\ndelay = 1\nalpha = 1.0\n")))
    (warning,) = warnings(draft_from_toml(draft(tmp_path, tables=outer + "delay = 1\nalpha = 1.4\n")))
    assert "over 55% of the error" in warning, "more than the outer rate cures no more"
    start = "[outer]\nlr = {0}\nmomentum = 0.5\nnesterov = true\ndelay = 1\nalpha = {0}\n"
    for measured in (0.7, 1.0):  # and were fine: `dilocox`, and Shampoo with a delay
        assert not warnings(draft_from_toml(draft(tmp_path, tables=start.format(measured))))
    assert not warnings(draft_from_toml(draft(tmp_path))) and not warnings(draft_from_toml(draft(tmp_path, "", outer)))


@pytest.mark.parametrize(("replicas", "warned"), [(3, True), (8, True), (16, False)])
def test_a_momentum_that_carries_few_replicas_too_far_is_warned_of(tmp_path: Path, replicas: int, warned: bool) -> None:
    outer = "[outer]\nlr = 1.0\nmomentum = 0.9\nnesterov = true\n"
    found = warnings(draft_from_toml(draft(tmp_path, f"max_replicas = {replicas}", outer)))
    assert ["10 times as far" in one for one in found] == [True] * warned
    small = outer.replace("0.9", "0.5")
    assert not warnings(draft_from_toml(draft(tmp_path, f"max_replicas = {replicas}", small)))


def test_a_mean_that_any_member_may_ruin_is_warned_of_where_anybody_may_join(tmp_path: Path) -> None:
    mean = '[outer]\npolicy = "mean"\n'
    (warning,) = warnings(draft_from_toml(draft(tmp_path, tables=mean)))
    assert "one member can ruin the model" in warning and "clip+cosine" in warning
    assert not warnings(draft_from_toml(draft(tmp_path, "invited = true", mean)))


def test_a_run_of_strangers_in_which_nobody_can_be_convicted_is_warned_of(tmp_path: Path) -> None:
    (warning,) = warnings(draft_from_toml(draft(tmp_path, "max_replicas = 2")))
    assert "nobody can be convicted" in warning and "3 or more" in warning
    assert not warnings(draft_from_toml(draft(tmp_path, "max_replicas = 3")))
    assert not warnings(draft_from_toml(draft(tmp_path, "max_replicas = 2\ninvited = true")))


def test_who_asks_for_a_plan_that_cannot_adapt_well_is_warned(tmp_path: Path) -> None:
    delayed = "[outer]\nlr = 0.8\nalpha = 0.8\ndelay = 1\n[adaptive]\ninner_steps = 40\n"
    (warning,) = warnings(draft_from_toml(draft(tmp_path, tables=delayed)))
    assert "rounds 4 may end the run before adaptive.inner_steps 40" in warning and "take 8" in warning
    assert not warnings(draft_from_toml(draft(tmp_path, 'preset = "dilocox"')))
    (warning,) = warnings(draft_from_toml(draft(tmp_path, "", "[outer]\nalpha = 5.0\ndelay = 1\n")))
    assert "lower outer.alpha or outer.lr" in warning
    assert not warnings(draft_from_toml(draft(tmp_path, 'preset = "dilocox"\nmax_replicas = 3')))
    at_once = "[adaptive]\nmin_inner_steps = {}\nmax_inner_steps = 20\n"
    (warning,) = warnings(draft_from_toml(draft(tmp_path, tables=at_once.format(5))))
    assert "waits for every exchange" in warning
    assert not warnings(draft_from_toml(draft(tmp_path, tables="[plan]\ninner_steps = 20\n" + at_once.format(20))))


SOURCE = """
name = "tune"
rounds = 4
stages = [[0, 3]]
[model]
source = "hf"
[data]
source = ["text.txt"]
sequence_length = 16
batch_size = 2
"""


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        ("", "inner.lr 0.004, inner.matrix_lr 0.01 may undo that"),
        ("lr = 1e-4", "about inner.matrix_lr 0.001"),
        ("matrix_lr = 1e-4", "about inner.lr 0.0004"),
        ('optimiser = "adamw"\nlr = 1e-2', "about inner.lr 0.0004"),
        ('optimiser = "adamw"\nlr = 2e-5', ""),
        ("lr = 4e-4\nmatrix_lr = 1e-3", ""),
    ],
)
def test_who_trains_a_trained_model_at_the_rates_of_drawn_weights_is_warned(
    tmp_path: Path, inner: str, said: str
) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text(json.dumps(CASES["llama"][0]))
    (tmp_path / "text.txt").write_text("some text")
    (tmp_path / "run.toml").write_text(f"{SOURCE}[inner]\n{inner}")
    found = warnings(draft_from_toml(tmp_path / "run.toml"))
    assert [said in one for one in found] == [True] * bool(said), found
    drawn = warnings(draft_from_toml(draft(tmp_path, tables=f"[inner]\n{inner}")))
    assert not any("may undo" in one for one in drawn), "weights that are drawn bear it"
    assert any("suits a trained model" in one for one in drawn) == (inner in TINY_RATES)


TINY_RATES = ("matrix_lr = 1e-4", 'optimiser = "adamw"\nlr = 2e-5')


def test_a_kind_brings_its_rates_and_wants_a_model(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text(json.dumps(CASES["llama"][0]))
    (tmp_path / "text.txt").write_text("some text")
    path = tmp_path / "run.toml"
    path.write_text(f'kind = "finetune"\npreset = "sparse"\n{SOURCE}[inner]\nlr = 2e-4')
    found = draft_from_toml(path)
    assert (found.inner.lr, found.inner.matrix_lr) == (2e-4, FINE_TUNING.matrix_lr), "the draft's own, the kind's"
    assert (found.codec.name, found.inner.final) == ("topk", 0.02), "what the kind leaves open is the preset's"
    assert not warnings(found)
    path.write_text(f'kind = "tune"\n{SOURCE}')
    with pytest.raises(ManifestError, match="kind: expected one of pretrain, finetune, lora"):
        draft_from_toml(path)
    for text in (f'kind = "lora"\n{SOURCE}', f"{SOURCE}[adapter]\nrank = 8\n"):
        path.write_text(text)
        adapted = draft_from_toml(path)
        assert (adapted.kind, adapted.adapter, adapted.inner.optimiser) == ("lora", Adapter(), "adamw")
        assert not warnings(adapted)
    path.write_text(f"{SOURCE}[adapter]\n[inner]\nlr = 0.1")
    assert "no rate for an adapter's factors" in warnings(draft_from_toml(path))[0]
    path.write_text(f'kind = "finetune"\n{SOURCE}[adapter]\n')
    with pytest.raises(ManifestError, match="adapter: finetune trains all weights"):
        draft_from_toml(path)
    with pytest.raises(ManifestError, match=r"kind: finetune starts from a trained model: .* model\.source"):
        draft_from_toml(draft(tmp_path, 'kind = "finetune"\n'))


@pytest.mark.parametrize(
    ("precision", "inner", "warned"),
    [
        ("bfloat16", 'optimiser = "adamw"\nlr = 8e-3', True),
        ("bfloat16", 'optimiser = "adamw"\nlr = 6e-3', False),
        ("float32", 'optimiser = "adamw"\nlr = 8e-3', False),
        ("bfloat16", "lr = 8e-3", False),
    ],
)
def test_a_rate_at_which_unlike_machines_spread_is_warned_of(
    tmp_path: Path, precision: str, inner: str, warned: bool
) -> None:
    found = warnings(draft_from_toml(draft(tmp_path, f'precision = "{precision}"', f"[inner]\n{inner}\n")))
    assert ["unlike machines may find each other's work false" in one for one in found] == [True] * warned


@pytest.mark.parametrize(("optimiser", "warned"), [("adamw", True), ("muon", False)])
def test_gemma_with_adamw_is_warned_of(tmp_path: Path, optimiser: str, warned: bool) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text(json.dumps(CASES["gemma2"][0]))
    (tmp_path / "text.txt").write_text("some text")
    (tmp_path / "run.toml").write_text(f'kind = "finetune"\n{SOURCE}[inner]\noptimiser = "{optimiser}"\n')
    found = warnings(draft_from_toml(tmp_path / "run.toml"))
    assert any("model_type gemma2 with AdamW" in one for one in found) == warned, found


def test_rates_of_small_models_are_warned_of_in_large_ones(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    large = CASES["llama"][0] | {"hidden_size": 4096, "num_hidden_layers": 3}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(large))
    (tmp_path / "text.txt").write_text("some text")
    path = tmp_path / "run.toml"
    muon = "with muon no trained model of more than 0.4M parameters was measured"
    for kind, inner, said in (
        ("lora", "", "about inner.lr 0.0002 is usual for an adapter"),
        ("lora", "lr = 2e-4", ""),
        ("lora", 'optimiser = "muon"', muon),
        ("finetune", 'optimiser = "adamw"', "about inner.lr 2e-05 is usual for all weights"),
        ("finetune", 'optimiser = "adamw"\nlr = 2e-5', ""),
        ("finetune", "", muon),
        ("finetune", "", "begin with inner.lr 2e-05, inner.matrix_lr 5e-05 for all weights"),
        ("finetune", "lr = 2e-5", muon),
        ("finetune", "lr = 2e-5\nmatrix_lr = 5e-5", ""),
        ("finetune", 'optimiser = "shampoo"', "with shampoo no trained model"),
        ("pretrain", "", muon),
    ):
        path.write_text(f'kind = "{kind}"\n{SOURCE}[inner]\n{inner}')
        found = warnings(draft_from_toml(path))
        assert [said in one for one in found] == [True] * bool(said), found
