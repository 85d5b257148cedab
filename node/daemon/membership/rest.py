"""When the operator wants the machine: paused, outside of its hours, or while somebody or something else needs it.

A resting node does not fall silent: that would hold its replica up, and cost it the slot. Either it keeps the slot by
the fewest inner steps that count, like any slow machine, or it gives the slot back and asks for one later.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import trio

from dlx.ground import durable
from dlx.node.daemon.membership.idle import Demand
from dlx.node.daemon.observable import Observable
from dlx.node.daemon.supervisor import ReportHealthy
from dlx.node.home import logs
from dlx.node.home.hours import is_within

LOOK_SECONDS = 2.0
DEMAND_SECONDS = 10.0  # between two looks at who else wants the machine
log = logs.get(__name__)

How = Literal["keep", "leave"]


@dataclass(frozen=True)
class Resting:
    why: str
    how: How

    def __str__(self) -> str:
        does = "keeps its slot by the fewest steps that count" if self.how == "keep" else "has given its slot back"
        return f"{self.why}; {does}"


def pause(file: Path, how: How | None) -> None:
    """Have the folder's node rest until `resume`; None: as its settings say."""
    durable.write_bytes(file, json.dumps({"since": int(time.time()), "how": how}).encode())


def resume(file: Path) -> bool:
    """False where it was not paused."""
    there = file.exists()
    file.unlink(missing_ok=True)
    return there


class Rest:
    """`state` is None while the node works. `file`: what `pause` writes. `schedule`: hours of the day to work in."""

    def __init__(
        self,
        file: Path,
        schedule: Sequence[str] = (),
        when_idle: bool = False,
        how: How = "keep",
        local: Callable[[], time.struct_time] = time.localtime,
    ) -> None:
        self._file, self._schedule, self._how, self._local = file, schedule, how, local
        self._demand = Demand() if when_idle else None
        self._wanted: str | None = None
        self.state: Observable[Resting | None] = Observable(None)
        self._looking = trio.CancelScope()
        self.look()

    @property
    def leaves(self) -> bool:
        """Whether the slot is to be given back."""
        return self.state.value is not None and self.state.value.how == "leave"

    async def run(self, report_healthy: ReportHealthy) -> None:
        asked = -math.inf
        with self._looking:
            while True:
                await trio.sleep(LOOK_SECONDS)
                now = time.monotonic()
                if self._demand is not None and now >= asked + DEMAND_SECONDS:
                    asked = now
                    self._wanted = await trio.to_thread.run_sync(self._demand.why, now, abandon_on_cancel=True)
                self.look()

    def close(self) -> None:
        """A node that stops has no hours any more: it neither rests nor works again."""
        self._looking.cancel()

    async def until(self, leaves: bool) -> None:
        async for _ in self.state.values():
            if self.leaves == leaves:
                return

    def look(self) -> None:
        """Whether to rest, as of now."""
        found = self._found()
        if found != self.state.value:
            log.info("working again" if found is None else f"resting: {found}")
            self.state.set(found)

    def _found(self) -> Resting | None:
        if self._file.exists():
            return Resting("paused", self._paused_how())
        now = self._local()
        if not is_within(self._schedule, now.tm_hour * 60 + now.tm_min):
            return Resting(f"outside of {' '.join(self._schedule)}", self._how)
        return None if self._wanted is None else Resting(self._wanted, self._how)

    def _paused_how(self) -> How:
        try:
            how = json.loads(self._file.read_bytes())["how"]
        except (OSError, ValueError, KeyError, TypeError):
            how = None
        return how if how in ("keep", "leave") else self._how
