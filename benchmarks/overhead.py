"""What a decentralised run costs beside the bare loop: the same model and steps, measured in one run.

`python -m benchmarks.overhead [--rounds N] [--json FILE]`. First a single process trains the demo's model with a plain
torch loop on all cores; then 2 x 2 nodes (8 processes, a chain, libp2p) train it through the whole protocol.
"""

import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from benchmarks.processes import trainer
from dlx.node.devnet import demo
from dlx.node.devnet.devnet import Devnet

TARGET_RATIO, TARGET_RSS_MB = 0.6, 900


def main(
    rounds: Annotated[int, typer.Option(min=3, help="Outer rounds of the nodes' run.")] = 12,
    steps: Annotated[int, typer.Option(min=5, help="Inner steps of each bare measurement.")] = 60,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the result there.")
    ] = None,
) -> None:
    """Print bare and decentralised tokens per second, their ratio and the memory of each node."""
    with tempfile.TemporaryDirectory(prefix="dlx-overhead-") as folder:
        devnet = Devnet.create(Path(folder) / "net", rounds, 2, 2, _note)
        with demo.stopping(devnet):
            _note("bare loop, before")
            before = _bare(devnet, steps)
            _note("2 x 2 nodes")
            devnet.start()
            memory: dict[str, float] = {}
            seen = demo.watch(devnet, lambda seen, round: None, lambda seen: _measure(devnet, memory))
            devnet.stop_nodes()
            _note("bare loop, after")
            after = _bare(devnet, steps)
    bare = max(before["tokens_per_second"], after["tokens_per_second"], key=float)
    nodes = demo.tokens_per_second(seen) or 0.0
    result: dict[str, Any] = {
        "command": shlex.join([Path(sys.executable).name, "-m", "benchmarks.overhead", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "bare_tokens_per_second": round(bare, 1),
        "bare_threads": before["threads"],
        "nodes_tokens_per_second": round(nodes, 1),
        "ratio": round(nodes / bare, 3),
        "rss_mb_per_node": [round(memory[name]) for name in sorted(memory)],
    }
    for key, value in result.items():
        sys.stdout.write(f"{key:<26} {value}\n")
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    ok = result["ratio"] >= TARGET_RATIO and max(result["rss_mb_per_node"]) < TARGET_RSS_MB
    if not ok:
        sys.stderr.write(f"missed: ratio at least {TARGET_RATIO}, each node under {TARGET_RSS_MB} MB\n")
    raise typer.Exit(0 if ok else 1)


def _bare(devnet: Devnet, steps: int) -> dict[str, Any]:
    """The bare loop in a process of its own, so that its memory and threads touch nobody else."""
    manifest, blobs = demo.manifest_file(devnet)
    command = [sys.executable, "-m", "benchmarks.bare", str(manifest), str(blobs), str(steps)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600).stdout)


def _measure(devnet: Devnet, memory: dict[str, float]) -> None:
    """Resident memory of each node with its training process, MB; the highest seen."""
    for name in devnet.names:
        try:
            both = filter(None, (psutil.Process(devnet.pid(name)), trainer(devnet, name)))
            memory[name] = max(memory.get(name, 0.0), sum(p.memory_info().rss for p in both) / 1e6)
        except psutil.NoSuchProcess:
            continue


def _note(line: str) -> None:
    sys.stderr.write(f"overhead: {line}\n")


if __name__ == "__main__":
    typer.run(main)
