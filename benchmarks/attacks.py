"""Attacks on a run, a row each: what one costs its author, what it does to the loss, who notices, and what follows.

`python -m benchmarks.attacks [--json FILE]` trains replicas in one process under each aggregation policy, of which some
lie (`benchmarks.harm`): four, or so many as `--replicas` says. It plays each lie by real members of a real run on the
embedded chain (`tests.attacks.runs`). That has 4 x 2 nodes, float32 and one segment a round where the lie does not say
otherwise. `--only NAME` picks attacks; without `--runs` or `--harm` both halves are measured. An attack that did
honest work only ends it with an error.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.harm import PLANS, POLICIES, Company, heldout, proven
from benchmarks.trainings import Setting, finite, prepare
from dlx.training.recipe.recipe import Precision
from tests.attacks.lies import LIES, Lie

STEPS = 10  # inner steps of a round
SOURCE = str(Path(sysconfig.get_paths()["stdlib"]) / "a*.py")


def main(
    only: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(LIES)}.", show_default="all")] = None,
    harm: Annotated[bool, typer.Option(help="Measure what the policies let through.")] = True,
    runs: Annotated[bool, typer.Option(help="Play them in real runs.")] = True,
    replicas: Annotated[int, typer.Option(min=2, help="Of each training.")] = 4,
    liars: Annotated[int, typer.Option(min=0, help="Of each training; 0: as the attack has it.")] = 0,
    until: Annotated[int, typer.Option(min=0, help="Rounds after which liars are found out and gone; 0: never.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each attack, whose mean loss is shown.")] = 1,
    delay: Annotated[int, typer.Option(min=0, max=1, help="Of each training.")] = 0,
    codec: Annotated[str, typer.Option(help=f"Of each training: {', '.join(PLANS)}.")] = "int4",
    policy: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(POLICIES)}.", show_default="all")] = None,
    harm_rounds: Annotated[int, typer.Option(min=1, help="Rounds of each training.")] = 40,
    run_rounds: Annotated[int, typer.Option(min=1, help="Rounds after which a run that still has liars ends.")] = 12,
    share: Annotated[float, typer.Option(min=0, max=1, help="Of the segments, that are drawn.")] = 0.25,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the rows there.")] = None,
) -> None:
    """Play every attack and print the table."""
    unknown = sorted(set(only or ()) - LIES.keys())
    if unknown:
        raise typer.BadParameter(f"{unknown[0]}: expected one of {', '.join(LIES)}", param_hint="--only")
    wrong = sorted(set(policy or ()) - set(POLICIES))
    if wrong:
        raise typer.BadParameter(f"{wrong[0]}: expected one of {', '.join(POLICIES)}", param_hint="--policy")
    if codec not in PLANS:
        raise typer.BadParameter(f"{codec}: expected one of {', '.join(PLANS)}", param_hint="--codec")
    if liars >= replicas:
        raise typer.BadParameter(f"{liars}: expected fewer than there are replicas ({replicas})", param_hint="--liars")
    company, policies = (
        Company(replicas, liars, until, delay, codec),
        [one for one in POLICIES if one in (policy or POLICIES)],
    )
    chosen = [lie for name, lie in LIES.items() if not only or name in only]
    rows: list[dict[str, Any]] = [
        {"attack": lie.name, "about": lie.about, "work": lie.work, "liars": lie.liars} for lie in chosen
    ]
    with tempfile.TemporaryDirectory(prefix="dlx-attacks-") as folder:
        for lie, row in zip(chosen, rows, strict=True) if harm else ():
            if not lie.harms:
                continue
            losses = _harm(lie, Path(folder) / "harm", harm_rounds, company, policies, seeds)
            row["loss"] = finite({policy: sum(each) / seeds for policy, each in losses.items()})
            row["losses"] = {
                policy: [one if math.isfinite(one) else None for one in each] for policy, each in losses.items()
            }
            _note(json.dumps(row))
        played = [(lie, row) for lie, row in zip(chosen, rows, strict=True) if runs and not lie.beside]
        for place in sorted({_place(lie) for lie, _ in played}):
            from tests.attacks.runs import Arena

            honest, room, stages, precision = place
            run = Path(folder) / f"run-{honest}-{stages}-{precision}"
            with Arena(run, share, honest, precision, stages=stages, room=room) as arena:
                for lie, row in played:
                    if _place(lie) == place:
                        row |= arena.play(lie, max(run_rounds, lie.rounds)).row()
                        _note(json.dumps(row))
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    command = f"python -m benchmarks.attacks {' '.join(sys.argv[1:])}"
    result: dict[str, Any] = {"command": command, "machine": machine, "harm_rounds": harm_rounds}
    result |= {"company": asdict(company), "seeds": seeds, "share": share, "rows": rows}
    if runs:
        result["honest"] = {key: sum(row.get(key, 0) for row in rows) for key in ("honest_checked", "blamed")}
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    sys.stdout.write(table(rows, policies))
    if runs:
        sys.stdout.write("honest work: {honest_checked} segments checked, {blamed} blamed\n".format(**result["honest"]))


def _place(lie: Lie) -> tuple[int, int, int, Precision]:
    """In which real run it is played: of so many honest replicas, of all and of stages, in this precision."""
    return lie.replicas - lie.liars, lie.replicas, lie.stages, lie.precision


def table(rows: list[dict[str, Any]], policies: Sequence[str] = POLICIES) -> str:
    """Markdown. A loss has in brackets what it is above that of the honest row, if that is there."""
    losses = {row["attack"]: row.get("loss", {}) for row in rows}
    lines = [
        "| attack | work | " + " | ".join(policies) + " | noticed by | after | what follows |",
        "|---|---|" + "---|" * (len(policies) + 3),
    ]
    for row in rows:
        without = losses.get(_without(LIES[row["attack"]]), {})
        shown = [_shown(row["loss"][policy], without.get(policy)) if "loss" in row else "" for policy in policies]
        cells = [f"`{row['attack']}`: {row['about']}", f"{row['work']:.0%}", *shown]
        cells += [str(row.get(key, "")) for key in ("noticed_by", "after", "follows")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _without(lie: Lie) -> str:
    """The name of the honest row of the same run."""
    of_run = attrgetter("precision", "beside", "quick")
    return next(one.name for one in LIES.values() if one.is_honest and of_run(one) == of_run(lie))


def _harm(
    lie: Lie, out: Path, rounds: int, company: Company, policies: Sequence[str], seeds: int
) -> dict[str, list[float]]:
    """The held-out losses of each policy, one of each seed."""
    import torch

    torch.set_num_threads(1)
    setting = Setting(SOURCE, hidden=32, layers=2, sequence=32, batch=4)
    if not (out / "data.json").exists():
        prepare(setting, out)
    proven(lie, setting, STEPS, out)
    run = setting, rounds, STEPS, out, company
    return {policy: [heldout(lie, policy, *run, seed) for seed in range(seeds)] for policy in policies}


def _shown(loss: float | None, without: float | None) -> str:
    if loss is None or not math.isfinite(loss):
        return "diverged"
    return f"{loss:.3f}" if not without or loss == without else f"{loss:.3f} ({loss / without - 1:+.1%})"


def _note(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')}  {text}\n")


if __name__ == "__main__":
    typer.run(main)
