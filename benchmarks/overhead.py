"""What a decentralised run costs beside bare loops: the same model and steps on the same cores, measured in one run.

`python -m benchmarks.overhead [--replicas N] [--stages N] [--inner-steps N] [--json FILE]`. As many bare loops as
replicas at once, a process each, train the demo's model with plain torch. Then the nodes (with their chain, libp2p and
level 3) train it through the whole protocol; then the bare loops once more. The ratio is that of processor seconds for
each token, which other work on the machine hardly changes; tokens per second mean something on a quiet machine alone.
"""

import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from benchmarks import parts
from benchmarks.processes import trainer
from dlx.ground.limits import cores
from dlx.node.devnet import demo
from dlx.node.devnet.devnet import Devnet, draft
from dlx.node.trainer.spawn import SHARED, ForkServer

TARGET_RATIO, TARGET_RSS_MB = 0.9, 900
POLL_SECONDS = 10.0  # between two questions for the nodes' status, which cost each of them 2 ms


def main(
    rounds: Annotated[int, typer.Option(min=4, help="Outer rounds of the nodes' run.")] = 12,
    replicas: Annotated[int, typer.Option(min=2, max=14, help="Of the nodes' run, and bare loops.")] = 2,
    stages: Annotated[int, typer.Option(min=1, max=4, help="Of each replica, a node for each.")] = 2,
    inner_steps: Annotated[int, typer.Option(min=1, max=100, help="Of each round.")] = 10,
    steps: Annotated[int, typer.Option(min=5, help="Inner steps of each bare measurement.")] = 60,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the result there.")
    ] = None,
) -> None:
    """Print the processor seconds for each token of bare loops and of nodes, and what the nodes' go into."""
    with tempfile.TemporaryDirectory(prefix="dlx-overhead-") as folder:
        text = draft(rounds, replicas, stages).replace("inner_steps = 10", f"inner_steps = {inner_steps}")
        text = text.replace('"text/*.py"', f'"{Path(os.__file__).parent}/*.py"')
        devnet = Devnet.create(Path(folder) / "net", rounds, replicas, stages, _note, text)
        with demo.stopping(devnet):
            _note(f"{replicas} bare loops, before")
            before = _bare(devnet, replicas, steps)
            _note(f"{replicas} x {stages} nodes")
            nodes = Nodes(devnet, Path(folder))
            try:
                seen = nodes.run()
            finally:
                nodes.stop()
            _note(f"{replicas} bare loops, after")
            after = _bare(devnet, replicas, steps)
    bare = min(before, after, key=lambda one: one["cpu_seconds_per_token"])
    spent = {part: seconds / nodes.tokens(seen) for part, seconds in nodes.spent().items()}
    result: dict[str, Any] = {
        "command": shlex.join([Path(sys.executable).name, "-m", "benchmarks.overhead", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "bare_microseconds_per_token": round(1e6 * bare["cpu_seconds_per_token"], 1),
        "nodes_microseconds_per_token": round(1e6 * sum(spent.values()), 1),
        "ratio": round(bare["cpu_seconds_per_token"] / sum(spent.values()), 3),
        "nodes_by_part": {part: round(1e6 * seconds, 1) for part, seconds in spent.items()},
        "bare_tokens_per_second": round(bare["tokens_per_second"], 1),
        "nodes_tokens_per_second": round(demo.tokens_per_second(seen) or 0.0, 1),
        "rss_mb_per_node": [round(nodes.memory[name]) for name in sorted(nodes.memory)],
    }
    for key, value in result.items():
        if isinstance(value, dict):
            for part, number in value.items():
                sys.stdout.write(f"  {part:<30} {number:>8}\n")
        else:
            sys.stdout.write(f"{key:<32} {value}\n")
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    ok = result["ratio"] >= TARGET_RATIO and max(result["rss_mb_per_node"]) < TARGET_RSS_MB
    if not ok:
        sys.stderr.write(f"missed: ratio at least {TARGET_RATIO}, each node under {TARGET_RSS_MB} MB\n")
    raise typer.Exit(0 if ok else 1)


class Nodes:
    """The devnet's nodes, and what they have used between the seals of their second round and of the last one."""

    def __init__(self, devnet: Devnet, folder: Path) -> None:
        self.memory: dict[str, float] = {}  # the most of each node with its training process, MB
        self._devnet, self._notes = devnet, folder / "notes"
        self._notes.mkdir()
        os.environ[parts.FOLDER] = str(self._notes)
        self._forks = _Forks()
        os.environ[SHARED] = str(self._forks.path)
        self._at: list[tuple[int, dict[str, float]]] = []  # rounds that were sealed, what was used until then

    def run(self) -> demo.Observed:
        """From their start to their end."""
        self._devnet.start()
        return demo.follow(self._devnet, self._on_round, lambda seen: self._measure_memory(), poll_seconds=POLL_SECONDS)

    def stop(self) -> None:
        self._devnet.stop_nodes()
        self._forks.stop()
        del os.environ[SHARED]

    def spent(self) -> dict[str, float]:
        """Processor seconds by part."""
        (_, first), (_, last) = self._at[0], self._at[-1]
        return {part: last[part] - first[part] for part in last}

    def tokens(self, seen: demo.Observed) -> int:
        """That were counted meanwhile."""
        between = range(self._at[0][0] + 1, self._at[-1][0] + 1)
        return sum(seen.view.sealed[0, round].steps for round in between) * seen.view.config.tokens_per_step

    def _on_round(self, seen: demo.Observed, round: int) -> None:
        if round > 0:  # the first one pays for warming up
            self._at.append((round, self._used()))

    def _used(self) -> dict[str, float]:
        used = defaultdict[str, float](float)
        devnet = self._devnet
        for name in devnet.names:
            used["network processes"] += _seconds(psutil.Process(devnet.pid(name)))
            training = trainer(devnet, name)
            assert training is not None, f"{name} trains nothing"
            noted = defaultdict(float, parts.spent(self._notes, training.pid))
            used["training: inner steps"] += noted[parts.STEPS]
            used["training: slot"] += noted[parts.ROUNDS] - noted[parts.STEPS]
            used["training: outer steps"] += noted[parts.ANSWERS]
            used["training: pipes, files"] += _seconds(training) - noted[parts.ROUNDS] - noted[parts.ANSWERS]
        forks = psutil.Process(self._forks.pid).cpu_times()
        used["checks of level 3"] += forks.children_user + forks.children_system  # of those that have ended
        used["chain"] += _seconds(psutil.Process(devnet.pid("chain")))
        return used

    def _measure_memory(self) -> None:
        for name in self._devnet.names:
            try:
                both = filter(None, (psutil.Process(self._devnet.pid(name)), trainer(self._devnet, name)))
                used = sum(process.memory_info().rss for process in both) / 1e6
                self.memory[name] = max(self.memory.get(name, 0.0), used)
            except psutil.NoSuchProcess:
                continue


class _Forks(ForkServer):
    MODULE = "benchmarks.parts"


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _bare(devnet: Devnet, replicas: int, steps: int) -> dict[str, float]:
    """As many bare loops as replicas at once, sharing the cores; each in a process of its own."""
    manifest, blobs = demo.manifest_file(devnet)
    threads = max(1, cores() // replicas)
    command = [sys.executable, "-m", "benchmarks.bare", str(manifest), str(blobs), str(steps), str(threads)]
    loops = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(replicas)]
    found = [json.loads(loop.communicate(timeout=600)[0]) for loop in loops]
    return {
        "tokens_per_second": sum(one["tokens_per_second"] for one in found),
        "cpu_seconds_per_token": sum(one["cpu_seconds_per_token"] for one in found) / replicas,
    }


def _note(line: str) -> None:
    sys.stderr.write(f"overhead: {line}\n")


if __name__ == "__main__":
    typer.run(main)
