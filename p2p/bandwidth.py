"""How fast this node may send or receive, over all connections together: the operator's limit.

It is for the way out: neighbours on a network that this machine is itself on, such as a site's, are not slowed down.
"""

import ipaddress
import math
import time
from functools import lru_cache

import psutil
import trio

BURST_SECONDS = 0.25  # of the rate, that may come at once


class Limit:
    """A token bucket whose users queue in the order of asking. `rate`: bytes/s, 0 for none."""

    def __init__(self, rate: float = 0) -> None:
        self.rate = rate or math.inf
        self._free = -math.inf  # trio's time at which all that was asked for has gone

    async def take(self, amount: int) -> None:
        """Of so many bytes that went: until the next may."""
        if self.rate == math.inf:
            return
        now = trio.current_time()
        self._free = max(self._free, now - BURST_SECONDS) + amount / self.rate
        if self._free > now:
            await trio.sleep_until(self._free)

    def pause(self) -> float:
        """Seconds until nothing waits any more: who can wait lets others go first."""
        return 0.0 if self.rate == math.inf else max(0.0, self._free - trio.current_time())


def is_limited(*limits: Limit) -> bool:
    return any(limit.rate < math.inf for limit in limits)


def is_near(address: str) -> bool:
    """Whether an IP address is this machine's, or on a network that one of its interfaces is on."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    return ip.is_loopback or any(ip in network for network in _networks(int(time.monotonic()) // 60))


@lru_cache(1)
def _networks(minute: int) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Of the interfaces; asked for anew each minute."""
    found = []
    for entry in (entry for entries in psutil.net_if_addrs().values() for entry in entries if entry.netmask):
        try:
            mask = ipaddress.ip_address(entry.netmask or "")
            bits = bin(int(mask)).count("1")
            found.append(ipaddress.ip_network((entry.address.split("%")[0], bits), strict=False))
        except ValueError:
            continue  # an interface's hardware address
    return found
