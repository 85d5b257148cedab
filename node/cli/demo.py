"""`dlx-node demo`: the whole thing on one machine, of real processes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dlx.node.cli import options
from dlx.node.home import extras
from dlx.node.home.errors import Failure, UsageFailure

_PLACE = Path("~/.dlx/demos")


def command(
    rounds: Annotated[int, typer.Option(min=1, max=10_000, help="Outer rounds to train.")] = 20,
    replicas: Annotated[int, typer.Option(min=1, max=14, help="Complete pipelines.")] = 2,
    stages: Annotated[int, typer.Option(min=1, max=4, help="Stages of each pipeline.")] = 2,
    datadir: Annotated[
        Path | None,
        typer.Option(help="New folder for everything.", show_default="~/.dlx/demos/<number>; the newest with --resume"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an earlier demo; its manifest fixes the number of rounds.")
    ] = False,
    json: options.JsonOption = False,
) -> None:
    """Start a chain and replicas x stages nodes, train, audit the history, pull the checkpoint and sample from it.

    Exit code 0 only if every round was sealed, no seal was empty and the audit passed.
    """
    extras.require("train", "chain", "plot")  # now, not after the training
    from dlx.node.devnet import demo
    from dlx.node.devnet.devnet import Devnet
    from dlx.node.devnet.terminal import Dashboard, terminal_plot

    root = (datadir or _place(resume)).expanduser().absolute()
    options.check_new_place(root)
    devnet = Devnet.open(root) if resume else Devnet.create(root, rounds, replicas, stages, options.note)
    with demo.stopping(devnet):
        options.note(f"run {devnet.record.run[:18]}: {len(devnet.names)} nodes in {root}")
        devnet.start()
        with Dashboard(devnet) as dashboard:
            seen = demo.watch(devnet, dashboard.on_round, dashboard.on_look)
        devnet.stop_nodes()
        result = demo.outcome(devnet, seen, options.note)
        curve = _draw(seen, root)
        before = demo.first_loss(devnet)
    problems = demo.passed(result)
    if json:
        options.print_json(result)
    else:
        sys.stdout.write(terminal_plot(result["loss"]) + "\n")
        sample = demo.sample(Path(result["checkpoint"]))
        sys.stdout.write(f"\na sample of the trained model:\n\n{_indented(sample)}\n\n")
        counts = result["audit"]["counts"]
        options.print_fields(
            [
                ("held-out loss", f"{before:.3f} -> {result['heldout_loss']:.3f} nats per byte"),
                ("tokens", f"{result['tokens']:,} at {result['tokens_per_second']:,.0f} per second"),
                ("audit", f"{result['audit']['verdict']} ({', '.join(f'{n} {v}' for v, n in counts.items() if n)})"),
                ("loss curve", curve),
                ("checkpoint", result["checkpoint"]),
                ("everything", root),
                ("next", f"dlx-node audit --datadir {root}"),
            ]
        )
    if problems:
        raise Failure("; ".join(problems[:3]))


def _place(resume: bool) -> Path:
    """The next free demo folder, or the newest."""
    place = _PLACE.expanduser()
    numbers = sorted(int(path.name) for path in place.glob("*") if path.name.isdecimal())
    if resume:
        if not numbers:
            raise UsageFailure(f"no demo lies in {place}: start one without --resume, or name its --datadir")
        return place / str(numbers[-1])
    return place / str(numbers[-1] + 1 if numbers else 1)


def _draw(seen, root: Path) -> Path:  # type: ignore[no-untyped-def]
    from dlx.node.runs import history

    path = root / "loss.png"
    history.plot(history.history(seen.view), path)
    return path


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
