"""What of a run's history is kept where its draft says nothing: all of a small one, of a large one what a disk has."""

import math
from pathlib import Path

import pytest
from msgspec.structs import asdict

from dlx.training.balance.history import MOST, History, history, version_bytes, with_retention
from dlx.training.codecs import payload_sizes
from dlx.training.models.shapes import stage_shapes
from dlx.training.recipe.draft import Draft, DraftRetention, draft_from_toml
from dlx.training.recipe.recipe import Retention

LARGE = """
preset = "dilocox"
name = "large"
rounds = 1000
stages = [[0, 32]]
precision = "bfloat16"
{more}
[model.config]
model_type = "llama"
vocab_size = 128256
hidden_size = 4096
intermediate_size = 14336
num_hidden_layers = 32
num_attention_heads = 32
num_key_value_heads = 8
max_position_embeddings = 8192
[data]
prepared = "prepared/"
sequence_length = 8192
batch_size = 64
{tables}
"""
SMALL = """
name = "small"
rounds = 20
stages = [[0, 1], [1, 2]]
[model.config]
model_type = "llama"
vocab_size = 256
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 2
max_position_embeddings = 32
[data]
prepared = "prepared/"
sequence_length = 32
batch_size = 4
"""


def test_a_small_run_keeps_all_of_it(tmp_path: Path) -> None:
    assert with_retention(_draft(tmp_path, SMALL)).retention == DraftRetention(payloads="run", checkpoints="run")


def test_a_large_run_keeps_as_many_rounds_as_a_disk_takes(tmp_path: Path) -> None:
    draft = _draft(tmp_path, LARGE.format(more="", tables=""))
    whole, kept = _bytes(draft, Retention()), with_retention(draft).retention
    assert kept is not None and kept.payloads == kept.checkpoints != "run"
    assert sum(whole) > 300e12 > MOST >= sum(_bytes(draft, kept)) > 0.9 * MOST
    assert kept.payloads >= draft.audit.window + 4, "drawn work is served as long"
    assert with_retention(_draft(tmp_path, LARGE.format(more="", tables=""))).retention == kept, "whoever reads it"
    more = with_retention(_draft(tmp_path, LARGE.format(more="max_replicas = 64", tables=""))).retention
    assert more is not None and more.payloads < kept.payloads


@pytest.mark.parametrize(
    ("tables", "least"), [("[audit]\nwindow = 400", 404), ("[average]\nversions = 8\nevery = 100", 800)]
)
def test_what_a_run_looks_back_on_is_kept_whatever_it_takes(tmp_path: Path, tables: str, least: int) -> None:
    kept = with_retention(_draft(tmp_path, LARGE.format(more="", tables=tables))).retention
    assert kept == DraftRetention(payloads=least, checkpoints=least)


def test_what_a_draft_says_of_its_retention_holds(tmp_path: Path) -> None:
    draft = _draft(tmp_path, LARGE.format(more="", tables='[retention]\npayloads = "run"\ncheckpoints = "run"'))
    assert with_retention(draft).retention == DraftRetention(payloads="run", checkpoints="run")


@pytest.mark.parametrize(
    "said", ["", "versions = 4", "every = 20", "payloads = 200", "checkpoints = 20", 'payloads = "size"']
)
def test_what_a_draft_does_not_say_of_its_retention_is_by_its_size(tmp_path: Path, said: str) -> None:
    """Of two tables with the same keys none is a hundred times the disk of the other."""
    draft = _draft(tmp_path, LARGE.format(more="", tables=f"[retention]\n{said}"))
    kept = with_retention(draft).retention
    stated = {key: value for key, value in asdict(draft.retention).items() if value != "size"}
    assert stated.items() <= asdict(kept).items()
    assert "run" not in (kept.payloads, kept.checkpoints) and "size" not in (kept.payloads, kept.checkpoints)
    assert kept.checkpoints >= kept.payloads, "a replay of them begins with a version"
    assert said == "payloads = 200" or sum(_bytes(draft, kept)) <= MOST


def _draft(folder: Path, text: str) -> Draft:
    path = folder / "run.toml"
    path.write_text(text)
    return draft_from_toml(path)


def _bytes(draft: Draft, kept: Retention) -> History:
    (shapes,) = (stage_shapes(draft, stage) for stage in range(len(draft.stages)))
    payloads = draft.max_replicas * max(payload_sizes(draft, shapes).values())
    parameters = sum(math.prod(shape) for shape in shapes.values())
    return history(kept, draft.rounds, version_bytes(draft, parameters), payloads)
