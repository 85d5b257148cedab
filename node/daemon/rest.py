"""When the operator wants the machine: paused, outside of its hours, or while other programs need it.

A resting node does not fall silent: that would hold its replica up, and cost it the seat. Either it keeps the seat by
the fewest inner steps that count, like any slow machine, or it gives the seat back and asks for one later.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
import trio

from dlx.ground import durable
from dlx.node.daemon.supervisor import Well
from dlx.node.daemon.watch import Watch
from dlx.node.home import logs
from dlx.node.home.hours import is_within

LOOK_SECONDS = 2.0
BUSY_SHARE = 0.25  # of the cores, that other programs take
BUSY_SECONDS = 30.0  # over which that is averaged
QUIET_SECONDS = 300.0  # without it, before the node works again
log = logs.get(__name__)

How = Literal["keep", "leave"]


@dataclass(frozen=True)
class Resting:
    why: str
    how: How

    def __str__(self) -> str:
        does = "keeps its seat by the fewest steps that count" if self.how == "keep" else "has given its seat back"
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
        self._others = Others() if when_idle else None
        self.state: Watch[Resting | None] = Watch(None)
        self.look()

    @property
    def leaves(self) -> bool:
        """Whether the seat is to be given back."""
        return self.state.value is not None and self.state.value.how == "leave"

    async def run(self, well: Well) -> None:
        while True:
            await trio.sleep(LOOK_SECONDS)
            self.look()

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
        if self._others is not None and self._others.are_busy(time.monotonic()):
            return Resting("other programs need the machine", self._how)
        return None

    def _paused_how(self) -> How:
        try:
            how = json.loads(self._file.read_bytes())["how"]
        except (OSError, ValueError, KeyError, TypeError):
            how = None
        return how if how in ("keep", "leave") else self._how


class Others:
    """Whether other programs keep this machine busy. `used()`: seconds of all cores, and of our processes, so far."""

    def __init__(self, used: Callable[[], tuple[float, float]] | None = None, cores: int | None = None) -> None:
        self._used, self._cores = used or _used, cores or os.cpu_count() or 1
        self._before: tuple[float, float, float] | None = None
        self._share = 0.0
        self._until = 0.0

    def are_busy(self, now: float) -> bool:
        all_, own = self._used()
        if self._before is not None and now > self._before[0]:
            passed = now - self._before[0]
            taken = max(0.0, (all_ - self._before[1]) - max(0.0, own - self._before[2])) / (passed * self._cores)
            part = min(1.0, passed / BUSY_SECONDS)
            self._share += part * (taken - self._share)
        self._before = now, all_, own
        if self._share > BUSY_SHARE:
            self._until = now + QUIET_SECONDS
        return now < self._until


def _used() -> tuple[float, float]:
    times = psutil.cpu_times()
    own = 0.0
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        try:
            own += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue  # it has ended
    return times.user + times.system + getattr(times, "nice", 0.0), own
