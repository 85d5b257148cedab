"""What `dlx-node top` shows in a terminal, by textual: it follows the node, the keyboard and the terminal's size."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Container, VerticalScroll
from textual.events import Resize
from textual.widgets import DataTable, Footer, ProgressBar, Static

from dlx.ground.errors import DlxError
from dlx.ground.untrusted import printable
from dlx.node.cli.operate import glance
from dlx.node.cli.operate.glance import Snapshot


class Screen(App[None]):
    """`ask` blocks, and raises DlxError: the last answer then stays, below the reason."""

    TITLE = "dlx-node"
    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    HORIZONTAL_BREAKPOINTS: list[tuple[int, str]] | None = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012
    BINDINGS: ClassVar[list[Any]] = [
        ("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
        ("space", "hold", "Hold"),
        ("r", "look", "Look now"),
    ]
    CSS = """
    #title { dock: top; height: 1; background: $primary; color: $text; text-style: bold; padding: 0 1; }
    #trouble { height: auto; color: $error; padding: 0 1; display: none; }
    #facts, #now, #traffic { height: auto; padding: 0 1; margin-bottom: 1; }
    #bar { padding: 0 1; width: 100%; margin-bottom: 1; }
    #bar Bar { width: 1fr; }
    #course { height: auto; padding: 0 1; }
    #losses { height: auto; margin: 0 1 1 1; }
    #tables { layout: vertical; height: auto; }
    .-wide #tables { layout: horizontal; }
    DataTable { height: auto; max-height: 20; width: 1fr; margin: 0 1 1 1; }
    .-wide #rounds { width: auto; }
    """

    def __init__(self, ask: Callable[[], Snapshot], first: Snapshot, every: float) -> None:
        super().__init__()
        self._ask, self._seen, self._every, self._held = ask, first, every, False
        self._asking = False

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        with VerticalScroll():
            yield Static(id="trouble", markup=False)
            yield Static(id="facts")
            yield Static(id="now")
            yield ProgressBar(id="bar", show_eta=False)
            yield Static(id="course")
            yield Static(id="losses", markup=False)
            yield Static(id="traffic")
            with Container(id="tables"):
                yield DataTable(id="rounds", cursor_type="none")
                yield DataTable(id="peers", cursor_type="none")
        yield Footer()

    def on_mount(self) -> None:
        self._table("rounds").add_columns(*((name, name) for name in glance.ROUND_COLUMNS))
        self._table("peers").add_columns(*((name, name) for name in glance.PEER_COLUMNS))
        self._show(self._seen)
        self.set_interval(self._every, self._tick)

    def on_resize(self, _: Resize) -> None:
        self._draw()

    def _draw(self) -> None:
        width = self.size.width - 4  # margins, and what scrolls
        self.query_one("#losses", Static).update(glance.loss_chart(self._seen.curve, width))

    def action_hold(self) -> None:
        """The picture stands still, until the same key again."""
        self._held = not self._held
        self._entitle()

    def action_look(self) -> None:
        """Ask the node, in a thread that nobody waits for: it may take seconds to answer, and to quit may not."""
        if not self._asking:
            self._asking = True
            threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        try:
            show = partial(self._show, self._ask())
        except DlxError as error:
            show = partial(self._tell, str(error))
        self._asking = False
        if self.is_running:
            self.call_later(show)

    def _tick(self) -> None:
        if not self._held:
            self.action_look()

    def _tell(self, reason: str) -> None:
        trouble = self.query_one("#trouble", Static)
        trouble.display = bool(reason)
        age = time.monotonic() - self._seen.at
        trouble.update(f"{printable(reason)}: this is what it was {age:.0f} s ago" if reason else "")

    def _show(self, found: Snapshot) -> None:
        status, before = found.status, self._seen
        self._seen = found
        self._tell("")
        self._entitle()
        self.query_one("#facts", Static).update(glance.summary(status))
        self.query_one("#now", Static).update(glance.current_round(status))
        self.query_one("#bar", ProgressBar).update(total=max(1, status.steps), progress=status.step)
        self.query_one("#course", Static).update(glance.loss_trends(found))
        self._draw()
        self.query_one("#traffic", Static).update(glance.traffic(status, before.status, found.at - before.at))
        self._fill("rounds", ((str(one.round), glance.round_cells(one)) for one in reversed(found.rounds)))
        self._fill("peers", ((peer.peer_id, glance.peer_cells(peer)) for peer in found.peers))

    def _entitle(self) -> None:
        held = "  held: space goes on" if self._held else ""
        self.query_one("#title", Static).update(glance.title(self._seen.status) + held)

    def _table(self, name: str) -> DataTable[Text]:
        return self.query_one(f"#{name}", DataTable)

    def _fill(self, name: str, rows: Iterable[tuple[str, tuple[str, ...]]]) -> None:
        """Where they were scrolled to, they stay; what is as before is not drawn again."""
        table, wanted = self._table(name), {key: tuple(map(Text, cells)) for key, cells in rows}
        there = [key.value for key in table.rows]
        if there == list(wanted):
            for key, cells in wanted.items():
                for column, cell in zip(table.columns, cells, strict=True):
                    if table.get_cell(key, column) != cell:
                        table.update_cell(key, column, cell, update_width=True)
            return
        place = table.scroll_offset
        table.clear()
        for key, cells in wanted.items():
            table.add_row(*cells, key=key)
        table.scroll_to(*place, animate=False)
