"""Peer ids and multiaddrs as strings from outside: parsed here, or refused."""

import errno
import ipaddress
import logging
import socket
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path

import psutil
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from dlx.ground.errors import DlxError
from dlx.p2p.admission import is_global, is_loopback, plain

ADDRESSES_PER_PEER = 16
CIRCUIT = "p2p-circuit"
_REMEMBERED = 256  # the members' addresses are looked at with every block, for a millisecond each
_FAMILIES = (["ip4"], ["ip6"], ["dns"], ["dns4"], ["dns6"])

log = logging.getLogger(__name__)


class AddressError(DlxError, ValueError):
    """The text is no address that this node can use."""


@lru_cache(_REMEMBERED)
def parse_peer_id(text: str) -> ID:
    """Raises AddressError."""
    try:
        peer = ID.from_base58(text)
        if str(peer) == text and 0 < len(peer.to_bytes()) <= 64:
            return peer
    except Exception:  # the library has no common error
        pass
    raise AddressError(f"{text[:80]!r} is not a peer id")


@lru_cache(_REMEMBERED)
def parse_address(text: str, peer: ID | None = None) -> tuple[Multiaddr, ID | None]:
    """An address without the /p2p/ at its end, and who that names. By a relay it is the relay's, with its peer id and
    /p2p-circuit. Raises AddressError; also if it names another than `peer`."""
    try:
        address = Multiaddr(text)
        names = [protocol.name for protocol in address.protocols()]
        ids = [str(value) for protocol, value in address.items() if protocol.name == "p2p"]
    except Exception:
        raise AddressError(f"{text[:80]!r} is not a multiaddr such as /ip4/203.0.113.7/tcp/4001") from None
    owner, relayed = None, CIRCUIT in names
    if len(ids) > relayed and names[-1] == "p2p":
        owner = parse_peer_id(ids[-1])
        address, names = Multiaddr(text.rstrip("/").rpartition("/p2p/")[0]), names[:-1]
    if names[:1] not in _FAMILIES or names[1:] not in (["tcp"], ["tcp", "p2p", CIRCUIT]):
        raise AddressError(f"{text[:80]!r} is not a plain TCP address such as /ip4/203.0.113.7/tcp/4001")
    if peer is not None and owner is not None and owner != peer:
        raise AddressError(f"{text[:80]!r} is the address of another peer")
    return address, owner


def usable(texts: Iterable[str], peer: ID) -> list[Multiaddr]:
    """Those of a stranger's addresses that can be dialled, at most ADDRESSES_PER_PEER."""
    found: list[Multiaddr] = []
    for text in list(texts)[:ADDRESSES_PER_PEER]:
        try:
            address, _ = parse_address(text, peer)
        except AddressError:
            continue
        if address not in found:
            found.append(address)
    return found


def tcp_at(ip: str, port: int) -> str:
    """The multiaddr of a TCP port at an IP address."""
    return f"/{family_of(ip)}/{ip}/tcp/{port}"


def family_of(ip: str) -> str:
    """ip4 or ip6."""
    return "ip6" if ":" in ip else "ip4"


def relay_of(address: Multiaddr) -> ID | None:
    """Who carries connections to an address that `parse_address` gave; None: nobody has to."""
    _, circuit, _ = str(address).partition("/" + CIRCUIT)
    return parse_peer_id(str(address.value_for_protocol("p2p"))) if circuit else None


def ip_addresses(texts: Iterable[str]) -> set[str]:
    """Those of a stranger's addresses that are an IP's, at most ADDRESSES_PER_PEER; names are not looked up."""
    found = set()
    for text in list(texts)[:ADDRESSES_PER_PEER]:
        family, _, rest = text.lstrip("/").partition("/")
        if family in ("ip4", "ip6"):
            found.add(plain(rest.partition("/")[0]))
    return found


def is_public(address: Multiaddr) -> bool:
    """Whether it may be dialled from anywhere; a name counts as such."""
    family = address.protocols()[0].name
    return family.startswith("dns") or is_global(str(address.value_for_protocol(family)))


def expand(addresses: Iterable[Multiaddr]) -> list[Multiaddr]:
    """Wildcard listening addresses as the addresses of this machine, the most useful first; others as they are."""
    wild, found = list[tuple[str, str]](), list[Multiaddr]()
    for address in _of_both_families(addresses):
        if _is_wildcard(address):
            wild.append(_family_and_port(address))
        else:
            found.append(address)
    families = dict(wild)
    there = [one for family in families for one in interfaces(family)]
    ips = useful(there, set(map(source, families)), _is_bridge)
    return found + [Multiaddr(tcp_at(ip, int(port))) for ip in ips for family, port in wild if family == family_of(ip)]


def useful(there: Iterable[tuple[str, str]], sources: Collection[str], is_bridge: Callable[[str], bool]) -> list[str]:
    """Of (interface, IP address) what others can make use of: public ones first, then `sources`, from which packets
    leave. Loopback, link-local ones and those of bridges (but `sources`) only where there is nothing else."""
    found = {ip: name for name, ip in there}

    def rank(ip: str) -> tuple[bool, bool]:
        return not is_global(ip), ip not in sources

    ips = [ip for ip in found if not (ipaddress.ip_address(ip).is_loopback or ipaddress.ip_address(ip).is_link_local)]
    best = [ip for ip in ips if ip in sources or not is_bridge(found[ip])]
    return sorted(best or ips or found, key=rank)


def private_listener(listening: Sequence[str]) -> tuple[str, int] | None:
    """The IPv4 address and port that a router could forward to: the node listens there, and it is private. None where
    there is none, or a public one. `listening`: multiaddrs, the most useful first."""
    found = list[tuple[str, int]]()
    for text in listening:
        address = parse_address(text)[0]
        if address.protocols()[0].name == "ip4":
            ip, port = str(address.value_for_protocol("ip4")), int(address.value_for_protocol("tcp") or 0)
            if is_global(ip):
                return None
            if not is_loopback(ip):
                found.append((ip, port))
    return found[0] if found else None


def interfaces(family: str) -> list[tuple[str, str]]:
    """(interface, IP address) of this machine; `family` is ip4 or ip6."""
    wanted = socket.AF_INET if family == "ip4" else socket.AF_INET6
    return [
        (name, entry.address.split("%")[0])
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == wanted
    ]


def is_own(address: Multiaddr, listening: Iterable[Multiaddr]) -> bool:
    """Whether who dials it from here reaches one of these listening addresses of this machine."""
    family, port = _family_and_port(address)
    for one in _of_both_families(listening):
        if (family, port) == _family_and_port(one):
            ip = plain(str(address.value_for_protocol(family)))
            if ip == one.value_for_protocol(family):
                return True
            if _is_wildcard(one) and ip in {there for _, there in interfaces(family)}:
                return True
    return False


def families(addresses: Iterable[Multiaddr]) -> set[str]:
    """Those by which others can dial listening addresses of this machine; a name may stand for both."""
    names = {address.protocols()[0].name for address in expand(addresses)}
    return {"ip4" if name == "dns4" else "ip6" if name == "dns6" else name for name in names}


def _of_both_families(addresses: Iterable[Multiaddr]) -> list[Multiaddr]:
    """Beside who listens at `::` the IPv4 wildcard of that port, where nobody listens by IPv4 there: connections by
    IPv4 come to that one."""
    found = list(addresses)
    taken = {port for family, port in map(_family_and_port, found) if family == "ip4"}
    for address in found.copy():
        family, port = _family_and_port(address)
        if family == "ip6" and _is_wildcard(address) and port not in taken and _takes_both():
            found.append(Multiaddr(tcp_at("0.0.0.0", int(port))))
    return found


@cache
def _takes_both() -> bool:
    """Whether `::` is IPv4 too: the library leaves that to the system."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            return not probe.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
    except OSError:
        return False


def _family_and_port(address: Multiaddr) -> tuple[str, str]:
    return address.protocols()[0].name, str(address.value_for_protocol("tcp"))


def _is_wildcard(address: Multiaddr) -> bool:
    return address.value_for_protocol(address.protocols()[0].name) in ("0.0.0.0", "::")


def source(family: str) -> str:
    """The IP address from which packets to elsewhere leave; empty where none could. Nothing is sent."""
    kind, elsewhere = (socket.AF_INET, "192.0.2.1") if family == "ip4" else (socket.AF_INET6, "2001:db8::1")
    try:
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _is_bridge(name: str) -> bool:
    """Of containers and virtual machines; Linux tells."""
    return Path("/sys/class/net", name, "bridge").exists()


def listenable(addresses: Sequence[Multiaddr]) -> list[Multiaddr]:
    """Those at which this machine can listen. One of a family that it lacks is left out, if another stays.

    Raises AddressError for any other at which it cannot, as where somebody listens there: the library would silently
    share the port with them."""
    found, lacking = list[Multiaddr](), ""
    for address in addresses:
        family, port = _family_and_port(address)
        kind = socket.AF_INET if family == "ip4" else socket.AF_INET6
        try:
            with socket.socket(kind, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address.value_for_protocol(family), int(port)))
        except OSError as error:
            lacking = f"cannot listen on port {port} ({address}): {error.strerror}; choose another with --listen"
            lacks = [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL] if _is_wildcard(address) else [errno.EAFNOSUPPORT]
            if error.errno not in lacks:
                raise AddressError(lacking) from None
            log.info("not listening on %s: %s", address, error.strerror)
        else:
            found.append(address)
    if lacking and not found:
        raise AddressError(lacking)
    return found
