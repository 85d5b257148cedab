"""How much loss the exchange of pseudo-gradients costs, beside averaging the gradients of every step.

`python -m benchmarks.convergence [--quick] [--json FILE] [--out FOLDER]` trains one model by several methods at equal
tokens, 4 replicas each unless `--replicas` says otherwise. Every method's batch, inner rates and decay are searched on
one grid, at a shorter length, with all replicas in one computation (`benchmarks.batched`); what wins is trained by the
nodes' own slots. Prints a table and writes it to the folder, with a PNG (loss against tokens and against bytes). What
was trained there is not trained again, so an interrupted run goes on: name another folder after changing code or text.

`python -m benchmarks.tables docs/convergence.md` makes the documents' tables of what `--json` wrote.
"""

import json
import math
import os
import platform
import shlex
import statistics
import sys
import sysconfig
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from benchmarks import picture
from benchmarks.trainings import (
    FINAL,
    MUON,
    REPLICAS,
    Job,
    Method,
    Result,
    Setting,
    finite,
    manifest_of,
    parameters,
    prepare,
    tokens_of,
    train_all,
)
from dlx.training.recipe.manifest import ManifestError
from dlx.training.recipe.presets import PRESETS

TARGETS = ((350, 1.5), (1000, 3.0))  # (traffic ratio at least, gap in percent at most)
DELAYED = {
    "default, delay 1": "default, delay 0",
    "Shampoo, delay 1, 216 of 4,096": "Shampoo, 216 of 4,096",
    "Shampoo, delay 1, 128 of 4,096": "Shampoo, 128 of 4,096",
}
# Bytes that a node sends in a round beside payloads: gossip and signalling of 4 members, and the chain (docs/links.md);
# and how often a payload is sent for each node that gets it.
BESIDE, SENT = 16_500, 1.03

_NESTEROV = {"lr": 0.7, "momentum": 0.9, "nesterov": True}  # as in DiLoCo (arXiv 2311.08105)
_ADAMW = {"optimiser": "adamw", "final": FINAL}
_SHAMPOO = MUON | {"optimiser": "shampoo"}
_LATE = {"delay": 1, "alpha": 1.0}
_DILOCOX, _SPARSE, _TERNARY = (PRESETS[name] for name in ("dilocox", "sparse", "ternary"))


class Choice(NamedTuple):
    """What is searched: samples of a replica's step. The inner rates, as steps of the grid (see `rate`), of the
    matrices or, where AdamW steps all, its own, and AdamW's beside; and which of `DECAYS` the weights have."""

    batch: int
    lr: int
    rest: int = 4
    decay: int = 1


def rate(step: int) -> float:
    """The grid's rates lie a factor of sqrt 2 apart."""
    return 1e-3 * 2 ** (step / 2)


DECAYS = (0.1, 0.03, 0.01, 0.003)


class Row(NamedTuple):
    method: Method
    start: Choice  # of the search


# Their choices, of the batch too, are for REPLICAS replicas.
ROWS = (
    Row(Method("all-reduce AdamW", every_step=True, inner=_ADAMW), Choice(2, 4)),
    Row(Method("all-reduce Muon", seeds=3, every_step=True), Choice(2, 6, 5)),
    Row(Method("Shampoo, every step", every_step=True, inner=_SHAMPOO), Choice(2, 5, 6)),
    Row(Method("DiLoCo H 20", compressed=False, inner=_ADAMW, outer=_NESTEROV, plan={"inner_steps": 20}), Choice(2, 2)),
    Row(
        Method(
            "dilocox",
            inner=_ADAMW | {"beta2": _DILOCOX["inner"]["beta2"]},
            outer=_DILOCOX["outer"],
            codec="lowrank",
            plan=_DILOCOX["plan"],
            adaptive=True,
        ),
        Choice(2, 4),
    ),
    Row(Method("default, delay 0"), Choice(2, 7, 5)),
    Row(Method("default, delay 1", outer={"lr": 0.8, "alpha": 0.8, "delay": 1}), Choice(2, 7, 5)),
    Row(Method("sparse", seeds=3, codec="topk", plan=_SPARSE["plan"], outer=_SPARSE["outer"]), Choice(2, 6, 5)),
    *(
        Row(
            Method(
                f"Shampoo, {'delay 1, ' if delay else ''}{kept} of 4,096",
                seeds=3,
                inner=_SHAMPOO,
                codec="topk",
                plan=_SPARSE["plan"] | {"rank": kept},
                outer=_SPARSE["outer"] | delay,
            ),
            Choice(2, 5, 6),
        )
        for kept, delay in ((216, {}), (216, _LATE), (128, {}), (128, _LATE), (60, {}))
    ),
    Row(
        Method("topk 60 of 4,096", seeds=3, codec="topk", plan=_SPARSE["plan"] | {"rank": 60}, outer=_SPARSE["outer"]),
        Choice(2, 4),
    ),
    Row(
        Method("ternary, H 20", seeds=3, codec="ternary", plan=_TERNARY["plan"], outer=_TERNARY["outer"]),
        Choice(2, 6, 5),
    ),
    Row(
        Method(
            "ternary, H 52",
            codec="ternary",
            plan=_TERNARY["plan"] | {"inner_steps": 52},
            outer=_TERNARY["outer"],
        ),
        Choice(2, 4, 5),
    ),
)


@dataclass(frozen=True)
class Length:
    """Of the trainings, in tokens of all replicas."""

    final: int
    search: int  # 0: no search, and no law of tokens
    moves: int  # of a search, at most: each tries all neighbours of the best so far


def main(
    quick: Annotated[
        bool, typer.Option("--quick", help="A tiny model, few steps, a folder in FOLDER: does everything run?")
    ] = False,
    hidden: Annotated[int, typer.Option(min=32, help="Width of the model.")] = 64,
    layers: Annotated[int, typer.Option(min=1, help="Of the model.")] = 4,
    sequence: Annotated[int, typer.Option(min=8, help="Tokens of a sample.")] = 128,
    tokens_per_parameter: Annotated[float, typer.Option(min=0.1, help="Of each method's training.")] = 20,
    search: Annotated[float, typer.Option(min=0, help="Tokens per parameter of a search's trainings; 0: none.")] = 10,
    moves: Annotated[
        int, typer.Option(min=0, help="Of a search, at most, each to the best neighbour; 0: what the rows state.")
    ] = 4,
    rough: Annotated[
        bool,
        typer.Option("--rough", help="Train what wins as the searches do, in about half of the time."),
    ] = False,
    source: Annotated[str, typer.Option(metavar="GLOB", help="The text to train on.")] = str(
        Path(sysconfig.get_paths()["stdlib"]) / "**/*.py"
    ),
    vocabulary: Annotated[
        int, typer.Option(min=0, help="Tokens of a byte-pair encoding made of the text; 0: every byte is one.")
    ] = 0,
    replicas: Annotated[int, typer.Option(min=2, help="Which share the samples of a step.")] = REPLICAS,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples of a replica's step, for all methods.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="TABLE.KEY=VALUE", help="In inner, outer or plan, of all methods (repeatable)."),
    ] = None,
    uncompressed: Annotated[
        bool, typer.Option("--uncompressed", help="Every method's changes go out in float32.")
    ] = False,
    only: Annotated[list[str] | None, typer.Option(help="Methods that have this in their name (repeatable).")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Of a method that has more of them, so many.")] = 3,
    workers: Annotated[int, typer.Option(min=1, help="Trainings at the same time, of one thread each.")] = (
        os.cpu_count() or 1
    ),
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For the table, the picture and what is done so far.")] = (
        Path("build/convergence")
    ),
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the rows there.")] = None,
) -> None:
    """Train by every method; print loss, gap to the best all-reduce, and traffic."""
    if batch is None and any(row.start.batch * REPLICAS % replicas for row in ROWS):
        raise typer.BadParameter("does not divide the samples of a step, 8: name --batch too", param_hint="--replicas")
    setting = Setting(os.path.abspath(source), hidden, layers, sequence, vocabulary=vocabulary, replicas=replicas)
    rows = [
        Row(
            replace(
                _changed(row.method, settings or []),
                seeds=min(seeds, row.method.seeds),
                compressed=row.method.compressed and not uncompressed,
            ),
            row.start._replace(batch=batch or row.start.batch * REPLICAS // replicas),
        )
        for row in ROWS
        if not only or any(part in row.method.name for part in only)
    ]
    if quick:  # the rank in proportion to the width, as in a large model
        setting, out = replace(setting, hidden=32, layers=2, sequence=32), out / "quick"
        rows = [Row(replace(method, seeds=1, plan=_quick_plan(method)), start) for method, start in rows]
    _refuse(only or [], setting, out, json_file)
    prepare(setting, out)
    for method, choice in rows:
        try:
            manifest_of(job(method, setting, choice, 0, 1), out)
        except ManifestError as error:
            raise typer.BadParameter(str(error), param_hint="--set") from None
    size = parameters(setting, out)
    length = Length(round(tokens_per_parameter * size), round(search * size), moves)
    if quick:
        length = Length(60 * tokens_of(setting), 20 * tokens_of(setting), moves=0)
    best, searched = find(rows, setting, length, out, workers)
    jobs = [
        job(row.method, setting, choice, seed, length.final, rough)
        for row, choice in zip(rows, best, strict=True)
        for seed in range(row.method.seeds)
    ]
    results = train_all(sorted(jobs, key=lambda job: job.seed), out, workers)
    shorter = [
        [job(row.method, setting, choice, seed, length.search, True) for seed in range(row.method.seeds)]
        if length.search
        else []
        for row, choice in zip(rows, best, strict=True)
    ]
    searched |= train_all([one for own in shorter for one in own], out, workers)
    table = list(_rows(jobs, results, rows, [[searched[one.key] for one in own] for own in shorter]))
    heading = {
        "command": shlex.join([Path(sys.executable).name, "-m", "benchmarks.convergence", *sys.argv[1:]]),
        "machine": _machine(),
        "setting": ", ".join(
            f"{key} {value}" for key, value in asdict(setting).items() if key not in ("source", "batch", "replicas")
        ),
        "size": f"{size:,} parameters, {length.final / size:.1f} tokens each, {replicas} replicas",
        "engine": f"one computation of all replicas, matrix products in {_products()}" if rough else "the nodes' slots",
        # CPU seconds of all trainings together, those that an earlier call left in the folder too.
        "seconds": round(sum(result["seconds"] for result in (searched | results).values())),
    }
    text = "".join(f"{key:<13} {value}\n" for key, value in heading.items()) + "\n" + _table(table)
    sys.stdout.write(text)
    (out / "table.txt").write_text(text)
    picture.draw(picture.curves(jobs, results), out / "convergence.png")
    if json_file is not None:
        json_file.write_text(json.dumps(heading | {"rows": [finite(row) for row in table]}, indent=2) + "\n")


def job(method: Method, setting: Setting, choice: Choice, seed: int, tokens: int, batched: bool = False) -> Job:
    """The training with what is chosen, of the whole rounds that come nearest to so many tokens."""
    setting, matrices = replace(setting, batch=choice.batch), method.inner["optimiser"] != "adamw"
    rest = {"lr": rate(choice.rest)} if matrices else {}
    inner = {"weight_decay": DECAYS[choice.decay]} | rest | method.inner  # what the method states wins
    lr = inner.pop("matrix_lr" if matrices else "lr", rate(choice.lr))
    every = method.plan["inner_steps"]
    rounds = max(1, round(tokens / tokens_of(setting) / every))
    return Job(replace(method, inner=inner), setting, lr, seed, rounds * every, batched)


def find(
    rows: Sequence[Row], setting: Setting, length: Length, out: Path, workers: int
) -> tuple[list[Choice], dict[str, Result]]:
    """Each method's best choice: from its start on to the best of all neighbours, until no neighbour is better. And all
    that was trained for it, by the jobs' keys."""
    best, results = [row.start for row in rows], dict[str, Result]()
    if not length.search:
        return best, results
    if not length.moves:
        centres = [job(row.method, setting, row.start, 0, length.search, True) for row in rows]
        return best, train_all(centres, out, workers)
    for _ in range(length.moves):
        tried = [
            {one: job(row.method, setting, one, 0, length.search, True) for one in [centre, *_neighbours(row, centre)]}
            for row, centre in zip(rows, best, strict=True)
        ]
        results |= train_all([one for own in tried for one in own.values()], out, workers)
        before, best = best, [min(own, key=lambda one: results[own[one].key]["loss"]) for own in tried]
        if best == before:
            break
    return best, results


def _neighbours(row: Row, centre: Choice) -> Iterator[Choice]:
    yield centre._replace(batch=2 * centre.batch)
    if centre.batch > 1:
        yield centre._replace(batch=centre.batch // 2)
    for step in (1, -1):
        yield centre._replace(lr=centre.lr + step)
        if row.method.inner["optimiser"] != "adamw":
            yield centre._replace(rest=centre.rest + step)
        if centre.decay + step in range(len(DECAYS)):
            yield centre._replace(decay=centre.decay + step)


def _changed(method: Method, settings: Sequence[str]) -> Method:
    """With these keys of its tables, as `inner.beta2=0.99`."""
    for one in settings:
        name, _, text = one.partition("=")
        table, _, key = name.partition(".")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = None
        count = type(value) is int and value > 0
        if table not in ("inner", "outer", "plan") or not isinstance(value, int | float):
            raise typer.BadParameter(f"expected, for example, inner.beta2=0.99, got {one}", param_hint="--set")
        if name == "plan.inner_steps" and not count:  # before anything is divided by it
            raise typer.BadParameter(f"{name}: expected a number above 0, got {text}", param_hint="--set")
        method = replace(method, **{table: getattr(method, table) | {key: value}})
    return method


def _refuse(only: Sequence[str], setting: Setting, out: Path, json_file: Path | None) -> None:
    """What would otherwise fail after hours."""
    unit = 2 * max(1, setting.hidden // 32)  # halves of every head
    if setting.hidden % unit:
        raise typer.BadParameter(f"expected a multiple of {unit}, got {setting.hidden}", param_hint="--hidden")
    if out.exists() and not out.is_dir():
        raise typer.BadParameter(f"{out}: a file, expected a folder", param_hint="--out")
    for part in only:
        named = [row.method for row in ROWS if part in row.method.name]
        if not named:
            names = ", ".join(row.method.name for row in ROWS)
            raise typer.BadParameter(f"no method has {part} in its name; there are {names}", param_hint="--only")
    if setting.vocabulary and setting.vocabulary < 300:
        raise typer.BadParameter("expected 0 (bytes), or at least 300: 256 bytes, and pairs", param_hint="--vocabulary")
    if json_file is not None and not json_file.parent.is_dir():
        raise typer.BadParameter(f"{json_file.parent}: no such folder", param_hint="--json")
    if json_file is not None and json_file.is_dir():
        raise typer.BadParameter(f"{json_file}: a folder, expected a file", param_hint="--json")


def _machine() -> str:
    from torch.backends import cpu

    kind = f"{platform.machine()} ({cpu.get_cpu_capability()})"
    return f"{kind}, {os.cpu_count()} cores, Python {platform.python_version()}"


def _products() -> str:
    from benchmarks.batched import ROUGH

    return str(ROUGH).removeprefix("torch.")


def _quick_plan(method: Method) -> dict[str, Any]:
    rank = {"rank": 8} if method.codec == "lowrank" else {}
    return method.plan | rank | {"inner_steps": min(10, method.plan["inner_steps"])}


def _rows(
    jobs: Sequence[Job],
    results: dict[str, Result],
    rows: Sequence[Row],
    shorter: Sequence[Sequence[Result]],
) -> Iterator[dict[str, Any]]:
    """One row per method: means over its seeds. Gaps are to the same seeds of the best all-reduce, of those that have
    most seeds. `shorter`: trainings of a search's length, of all seeds of each row, or none."""
    every_step = [row.method for row in rows if row.method.every_step]
    most = max((method.seeds for method in every_step), default=0)
    base = min(
        ([one for one in jobs if one.method.name == method.name] for method in every_step if method.seeds == most),
        key=lambda own: _mean([results[one.key] for one in own], "loss"),
        default=[],
    )
    for row, short in zip(rows, shorter, strict=True):
        own = [one for one in jobs if one.method.name == row.method.name]
        found = [results[one.key] for one in own]
        same = [results[one.key] for one in base if one.seed < len(own)]
        first, inner = found[0], own[0].method.inner
        yield {
            "method": row.method.name,
            "seeds": len(found),
            "batch": own[0].setting.batch,
            "lr": round(own[0].lr, 5),
            "lr_rest": round(inner["lr"], 5) if "lr" in inner else None,
            "decay": inner["weight_decay"],
            "loss": round(_mean(found, "loss"), 4),
            "losses": [round(result["loss"], 4) for result in found],
            "gap_percent": _gap(found, same, "loss"),
            "mean_loss": round(_mean(found, "mean_loss"), 4),
            "mean_gap_percent": _gap(found, same, "mean_loss"),
            "search_loss": round(_mean(short, "loss"), 4) if short else None,
            "tokens_percent": _tokens(found, short, _mean(same, "loss")),
            "bytes_per_round": first["bytes_per_round"],
            "traffic_ratio": round(same[0]["bytes"] / first["bytes"], 1) if same else math.nan,
            "all_bytes_ratio": round(_carried(base[0], same[0]) / _carried(own[0], first), 1) if same else math.nan,
            "steps": first["steps"],
            "seconds": round(_mean(found, "seconds")),
        }


def _carried(job: Job, result: Result) -> float:
    """Bytes that one node sends in a training: of a ring all-reduce 2 (n - 1) / n gradients in each step; payloads to
    all others, and what goes beside. Without the states that an audit draws."""
    others = job.setting.replicas - 1
    if job.method.every_step:
        return result["bytes"] * 2 * others / job.setting.replicas
    beside = BESIDE if others + 1 == REPLICAS else math.nan  # known of so many members only
    return SENT * result["bytes"] * others + beside * result["rounds"]


def _mean(found: Sequence[Result], key: str) -> float:
    return statistics.mean(result[key] for result in found) if found else math.nan


def _gap(found: Sequence[Result], base: Sequence[Result], key: str) -> float:
    return round(100 * (_mean(found, key) / _mean(base, key) - 1), 2)


def _tokens(found: Sequence[Result], shorter: Sequence[Result], wanted: float) -> float | None:
    """Tokens for all-reduce's loss, in percent of those that it has: loss falls by a power of the tokens, which the
    method's own trainings of a search's length show. None where they do not."""
    if not shorter or shorter[0]["steps"] >= found[0]["steps"]:
        return None
    loss, before = _mean(found, "loss"), _mean(shorter, "loss")
    if not all(map(math.isfinite, (wanted, loss, before))) or before <= loss:
        return None
    power = math.log(before / loss) / math.log(found[0]["steps"] / shorter[0]["steps"])
    times = math.log(loss / wanted) / power
    return round(100 * math.exp(times), 1) if times < 10 else None


def _table(rows: Sequence[dict[str, Any]]) -> str:
    keys = list(rows[0])
    cells = [keys, *([str(row[key]) for key in keys] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in cells]
    for ratio, gap in TARGETS:
        reached = [row["method"] for row in rows if row["traffic_ratio"] >= ratio and row["gap_percent"] <= gap]
        lines.append(f"gap of at most {gap:g}% at {ratio} times less traffic: {', '.join(reached) or 'not reached'}")
    losses = {row["method"]: row["loss"] for row in rows}
    for late, prompt in DELAYED.items():
        if {late, prompt} <= losses.keys():
            lines.append(f"{late}: {100 * (losses[late] / losses[prompt] - 1):.1f}% over {prompt}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    typer.run(main)
