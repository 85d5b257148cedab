"""How much loss the exchange of pseudo-gradients costs, beside averaging the gradients of every step.

`python -m benchmarks.convergence [--quick] [--json FILE] [--out FOLDER]` trains one model by several methods at equal
tokens, 4 replicas each, simulated in one process with the nodes' engine. Every method's inner learning rate is tuned at
a short length. Prints a table and writes it to the folder, with a PNG (loss against tokens and against bytes). What was
trained there is not trained again, so an interrupted run goes on: name another folder after changing code or text.
"""

import json
import math
import os
import platform
import shlex
import statistics
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import picture
from benchmarks.trainings import Job, Method, Result, Setting, finite, prepare, train_all
from dlx.training.recipe.presets import PRESETS

LONGEST = 3000  # inner steps
TARGETS = ((350, 1.5), (1000, 3.0))  # (traffic ratio at least, gap in percent at most)
DELAY_0, DELAY_1 = "default, delay 0", "default, delay 1"

_NESTEROV = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
_ADAMW_LRS = (1e-3, 2e-3, 4e-3)


def _with_adamw(name: str, **rest: Any) -> Method:
    return Method(name, **{"lrs": _ADAMW_LRS, "inner": {"optimiser": "adamw"}} | rest)


METHODS = (
    _with_adamw("all-reduce AdamW", every_step=True),
    Method("all-reduce Muon", seeds=3, every_step=True),
    _with_adamw("DiLoCo H 20", compressed=False, outer=_NESTEROV, plan={"inner_steps": 20}),
    _with_adamw("DiLoCo H 50", compressed=False, outer=_NESTEROV, plan={"inner_steps": 50}),
    _with_adamw(
        "dilocox",
        outer=PRESETS["dilocox"]["outer"],
        codec="lowrank",
        plan=PRESETS["dilocox"]["plan"],
        adaptive=True,
    ),
    _with_adamw("default, AdamW"),
    Method(DELAY_0),
    Method(DELAY_1, outer={"lr": 0.8, "alpha": 0.8, "delay": 1}),
    Method("sparse", seeds=3, codec="topk", plan=PRESETS["sparse"]["plan"]),
    # For the higher traffic ratio: sparser still.
    Method("topk 1/128, H 4", codec="topk", plan={"level": 2, "rank": 32, "inner_steps": 4}),
)


@dataclass(frozen=True)
class Length:
    """Of the trainings, in inner steps."""

    steps: int
    tuning: int = 500
    tuning_rounds: int = 3  # at least
    widenings: int = 1  # of the learning rates tried, at most

    def of_tuning(self, method: Method) -> int:
        return max(self.tuning, self.tuning_rounds * method.plan["inner_steps"])


def main(
    quick: Annotated[
        bool, typer.Option("--quick", help="A tiny model, few steps, a folder in FOLDER: does everything run?")
    ] = False,
    steps: Annotated[int, typer.Option(min=20, help="Inner steps of each method.")] = LONGEST,
    source: Annotated[str, typer.Option(metavar="GLOB", help="The text to train on.")] = str(
        Path(sysconfig.get_paths()["stdlib"]) / "*.py"
    ),
    only: Annotated[list[str] | None, typer.Option(help="Methods that have this in their name (repeatable).")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Trainings at the same time, of one thread each.")] = (
        os.cpu_count() or 1
    ),
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For the table, the picture and what is done so far.")] = (
        Path("build/convergence")
    ),
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the rows there.")] = None,
) -> None:
    """Train by every method; print loss, gap to the best all-reduce, and traffic."""
    setting, length = Setting(os.path.abspath(source)), Length(steps)
    methods = [m for m in METHODS if not only or any(part in m.name for part in only)]
    if quick:  # the rank in proportion to the width, as in a large model
        setting, length, out = replace(setting, hidden=32, layers=2, sequence=32), Length(60, 20, 2, 0), out / "quick"
        methods = [replace(m, seeds=1, plan=_quick_plan(m)) for m in methods]
    _refuse(methods, length, json_file)
    prepare(setting, out)
    best, tuning = tune(methods, setting, length, out, workers)
    jobs = [
        Job(method, setting, lr, seed, length.steps)
        for method, lr in zip(methods, best, strict=True)
        for seed in range(method.seeds)
    ]
    results = train_all(sorted(jobs, key=lambda job: job.seed), out, workers)
    rows = _rows(jobs, results)
    heading = {
        "command": shlex.join([Path(sys.executable).name, "-m", "benchmarks.convergence", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "setting": ", ".join(f"{key} {value}" for key, value in asdict(setting).items() if key != "source"),
        # Of all trainings together, those that an earlier call left in the folder too.
        "seconds": round(sum(result["seconds"] for result in (tuning | results).values())),
    }
    text = "".join(f"{key:<13} {value}\n" for key, value in heading.items()) + "\n" + _table(rows)
    sys.stdout.write(text)
    (out / "table.txt").write_text(text)
    picture.draw(picture.curves(jobs, results), out / "convergence.png")
    if json_file is not None:
        json_file.write_text(json.dumps(heading | {"rows": [finite(row) for row in rows]}, indent=2) + "\n")


def _refuse(methods: Sequence[Method], length: Length, json_file: Path | None) -> None:
    """What would otherwise fail after hours, or compare unequal tokens."""
    if not methods:
        names = ", ".join(method.name for method in METHODS)
        raise typer.BadParameter(f"no method has this in its name; there are {names}", param_hint="--only")
    whole = math.lcm(*(method.plan["inner_steps"] for method in methods))
    if length.steps % whole:
        raise typer.BadParameter(f"expected a multiple of {whole}, so that all end with a round", param_hint="--steps")
    if json_file is not None and not json_file.parent.is_dir():
        raise typer.BadParameter(f"{json_file.parent}: no such folder", param_hint="--json")


def tune(
    methods: Sequence[Method], setting: Setting, length: Length, out: Path, workers: int
) -> tuple[list[float], dict[str, Result]]:
    """Each method's best learning rate of those tried: its own, and further ones while the best lies at an edge. And
    all that was trained for it, by the jobs' keys."""
    tried = [sorted(method.lrs) for method in methods]
    best: list[float] = []
    results: dict[str, Result] = {}
    for _ in range(1 + length.widenings):
        jobs = [
            [Job(method, setting, lr, 0, length.of_tuning(method)) for lr in lrs]
            for method, lrs in zip(methods, tried, strict=True)
        ]
        results |= train_all([job for own in jobs for job in own], out, workers)
        best = [min(own, key=lambda job: results[job.key]["loss"]).lr for own in jobs]
        tried = [_widened(lrs, lr) for lrs, lr in zip(tried, best, strict=True)]
    return best, results


def _quick_plan(method: Method) -> dict[str, Any]:
    rank = {"rank": 8} if method.codec == "lowrank" else {}
    return method.plan | rank | {"inner_steps": min(10, method.plan["inner_steps"])}


def _widened(lrs: Sequence[float], best: float) -> list[float]:
    """Twice or half as far where the best of the ascending rates is the last or the first."""
    return [*([best / 2] if best == lrs[0] else []), *lrs, *([best * 2] if best == lrs[-1] else [])]


def _rows(jobs: Sequence[Job], results: dict[str, Result]) -> list[dict[str, Any]]:
    """One row per method: means over its seeds. The gap is to the best all-reduce of the same seed: first weights and
    samples are the same there."""
    best: dict[int, float] = {}
    for job in jobs:
        if job.method.every_step:
            best[job.seed] = min(best.get(job.seed, math.inf), results[job.key]["loss"])
    rows = []
    for name in dict.fromkeys(job.method.name for job in jobs):
        own = [job for job in jobs if job.method.name == name]
        found = [results[job.key] for job in own]
        losses = [result["loss"] for result in found]
        gaps = [results[job.key]["loss"] / best.get(job.seed, math.nan) - 1 for job in own]
        rows.append(
            {
                "method": name,
                "seeds": len(found),
                "lr": own[0].lr,
                "loss": round(statistics.mean(losses), 4),
                "spread": round(max(losses) - min(losses), 4),
                "gap_percent": round(100 * statistics.mean(gaps), 2),
                "bytes_per_round": found[0]["bytes_per_round"],
                "traffic_ratio": round(found[0]["traffic_ratio"], 1),
                "steps": found[0]["steps"],
                "seconds": round(statistics.mean(result["seconds"] for result in found)),
            }
        )
    return rows


def _table(rows: Sequence[dict[str, Any]]) -> str:
    keys = list(rows[0])
    cells = [keys, *([str(row[key]) for key in keys] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in cells]
    for ratio, gap in TARGETS:
        reached = [row["method"] for row in rows if row["traffic_ratio"] >= ratio and row["gap_percent"] <= gap]
        lines.append(f"gap of at most {gap:g}% at {ratio} times less traffic: {', '.join(reached) or 'not reached'}")
    losses = {row["method"]: row["loss"] for row in rows}
    if {DELAY_0, DELAY_1} <= losses.keys():
        lines.append(f"delay 1 costs {100 * (losses[DELAY_1] / losses[DELAY_0] - 1):.1f}% over delay 0")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    typer.run(main)
