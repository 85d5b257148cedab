"""Whether many members of one stage on one machine seal every round, and what a round costs them.

`python -m benchmarks.crowd [--members N] [--rounds N] [--json FILE]` runs a devnet of so many nodes, each of which has
the whole of a tiny model. It prints for each round the seconds since the seal before (of the first: since the start),
how many it counts, and the CPU seconds of that time.
"""

import json
import os
import platform
import shlex
import sys
import sysconfig
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import psutil
import typer

from dlx.node.devnet import demo
from dlx.node.devnet.devnet import Devnet

BLOCK_TIME = 0.2  # seconds
STALL = 900.0  # seconds without a seal

_DRAFT = """\
name = "crowd"
rounds = {rounds}
stages = [[0, 2]]
min_replicas = {members}
max_replicas = {members}
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
source = ["{source}"]
sequence_length = 32
batch_size = 4

[plan]
inner_steps = 4

[timing]
straggler_grace = 60
proposal_timeout = 15
round_timeout = 600
eviction_time = 600
"""


def main(
    members: Annotated[int, typer.Option(min=1, help="Nodes, each a replica of one stage.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Outer rounds.")] = 5,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the result there.")
    ] = None,
) -> None:
    """Print how long each round took and how many it counts. Ends with 1 where a round left somebody out."""
    source = Path(sysconfig.get_paths()["stdlib"]) / "argparse.py"
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="dlx-crowd-") as folder:
        text = _DRAFT.format(rounds=rounds, members=members, source=source)
        devnet = Devnet.create(Path(folder) / "net", rounds, members, 1, _note, text, BLOCK_TIME)
        with demo.stopping(devnet):
            sealed, used = time.monotonic(), 0.0
            devnet.start()
            sys.stdout.write("round  seconds of it  counted  CPU seconds of it, in all\n")

            def on_round(seen: demo.Observed, round: int) -> None:
                nonlocal sealed, used
                now, all_used = time.monotonic(), cpu_seconds()
                counted = seen.view.sealed[0, round].count
                row = {"round": round, "seconds": now - sealed, "counted": counted, "cpu_seconds": all_used - used}
                sealed, used = now, all_used
                rows.append(row)
                sys.stdout.write(f"{round:5}  {row['seconds']:13.0f}  {row['counted']:7}  {row['cpu_seconds']:25.0f}\n")
                sys.stdout.flush()

            demo.follow(devnet, on_round, lambda seen: None, stall=STALL)
    result = {
        "command": shlex.join([Path(sys.executable).name, "-m", "benchmarks.crowd", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "members": members,
        "rows": rows,
    }
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    raise typer.Exit(1 if any(row["counted"] < members for row in rows) else 0)


def cpu_seconds() -> float:
    """Of all that this process has started, and of what that has, also of processes that have ended."""
    own = psutil.Process()
    used = own.cpu_times()
    seconds = used.children_user + used.children_system
    for process in own.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            seconds += sum(process.cpu_times()[:4])
    return seconds


def _note(text: str) -> None:
    sys.stderr.write(f"crowd: {text}\n")


if __name__ == "__main__":
    typer.run(main)
