"""What a person sees of a run under way: one line per sealed round, and under them, on a terminal, the nodes."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dlx.ground.constants import MICRO
from dlx.ground.untrusted import printable
from dlx.node.daemon.api.status import NodeStatus
from dlx.node.devnet.demo import Observed
from dlx.node.devnet.devnet import Devnet
from dlx.node.home.formatting import color_system, counted, size

_COLUMNS = ("node", "slot", "round", "step", "loss", "tokens/s", "peers", "payload", "pipe", "doing")
_DISPENSABLE = ("peers", "pipe", "payload", "tokens/s", "slot")
_GAP = 2  # blanks between columns
_DOING = 20  # characters of what a node is doing that are always there


class Dashboard:
    """Writes to stderr, so that stdout holds results only."""

    def __init__(self, devnet: Devnet) -> None:
        self._devnet = devnet
        width = None if sys.stderr.isatty() else 200
        self._console = Console(file=sys.stderr, highlight=False, width=width, color_system=color_system())
        self._live = Live(console=self._console, refresh_per_second=4, transient=True, auto_refresh=False)

    def __enter__(self) -> Dashboard:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def on_round(self, observed: Observed, round: int) -> None:
        """One line for a round that every stage has sealed."""
        self._console.print(round_line(observed, round), soft_wrap=True)

    def say(self, line: str) -> None:
        """A remark among those lines."""
        self._console.print(Text(f"dlx-node: {line}"), soft_wrap=True)

    def on_statuses(self, observed: Observed) -> None:
        """The nodes' table, on a terminal only."""
        if not self._console.is_terminal:
            return
        rows = [_row(name, observed.statuses.get(name)) for name in self._devnet.names]
        chosen = fitting(rows, self._console.width, () if self._devnet.shape.stages > 1 else ("pipe",))
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
        for name, wide in chosen.items():
            table.add_column(name, no_wrap=True, min_width=wide, max_width=wide)
        for row in rows:
            table.add_row(*(row[name] for name in chosen))
        elapsed = Text(f"{time.time() - observed.started:.0f} s", style="dim")
        self._live.update(Group(table, elapsed), refresh=True)


def _row(name: str, status: NodeStatus | None) -> dict[str, str]:
    if status is None:
        return dict.fromkeys(_COLUMNS, "") | {"node": name, "doing": "starting"}
    return {
        "node": name,
        "slot": "" if status.stage is None else f"replica {status.replica}, stage {status.stage}",
        "round": "" if status.round is None else str(status.round),
        "step": "" if status.round is None else f"{status.step} of {status.steps}",
        "loss": "" if status.loss is None else f"{status.loss:.3f}",
        "tokens/s": "" if status.tokens_per_second is None else f"{status.tokens_per_second:,.0f}",
        "peers": str(status.peers),
        "payload": size(status.traffic.payload.sent),
        "pipe": size(status.traffic.pipe.sent),
        "doing": f"waits for {printable(status.waiting_for)}" if status.waiting_for else printable(status.phase),
    }


def fitting(rows: Sequence[dict[str, str]], width: int, without: Collection[str] = ()) -> dict[str, int]:
    """The names of the columns that a terminal so wide shows whole, in their order, with their characters: `without`
    some, and then without those that say least. What a node is doing ends the line, and may be cut."""
    chosen = {
        name: max([len(name), *(len(row[name]) for row in rows)]) for name in _COLUMNS[:-1] if name not in without
    }
    for name in _DISPENSABLE:
        if _room(chosen, width) < _DOING:
            chosen.pop(name, None)
    return chosen | {_COLUMNS[-1]: max(1, _room(chosen, width))}


def _room(columns: Mapping[str, int], width: int) -> int:
    """Characters that are left behind these columns."""
    return width - sum(wide + _GAP for wide in columns.values())


def round_line(observed: Observed, round: int) -> Text:
    """What a sealed round was, in the ledger's number of it; amber where work was left out. A round of before this
    start has no speed: when it began is not known."""
    seals = observed.seals(round)
    last = seals[-1]
    loss = f"{last.mean_loss / MICRO:.3f}" if last.count else f"{'-':^5}"
    counts = [sealed.count for sealed in seals]
    replicas = max(observed.replicas[sealed.stage, round] for sealed in seals)
    work = Text(f"counted {counted(counts, replicas)}", style="yellow" if min(counts) < replicas else "")
    line = Text(f"round {round:>3}  loss {loss}  ")
    if round >= observed.earlier:
        times = observed.sealed_at
        before = times[round - 1] if round > observed.earlier else min(observed.started, times[round] - 1)
        rate = last.steps * observed.view.config.tokens_per_step / max(0.05, times[round] - before)
        line += Text(f"{rate:>7,.0f} tokens/s  ")
    return line + work


def terminal_plot(losses: list[float | None], width: int = 72, height: int = 14) -> str:
    """Training loss of each round, drawn with text; None, of an empty one, is left out."""
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(width, height)
    drawn = [(round, loss) for round, loss in enumerate(losses) if loss is not None]
    plotext.plot([round for round, _ in drawn], [loss for _, loss in drawn], marker="braille")
    plotext.xticks(sorted({round(quarter * (len(losses) - 1) / 4) for quarter in range(5)}))
    plotext.xlabel("round")
    plotext.title("training loss, nats per byte")
    return plotext.uncolorize(plotext.build())
