"""Makes the audit kit that comes with the program, of a small real run: `python -m tests.vectors.example_kit`.

To be done again when the contracts change, a manifest's fields or what a payload is: the kit of before is then another
version's.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from dlx.node.audit.kit import EXAMPLE
from tests.e2e.devnets import until_finished
from tests.node.command import dlx

ROUNDS, REPLICAS = 4, 2
TEXT = Path(__file__).parents[2] / "docs/overview.md"

_DRAFT = """\
name = "example"
rounds = {rounds}
stages = [[0, 2]]
min_replicas = {replicas}
max_replicas = {replicas}
confirmations = 0

[model.config]
model_type = "llama"
vocab_size = 256
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 2
max_position_embeddings = 64

[data]
source = ["{source}"]
sequence_length = 64
batch_size = 8
micro_batches = 2

[plan]
inner_steps = 20

[audit]
share = 0.3

[timing]
straggler_grace = 10
proposal_timeout = 5
round_timeout = 30
eviction_time = 30
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dlx-example-") as folder:
        text = Path(folder, "overview.txt")
        shutil.copyfile(TEXT, text)
        root = Path(folder, "devnet")
        draft = _DRAFT.replace("{rounds}", str(ROUNDS)).replace("{replicas}", str(REPLICAS))
        until_finished(root, draft, ROUNDS, REPLICAS, 1, text)
        shutil.rmtree(EXAMPLE, ignore_errors=True)
        print(dlx("audit-kit", "--level", "3", "--datadir", root, "--out", EXAMPLE).stdout)


if __name__ == "__main__":
    main()
