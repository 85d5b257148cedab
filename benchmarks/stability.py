"""Which outer rates and momenta stay stable with the paper's one-step delay. By its rule a round's start lacks what the
last round found; with `--alpha 1` it has of that what the replica found itself.

`python -m benchmarks.stability [--json FILE]` trains a small model for 100 rounds of 125 inner steps with pair after
pair, from the paper's 0.7 and 0.9 on to those further away, until one stays stable: that is the nearest.
"""

import json
import math
import os
import sys
import sysconfig
from itertools import accumulate, product
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.trainings import Job, Method, Result, Setting, finite, prepare, train_all
from dlx.training.recipe.advice import stable_below
from dlx.training.recipe.presets import PRESETS
from dlx.training.recipe.recipe import Outer

PAPER = (0.7, 0.9)  # DiLoCoX's outer rate and momentum, arXiv 2506.21263
PAIRS = sorted(product((0.7, 0.4, 0.2), (0.9, 0.7, 0.5)), key=lambda pair: math.dist(pair, PAPER))
ROUNDS = 100
RISE = 1.1  # a stable run stays below this times its own lowest held-out loss so far


def main(
    rounds: Annotated[int, typer.Option(min=4, help="Outer rounds.")] = ROUNDS,
    inner_steps: Annotated[int, typer.Option(min=1, help="Inner steps of a round.")] = 125,
    lr: Annotated[float, typer.Option(help="Inner learning rate.")] = 4e-3,
    alpha: Annotated[
        float,
        typer.Option(
            min=0, max=100, help="Of the own last change, in a round's start, as a multiple of the outer rate."
        ),
    ] = 0.0,
    workers: Annotated[int, typer.Option(min=1, help="Trainings at the same time, of one thread each.")] = (
        os.cpu_count() or 1
    ),
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For what is done so far.")] = Path("build/stability"),
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the rows there.")] = None,
) -> None:
    """Train with pairs of outer rate and momentum until one stays stable, as many at a time as there are workers."""
    steps = rounds * inner_steps
    source = str(Path(sysconfig.get_paths()["stdlib"]) / "*.py")
    setting = Setting(source, hidden=32, layers=2, sequence=32)
    prepare(setting, out)
    rows: list[dict[str, Any]] = []
    while len(rows) < len(PAIRS) and not any(row["stable"] for row in rows):
        pairs = PAIRS[len(rows) : len(rows) + workers]
        jobs = [Job(_method(pair, alpha, inner_steps), setting, lr, 0, steps) for pair in pairs]
        results = train_all(jobs, out, workers)
        rows += [_row(pair, alpha, results[job.key]) for pair, job in zip(pairs, jobs, strict=True)]
    sys.stdout.write("outer lr  momentum  alpha  linear analysis: stable below  held-out loss    best  stable\n")
    for row in rows:
        shown = "yes" if row["stable"] else "no"
        losses = f"{row['loss']:>13.4f}  {row['best']:>6.4f}"
        pair = f"{row['lr']:>8g}  {row['momentum']:>8g}  {row['alpha']:>5g}"
        sys.stdout.write(f"{pair}  {row['stable_below']:>29g}  {losses}  {shown:>6}\n")
    nearest = next(((row["lr"], row["momentum"]) for row in rows if row["stable"]), None)
    sys.stdout.write(f"stable over {rounds} rounds and nearest to {PAPER}: {nearest or 'none'}\n")
    if json_file is not None:
        json_file.write_text(json.dumps({"rows": [finite(row) for row in rows], "nearest": nearest}, indent=2) + "\n")


def _row(pair: tuple[float, float], alpha: float, result: Result) -> dict[str, Any]:
    return {
        "lr": pair[0],
        "momentum": pair[1],
        "alpha": round(alpha * pair[0], 3),
        "stable_below": round(stable_below(Outer(**_outer(pair, alpha))), 3),
        "loss": result["loss"],
        "best": min(loss for _, _, loss in result["curve"]),
        "stable": _stable(result),
    }


def _method(pair: tuple[float, float], alpha: float, inner_steps: int) -> Method:
    preset = PRESETS["dilocox"]
    plan = preset["plan"] | {"inner_steps": inner_steps, "rank": 8}
    return Method(
        f"outer lr {pair[0]:g}, momentum {pair[1]:g}",
        outer=_outer(pair, alpha),
        inner={"optimiser": "adamw"},
        codec=preset["codec"]["name"],
        plan=plan,
    )


def _outer(pair: tuple[float, float], alpha: float) -> dict[str, Any]:
    return {"lr": pair[0], "momentum": pair[1], "nesterov": True, "delay": 1, "alpha": alpha * pair[0]}


def _stable(result: Result) -> bool:
    losses = [loss for _, _, loss in result["curve"]]
    return all(loss < RISE * best for loss, best in zip(losses, accumulate(losses, min), strict=True))


if __name__ == "__main__":
    typer.run(main)
