"""Who has to go when places are too few (connections, handshakes, streams that blobs are served on), and who waits."""

import ipaddress
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

SHARE = 8  # strangers keep one place of so many, and one byte of so many, where members want them all
QUIET = 0.5  # s after which a member that was served wants no more
TRICKLE = 256 * 1024  # bytes a second for strangers, however little members take
SAVED = 2 * 1024 * 1024  # bytes that they may save up; two ranges of a blob
_BITS = {4: 24, 6: 48}  # of an address: what one owner gets, so that more addresses are not more places
_WIDE = {4: 16, 6: 32}  # what a provider gets: who has ever new networks has them there


@dataclass(frozen=True, slots=True)
class Place:
    """One that is taken, or asked for."""

    peer: str  # peer id; where it is not known yet, the address
    networks: tuple[str, ...]  # in which its address is, the widest first
    registered: bool  # the ledger names it for a slot, or as the run's creator or founder
    in_use: bool
    turn: float  # of those that are otherwise alike, the lowest goes first


def plain(address: str) -> str:
    """An IP address without its zone, and not dressed as IPv6; any other text as it is."""
    ip = _parse(address)
    return address if ip is None else str(ip)


def prefix(address: str) -> str:
    """The network that an IP address is in: its first 24 bits, of IPv6 48. Of any other text, itself."""
    ip = _parse(address)
    return address if ip is None else str(ipaddress.ip_network((ip, _BITS[ip.version]), strict=False))


def networks(address: str) -> tuple[str, ...]:
    """The networks that an IP address is in, the widest first: its first 16 and 24 bits, of IPv6 32 and 48. Of any
    other text, itself."""
    ip = _parse(address)
    if ip is None:
        return (address,)
    return str(ipaddress.ip_network((ip, _WIDE[ip.version]), strict=False)), prefix(address)


def owner(peer: str, address: str) -> str:
    """Who shares a budget: whoever is in one network; where one person has the network for itself, the peer."""
    ip = _parse(address)
    return peer if ip is not None and ip.is_private else prefix(address)


def is_ip(address: str) -> bool:
    """Whether it is an IP address, and nothing but one: without a zone, which can be any text."""
    return _parse(address) is not None and "%" not in address


def is_loopback(address: str) -> bool:
    ip = _parse(address)
    return ip is not None and ip.is_loopback


def is_global(address: str) -> bool:
    """Whether it is an IP address that can be anywhere."""
    ip = _parse(address)
    return ip is not None and ip.is_global


def is_private(address: str) -> bool:
    """Whether it is an IP address of another machine in a network that is not public."""
    return is_ip(address) and not is_global(address) and not is_loopback(address)


def worst(places: Sequence[Place]) -> int:
    """The index of the one that has to go, so that the others have room; `places` are not empty.

    Strangers before the registered, unless strangers have one in SHARE or less. The idle before those in use; of
    crowded networks before sparse ones, wide ones first, counted among strangers or the registered alone; of peers with
    many before those with few; then by `turn`.
    """
    strangers = sum(not place.registered for place in places)
    spared = strangers <= len(places) // SHARE
    crowds = Counter((place.registered, network) for place in places for network in place.networks)
    peers = Counter(place.peer for place in places)

    def order(index: int) -> tuple[bool, bool, list[int], int, float]:
        place = places[index]
        crowd = [-crowds[place.registered, network] for network in place.networks]
        return place.registered != spared, place.in_use, crowd, -peers[place.peer], place.turn

    return min(range(len(places)), key=order)


def next_in_line(waiting: Sequence[Place], served: Mapping[str, float], strangers: bool) -> int:
    """The index of the one whose turn it is; `waiting` are not empty.

    The registered before strangers, or after them if it is the `strangers`' turn; then of the network that was served
    the longest time ago, wide ones first; then by `turn`. `served`: when, of those networks that were.
    """

    def order(index: int) -> tuple[bool, list[float], float]:
        place = waiting[index]
        last = [served.get(network, -math.inf) for network in place.networks]
        return place.registered == strangers, last, place.turn

    return min(range(len(waiting)), key=order)


class Leftover:
    """What strangers may be served beside members: one byte for SHARE of theirs and TRICKLE a second, or all if no
    member wants any. `clock` in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._members = 0  # waiting for an answer
        self._wanted = -math.inf  # when the last one was answered
        self._saved, self._then = float(SAVED), clock()  # bytes that strangers may have, as of when

    def begin(self) -> None:
        """A member asks."""
        self._members += 1

    def end(self, size: int) -> None:
        """It has its answer, of so many bytes."""
        self._members -= 1
        self._wanted = self._clock()
        self._save(size / SHARE)

    def take(self, size: int) -> bool:
        """Whether so many bytes may go to a stranger now."""
        if not self._members and self._clock() >= self._wanted + QUIET:
            return True
        self._save(0)
        if self._saved < size:
            return False
        self._saved -= size
        return True

    def _save(self, size: float) -> None:
        then, self._then = self._then, self._clock()
        self._saved = min(SAVED, self._saved + size + (self._then - then) * TRICKLE)


def _parse(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return ip.ipv4_mapped or ip if isinstance(ip, ipaddress.IPv6Address) else ip
