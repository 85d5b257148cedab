"""`dlx-node devnet`: a chain, a run and a node on this machine, that others join with one line."""

from __future__ import annotations

import ipaddress
import math
import socket
from pathlib import Path
from typing import Annotated

import typer

from dlx.ground.machine import expand
from dlx.node.cli import options
from dlx.node.cli.devnet.demo import check_room
from dlx.node.home import extras
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import UsageFailure
from dlx.node.home.program import line

_PLACE = Path("~/.dlx/devnets/1")
_PAGE_PORT = 4680


def command(
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="IPv4 address of this machine, for those who join from other ones; its chain's faucet pays anybody.",
        ),
    ] = "127.0.0.1",
    datadir: Annotated[
        Path | None,
        typer.Option(help="Folder for everything; one that holds a devnet goes on.", show_default=str(_PLACE)),
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Start a chain, a run and one node, and print a line with which others join, until Ctrl-C.

    One newcomer is enough to be counted: the run has one stage. The line is for a second terminal; with --host it is
    for another machine. A page shows the run. The next start goes on.
    """
    extras.require("train", "chain")
    _check_host(host)
    root = expand(datadir or _PLACE).absolute()
    if datadir is not None:
        options.check_new_place(root)
    check_room(root)
    from dlx.node.devnet.devnet import FILE, check_new, shape_of

    new = not (root / FILE).exists()
    if new:
        check_new(root, "devnet")
    else:
        shape_of(root)  # refused now where it cannot go on
    options.note(f"the devnet's folder is {root}")  # what is imported now takes seconds
    from dlx.node.devnet import demo
    from dlx.node.devnet.demo import Observed
    from dlx.node.devnet.joinable import NODE, JoinableDevnet
    from dlx.node.devnet.terminal import Dashboard

    devnet = JoinableDevnet.begin(root, host, options.note) if new else JoinableDevnet.open(root)
    devnet.host, devnet.page_port = host, _free(_PAGE_PORT)
    with DataDir(root).lock(), demo.stopping(devnet):
        devnet.start()
        page, paste = devnet.await_page(), devnet.join_command()
        if json:
            options.print_json({"run": devnet.shape.run, "rpc_url": devnet.rpc_url, "page": page, "join": paste})
        else:
            look = line("status", folder=devnet.folder(NODE).root)
            options.print_fields([("everything", root), ("page", page), ("look", look), ("stop", "Ctrl-C")])
            options.say(f"\nTo join, paste this into another terminal{_of(host)}:\n\n{paste}\n")
        with Dashboard(devnet) as dashboard:

            def on_round(observed: Observed, round: int) -> None:
                counted = devnet.newly_counted(observed, round)
                if new or round >= observed.earlier:  # of a new one also what was sealed before the page answered
                    dashboard.on_round(observed, round)
                    for line in counted:
                        dashboard.say(line)

            demo.follow(devnet, on_round, dashboard.on_statuses, stall=math.inf)


def _of(host: str) -> str:
    return "" if host == "127.0.0.1" else ", here or on another machine that has dlx-node"


def _check_host(host: str) -> None:
    """Raises UsageFailure for what nobody can dial."""
    try:
        if not ipaddress.IPv4Address(host).is_unspecified:
            return
    except ValueError:
        pass
    raise UsageFailure(f"--host {host}: expected the IPv4 address at which others reach this machine")


def _free(port: int) -> int:
    """The port, or 0, any free one, where somebody has it."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return 0
        return port
