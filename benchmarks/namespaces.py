"""Machines on this one: network namespaces whose names begin with a prefix, so that what a killed run left is found."""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence

_COMMAND_SECONDS = 20.0
_END_SECONDS = 5.0  # for killed processes to be gone
_CLONE_NEWNET = 0x40000000
_NEEDED = 1 << 12 | 1 << 21  # CAP_NET_ADMIN, CAP_SYS_ADMIN


class Unable(Exception):
    """This machine or user cannot make such a network; the message says what is missing."""


def lacking(*tools: str, packages: str) -> str | None:
    """What this machine or user needs for them and does not have. Of root, what can be installed begins with
    "missing: "."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces: run it with sudo"
    if _capabilities() & _NEEDED != _NEEDED:
        return "needs CAP_SYS_ADMIN and CAP_NET_ADMIN, for network namespaces: a container with --privileged has them"
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return f"missing: {' and '.join(missing)} (Linux, {packages})" if missing else None


def _capabilities() -> int:
    """Bits of those in effect (capabilities(7)); 0 where there is no Linux."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        return int(next(line.split()[1] for line in file if line.startswith("CapEff:")), 16)
    return 0


def add(name: str) -> None:
    """Raises Unable."""
    ip("netns", "add", name)
    ip("-n", name, "link", "set", "lo", "up")


def command(name: str, words: Sequence[str]) -> list[str]:
    """What runs a command there."""
    return ["ip", "netns", "exec", name, *words]


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """The calling thread is there while this lasts: its new sockets, threads and processes are."""
    with open("/proc/thread-self/ns/net") as before, open(f"/run/netns/{name}") as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(before.fileno())


def remove(prefix: str) -> None:
    """All whose names begin so, and the processes in them. Raises Unable."""
    names = [line.split()[0] for line in ip("netns", "list").splitlines() if line.startswith(prefix)]
    deadline = time.monotonic() + _END_SECONDS
    while pids := {int(pid) for name in names for pid in ip("netns", "pids", name).split()} - {os.getpid()}:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    for name in names:
        with contextlib.suppress(Unable):  # it is gone
            ip("netns", "delete", name)


def ip(*arguments: str) -> str:
    return run(["ip", *arguments])


def run(words: Sequence[str], told: str | None = None) -> str:
    """What it prints; `told` is its input. Raises Unable with what it said."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_SECONDS, input=told)
    if done.returncode:
        raise Unable(f"`{' '.join(words)}`: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")
