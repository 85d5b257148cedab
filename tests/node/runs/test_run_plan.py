"""`dlx-node run plan` on a draft, as a person and as a program read it."""

import json
from pathlib import Path

import pytest

from dlx.node.home.config import load
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import UsageFailure
from dlx.node.home.shown import size
from tests.node.command import dlx

DRAFT = """
name = "plan"
stages = {stages}
rounds = 4
[model.config]
model_type = "{family}"
vocab_size = 4096
{sizes}
[data]
source = ["run.toml"]
sequence_length = 32
batch_size = 4
micro_batches = {micro_batches}
"""
LLAMA = """hidden_size = 32
intermediate_size = 64
num_hidden_layers = 6
num_attention_heads = 2
num_key_value_heads = 2
max_position_embeddings = 32"""


def _write(folder: Path, stages: str, micro_batches: int = 2, family: str = "llama", sizes: str = LLAMA) -> Path:
    path = folder / "run.toml"
    path.write_text(DRAFT.format(stages=stages, micro_batches=micro_batches, family=family, sizes=sizes))
    return path


def test_a_plan_for_machines_and_for_people(tmp_path: Path) -> None:
    draft = _write(tmp_path, "[[0, 3], [3, 6]]")
    found = json.loads(dlx("run", "plan", "--manifest", draft, "--json").stdout)
    first, last = found["stages"]
    assert (first["stage"], first["layers"], last["layers"]) == (0, [0, 3], [3, 6])
    assert found["parameters"] == first["parameters"] + last["parameters"]
    assert first["parameters_share"] + last["parameters_share"] == pytest.approx(1)
    assert last["flops_per_token"] > 2 * first["flops_per_token"], "the head is most of this model"
    assert found["suggested"] == [[0, 5], [5, 6]]
    for stage in found["stages"]:
        memory = stage["memory"]
        parts = ("weights", "start", "gradients", "optimiser", "residual")
        fixed = sum(memory[part] for part in parts)
        assert memory["weights"] == 4 * stage["parameters"]
        assert memory["round_end"] >= memory["outer_step"] == 3 * memory["weights"]
        assert memory["peak"] == fixed + max(memory["activations"], memory["round_end"])
        assert 0 < stage["payload"] < memory["weights"]
        assert stage["pipes"] == 2 * (2 * 32 * 32 * 4), "two micro-batches, one neighbour"
        states, received = memory["weights"] + memory["optimiser"], 10 * stage["pipes"]
        assert stage["checks"]["undecided"] == states + received + memory["weights"], "a round is one segment"
        assert stage["checks"]["drawn"] == 2 * states + received
        assert stage["checks"]["replay_share"] == 1 / 16

    text = dlx("run", "plan", "--manifest", draft).stdout
    assert "more balanced: stages = [[0, 5], [5, 6]]" in text
    assert f"{first['parameters']:,}" in text and size(last["memory"]["peak"]) in text
    assert "as balanced as can be: " in dlx("run", "plan", "--manifest", _write(tmp_path, "[[0, 5], [5, 6]]")).stdout


def test_with_a_delay_the_outer_step_takes_memory_beside_the_training(tmp_path: Path) -> None:
    draft = _write(tmp_path, "[[0, 3], [3, 6]]")
    draft.write_text(draft.read_text() + "[outer]\nlr = 0.8\nalpha = 0.8\ndelay = 1\n[codec]\nname = 'lowrank'\n")
    adaptive = "[plan]\nrank = 4\n[adaptive]\ninner_steps = 40\nmin_rank = 2\nmax_rank = 8\n"
    fixed_rank = json.loads(dlx("run", "plan", "--manifest", _with(draft, "[plan]\nrank = 4\n"), "--json").stdout)
    found = json.loads(dlx("run", "plan", "--manifest", _with(draft, adaptive), "--json").stdout)
    for stage, other in zip(found["stages"], fixed_rank["stages"], strict=True):
        memory = stage["memory"]
        fixed = sum(memory[part] for part in ("weights", "start", "gradients", "optimiser", "residual"))
        kept = max(memory["activations"], memory["round_end"])
        assert memory["peak"] == fixed + kept + memory["outer_step"]
        assert stage["payload"] > other["payload"], "the largest that the plan can come to"


def _with(draft: Path, text: str) -> Path:
    path = draft.with_name("more.toml")
    path.write_text(draft.read_text() + text)
    return path


def test_tied_embeddings_are_counted_in_the_pipes(tmp_path: Path) -> None:
    sizes = "n_embd = 32\nn_layer = 6\nn_head = 2\nn_positions = 32"
    found = []
    for tied in ("false", "true"):
        draft = _write(tmp_path, "[[0, 3], [3, 6]]", family="gpt2", sizes=f"{sizes}\ntie_word_embeddings = {tied}")
        found.append(json.loads(dlx("run", "plan", "--manifest", draft, "--json").stdout)["stages"])
    head = found[0][1]["parameters"] - found[1][1]["parameters"]
    assert head > 0 and [tied["pipes"] - untied["pipes"] for untied, tied in zip(*found, strict=True)] == [4 * head] * 2


def test_a_draft_that_cannot_be_planned_is_one_line(tmp_path: Path) -> None:
    sizes = "n_embd = 33\nn_layer = 6\nn_head = 2\nn_positions = 32"
    draft = _write(tmp_path, "[[0, 3], [3, 6]]", family="gpt2", sizes=sizes)
    line = dlx("run", "plan", "--manifest", draft, code=2).stderr
    assert "model.config.n_embd: expected a multiple of n_head (2), got 33" in line


def test_checkpointed_activations_are_a_setting_like_others(tmp_path: Path) -> None:
    folder = DataDir(tmp_path)
    assert load(folder, {}, {}).checkpoint_activations == "none"
    assert load(folder, {}, {"DLX_CHECKPOINT_ACTIVATIONS": "true"}).checkpoint_activations == "layers"
    assert load(folder, {"checkpoint_activations": "selective"}, {}).checkpoint_activations == "selective"
    folder.config.write_text("checkpoint_activations = true\n")
    assert load(folder, {}, {}).checkpoint_activations == "layers"
    with pytest.raises(UsageFailure, match="checkpoint_activations"):
        folder.config.write_text('checkpoint_activations = "yes"\n')
        load(folder, {}, {})
