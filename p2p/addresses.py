"""Peer ids and multiaddrs as strings from outside: parsed here, or refused."""

import ipaddress
import socket
from collections.abc import Iterable
from functools import lru_cache

import psutil
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from dlx.ground.errors import DlxError
from dlx.p2p.admission import plain

ADDRESSES_PER_PEER = 16
_REMEMBERED = 256  # the members' addresses are looked at with every block, for a millisecond each


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
    """An address without its /p2p/ part, and that part. Raises AddressError; also if it names another than `peer`."""
    try:
        address = Multiaddr(text)
        names = [protocol.name for protocol in address.protocols()]
        named = address.value_for_protocol("p2p") if "p2p" in names else None
    except Exception:
        raise AddressError(f"{text[:80]!r} is not a multiaddr such as /ip4/203.0.113.7/tcp/4001") from None
    transport = [name for name in names if name != "p2p"]
    if len(transport) != 2 or transport[0] not in ("ip4", "ip6", "dns", "dns4", "dns6") or transport[1] != "tcp":
        raise AddressError(f"{text[:80]!r} is not a plain TCP address such as /ip4/203.0.113.7/tcp/4001")
    owner = parse_peer_id(named) if named else None
    if owner is not None:
        address = address.decapsulate(Multiaddr(f"/p2p/{named}"))
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


def ip_addresses(texts: Iterable[str]) -> set[str]:
    """Those of a stranger's addresses that are an IP's, at most ADDRESSES_PER_PEER; names are not looked up."""
    found = set()
    for text in list(texts)[:ADDRESSES_PER_PEER]:
        family, _, rest = text.lstrip("/").partition("/")
        if family in ("ip4", "ip6"):
            found.add(plain(rest.partition("/")[0]))
    return found


def expand(address: Multiaddr) -> list[Multiaddr]:
    """A wildcard listening address as the addresses of this machine; others as they are."""
    family, port = address.protocols()[0].name, address.value_for_protocol("tcp")
    if address.value_for_protocol(family) not in ("0.0.0.0", "::"):
        return [address]
    wanted = socket.AF_INET if family == "ip4" else socket.AF_INET6
    found = [
        ipaddress.ip_address(entry.address.split("%")[0])
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == wanted
    ]
    reachable = [ip for ip in found if not ip.is_loopback and not ip.is_link_local] or found
    return [Multiaddr(f"/{family}/{ip}/tcp/{port}") for ip in reachable]


def check_free(address: Multiaddr) -> None:
    """Raises AddressError when somebody listens there; the library would silently share the port with them."""
    family, port = address.protocols()[0].name, int(address.value_for_protocol("tcp") or 0)
    if port == 0:
        return
    with socket.socket(socket.AF_INET if family == "ip4" else socket.AF_INET6, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.value_for_protocol(family), port))
        except OSError as error:
            raise AddressError(f"cannot listen on {address}: {error.strerror}; choose another with --listen") from None
