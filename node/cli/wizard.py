"""`dlx-node run new`: a commented run.toml from a folder of text, and what the run would cost."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from dlx.node.cli import options, plan
from dlx.node.home import shown
from dlx.node.home.errors import UsageFailure

_T = TypeVar("_T")
_STEPS = 10  # inner steps of a round, by default
_BATCH = 8  # samples
_LENGTH = 1024  # tokens of a sample, at most


def command(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The run.toml to write; it must not exist.")],
    data: Annotated[
        Path | None, typer.Option(metavar="PATH", help="File or folder of text.", show_default="asked")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="A Hugging Face folder to start from, or tiny, small or base.", show_default="asked"
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="What people read in lists.", show_default="asked")] = None,
    stages: Annotated[
        int | None, typer.Option(min=1, max=64, help="Machines that share the model.", show_default="asked")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, max=64, help="Replicas that begin.", show_default="asked")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Outer rounds.", show_default="asked: once through the data")
    ] = None,
    licence: Annotated[str | None, typer.Option(help="Of the data, such as CC-BY-4.0.", show_default="asked")] = None,
    device: Annotated[str, typer.Option(metavar="KIND", help="As of `run plan`: cpu, h100, rtx4090, ...")] = "cpu",
    link: Annotated[
        str | None, typer.Option(help="Speed of the link between replicas.", show_default="as of `run plan`")
    ] = None,
    price: Annotated[
        float, typer.Option(min=0, help="What a device costs an hour, for the sum.", show_default="no sum")
    ] = 0.0,
) -> None:
    """Ask what a run needs, write a commented run.toml, and show memory, bytes, hours and cost as `run plan` has them.

    Where stdin is no terminal, options and defaults answer. Changes nothing else.
    """
    if out.exists() or not out.absolute().parent.is_dir():
        raise UsageFailure(f"{out} cannot be made: name a new file in a folder that exists")
    from dlx.ground import durable
    from dlx.node.runs.draft_text import SIZES, Answers, draft_text, even, suggested_rounds
    from dlx.training.recipe.huggingface import read_config
    from dlx.training.recipe.recipe import Model, parse_model

    text = _ask("A file or folder with the text", data, None, Path)
    if not text.exists():
        raise UsageFailure(f"--data {text}: there is no such file or folder")
    chosen = _ask(f"Model: a Hugging Face folder, or {', '.join(SIZES)}", model, "tiny", str)
    tokenizer: Path | None = None
    with plan.reading(out):
        if chosen in SIZES:
            start: Any = SIZES[chosen]
            layers, length = start.layers, start.length
        else:
            start = options.existing_folder(Path(chosen), "--model").absolute()
            config = parse_model(Model(read_config(start, untie=False)))
            layers, length = config.layers, min(_LENGTH, config.positions_limit[1])
            tokenizer = start / "tokenizer.json" if (start / "tokenizer.json").is_file() else None
    machines = _ask(f"Machines that share the model's {layers} layers", stages, 1, int)
    if not 1 <= machines <= layers:
        raise UsageFailure(f"--stages {machines}: the model has {layers} layers")
    begin = _ask("Replicas that begin together", replicas, 2, int)
    size = _bytes_of(text)
    per_step = _BATCH * length
    once = suggested_rounds(size // (4 if tokenizer else 1), per_step, _STEPS, max(1, begin))
    said = f"Rounds ({shown.size(size)} of text: about once through it is {once})"
    answers = Answers(
        name=_ask("Name", name, re.sub(r"[^A-Za-z0-9._-]+", "-", text.stem).strip("-.") or "my-run", str),
        model=start,
        data=text.absolute(),
        stages=even(layers, machines),
        min_replicas=begin,
        max_replicas=max(8, begin),
        rounds=_ask(said, rounds, once, int),
        length=length,
        batch_size=_BATCH,
        micro_batches=4 if machines > 1 else 1,
        tokenizer=tokenizer,
        licence=_ask("Licence of the data", licence, "", str),
    )
    durable.write_bytes(out, draft_text(answers).encode())
    try:
        found = plan.planned(out, device, replicas=begin, link=link)
    except BaseException:
        out.unlink()  # what is left would be no run
        raise
    plan.print_plan(found)
    if price:
        hours = answers.rounds * found.seconds.round / 3600
        sum_ = hours * begin * machines * price
        options.print_fields([("cost", f"{sum_:,.2f}: {hours:,.1f} hours of {begin * machines} devices at {price:g}")])
    options.note(f"wrote {out}: look through it, then `dlx-node run create --manifest {out}`")


def _ask(question: str, given: _T | None, default: Any, kind: type[_T]) -> _T:
    """The option, else what the person at the terminal says, else the default."""
    if given is not None:
        return given
    if sys.stdin.isatty():
        return kind(typer.prompt(question, default=default, type=kind, err=True))  # type: ignore[call-arg]
    if default is None:
        raise UsageFailure(f"{question}: name it by an option, there is nobody to ask")
    return kind(default)  # type: ignore[call-arg]


def _bytes_of(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    files = (Path(folder) / name for folder, _, names in os.walk(path) for name in names)
    return sum(one.stat().st_size for one in files if one.is_file())
