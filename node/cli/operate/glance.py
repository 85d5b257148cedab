"""What `dlx-node top` shows of a node: as one frame for a pipe, and in parts for a terminal."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dlx.ground.untrusted import printable
from dlx.node.cli.operate.status import status_fields
from dlx.node.daemon.api.status import NodeStatus, PeerView, RoundView
from dlx.node.home.formatting import size

_BARS = "▁▂▃▄▅▆▇█"
_BLOCKS = " " + _BARS
_SUMMARY = (
    "ready", "connected", "reachable", "relays", "mailboxes", "unreached", "slot", "counted", "weight", "vouches",
    "founder", "notice", "rests", "waiting for", "fails", "checks",
)  # fmt: skip
_FRAME_PEERS, _FRAME_ROUNDS = 16, 8  # that one frame shows
_FRAME_WIDTH, _CHART_ROWS = 72, 5


@dataclass(frozen=True)
class Snapshot:
    """What the node said of itself at one moment, by this process's monotonic clock."""

    status: NodeStatus
    peers: list[PeerView]
    rounds: list[RoundView]
    at: float = 0.0

    @property
    def losses(self) -> list[float]:
        """Of training, in the newest rounds that have one, oldest first."""
        return [one.loss for one in self.rounds if one.loss is not None]

    @property
    def held_out(self) -> list[float]:
        """Held-out losses of the versions that the newest rounds made, oldest first; those that are known."""
        return [one.held_out for one in self.rounds if one.held_out is not None]

    @property
    def curve(self) -> list[tuple[int, float]]:
        """What is drawn, by round: held-out losses, or those of training where there are no two."""
        said = [(one.round, one.held_out) for one in self.rounds if one.held_out is not None]
        return said if len(said) > 1 else [(one.round, one.loss) for one in self.rounds if one.loss is not None]


def frame(seen: Snapshot) -> Any:
    """All of it, as one picture for a terminal of any size."""
    status = seen.status
    losses = Text(f"{loss_trends(seen)}\n{loss_chart(seen.curve, _FRAME_WIDTH)}")
    rounds = Table(*ROUND_COLUMNS, box=None, pad_edge=False)
    for one in seen.rounds[-_FRAME_ROUNDS:]:
        rounds.add_row(*round_cells(one))
    peers = Table(*PEER_COLUMNS, box=None, pad_edge=False)
    for peer in seen.peers[:_FRAME_PEERS]:
        peers.add_row(*peer_cells(peer))
    if len(seen.peers) > _FRAME_PEERS:
        peers.add_row(f"and {len(seen.peers) - _FRAME_PEERS} more")
    parts = (summary(status), current_round(status), losses, traffic(status), rounds, peers)
    return Panel(Group(*(one for part in parts for one in (part, ""))), title=Text(title(status)))


def title(status: NodeStatus) -> str:
    return f"dlx-node {status.version}  run {status.run[:18]}  account {status.account}"


def summary(status: NodeStatus) -> Table:
    """What `status` says that a person wants to see all the time; what wants a look in amber."""
    rows = Table.grid(padding=(0, 2))
    for name, value in status_fields(status):
        if name in _SUMMARY:
            style = "red" if name == "fails" else ""
            shown = value if isinstance(value, Text) else Text(printable(str(value)), style=style)
            rows.add_row(Text(name, style="bold"), shown)
    return rows


def current_round(status: NodeStatus) -> Text:
    """The round under way."""
    where = "no round" if status.round is None else f"round {status.round}, step {status.step} of {status.steps}"
    loss = "" if status.loss is None else f"  training loss {status.loss:.4f}"
    speed = "" if status.tokens_per_second is None else f"  {status.tokens_per_second:,.0f} tokens/s"
    return Text.assemble((status.phase, "bold"), f"  {where}{loss}{speed}")


def traffic(status: NodeStatus, before: NodeStatus | None = None, seconds: float = 0.0) -> Table:
    """Bytes so far; and a second, by what it was so many seconds ago."""
    table = Table("TRAFFIC", "SENT", "RECEIVED", box=None, pad_edge=False)
    for kind in type(status.traffic).__struct_fields__:
        now, then = getattr(status.traffic, kind), None if before is None else getattr(before.traffic, kind)
        table.add_row(kind, *(_flow(getattr(now, way), getattr(then, way, 0), seconds) for way in ("sent", "received")))
    return table


def _flow(count: int, before: int, seconds: float) -> str:
    if seconds <= 0 or count <= before:  # a node that was started anew counts from 0
        return size(count)
    return f"{size(count)}  {size((count - before) / seconds)}/s"


def loss_trends(seen: Snapshot) -> str:
    """The newest losses in words: first those of the curve."""
    if not seen.losses:
        return "no loss of a round yet"
    found = [_trend("training loss", seen.losses, "rounds")]
    if seen.held_out:
        found.insert(0, _trend("held-out loss", seen.held_out, "versions"))
    return "; ".join(found)


def _trend(name: str, losses: list[float], what: str) -> str:
    if len(losses) == 1:
        return f"{name} {losses[0]:.4f}"
    return f"{name} {losses[0]:.4f} to {losses[-1]:.4f}, in {len(losses)} {what}"


ROUND_COLUMNS = ("ROUND", "HELD-OUT", "TRAINING LOSS", "COUNTED", "OURS", "STEPS", "SEALED")


def round_cells(row: RoundView) -> tuple[str, ...]:
    losses = ("" if loss is None else f"{loss:.4f}" for loss in (row.held_out, row.loss))
    at = time.strftime("%H:%M:%S", time.localtime(row.time))
    return str(row.round), *losses, str(row.counted), "yes" if row.ours else "no", str(row.steps), at


PEER_COLUMNS = ("PEER", "ROUND TRIP", "AGREED", "ADDRESS")


def peer_cells(peer: PeerView) -> tuple[str, ...]:
    trip = "" if peer.rtt_ms is None else f"{peer.rtt_ms:.1f} ms"
    return peer.peer_id, trip, "yes" if peer.agreed else "no", (peer.addresses or ("",))[0]


def loss_chart(curve: list[tuple[int, float]], width: int) -> str:
    """Bars of so many characters, with the highest and the lowest loss beside them and the first and the last round
    below; nothing of no losses, or where there is no room."""
    room = width - len(f"{0:.4f}") - 4
    if not curve or room < 2:
        return ""
    count = min(len(curve), room)
    parts = [curve[at * len(curve) // count : (at + 1) * len(curve) // count] for at in range(count)]
    values = [sum(loss for _, loss in part) / len(part) for part in parts]
    low, high, wide = min(values), max(values), room // count
    steps = _CHART_ROWS * len(_BARS)
    heights = [1 + round((one - low) / (high - low or 1.0) * (steps - 1)) for one in values]
    labels = {0: f"{high:.4f}", _CHART_ROWS - 1: f"{low:.4f}"}
    side = max(map(len, labels.values()))
    lines = []
    for row in range(_CHART_ROWS):
        below = (_CHART_ROWS - 1 - row) * len(_BARS)
        bars = "".join(wide * _BLOCKS[min(len(_BARS), max(0, one - below))] for one in heights)
        lines.append(f"{labels.get(row, ''):>{side}} ┤{bars}".rstrip())
    first, last = f"round {curve[0][0]}", str(curve[-1][0])
    lines.append(f"{'':>{side}} └{first}{last:>{max(len(last) + 1, count * wide - len(first))}}")
    return "\n".join(lines)
