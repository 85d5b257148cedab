"""Homes behind routers on one machine: namespaces, a public switch between them, and NAT as routers do it.

All names begin with PREFIX, so that what a killed test left is found and removed by the next.
"""

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import namespaces
from benchmarks.namespaces import ip, run

PREFIX = "dlx-homes-"
KINDS = {"restricted": "masquerade", "symmetric": "masquerade fully-random"}
WAYS = {"UPnP": "enable_upnp=yes\nenable_natpmp=no", "PCP": "enable_upnp=no\nenable_natpmp=yes"}
HOME = "192.168.1"  # the same in every home
DAEMON = "miniupnpd"  # of a router that forwards ports; Debian: miniupnpd-nftables


def lacking() -> str | None:
    """What this machine needs for it and does not have."""
    return namespaces.lacking("ip", "nft", packages="packages iproute2 and nftables")


@contextlib.contextmanager
def made(public: dict[str, str], homes: dict[str, tuple[str, str]]) -> Iterator[None]:
    """`public`: name -> IP address, or several with spaces between. `homes`: name -> the router's IP address and its
    kind; there the machine has HOME.2. Where several names have spaces between, they are machines of one home, HOME.2
    and so on, and the router's name is of the first. Addresses are in 52.20.0.0/16 or 2a0f::/32."""
    namespaces.remove(PREFIX)
    try:
        namespaces.add(PREFIX + "switch")
        ip("-n", PREFIX + "switch", "link", "add", "br0", "type", "bridge")
        ip("-n", PREFIX + "switch", "link", "set", "br0", "up")
        for number, (name, address) in enumerate(public.items()):
            namespaces.add(PREFIX + name)
            _plug(name, f"p{number}", *address.split())
        for number, (names, (address, kind)) in enumerate(homes.items()):
            _home(names.split(), f"h{number}", address, kind)
        yield
    finally:
        namespaces.remove(PREFIX)


@contextlib.contextmanager
def forwarding(name: str, folder: Path, by: str) -> Iterator[None]:
    """The router of a home forwards ports to whoever there asks, while this lasts. `folder`: for its files. `by`: one
    of WAYS."""
    router, config = f"{name}-router", folder / f"{name}.miniupnpd"
    run(command(router, "nft", "-f", "-"), told="""
        table inet filter {
            chain miniupnpd {}
            chain prerouting_miniupnpd {}
            chain postrouting_miniupnpd {}
            chain coming { type nat hook prerouting priority -100; jump prerouting_miniupnpd; }
        }
    """)  # fmt: skip
    config.write_text(
        f"ext_ifname=eth0\nlistening_ip=lan\n{WAYS[by]}\nsecure_mode=yes\n"
        "uuid=1b2c3d4e-0000-4000-8000-000000000001\nallow 1024-65535 192.168.1.0/24 1024-65535\n"
    )
    words = command(router, DAEMON, "-d", "-f", str(config), "-P", str(folder / f"{name}.pid"))
    with (folder / f"{name}-router.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def command(name: str, *words: str) -> list[str]:
    """What runs it on a machine."""
    return namespaces.command(PREFIX + name, words)


def inside(name: str) -> contextlib.AbstractContextManager[None]:
    """The calling thread is on a machine while this lasts: its new sockets, threads and processes are."""
    return namespaces.inside(PREFIX + name)


def _home(names: Sequence[str], port: str, address: str, kind: str) -> None:
    router = f"{names[0]}-router"
    namespaces.add(PREFIX + router)
    _plug(router, port, address)
    ip("-n", PREFIX + router, "link", "add", "lan", "type", "bridge")
    ip("-n", PREFIX + router, "address", "add", f"{HOME}.1/24", "dev", "lan")
    ip("-n", PREFIX + router, "link", "set", "lan", "up")
    for own, name in enumerate(names, 2):
        namespaces.add(PREFIX + name)
        at = f"lan{own}"
        ip("-n", PREFIX + router, "link", "add", at, "type", "veth", "peer", "name", "eth0", "netns", PREFIX + name)
        ip("-n", PREFIX + router, "link", "set", at, "master", "lan", "up")
        ip("-n", PREFIX + name, "address", "add", f"{HOME}.{own}/24", "dev", "eth0")
        ip("-n", PREFIX + name, "link", "set", "eth0", "up")
        ip("-n", PREFIX + name, "route", "add", "default", "via", f"{HOME}.1")
    run(command(router, "sysctl", "-qw", "net.ipv4.ip_forward=1"))
    run(command(router, "nft", "-f", "-"), told=f"""
        table ip home {{
            chain leaving {{ type nat hook postrouting priority 100; oifname eth0 {KINDS[kind]}; }}
            chain passing {{
                type filter hook forward priority 0; policy drop;
                ct state established,related accept
                ct status dnat accept
                iifname lan accept
            }}
            chain coming {{ type filter hook input priority 0; policy accept; iifname eth0 ct state new drop; }}
        }}
    """)  # fmt: skip


def _plug(name: str, port: str, *addresses: str) -> None:
    switch = PREFIX + "switch"
    ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", PREFIX + name)
    ip("-n", switch, "link", "set", port, "master", "br0", "up")
    for address in addresses:
        at_once = ["nodad"] if ":" in address else []
        ip("-n", PREFIX + name, "address", "add", f"{address}/{32 if at_once else 16}", "dev", "eth0", *at_once)
    ip("-n", PREFIX + name, "link", "set", "eth0", "up")
    for family in {"-6" if ":" in address else "-4" for address in addresses}:  # all the world is behind the switch
        ip("-n", PREFIX + name, family, "route", "add", "default", "dev", "eth0")
