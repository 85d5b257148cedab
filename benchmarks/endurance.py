"""Whether a node stays as it is through many rounds: memory, open files and disk, round after round.

`python -m benchmarks.endurance [--rounds N] [--json FILE]` runs a devnet of one node and the smallest rounds that there
can be. It prints what the node holds as it goes on, and at the end by how much each grew per round over the last half.
"""

import contextlib
import json
import os
import platform
import shlex
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from benchmarks.processes import trainer
from dlx.ground.blobs import BlobStore, Kind
from dlx.node.devnet import demo
from dlx.node.devnet.devnet import Devnet

BLOCK_TIME = 0.1  # seconds
SO_FAR = "seconds so far"
MEMORY = ("node_memory", "trainer_memory")
TARGET_GROWTH = 1024  # bytes of memory per round
WIDTH = 9  # of a column
STEADY_ROUNDS = 500  # before that caches still fill, and nothing is concluded

_DRAFT = """\
name = "endurance"
rounds = {rounds}
stages = [[0, 1]]
confirmations = 0

[model.config]
model_type = "llama"
vocab_size = 256
hidden_size = 8
intermediate_size = 16
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 2
max_position_embeddings = 16

[data]
source = ["{source}"]
sequence_length = 16
batch_size = 1

[plan]
inner_steps = 1

[timing]
straggler_grace = 2
proposal_timeout = 1
round_timeout = 60
eviction_time = 60
"""

Row = dict[str, float]  # by column


def main(
    rounds: Annotated[int, typer.Option(min=4, help="Outer rounds of the run.")] = 1000,
    every: Annotated[int, typer.Option(min=1, help="Rounds between two lines.")] = 50,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the result there.")
    ] = None,
) -> None:
    """Print memory, open files and disk of a node every few rounds, and by how much they grow per round."""
    if rounds < 4 * every:
        raise typer.BadParameter(f"expected at least {4 * every}, four times --every", param_hint="--rounds")
    source = Path(sysconfig.get_paths()["stdlib"]) / "argparse.py"
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="dlx-endurance-") as folder:
        text = _DRAFT.format(rounds=rounds, source=source)
        devnet = Devnet.create(Path(folder) / "net", rounds, 1, 1, _note, text, BLOCK_TIME)
        with demo.stopping(devnet):
            devnet.start()
            began = time.monotonic()

            def on_round(seen: demo.Observed, round: int) -> None:
                if (round + 1) % every == 0:
                    rows.append({"rounds": round + 1, SO_FAR: time.monotonic() - began} | measure(devnet))
                    sys.stdout.write(("" if rows[1:] else heading(rows[0])) + line(rows[-1]))
                    sys.stdout.flush()

            demo.follow(devnet, on_round, lambda seen: None)
    grown = growth(rows)
    sys.stdout.write("growth per round, over the last half\n" + line({"rounds": 0, SO_FAR: 0} | grown))
    result: dict[str, Any] = {
        "command": shlex.join([Path(sys.executable).name, "-m", "benchmarks.endurance", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "growth_per_round": grown,
        "rows": rows,
    }
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    risen = [name for name in MEMORY if grown[name] > TARGET_GROWTH] if rounds >= STEADY_ROUNDS else []
    if risen:
        sys.stderr.write(f"missed: at most {TARGET_GROWTH} bytes a round, over the last half: {', '.join(risen)}\n")
    raise typer.Exit(1 if risen else 0)


def measure(devnet: Devnet) -> Row:
    """What the node and its training process hold now: resident memory and disk in bytes, and open files."""
    node = psutil.Process(devnet.pid("node-0"))
    training = trainer(devnet, "node-0")
    folder = devnet.folder("node-0")
    store = BlobStore(folder.blobs)
    blobs = store.usage()
    store.close()
    index = _disk(folder.state.glob("events-*"))
    return {
        "node_memory": node.memory_info().rss,
        "trainer_memory": training.memory_info().rss if training else 0,
        "node_files": node.num_fds(),
        "trainer_files": training.num_fds() if training else 0,
        **{f"{kind}_blobs": blobs.get(kind, 0) for kind in Kind},
        "index": index,
        "state": _disk(folder.state.rglob("*")) - index,
        "logs": _disk(devnet.log("node-0").parent.glob("node-0*")),
        "chain": _disk((devnet.root / "chain").rglob("*")),
    }


def growth(rows: Sequence[Row]) -> Row:
    """Of each column, per round: the slope of the line through the last half of the rows."""
    last = rows[len(rows) // 2 :]
    rounds = [row["rounds"] for row in last]
    columns = [name for name in last[0] if name not in ("rounds", SO_FAR)]
    return {name: statistics.linear_regression(rounds, [row[name] for row in last]).slope for name in columns}


def heading(row: Row) -> str:
    return "  ".join(name.rjust(max(WIDTH, len(name))) for name in row) + "\n"


def line(row: Row) -> str:
    return "  ".join(f"{value:,.0f}".rjust(max(WIDTH, len(name))) for name, value in row.items()) + "\n"


def _disk(paths: Iterable[Path]) -> int:
    size = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # it was a temporary one
            size += path.stat().st_size if path.is_file() else 0
    return size


def _note(text: str) -> None:
    sys.stderr.write(f"endurance: {text}\n")


if __name__ == "__main__":
    typer.run(main)
