"""`dlx-node top`: the folder's node at a glance, until Ctrl-C."""

from __future__ import annotations

import time
from collections import deque
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dlx.node.cli import options
from dlx.node.cli.endpoint import read
from dlx.node.cli.peers import Peers
from dlx.node.cli.status import answers
from dlx.node.daemon.status import NodeStatus, PeerView
from dlx.node.home.errors import Failure
from dlx.node.home.shown import size

_ROUNDS = 60  # newest losses that are drawn
_BARS = "▁▂▃▄▅▆▇█"
_ABOVE = ("ready", "connected", "slot", "counted", "vote", "notice", "rests", "waiting for", "fails", "checks")


def command(
    every: Annotated[float, typer.Option(min=0.2, metavar="SECONDS", help="Between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    datadir: options.DataDirOption = None,
    network: options.NetworkOption = None,
) -> None:
    """Watch the local node: its round, losses, traffic, peers and warnings, drawn anew every second."""
    folder, _ = options.folder(datadir, network)
    losses: deque[tuple[int, float]] = deque(maxlen=_ROUNDS)
    before: NodeStatus | None = None
    status, listed = read(folder, "/v1/status", NodeStatus), read(folder, "/v1/peers", Peers)
    with Live(console=options.console(), auto_refresh=False, screen=not once) as live:
        while True:
            if status.loss is not None and status.round is not None:
                if losses and losses[-1][0] == status.round:
                    losses.pop()
                losses.append((status.round, status.loss))
            live.update(picture(status, before, every, [loss for _, loss in losses], listed.peers), refresh=True)
            if once:
                return
            before = status
            time.sleep(every)
            try:
                status, listed = read(folder, "/v1/status", NodeStatus), read(folder, "/v1/peers", Peers)
            except Failure as error:
                live.stop()
                raise error


def picture(
    status: NodeStatus, before: NodeStatus | None, seconds: float, losses: list[float], peers: list[PeerView]
) -> Any:
    """All of it, for a terminal of any size. `before`: the status so many seconds ago."""
    rows = Table.grid(padding=(0, 2))
    for name, value in answers(status):
        if name in _ABOVE:
            rows.add_row(Text(name, style="bold"), value if isinstance(value, Text) else Text(str(value)))
    now = Table.grid(padding=(0, 2))
    where = "no round" if status.round is None else f"round {status.round}"
    bar = ProgressBar(total=max(1, status.steps), completed=status.step, width=30)
    speed = "" if status.tokens_per_second is None else f"{status.tokens_per_second:,.0f} tokens/s"
    now.add_row(Text(status.phase, style="bold"), where, bar, f"step {status.step} of {status.steps}", speed)
    loss = "no loss yet" if status.loss is None else f"loss {status.loss:.4f}  {spark(losses)}"
    title = f"dlx-node {status.version}  run {status.run[:18]}  account {status.account}"
    return Panel(
        Group(rows, "", now, Text(loss), "", _traffic(status, before, seconds), "", _peers(peers)), title=title
    )


def spark(values: list[float]) -> str:
    """A line of bars, lowest to highest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    return "".join(_BARS[round((one - low) / (high - low or 1.0) * (len(_BARS) - 1))] for one in values)


def _traffic(status: NodeStatus, before: NodeStatus | None, seconds: float) -> Table:
    kinds = type(status.traffic).__struct_fields__
    table = Table("", *kinds, box=None, pad_edge=False)
    for way in ("sent", "received"):
        cells = []
        for kind in kinds:
            count = getattr(getattr(status.traffic, kind), way)
            rate = (
                "" if before is None else f" {size((count - getattr(getattr(before.traffic, kind), way)) / seconds)}/s"
            )
            cells.append(f"{size(count)}{rate}")
        table.add_row(way, *cells)
    return table


def _peers(peers: list[PeerView]) -> Table:
    table = Table("PEER", "ADDRESS", "ROUND TRIP", "AGREED", box=None, pad_edge=False)
    for peer in peers[:16]:
        trip = "" if peer.rtt_ms is None else f"{peer.rtt_ms:.1f} ms"
        table.add_row(peer.peer_id, *peer.addresses[:1] or ("",), trip, "yes" if peer.agreed else "no")
    if len(peers) > 16:
        table.add_row(f"and {len(peers) - 16} more")
    return table
