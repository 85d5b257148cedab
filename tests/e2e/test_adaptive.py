"""Real nodes whose plan follows what they measure, and whose seals weigh contributions by their norms."""

from itertools import pairwise
from pathlib import Path

import pytest

from dlx.ground.constants import UNIT
from dlx.node.devnet import demo
from tests.e2e.devnets import PASSED, until_finished

REPLICAS, STAGES = 2, 1
ROUNDS, STEPS, FIRST_STEPS, WINDOW = 50, 30, 4, 2
DRAFT = f"""\
name = "adaptive"
rounds = {ROUNDS}
stages = [[0, 2]]
min_replicas = {REPLICAS}
max_replicas = {REPLICAS}
confirmations = 0

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
source = ["{{source}}"]
sequence_length = 32
batch_size = 4
micro_batches = 2

[outer]
lr = 0.8
alpha = 0.8
delay = 1
policy = "clip"

[codec]
name = "lowrank"

[plan]
level = 4
rank = 8
inner_steps = {FIRST_STEPS}

[adaptive]
inner_steps = {STEPS}
window = {WINDOW}
energy = 0.5
min_rank = 2
max_rank = 16
min_inner_steps = 2
max_inner_steps = 16

[timing]
straggler_grace = 10
proposal_timeout = 5
round_timeout = 30
eviction_time = 30
"""


@pytest.mark.slow
def test_an_adaptive_run_follows_its_ladders_to_its_last_inner_step_and_passes_the_audit(tmp_path: Path) -> None:
    ended = until_finished(tmp_path / "devnet", DRAFT, ROUNDS, REPLICAS, STAGES)
    rounds, history, result = ended.rounds, ended.history, ended.result
    assert rounds < ROUNDS and ended.listed["runs"][0]["state"] == "finished"
    assert not demo.passed(result) and result["rounds"] == rounds == len(result["loss"])
    report = result["audit"]
    steps = [row["inner_steps"] for row in history]
    assert sum(steps[:-1]) < STEPS <= sum(steps)
    assert steps[0] == FIRST_STEPS < steps[-1], "rounds this short hide no exchange"
    ranks = [row["stages"][0]["next_rank"] for row in history]
    assert ranks[0] == 8 < ranks[-1] == 16, "payloads of rank 8 keep less than half of their updates"
    assert all(
        before == after or (sealed + 1) % WINDOW == 0 for sealed, (before, after) in enumerate(pairwise(ranks), 1)
    )
    assert report["verdict"] == PASSED and report["facts"]["state"] == "complete"
    (row,) = [row for row in report["table"] if row["check"] == "multipliers"]
    assert row["PASS"] == STAGES * rounds
    multipliers = [[record.multiplier for record in sealed.records] for sealed in ended.watched.seals()]
    assert all(set(of_one) == {UNIT} for of_one in multipliers), "of two honest replicas neither is clipped"
