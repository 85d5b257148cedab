"""What a slow link costs: tokens a second of our nodes and of others, on the same machine, model and link.

`python -m benchmarks.links [--link matched,10mbit] [--replicas 2,4] [--rows ddp,delay1] [--json FILE]`, as root. Each
machine of a run is a network namespace; each replica has a shaped link both ways, and the chain one that is not. All
train the same model (a byte-level Llama of 0.86M parameters) with the same optimiser, batches and cores. With --json
the rows of earlier calls stay in the table, so that it can be made in parts.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.links import measure, network, rows, table
from benchmarks.links.rivals import Peer
from benchmarks.namespaces import Unable
from dlx.ground import durable
from dlx.ground.errors import DlxError
from dlx.ground.limits import cores
from dlx.node.home.errors import Failure

ALONE_STEPS = 40  # timed, of each replica, for what a step costs without any exchange
MOST_STEP_SECONDS = 3.0  # on the slowest machine that this is tried on
EXCHANGE_SECONDS = 600.0  # at least, that a rival may wait for one exchange
STALL_SECONDS = 180.0  # beside three expected rounds, without a seal


def main(
    link: Annotated[
        str, typer.Option(help="Speeds of each replica's link, both ways: 235kbit, 10mbit, matched or none.")
    ] = "matched,10mbit,100mbit,none",
    replicas: Annotated[str, typer.Option(help="Numbers of replicas.")] = "2,4",
    only: Annotated[str, typer.Option("--rows", help=f"Of {', '.join(rows.ROWS)}.", show_default="all")] = ",".join(
        rows.ROWS
    ),
    seconds: Annotated[float, typer.Option(min=5, help="Timed of each row, and whole rounds beyond.")] = 45.0,
    python: Annotated[
        Path | None, typer.Option(help="A Python that has torchft and hivemind.", show_default="this one")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Keep the rows there, with those of earlier calls.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Leave the folders of our nodes, with their logs, there.")
    ] = None,
) -> None:
    """Print tokens per second, how many times DDP's they are, the part of the time that trains, and bytes per token.

    Exit code 1 where a row failed or missed its target. "matched" is the link on which DDP's all-reduce takes 356
    times as long as its computing, here, with so many replicas.
    """
    counts, chosen, links = _asked(link, replicas, only)
    other = str(python) if python is not None else sys.executable
    result = _earlier(json_file)
    try:
        with network.alone(), tempfile.TemporaryDirectory(prefix="dlx-links-") as folder:
            text = rows.draft_text(rows.ROWS["default"], 1)
            bench = _Bench(Path(folder), text, other, seconds, keep, result["step_seconds"])
            for count in counts:
                for name in chosen:
                    bench.prepare(count, count * rows.ROWS[name].stages)
                for one in links:
                    for name in chosen:
                        row = bench.row(one, count, name)
                        result["rows"] = [*(old for old in result["rows"] if _key(old) != _key(row)), row]
                        _write(json_file, result)
    except (Unable, Failure) as error:
        sys.stderr.write(f"links: {error}\n")
        raise typer.Exit(1) from None
    result["rows"].sort(key=_order)
    _write(json_file, result)
    sys.stdout.write(table.text(result))
    missed = table.missed(result["rows"])
    for line in missed:
        sys.stderr.write(f"missed: {line}\n")
    raise typer.Exit(1 if missed else 0)


class _Bench:
    """Measures rows, and first what a step costs where so many machines compute at once."""

    def __init__(
        self, folder: Path, text: str, python: str, seconds: float, keep: Path | None, steps: dict[str, float]
    ) -> None:
        """`steps`: seconds of a step alone, by machines at work: those of earlier calls, and then ours."""
        self._folder, self._python, self._seconds, self._keep = folder, python, seconds, keep
        _note("data and manifest")
        self._manifest, self._blobs, manifest = measure.common_files(folder / "common", text)
        self._tokens = manifest.tokens_per_step
        self._steps = steps

    def prepare(self, *machines: int) -> None:
        for count in machines:
            if str(count) not in self._steps:
                _note(f"a step alone, {count} at once")
                found = self._rival(count, None, rows.Row("", "alone"), ALONE_STEPS, 1, ALONE_STEPS * MOST_STEP_SECONDS)
                self._steps[str(count)] = found.seconds / ALONE_STEPS

    def row(self, link: str, replicas: int, name: str) -> dict[str, Any]:
        """Measured, or why it was not."""
        row = rows.ROWS[name]
        step = self._steps[str(replicas)]
        speed = rows.matched_speed(replicas, step) if link == "matched" else rows.speed_of(link)
        told: dict[str, Any] = {"link": link, "replicas": replicas, "row": name, "bits_per_second": speed}
        told |= {"step_seconds": step, "inner_steps": 1, "error": None}
        began = time.monotonic()
        try:
            if row.package and not _has(self._python, row.package):
                raise Failure(f"{row.package} is not installed: see --python")
            _note(f"{link}, {replicas} replicas, {name}")
            found = self._measured(row, replicas, speed, told)
        except (DlxError, Unable, OSError, subprocess.SubprocessError) as error:
            told["error"] = " ".join(str(error).split())
            _note(told["error"])
            return told | {"wall_seconds": time.monotonic() - began}
        wall = time.monotonic() - began
        _note(f"{found.tokens / found.seconds:,.1f} tokens/s in {wall:.0f} s")
        speeds = {"tokens_per_second": found.tokens / found.seconds, "wall_seconds": wall}
        return told | asdict(found) | speeds

    def _measured(self, row: rows.Row, replicas: int, speed: float | None, told: dict[str, Any]) -> measure.Measured:
        step = self._steps[str(replicas)]
        if row.method == "ddp":
            told["inner_steps"] = inner_steps = 1
        else:
            alone = self._steps[str(replicas * row.stages)]
            like = rows.ROWS["delay1"] if row.method else row  # rivals do as many steps as ours
            text, inner_steps = rows.planned(like, replicas, alone, speed)
            told["inner_steps"] = inner_steps
        expected = rows.expected_seconds(row, replicas, step, speed, inner_steps)
        if row.method:
            rounds = min(200, max(1, round(self._seconds / expected)))
            return self._rival(replicas, speed, row, inner_steps, rounds, expected * rounds)
        made = network.Network(measure.peers(replicas, row.stages))
        keep = self._keep and self._keep / f"{told['link']}-{replicas}-{told['row']}"
        with made.made():
            return measure.nodes(
                made, row, replicas, text, speed, self._seconds, STALL_SECONDS + 3 * expected, keep, _note
            )

    def _rival(
        self, replicas: int, speed: float | None, row: rows.Row, inner_steps: int, rounds: int, expected: float
    ) -> measure.Measured:
        assert row.method is not None
        method = row.method

        def peer(rank: int, addresses: list[str]) -> Peer:
            return Peer(
                method=method,
                rank=rank,
                addresses=addresses,
                manifest=str(self._manifest),
                blobs=str(self._blobs),
                threads=max(1, cores() // replicas),
                inner_steps=inner_steps,
                rounds=rounds,
                patience=max(EXCHANGE_SECONDS, 3 * expected),
            )

        made = network.Network(measure.peers(replicas, 1))
        with made.made():
            made.shape(speed)
            return measure.rival(made, self._python, peer, expected, self._tokens)


def _asked(link: str, replicas: str, only: str) -> tuple[list[int], list[str], list[str]]:
    """Replicas, rows and links. Raises typer.BadParameter."""
    try:
        counts = [int(one) for one in replicas.split(",")]
    except ValueError:
        counts = [0]
    if not all(2 <= count <= 14 for count in counts):
        raise typer.BadParameter(f"{replicas}: expected numbers from 2 to 14", param_hint="--replicas")
    chosen, links = only.split(","), link.split(",")
    if unknown := [name for name in chosen if name not in rows.ROWS]:
        raise typer.BadParameter(f"{', '.join(unknown)}: expected {', '.join(rows.ROWS)}", param_hint="--rows")
    for one in links:
        if one != "matched" and not _is_link(one):
            raise typer.BadParameter(f"{one}: expected 235kbit, 10mbit, 1gbit, matched or none", param_hint="--link")
    return counts, chosen, links


def _is_link(text: str) -> bool:
    try:
        speed = rows.speed_of(text)
    except ValueError:
        return False
    return speed is None or 1e4 <= speed <= 1e11


def _has(python: str, package: str) -> bool:
    done = subprocess.run([python, "-c", f"import {package}"], capture_output=True, timeout=120)
    return done.returncode == 0


def _earlier(json_file: Path | None) -> dict[str, Any]:
    fresh: dict[str, Any] = {
        "command": "python -m benchmarks.links",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "step_seconds": {},
        "rows": [],
    }
    if json_file is None or not json_file.exists():
        return fresh
    try:
        found = json.loads(json_file.read_text())
        return fresh | {key: found[key] for key in ("step_seconds", "rows")}
    except (ValueError, KeyError, TypeError):
        raise typer.BadParameter(f"{json_file} is not of this benchmark: name another", param_hint="--json") from None


def _write(json_file: Path | None, result: dict[str, Any]) -> None:
    if json_file is not None:
        durable.write_bytes(json_file, json.dumps(result, indent=2).encode() + b"\n")


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["replicas"], row["link"], row["row"]


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    names = list(rows.ROWS)
    speed = float("inf") if row["bits_per_second"] is None else row["bits_per_second"]
    return row["replicas"], speed, names.index(row["row"]) if row["row"] in names else len(names)


def _note(line: str) -> None:
    sys.stderr.write(f"links: {line}\n")


if __name__ == "__main__":
    typer.run(main)
