"""What gossip costs: messages and bytes that come to each node in a round, and what its network process computes.

`python -m benchmarks.gossip [--replicas N] [--stages N] [--rounds N] [--json FILE]` runs real nodes on an embedded
chain and reads their /metrics at the end.
"""

import json
import shlex
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import requests
import typer
from prometheus_client.parser import text_string_to_metric_families

from dlx.node.devnet import demo
from dlx.node.devnet.devnet import Devnet

COUNTED = "dlx_gossip_messages_total", "dlx_gossip_bytes_total", "process_cpu_seconds_total"


def main(
    rounds: Annotated[int, typer.Option(min=3)] = 6,
    replicas: Annotated[int, typer.Option(min=1)] = 4,
    stages: Annotated[int, typer.Option(min=1, max=4)] = 2,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE")] = None,
) -> None:
    """Print, per node and round: gossip messages that came, new and repeated; their bytes; CPU seconds."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="dlx-gossip-") as folder:
        devnet = Devnet.create(Path(folder) / "net", rounds, replicas, stages, _note)
        with demo.stopping(devnet):
            devnet.start()
            demo.follow(devnet, lambda seen, round: _note(f"round {round}"), lambda seen: _read(devnet, found))
    per_round = {
        name: round(mean(one.get(name, 0.0) for one in found.values()) / rounds, 2)
        for name in sorted({name for one in found.values() for name in one})
    }
    result: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "benchmarks.gossip", *sys.argv[1:]]),
        "nodes": len(found),
        "rounds": rounds,
    } | per_round
    for key, value in result.items():
        sys.stdout.write(f"{key:<42} {value}\n")
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")


def _read(devnet: Devnet, found: dict[str, dict[str, float]]) -> None:
    for name in devnet.names:
        try:
            url = json.loads(devnet.folder(name).http_address.read_text())["url"]
            text = requests.get(f"{url}/metrics", timeout=5).text
        except (OSError, requests.RequestException):
            continue
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        found[name] = {
            " ".join([sample.name, *sample.labels.values()]): sample.value
            for sample in samples
            if sample.name in COUNTED
        }


def _note(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    typer.run(main)
