"""What a person sees of a run under way: one line per sealed round, and under them, on a terminal, the nodes."""

from __future__ import annotations

import sys
import time

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dlx.ground.constants import MICRO
from dlx.node.devnet.demo import Observed
from dlx.node.devnet.devnet import Devnet


class Dashboard:
    """Writes to stderr, so that stdout holds results only."""

    def __init__(self, devnet: Devnet) -> None:
        self._devnet = devnet
        self._console = Console(file=sys.stderr, highlight=False, width=None if sys.stderr.isatty() else 200)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True, auto_refresh=False)

    def __enter__(self) -> Dashboard:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def say(self, line: str) -> None:
        self._console.print(line, markup=False)

    def on_round(self, seen: Observed, round: int) -> None:
        """One line for a round that every stage has sealed."""
        stages = self._devnet.record.stages
        seals = [seen.view.sealed[stage, round] for stage in range(stages)]
        last = seals[-1]
        loss = f"{last.seal.mean_loss / MICRO:.3f}" if last.seal.count else "  -  "
        before = seen.sealed_at[round - 1] if round else min(seen.started, seen.sealed_at[0] - 1)
        rate = last.seal.total_tokens / max(0.05, seen.sealed_at[round] - before)
        sent = sum(status.bytes_sent for status in seen.statuses.values())
        peers = [status.peers for status in seen.statuses.values()]
        counted = "/".join(str(sealed.seal.count) for sealed in seals)
        self.say(
            f"round {round + 1:>3}/{self._devnet.record.rounds}  loss {loss}  {rate:>7,.0f} tokens/s  "
            f"counted {counted}  peers {min(peers, default=0)}  sent {sent / 1e6:,.1f} MB  "
            f"seal 0x{last.at.tx.hex()[:12]}"
        )

    def on_look(self, seen: Observed) -> None:
        """The nodes' table, on a terminal only."""
        if not self._console.is_terminal:
            return
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2))
        for column in ("node", "slot", "round", "step", "loss", "tokens/s", "peers", "sent MB", "doing"):
            table.add_column(column)
        for name in self._devnet.names:
            status = seen.statuses.get(name)
            if status is None:
                table.add_row(name, "", "", "", "", "", "", "", "starting")
                continue
            slot = "-" if status.stage is None else f"replica {status.replica}, stage {status.stage}"
            table.add_row(
                name,
                slot,
                "" if status.round is None else str(status.round + 1),
                f"{status.step}/{status.steps}",
                "" if status.loss is None else f"{status.loss:.3f}",
                "" if status.tokens_per_second is None else f"{status.tokens_per_second:,.0f}",
                str(status.peers),
                f"{status.bytes_sent / 1e6:.1f}",
                status.waiting_for or status.phase,
            )
        elapsed = Text(f"{time.time() - seen.started:.0f} s", style="dim")
        self._live.update(Group(table, elapsed), refresh=True)


def terminal_plot(losses: list[float], width: int = 72, height: int = 14) -> str:
    """Loss per round, drawn with text."""
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(width, height)
    plotext.plot(list(range(1, len(losses) + 1)), losses, marker="braille")
    plotext.xlabel("round")
    plotext.title("training loss, nats per byte")
    return plotext.uncolorize(plotext.build())
