"""`dlx-node audit-kit`: all that the audit of a run reads, in one folder, for whoever has no node and no chain."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dlx.node.cli import options
from dlx.node.cli.auditing.audit import HeadOption, asked, choice_of, pin_of
from dlx.node.home import formatting
from dlx.node.home.program import program

OutOption = Annotated[Path, typer.Option("--out", metavar="DIR", help="New folder for the kit.")]
LevelOption = Annotated[
    int, typer.Option(min=2, max=3, metavar="N", help="3: also what the replay of drawn training takes.")
]


@options.of_folder(*options.LEDGER, "bootstrap", "mailboxes")
def command(
    given: options.Given,
    out: OutOption,
    run: options.RunArgument = None,
    head: HeadOption = None,
    level: LevelOption = 2,
    blobs: options.BlobsOption = None,
    json: options.JsonOption = False,
) -> None:
    """Audit a run, and keep all that was read: the chain's answers, proven to the block --head, and the blobs.

    Whoever gets the folder audits it with `dlx-node audit DIR`, without a node, a chain or a network. It trusts nobody
    but the word that the block is on the chain: its number and hash are in kit.json. A block that is new may still be
    taken back by its chain, so name an old one for a kit that lasts.

    A kit is also made of a run that does not pass: it shows that. Exit codes as those of `audit`.
    """
    out = out.absolute()
    own = tuple(options.existing_folder(path, "--blobs") for path in blobs or ())
    pin, choice = pin_of(head), choice_of(level)
    with asked(given, run, own, pin, choice, json) as (client, request, progress):
        from dlx.node.audit.kit import Kit, make_kit

        report = make_kit(client, request, out, progress.show, progress.say)
    size = sum(path.stat().st_size for path in out.rglob("*"))
    made = {"kit": out, "run": "0x" + report.run.hex(), "head": str(Kit(out).head), "size": size}
    if json:
        options.print_json(made | {"verdict": report.json()["verdict"]})
    else:
        checked = f"{program()} audit {shlex.quote(str(out))}"
        shown = made | {"size": formatting.size(size), "verdict": report.verdict, "audit it": checked}
        options.print_fields(list(shown.items()))
    raise typer.Exit(report.exit_code)
