"""What replicas of different speed do to a run: the loss with the slow ones beside the loss without them.

`python -m benchmarks.uneven [--json FILE]` trains a small model on the nodes' own slots, codecs, policy and outer step,
once for each mixture of inner steps, method, policy and seed, for equally many rounds. The bar: a replica of any speed
makes the loss no higher than it is without it. With `--lies` the last replica of each mixture says that it took all
steps: what that costs, and whether a policy does worse than `mean`.
"""

import json
import math
import os
import shlex
import statistics
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.simulation import PARTS
from benchmarks.trainings import Job, Method, Result, Setting, finite, prepare, train_all

STEPS = 20  # of a round, which the fast ones take
# The inner steps of each replica: each mixture is compared with its fast ones alone, which train on the same samples.
MIXTURES = [
    (STEPS, 5),
    (STEPS, 2),
    (STEPS, STEPS, 5, 5),
    (STEPS, 5, 5, 5),
    (STEPS, 10, 10, 10),
    (STEPS, 10, 5, 2),
    (STEPS, *[2] * 7),
    (STEPS, 13),
    (STEPS, 19, 18),
    (STEPS, STEPS),  # beside one of them
]
LIES = [(STEPS, 5), (STEPS, 2), (STEPS, STEPS, 5), (STEPS, STEPS, STEPS, 5), (STEPS, 5, 5, 5), (5, 5, 5, 5)]
_INT4, _TOPK = {"level": 4, "inner_steps": STEPS}, {"level": 2, "rank": 128, "inner_steps": STEPS}
_MUON, _DELAYED = {"optimiser": "muon"}, {"lr": 0.8, "delay": 1, "alpha": 0.8}
# What is trained, and at which rate of the matrices (AdamW: of all).
METHODS = {
    "muon": (Method("muon", inner=_MUON, plan=_INT4), 0.01),
    "adamw": (Method("adamw", inner={"optimiser": "adamw"}, plan=_INT4), 0.004),
    "shampoo": (Method("shampoo", inner={"optimiser": "shampoo", "lr": 0.008}, plan=_INT4), 0.0057),
    "delay 1": (Method("delay 1", inner=_MUON, outer=_DELAYED, plan=_INT4), 0.01),
    "nesterov": (Method("nesterov", inner=_MUON, outer={"momentum": 0.5, "nesterov": True}, plan=_INT4), 0.01),
    "topk": (Method("topk", inner=_MUON, codec="topk", plan=_TOPK), 0.01),
}
POLICIES = ("mean", "clip", "clip+cosine")
SETTING = Setting(str(Path(sysconfig.get_paths()["stdlib"]) / "*.py"), hidden=32, layers=2, sequence=64, batch=4)


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each row.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Outer rounds of each.")] = 12,
    only: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(METHODS)}; may be repeated.")] = None,
    policies: Annotated[
        list[str] | None, typer.Option("--policy", help=f"Of {', '.join(POLICIES)}; may be repeated.")
    ] = None,
    parts: Annotated[
        str, typer.Option(help="Another rule of what a contribution weighs: steps (FedAvg), squares or fednova.")
    ] = "",
    lies: Annotated[bool, typer.Option("--lies", help="The last of each mixture says that it took all steps.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Trainings at the same time, of one thread each.")] = (
        os.cpu_count() or 1
    ),
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For what is done so far.")] = Path("build/uneven"),
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the rows there.")] = None,
) -> None:
    """Train every mixture under every policy, and its fast ones alone."""
    if parts and parts not in PARTS:
        raise typer.BadParameter(f"{parts}: expected one of {', '.join(PARTS)}", param_hint="--parts")
    mixtures, without = (LIES, [*map(honest, LIES)]) if lies else (MIXTURES, [*map(alone, MIXTURES)])
    chosen = {name: METHODS[name] for name in _among(only, METHODS, "--only")}
    rules = _among(policies, POLICIES, "--policy")
    prepare(SETTING, out)
    wanted = {
        (name, policy, steps): [
            _job(*chosen[name], policy, steps, stated(steps) if lies else (), parts, seed, rounds)
            for seed in range(seeds)
        ]
        for name in chosen
        for policy in rules
        for steps in dict.fromkeys([*without, *mixtures])
    }
    results = train_all([job for jobs in wanted.values() for job in jobs], out, workers)
    rows = []
    gone = "liar" if lies else "slow"
    sys.stdout.write(f"method    policy       inner steps of each         loss    without the {gone}   difference\n")
    for (name, policy, steps), jobs in wanted.items():
        if steps in mixtures:
            others = wanted[name, policy, without[mixtures.index(steps)]]
            fast = [results[job.key] for job in others]
            rows.append(row := _row(name, policy, steps, [results[job.key] for job in jobs], fast))
            shown = (
                f"{name:<9} {policy:<12} {', '.join(map(str, steps)):<25} {row['loss']:>7.4f}  {row['alone']:>17.4f}"
            )
            sys.stdout.write(f"{shown}   {row['difference']:+.2%} +- {row['error']:.2%}\n")
    if json_file is not None:
        facts = {
            "command": f"python -m benchmarks.uneven {shlex.join(sys.argv[1:])}",
            "seeds": seeds,
            "rounds": rounds,
            "lies": lies,
            "parts": parts or "the nodes' own",
            "rows": list(map(finite, rows)),
        }
        json_file.write_text(json.dumps(facts, indent=1) + "\n")


def alone(steps: tuple[int, ...]) -> tuple[int, ...]:
    """Of a mixture, those that take all steps of a round, as if the others were not there; the first where all do."""
    if set(steps) == {STEPS}:
        return (STEPS, *[0] * (len(steps) - 1))
    return tuple(count if count == STEPS else 0 for count in steps)


def honest(steps: tuple[int, ...]) -> tuple[int, ...]:
    """Of a mixture whose last replica lies, the others."""
    return (*steps[:-1], 0)


def stated(steps: tuple[int, ...]) -> tuple[int, ...]:
    """What replicas say, the last of which lies if it is there."""
    return (*steps[:-1], STEPS if steps[-1] else 0)


def _among(asked: list[str] | None, known: Any, option: str) -> list[str]:
    for one in asked or ():
        if one not in known:
            raise typer.BadParameter(f"{one}: expected one of {', '.join(known)}", param_hint=option)
    return list(asked or known)


def _job(
    method: Method,
    lr: float,
    policy: str,
    steps: tuple[int, ...],
    said: tuple[int, ...],
    parts: str,
    seed: int,
    rounds: int,
) -> Job:
    setting = replace(SETTING, replicas=len(steps))
    method = replace(method, outer=method.outer | {"policy": policy}, steps=steps, stated=said, parts=parts)
    return Job(method, setting, lr, seed, rounds * STEPS)


def _row(name: str, policy: str, steps: tuple[int, ...], found: list[Result], fast: list[Result]) -> dict[str, Any]:
    """`difference`: of the losses of equal seeds, in the mean, with its standard error (0 of one seed)."""
    losses, without = [one["loss"] for one in found], [one["loss"] for one in fast]
    differences = [loss / other - 1 for loss, other in zip(losses, without, strict=True)]
    spread = statistics.stdev(differences) if len(differences) > 1 and all(map(math.isfinite, differences)) else 0.0
    return {
        "method": name,
        "policy": policy,
        "steps": list(steps),
        "losses": losses,
        "losses_alone": without,
        "loss": statistics.fmean(losses),
        "alone": statistics.fmean(without),
        "difference": statistics.fmean(differences),
        "error": spread / math.sqrt(len(differences)),
    }


if __name__ == "__main__":
    typer.run(main)
