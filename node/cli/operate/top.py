"""`dlx-node top`: the folder's node at a glance, until q or Ctrl-C."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from dlx.node.cli import options
from dlx.node.cli.operate.glance import Snapshot, frame
from dlx.node.cli.operate.status import read
from dlx.node.daemon.api.status import NodeStatus, Peers, Rounds
from dlx.node.home import extras
from dlx.node.home.datadir import DataDir


@options.of_folder()
def command(
    given: options.Given,
    every: Annotated[float, typer.Option(min=0.2, max=3600, metavar="SECONDS", help="Between two looks.")] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame, and end, as always where stdout is no terminal.")
    ] = False,
    json: options.JsonOption = False,
) -> None:
    """Watch the local node: its rounds, losses, traffic, peers and warnings. q or Ctrl-C ends it.

    Space holds the picture still, r looks at once, the tab key and the arrows move through rounds and peers.
    """
    folder, _ = options.folder(given)
    first = snapshot(folder)
    if json:
        options.print_json({"status": first.status, "peers": first.peers, "rounds": first.rounds})
    elif once or not sys.stdout.isatty() or not sys.stdin.isatty():
        options.console().print(frame(first))
    else:
        extras.require("top")
        from dlx.node.cli.operate.screen import Screen

        Screen(lambda: snapshot(folder), first, every).run()


def snapshot(folder: DataDir) -> Snapshot:
    """Ask the folder's node. Raises NotReady where none runs, Failure where it answers nonsense."""
    status, peers = read(folder, "/v1/status", NodeStatus), read(folder, "/v1/peers", Peers).peers
    return Snapshot(status, peers, read(folder, "/v1/rounds", Rounds).rounds, time.monotonic())
