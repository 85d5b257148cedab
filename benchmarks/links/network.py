"""Machines on slow links, all on this one: each in a network namespace of its own, each site behind a shaped uplink.

A site is one machine or several with an unshaped switch of their own; its uplink has a token bucket in each direction.
The host "chain" is on the switch between the sites, unshaped. Everything is named with a prefix of ours, so what a run
that was killed left behind is found and removed by the next. The machine's own network is not touched.
"""

import contextlib
import fcntl
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import namespaces
from benchmarks.namespaces import Unable, ip, run

PREFIX = "dlx-links-"  # of the names of namespaces
CHAIN = "chain"
QUEUE_MS = 500  # of packets before a shaped link drops them, as a home's router has
_BURST = 32_000  # bytes: the least that holds a few packets; 10 ms of a fast link


def check() -> None:
    """Raises Unable unless namespaces and token buckets can be made here."""
    if missing := namespaces.lacking("ip", "tc", packages="package iproute2"):
        raise Unable(missing)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """While this lasts no other benchmark makes networks here, and what a former one left is removed first.

    Raises Unable."""
    check()
    with (Path(tempfile.gettempdir()) / f"{PREFIX}lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unable("another run of this benchmark is under way") from None
        namespaces.remove(PREFIX)
        try:
            yield
        finally:
            namespaces.remove(PREFIX)


class Network:
    """Hosts by site, up while `made` lasts. Speeds are in bits per second."""

    def __init__(self, sites: Sequence[Sequence[str]]) -> None:
        self._sites = [list(site) for site in sites]
        self._addresses = {CHAIN: "10.77.0.1"}
        for number, site in enumerate(self._sites, 1):
            self._addresses |= {name: f"10.77.{number}.{place}" for place, name in enumerate(site, 1)}

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """Unshaped at first. Raises Unable with what `ip` said."""
        try:
            namespaces.add(PREFIX + "switch")
            self._bridge("core")
            self._host(CHAIN, "core")
            for number, site in enumerate(self._sites):
                self._bridge(f"site{number}")
                self._link(f"up{number}", f"site{number}", f"down{number}", "core")
                for name in site:
                    self._host(name, f"site{number}")
            yield
        finally:
            namespaces.remove(PREFIX)

    def shape(self, speed: float | None) -> None:
        """Every site's uplink, both ways; None: as fast as this machine."""
        if speed is None:
            return
        burst = max(_BURST, round(speed / 8 * 0.01))
        for number in range(len(self._sites)):
            for end in (f"up{number}", f"down{number}"):
                bucket = ["rate", f"{speed:.0f}bit", "burst", f"{burst}b", "latency", f"{QUEUE_MS}ms"]
                run(["tc", "-n", PREFIX + "switch", "qdisc", "replace", "dev", end, "root", "tbf", *bucket])

    @property
    def hosts(self) -> list[str]:
        """All but the chain's, site by site."""
        return [name for site in self._sites for name in site]

    def address(self, name: str) -> str:
        return self._addresses[name]

    def command(self, name: str, command: Sequence[str]) -> list[str]:
        """What runs the command on the host."""
        return namespaces.command(PREFIX + name, command)

    def inside(self, name: str) -> contextlib.AbstractContextManager[None]:
        """The calling thread is on the host while this lasts: its new sockets, threads and processes are."""
        return namespaces.inside(PREFIX + name)

    def traffic(self) -> tuple[int, int]:
        """Bytes that have come to all hosts, and those of them to or from the chain. Whole Ethernet frames; what a
        bucket dropped never came."""
        links = json.loads(ip("-n", PREFIX + "switch", "-s", "-j", "link"))
        ports = {link["ifname"]: link["stats64"] for link in links}
        came = {name: ports[_port(address)]["tx"]["bytes"] for name, address in self._addresses.items()}
        return sum(came.values()), came[CHAIN] + ports[_port(self._addresses[CHAIN])]["rx"]["bytes"]

    def _bridge(self, name: str) -> None:
        _switch("link", "add", name, "type", "bridge")
        _switch("link", "set", name, "up")

    def _link(self, one: str, of_one: str, other: str, of_other: str) -> None:
        _switch("link", "add", one, "type", "veth", "peer", "name", other)
        for end, bridge in ((one, of_one), (other, of_other)):
            _switch("link", "set", end, "master", bridge, "up")

    def _host(self, name: str, bridge: str) -> None:
        host, port = PREFIX + name, _port(self.address(name))
        namespaces.add(host)
        _switch("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
        _switch("link", "set", port, "master", bridge, "up")
        ip("-n", host, "address", "add", f"{self.address(name)}/16", "dev", "eth0")
        ip("-n", host, "link", "set", "eth0", "up")
        ip("-n", host, "route", "add", "224.0.0.0/4", "dev", "eth0")  # peers on a network find each other by multicast


def _port(address: str) -> str:
    """The switch's end of a host's link."""
    return "p" + address.removeprefix("10.77.")


def _switch(*arguments: str) -> None:
    ip("-n", PREFIX + "switch", *arguments)
