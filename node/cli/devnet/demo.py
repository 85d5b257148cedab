"""`dlx-node demo`: the whole thing on one machine, of real processes."""

from __future__ import annotations

import shutil
import sys
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dlx.ground.machine import expand
from dlx.node.cli import options
from dlx.node.home import extras
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.home.formatting import size
from dlx.node.home.program import line, program
from dlx.node.home.settings import Settings

if TYPE_CHECKING:
    from dlx.node.devnet.devnet import Devnet

_PLACE = Path("~/.dlx/demos")
_HAPPENS = (
    "a chain starts here, with the ledger's contracts on it: it says what counts",
    "each node trains its copy of a small model on Python source, and sends the others what changed",
    "each line with `round` is one that the ledger sealed: its loss, its speed, and whose work it counts",
    "at the end the audit computes every outer step again, from what was sent, and compares the bits",
    "then the model is pulled, measured on text that nobody trained on, and writes a little itself",
)
_NEEDED = 200_000_000  # bytes: what a demo of the default size leaves, and some more


def command(
    rounds: Annotated[int, typer.Option(min=1, max=10_000, help="Outer rounds to train.")] = 8,
    replicas: Annotated[int, typer.Option(min=1, max=14, help="Complete pipelines.")] = 2,
    stages: Annotated[int, typer.Option(min=1, max=4, help="Stages of each pipeline.")] = 1,
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

    Exit code 0 only if every round was sealed, half of each stage's seals or more count work, and the audit passed. On
    a slow or busy machine a seal may be empty: that is said.
    """
    extras.require("train", "chain", "plot")  # now, not after the training
    root = expand(datadir or _place(resume)).absolute()
    options.check_new_place(root)
    check_room(root)
    from dlx.node.devnet.devnet import Devnet, check_new

    earlier = Devnet.open(root) if resume else None
    if earlier is None:
        check_new(root, Devnet.kind)
    for said in (f"the demo's folder is {root}", *_HAPPENS):  # before torch is imported, which takes seconds
        options.note(said)
    from dlx.node.audit.report import Conclusion
    from dlx.node.devnet import demo
    from dlx.node.devnet.terminal import Dashboard, terminal_plot

    devnet = earlier or Devnet.create(root, rounds, replicas, stages, options.note)
    with DataDir(root).lock(), demo.stopping(devnet):
        last = devnet.shape.rounds - 1
        nodes = "1 node" if len(devnet.names) == 1 else f"{len(devnet.names)} nodes"
        options.note(f"run {devnet.shape.run[:18]}: {nodes}, rounds 0 to {last}")
        devnet.start()
        with Dashboard(devnet) as dashboard:
            observed = demo.follow(devnet, dashboard.on_round, dashboard.on_statuses)
        options.note("waiting for the members' last checks")
        demo.await_checks(devnet, observed)
        demo.await_evaluations(devnet, observed)
        devnet.stop_nodes()
        result = demo.outcome(devnet, observed, options.note)
        options.note("drawing the loss curve and the page")
        curve, page = _draw(devnet)
        before = demo.first_loss(devnet)
    if json:
        options.print_json(result)
    else:
        sys.stdout.write(terminal_plot(result["loss"]) + "\n")
        sample = demo.sample(Path(result["checkpoint"]))
        prompt = demo.PROMPT.decode()
        options.say(f"\nwhat the model now writes after {prompt!r} (so few rounds teach letters, not words):\n")
        options.say(_indented(sample) + "\n")
        counts, verdict = result["audit"]["counts"], Conclusion(**result["audit"]["verdict"])
        options.print_fields(
            [
                ("held-out loss", f"{before:.3f} -> {result['heldout_loss']:.3f} nats per byte"),
                ("tokens", _tokens(result)),
                ("work counted", _work(*demo.work_counted(result["seals"]))),
                ("checks", _checks(result["checks"])),
                ("traffic sent", _sent(result)),
                ("audit", f"{verdict} ({', '.join(f'{n} {v}' for v, n in counts.items() if n)})"),
                ("loss curve", curve),
                ("checkpoint", result["checkpoint"]),
                ("everything", root),
                ("page", page.as_uri()),
            ]
        )
        options.say("\nwhat to try next:\n")
        options.print_fields(_next(root))
    _conclude(result)


def _conclude(result: dict[str, Any]) -> None:
    """Raises Failure where the demo is no good, and notes what else to know of it."""
    from dlx.node.devnet import demo

    if problems := demo.passed(result):
        raise Failure("; ".join(problems[:3]))
    if came_late := demo.late(result):
        options.note(came_late)


def _next(root: Path) -> list[tuple[str, Any]]:
    return [
        (line("audit", "--level", 3, folder=root), "trains drawn work again"),
        (f"{program()} serve {quote(str(root / 'checkpoint'))}", "the model as an endpoint"),
        (line("web", folder=root), "the page, to click through"),
        (f"{program()} devnet", "a run that goes on, and a line with which others join it"),
    ]


def _tokens(result: dict[str, Any]) -> str:
    speed = result["tokens_per_second"]
    return f"{result['tokens']:,}" + ("" if speed is None else f" at {speed:,.0f} per second")


def _work(counted: int, possible: int) -> str | Text:
    """The share of the replicas' work that seals count, and what to change where some was left out."""
    summary = f"{counted / max(1, possible):.0%} ({counted:,} of {possible:,} contributions)"
    if counted >= possible:
        return summary
    return options.amber(f"{summary}: the rest came too late; a longer timing.straggler_grace in run.toml waits for it")


def _checks(found: dict[str, int]) -> str:
    """Of drawn work, by its members, until the run ended."""
    each = ", ".join(f"{found[word]} {word}" for word in ("honest", "false", "withheld") if found[word])
    summary = f"{found['checked']} of {found['drawn']} drawn segments replayed by members"
    return f"{summary}: {each}" if each else summary


def _sent(result: dict[str, Any]) -> str:
    """By all nodes together."""
    from msgspec.structs import asdict

    kinds = [asdict(traffic) for traffic in result["traffic_per_node"]]
    totals = {kind: sum(one[kind].sent for one in kinds) for kind in (kinds[0] if kinds else ())}
    return (
        ", ".join(f"{kind} {size(total)}" for kind, total in totals.items() if total) or "unknown: it had ended before"
    )


def check_room(root: Path) -> None:
    """Raises Failure where the nodes would wait for room from the start."""
    place = next(path for path in (root, *root.parents) if path.is_dir())
    floor, free = Settings().disk_floor, shutil.disk_usage(place).free
    if free < floor + _NEEDED:
        raise Failure(
            f"{place} has {size(free)} free: the nodes leave {size(floor)} of it free (disk_floor) and need "
            f"{size(_NEEDED)}: name a --datadir on another disk"
        )


def _place(resume: bool) -> Path:
    """The next free demo folder, or the newest."""
    place = expand(_PLACE)
    numbers = sorted(int(path.name) for path in place.glob("*") if path.name.isdecimal())
    if resume:
        if not numbers:
            raise UsageFailure(f"no demo lies in {place}: start one without --resume, or name its --datadir")
        return place / str(numbers[-1])
    return place / str(numbers[-1] + 1 if numbers else 1)


def _draw(devnet: Devnet) -> tuple[Path, Path]:
    """The loss curve, and the run's page as a file."""
    from dlx.node.devnet import demo
    from dlx.node.home.ledgers import open_index, open_ledger
    from dlx.node.runs import find, history
    from dlx.node.web.reading.reader import Reader
    from dlx.node.web.render import write_file

    curve, page, folder = devnet.root / "loss.png", devnet.root / "run.html", DataDir(devnet.root)
    with open_ledger(devnet.settings, folder) as client, open_index(client) as index:
        run = bytes.fromhex(devnet.shape.run[2:])
        view = find.view_of(client, index, run)
        found = history.history(index, view, held_out=demo.held_out(devnet))
        history.plot(found, curve)
        with closing(Reader(client, folder.blob_folders, f"--datadir {quote(str(devnet.root))}")) as reader:
            write_file(reader.run_page(run, every=0), found, page)
    return curve, page


def _indented(text: str) -> str:
    return "\n".join(f"    {line.rstrip()}" for line in text.splitlines())
