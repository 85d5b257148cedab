"""Real nodes of a run that stops where its held-out loss no longer falls, and the audit of its end."""

from pathlib import Path

import pytest

from tests.e2e.devnets import PASSED, until_finished

REPLICAS, STAGES, ROUNDS, PATIENCE = 2, 2, 60, 2
DRAFT = f"""\
name = "stopping"
rounds = {ROUNDS}
stages = [[0, 1], [1, 2]]
min_replicas = {REPLICAS}
max_replicas = {REPLICAS}
confirmations = 0

[model.config]
model_type = "llama"
vocab_size = 256
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 2
max_position_embeddings = 32

[data]
source = ["{{source}}"]
sequence_length = 32
batch_size = 4
micro_batches = 2

[plan]
inner_steps = 4

[evaluation]
every = 1
samples = 4
replicas = {REPLICAS}

[stop]
patience = {PATIENCE}
min_improvement = 50.0  # no loss falls so far

[timing]
straggler_grace = 10
proposal_timeout = 5
round_timeout = 30
eviction_time = 30
"""


@pytest.mark.slow
def test_a_run_stops_by_its_held_out_losses_and_passes_the_audit(tmp_path: Path) -> None:
    ended = until_finished(tmp_path / "devnet", DRAFT, ROUNDS, REPLICAS, STAGES)
    rounds, history = ended.rounds, ended.history
    assert 2 * PATIENCE < rounds < ROUNDS and ended.listed["runs"][0]["state"] == "finished"
    assert all(str(line).startswith("nothing: the run is finished") for line in ended.waiting)
    assert [row["stages"][0]["next_inner_steps"] for row in history] == [4] * (rounds - 1) + [0]
    assert all(row["sealed"] for row in history) and sum(row["held_out"] is not None for row in history) >= 2 * PATIENCE
    report = ended.result["audit"]
    assert report["verdict"] == PASSED and report["facts"]["state"] == "complete"
    (row,) = [row for row in report["table"] if row["check"] == "terms"]
    assert row["PASS"] == STAGES * rounds
