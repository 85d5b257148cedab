"""A switch between machines on this one, whose links can be slow, far away, lossy, or cut, while it runs.

The machines are network namespaces, and the switch is a thread of this process: it holds the other end of each
machine's network device. So it needs of the kernel no more than namespaces and TAP devices.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import namespaces
from benchmarks.namespaces import ip

PREFIX = "dlx-switch-"  # of the names of namespaces
_TUN = Path("/dev/net/tun")
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_FRAME = 65_536  # bytes read at once, of a frame that has 1,514
_QUEUE_SECONDS, _QUEUE_BYTES = 0.5, 16_000  # that wait for a slow link, whichever is more; what comes then is dropped
_WAKE_SECONDS = 0.5
_READS = 64  # frames of one machine before the others' turn
_BROADCAST = 1  # bit of a destination's first byte


def lacking() -> str | None:
    """What this machine or user needs for it and does not have."""
    return namespaces.lacking("ip", packages="package iproute2") or (None if _TUN.exists() else f"needs {_TUN}")


@dataclass(frozen=True)
class Link:
    """Between a machine and the switch, alike both ways. `speed` in bits/s (0: unlimited), `far` in seconds each way,
    `loss` the part of the frames that is lost each way."""

    speed: float = 0.0
    far: float = 0.0
    loss: float = 0.0


FAST = Link()


@dataclass
class _Port:
    tap: int  # file descriptor
    link: Link = FAST
    free_at: list[float] = field(default_factory=lambda: [0.0, 0.0])  # when the link, up and down, has sent all


class Switch:
    """Up while `made` lasts."""

    def __init__(self) -> None:
        self._ports: dict[str, _Port] = {}
        self._places: dict[bytes, str] = {}  # MAC address -> who has it
        self._cut: frozenset[frozenset[str]] = frozenset()
        self._coming: list[tuple[float, int, str, str, bytes]] = []  # due, number, from, to, frame
        self._number, self._ended, self._random = 0, False, random.Random(1)

    @contextlib.contextmanager
    def made(self, addresses: Mapping[str, str]) -> Iterator[None]:
        """A machine for each name, with that IP address; they are in one network of 16 bits. Raises Unable."""
        namespaces.remove(PREFIX)
        thread = threading.Thread(target=self._run, daemon=True)
        try:
            for name, address in addresses.items():
                namespaces.add(PREFIX + name)
                with namespaces.inside(PREFIX + name):
                    tap = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
                    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _IFF_TAP | _IFF_NO_PI))
                self._ports[name] = _Port(tap)
                self.give(name, address)
                ip("-n", PREFIX + name, "link", "set", "eth0", "up")
            thread.start()
            yield
        finally:
            self._ended = True
            if thread.ident is not None:
                thread.join()
            namespaces.remove(PREFIX)
            for port in self._ports.values():
                os.close(port.tap)

    def command(self, name: str, words: Sequence[str]) -> list[str]:
        """What runs a command on a machine."""
        return namespaces.command(PREFIX + name, words)

    def inside(self, name: str) -> contextlib.AbstractContextManager[None]:
        """The calling thread is on a machine while this lasts: its new sockets, threads and processes are."""
        return namespaces.inside(PREFIX + name)

    def give(self, name: str, address: str) -> None:
        """The machine has this IP address now, and no other."""
        ip("-n", PREFIX + name, "address", "flush", "dev", "eth0")
        ip("-n", PREFIX + name, "address", "add", f"{address}/16", "dev", "eth0")

    def link(self, link: Link, *names: str) -> None:
        """From now on these machines' links are so; without names, all."""
        for name in names or self._ports:
            self._ports[name].link = link

    def part(self, *groups: Sequence[str]) -> None:
        """From now on nothing passes between machines of two of these groups; whoever is in none reaches all."""
        self._cut = frozenset(
            frozenset((one, other))
            for place, group in enumerate(groups)
            for one in group
            for rest in groups[place + 1 :]
            for other in rest
        )

    # ---- the thread ----

    def _run(self) -> None:
        poll, names = select.poll(), {port.tap: name for name, port in self._ports.items()}
        for tap in names:
            poll.register(tap, select.POLLIN)
        while not self._ended:
            wait = self._coming[0][0] - time.monotonic() if self._coming else _WAKE_SECONDS
            for tap, _ in poll.poll(max(0.0, min(wait, _WAKE_SECONDS)) * 1000):
                with contextlib.suppress(BlockingIOError):
                    for _ in range(_READS):
                        self._take(names[tap], os.read(tap, _FRAME))
            while self._coming and self._coming[0][0] <= time.monotonic():
                _, _, source, name, frame = heapq.heappop(self._coming)
                if frozenset((source, name)) not in self._cut:
                    with contextlib.suppress(OSError):
                        os.write(self._ports[name].tap, frame)

    def _take(self, source: str, frame: bytes) -> None:
        self._places[frame[6:12]] = source
        sent_at = self._send(self._ports[source], 0, len(frame), time.monotonic())
        if sent_at is None:
            return
        known = None if frame[0] & _BROADCAST else self._places.get(frame[:6])
        for name in self._ports if known is None else (known,):
            due = self._send(self._ports[name], 1, len(frame), sent_at) if name != source else None
            if due is not None:
                self._number += 1
                heapq.heappush(self._coming, (due, self._number, source, name, frame))

    def _send(self, port: _Port, way: int, size: int, at: float) -> float | None:
        """When what comes to a link then is at its other end; None: it is lost."""
        link = port.link
        if self._random.random() < link.loss:
            return None
        if link.speed:
            begins = max(at, port.free_at[way])
            if begins - at > max(_QUEUE_SECONDS, 8 * _QUEUE_BYTES / link.speed):
                return None
            at = port.free_at[way] = begins + 8 * size / link.speed
        return at + link.far
