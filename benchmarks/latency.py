"""How long a round takes beside its training, and where that goes: from the end of the last member's training until
everybody begins the next round with what the seal made.

`python -m benchmarks.latency [--replicas N] [--rounds N] [--json FILE]`. A devnet of real processes, one stage, the
demo's model with a delay of 0. Each node notes when it reaches which phase (`benchmarks.blob_notes`), by one clock. For
each phase the table has when the first and the last member reached it, the medians of the rounds. Below it stands what
the sender of a seal asks of the chain node before its transaction is sent. On a busy machine believe the counts.
"""

import json
import os
import platform
import shlex
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from benchmarks import blob_notes
from dlx.node.devnet import demo
from dlx.node.devnet.devnet import Devnet, draft

TARGET_SECONDS = 0.5
WARMING = 2  # rounds, which measure the pace and load what is loaded once
_ENDS = "the next round begins"

Notes = dict[str, list[blob_notes.Note]]  # of each node


def main(
    replicas: Annotated[int, typer.Option(min=1, max=14, help="Of one stage each.")] = 4,
    rounds: Annotated[int, typer.Option(min=4, help="Outer rounds of the run.")] = 12,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the result there.")
    ] = None,
) -> None:
    """Print when each phase of a round is reached after the last member's training, and what is asked on the way."""
    with tempfile.TemporaryDirectory(prefix="dlx-latency-") as folder:
        os.environ[blob_notes.FOLDER] = folder
        text = draft(rounds, replicas, 1).replace("delay = 1", "delay = 0").replace("alpha = 0.8", "alpha = 0")
        text = text.replace('"text/*.py"', f'"{Path(os.__file__).parent}/*.py"').replace("share = 0.25", "share = 0")
        devnet = Devnet.create(Path(folder) / "net", rounds, replicas, 1, _note, text)
        with demo.stopping(devnet):
            for name in devnet.names:
                devnet.start_node(name, ("benchmarks.blob_notes",))
            used: list[float] = []
            demo.follow(devnet, lambda seen, round: used.append(_used(devnet)), lambda seen: None)
        notes = {name: blob_notes.read(Path(folder), name) for name in devnet.names}
    whole = range(WARMING, rounds - 1)
    table = {
        phase: (_median(notes, phase, whole, min), _median(notes, phase, whole, max)) for phase in blob_notes.PHASES
    }
    asked = [methods for of_node in notes.values() for methods in blob_notes.asked_before_sending(of_node)]
    result: dict[str, Any] = {
        "command": shlex.join([Path(sys.executable).name, "-m", "benchmarks.latency", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "seconds": round(table[_ENDS][1], 3),
        "phases": {phase: [round(first, 3), round(last, 3)] for phase, (first, last) in table.items()},
        "exchanges_before_a_seal_is_sent": statistics.median(map(len, asked)) if asked else None,
        "they_ask": sorted(asked, key=len)[len(asked) // 2] if asked else [],
        "exchanges_with_the_chain_per_node_and_round": round(
            sum(blob_notes.asked(of_node) for of_node in notes.values()) / replicas / rounds, 1
        ),
        "network_cpu_seconds_per_node_and_round": round((used[-1] - used[WARMING]) / replicas / (rounds - WARMING), 3),
    }
    for phase, (first, last) in result["phases"].items():
        sys.stdout.write(f"{phase:<40} {1000 * first:>8.0f} {1000 * last:>8.0f} ms\n")
    for key in list(result)[list(result).index("phases") + 1 :]:
        sys.stdout.write(f"{key:<40} {result[key]}\n")
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    if result["seconds"] > TARGET_SECONDS:
        sys.stderr.write(f"missed: at most {TARGET_SECONDS} s\n")
    raise typer.Exit(1 if result["seconds"] > TARGET_SECONDS else 0)


def _median(notes: Notes, phase: str, rounds: range, which: Any) -> float:
    """Seconds after the last member's training that the first (min), or the last (max), member reaches the phase."""
    found = []
    for round in rounds:
        ended = [at for one in notes.values() if (at := blob_notes.last(one, blob_notes.PHASES[0], round)) is not None]
        # What a member does once for every contribution is over with the last one.
        reached = [at for one in notes.values() if (at := blob_notes.last(one, phase, round)) is not None]
        if ended and reached:
            found.append(which(reached) - max(ended))
    return statistics.median(found) if found else float("nan")


def _used(devnet: Devnet) -> float:
    """Processor seconds of the network processes."""
    times = (psutil.Process(devnet.pid(name)).cpu_times() for name in devnet.names)
    return sum(one.user + one.system for one in times)


def _note(line: str) -> None:
    sys.stderr.write(f"latency: {line}\n")


if __name__ == "__main__":
    typer.run(main)
