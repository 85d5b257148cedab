"""Which outer rates and momenta stay stable with the paper's one-step delay: the search behind the preset `dilocox`.

`python -m benchmarks.stability [--json FILE]` trains a small model for 100 rounds of 125 inner steps with each pair,
from the paper's 0.7 and 0.9 on to calmer ones, and says which stay stable and which of them is the nearest.
"""

import json
import math
import os
import sys
import sysconfig
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.convergence import Job, Method, Result, Setting, finite, prepare, train_all
from training.manifest import Outer
from training.presets import PRESETS
from training.stability import stable_below

PAPER = (0.7, 0.9)  # DiLoCoX's outer rate and momentum, arXiv 2506.21263
PAIRS = (PAPER, (0.5, 0.9), (0.4, 0.9), (0.7, 0.7), (0.2, 0.9), (0.4, 0.7), (0.7, 0.5), (0.4, 0.5))
ROUNDS = 100
RISE = 1.1  # a stable run ends below this times its own best held-out loss


def main(
    rounds: Annotated[int, typer.Option(min=4, help="Outer rounds.")] = ROUNDS,
    inner_steps: Annotated[int, typer.Option(min=1, help="Inner steps of a round.")] = 125,
    lr: Annotated[float, typer.Option(help="Inner learning rate.")] = 4e-3,
    workers: Annotated[int, typer.Option(min=1, help="Trainings at the same time, of one thread each.")] = (
        os.cpu_count() or 1
    ),
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For what is done so far.")] = Path("build/stability"),
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the rows there.")] = None,
) -> None:
    """Train with every pair of outer rate and momentum, and print which stay stable."""
    steps = rounds * inner_steps
    source = str(Path(sysconfig.get_paths()["stdlib"]) / "*.py")
    setting = Setting(source, hidden=64, layers=2, sequence=64)
    jobs = {pair: Job(_method(pair, inner_steps), setting, lr, 0, steps) for pair in PAIRS}
    prepare(setting, out)
    results = train_all(list(jobs.values()), out, workers)
    rows = [
        {
            "lr": pair[0],
            "momentum": pair[1],
            "stable_below": round(stable_below(_outer(pair)), 3),
            "loss": results[job.key]["loss"],
            "stable": _stable(results[job.key]),
        }
        for pair, job in jobs.items()
    ]
    sys.stdout.write("outer lr  momentum  linear analysis: stable below  held-out loss  stable\n")
    for row in rows:
        shown = "yes" if row["stable"] else "no"
        cells = f"{row['lr']:>8g}  {row['momentum']:>8g}  {row['stable_below']:>29g}  {row['loss']:>13.4f}  {shown:>6}"
        sys.stdout.write(cells + "\n")
    stable = [pair for pair, row in zip(PAIRS, rows, strict=True) if row["stable"]]
    nearest = min(stable, key=lambda pair: math.dist(pair, PAPER), default=None)
    sys.stdout.write(f"stable over {rounds} rounds and nearest to {PAPER}: {nearest or 'none'}\n")
    if json_file is not None:
        json_file.write_text(json.dumps({"rows": [finite(row) for row in rows], "nearest": nearest}, indent=2) + "\n")


def _method(pair: tuple[float, float], inner_steps: int) -> Method:
    preset = PRESETS["dilocox"]
    plan = preset["plan"] | {"inner_steps": inner_steps, "rank": 16}
    return Method(
        f"outer lr {pair[0]:g}, momentum {pair[1]:g}",
        outer=preset["outer"] | {"lr": pair[0], "momentum": pair[1]},
        inner={"optimiser": "adamw"},
        codec=preset["codec"]["name"],
        plan=plan,
    )


def _outer(pair: tuple[float, float]) -> Outer:
    return Outer(**PRESETS["dilocox"]["outer"] | {"lr": pair[0], "momentum": pair[1]})


def _stable(result: Result) -> bool:
    return bool(result["loss"] < RISE * min(loss for _, _, loss in result["curve"]))


if __name__ == "__main__":
    typer.run(main)
