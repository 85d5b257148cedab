"""Whether this machine is wanted: by other programs on its CPU or its GPUs, or by somebody who sits at it.

What a machine cannot say is no reason to rest: without `nvidia-smi` only the CPU is looked at, without logind and
`xprintidle` nobody is seen at the keyboard. Everything here blocks, for a second or two where GPUs are asked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable

import psutil

BUSY_SHARE = 0.25  # of the cores, or of a GPU, that other programs take
BUSY_SECONDS = 30.0  # over which that is averaged
QUIET_SECONDS = 300.0  # without it, or without a key or a mouse, before the node works again
_PATIENCE = 5.0  # s for an answer


class Demand:
    """`used()`: seconds of all cores, and of our processes, so far. `gpus()`, `person()`: as below."""

    def __init__(
        self,
        used: Callable[[], tuple[float, float]] | None = None,
        cores: int | None = None,
        gpus: Callable[[], float] | None = None,
        person: Callable[[], bool] | None = None,
    ) -> None:
        self._used, self._cores = used or _used, cores or os.cpu_count() or 1
        self._gpus, self._person = gpus or taken_of_gpus, person or somebody_is_here
        self._before: tuple[float, float, float] | None = None
        self._cpu_load, self._gpu_load = _Load(), _Load()

    def why(self, now: float) -> str | None:
        """Why the machine is wanted at the monotonic time `now`; None: it is not."""
        all_, own = self._used()
        if self._before is not None and now > self._before[0]:
            passed = now - self._before[0]
            taken = max(0.0, (all_ - self._before[1]) - max(0.0, own - self._before[2]))
            self._cpu_load.add(taken / (passed * self._cores), passed, now)
            self._gpu_load.add(self._gpus(), passed, now)
        self._before = now, all_, own
        if self._person():
            return "somebody is at the machine"
        if now < self._cpu_load.until:
            return "other programs need the machine"
        return "other programs need its GPU" if now < self._gpu_load.until else None


class _Load:
    """A share of something over the last BUSY_SECONDS; `until` when it counts as busy."""

    def __init__(self) -> None:
        self._share = self.until = 0.0

    def add(self, share: float, seconds: float, now: float) -> None:
        self._share += min(1.0, seconds / BUSY_SECONDS) * (share - self._share)
        if self._share > BUSY_SHARE:
            self.until = now + QUIET_SECONDS


def taken_of_gpus() -> float:
    """The largest share of an NVIDIA GPU that programs of this machine but ours take; 0 where none is asked.

    In a container `nvidia-smi` names processes by the host's numbers: those that are not here are not counted.
    """
    ours, shares = _our_processes(), dict[str, float]()
    for line in _said("nvidia-smi", "pmon", "-c", "1", "-s", "u").splitlines():
        gpu, pid, _, busy = (*line.split(), "", "", "", "")[:4]
        if pid.isdecimal() and busy.isdecimal() and int(pid) not in ours and psutil.pid_exists(int(pid)):
            shares[gpu] = shares.get(gpu, 0.0) + int(busy) / 100
    return max(shares.values(), default=0.0)


def somebody_is_here() -> bool:
    """Whether a person sits at the machine, as far as it says so: by X11's `xprintidle`, else by logind's hint of the
    first slot, which a desktop gives that has ever been idle."""
    idle = _said("xprintidle").strip() if os.environ.get("DISPLAY") else ""
    if idle.isdecimal():
        return int(idle) < 1000 * QUIET_SECONDS
    told = _said("loginctl", "show-seat", "seat0", "-p", "IdleHint", "-p", "IdleSinceHint").split()
    return "IdleHint=no" in told and "IdleSinceHint=0" not in told


def _said(program: str, *arguments: str) -> str:
    """What a program of this machine prints; nothing where it is missing or fails."""
    path = shutil.which(program)
    if path is None:
        return ""
    try:
        done = subprocess.run(
            [path, *arguments], capture_output=True, text=True, errors="replace", timeout=_PATIENCE, check=False,
            stdin=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _our_processes() -> set[int]:
    """All nodes of this machine with what they started: one that rests because another works helps nobody."""
    ours, parents = {os.getpid()}, dict[int, int]()
    for process in psutil.process_iter(["pid", "ppid", "cmdline"]):
        parents[process.info["pid"]] = process.info["ppid"] or 0
        if _is_ours(process.info["cmdline"] or []):
            ours.add(process.info["pid"])
    for pid in parents:
        line = [pid]
        while line[-1] in parents and line[-1] not in ours and len(line) < len(parents):
            line.append(parents[line[-1]])
        if line[-1] in ours:
            ours.update(line)
    return ours


def _is_ours(words: list[str]) -> bool:
    """Whether it is this program that runs, by itself or by Python: not a terminal or an editor that names it."""
    if words and os.path.basename(words[0]).startswith("python"):
        rest = next((place for place, word in enumerate(words[1:], 1) if not word.startswith("-")), 0)
        if words[rest - 1] == "-m":
            return words[rest].startswith("dlx.")
        words = words[rest:] if rest else []
    return os.path.basename(next(iter(words), "")) == "dlx-node"


def _used() -> tuple[float, float]:
    times = psutil.cpu_times()
    own = 0.0
    for pid in _our_processes():
        try:
            own += sum(psutil.Process(pid).cpu_times()[:4])
        except psutil.Error:
            continue  # it has ended
    return times.user + times.system + getattr(times, "nice", 0.0), own
