"""Can others connect to this node? Asked of peers of the run, who dial back: see p2p.dialback."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping, Sequence

import trio

from dlx.ground.errors import cause
from dlx.ledger.abi import account_bytes
from dlx.ledger.keys import peer_id_to_base58
from dlx.ledger.typed import Domain
from dlx.ledger.view.node_registry import RegisteredNode
from dlx.node import version
from dlx.node.home.diagnostics import FAIL, PASS, WARN, Diagnosis
from dlx.p2p import pcp, upnp, wire
from dlx.p2p.addresses import AddressError, expand, families, parse_address, private_listener
from dlx.p2p.admission import is_global
from dlx.p2p.dialback import MOST_PORTS, DialBack
from dlx.p2p.host import Host
from dlx.p2p.streams import StreamBroken
from dlx.p2p.upnp import RouterError

SECONDS = 30.0  # for all of it
ASKED = 4  # peers, one after the other, until one answers
FORWARD = "switch PCP, NAT-PMP or UPnP on there, or forward the port to this machine; else members relay"
_PORT = re.compile(r"/tcp/(\d+)")


def reachable(
    domain: Domain,
    run: bytes,
    own_peer: str,
    nodes: Mapping[str, RegisteredNode],
    addresses: Sequence[str],
    listen: Sequence[str],
    bootstrap: Sequence[str] = (),
) -> Diagnosis:
    """Whether a peer can connect to the ports of `addresses`, what this node tells others to dial. `listen`: what to
    listen on meanwhile, where no node does. Asks under an identity that exists for this once."""
    found = [Diagnosis("ports", WARN, f"no answer within {SECONDS:.0f} s", "try again")]

    async def ask() -> None:
        with trio.move_on_after(SECONDS):
            found[0] = await _ask(domain, run, own_peer, nodes, addresses, listen, bootstrap)

    try:
        trio.run(ask)
    except Exception as raised:
        if not isinstance(error := cause(raised), AddressError):
            raise
        return Diagnosis("ports", FAIL, str(error), "choose another --listen")
    return found[0]


def router(listen: Sequence[str]) -> list[Diagnosis]:
    """What a home's router says that could forward a port of `listen` (multiaddrs); it is asked to forward none.
    Nothing where this machine has a public address, or only itself is listened to."""
    own = private_listener(list(map(str, expand(parse_address(text)[0] for text in listen))))
    return [] if own is None else [trio.run(_router, own[0])]


async def _router(own: str) -> Diagnosis:
    found = "none answers to PCP, NAT-PMP or UPnP"
    with trio.move_on_after(SECONDS):
        gateway = pcp.gateway(own)
        if gateway is None:
            found = "none answers to UPnP, and no gateway is known that could be asked by PCP"
        else:
            try:
                return _can_be_asked(gateway.ip, await pcp.external_address(gateway), "PCP or NAT-PMP")
            except RouterError as error:
                if error.code:
                    found = f"{gateway.ip} does not say its own address: {error}"
        for one in await upnp.find(own):
            try:
                return _can_be_asked(one.ip, await upnp.external_address(one), "UPnP")
            except RouterError as error:
                found = f"{one.ip} does not say its own address: {error}"
    return Diagnosis("router", WARN, found, FORWARD)


def _can_be_asked(ip: str, outside: str, by: str) -> Diagnosis:
    """`outside`: its own IP address there; empty: it does not tell before it is asked for a port."""
    if not outside or is_global(outside):
        port = f"a port of {outside}" if outside else "a port"
        return Diagnosis("router", PASS, f"{ip} can be asked to forward {port} ({by})")
    text = f"the own address {outside} of {ip} is private: its provider, or a second router, has another"
    return Diagnosis("router", WARN, text, "ask the provider for a public address; else members relay")


async def _ask(
    domain: Domain,
    run: bytes,
    own_peer: str,
    nodes: Mapping[str, RegisteredNode],
    addresses: Sequence[str],
    listen: Sequence[str],
    bootstrap: Sequence[str],
) -> Diagnosis:
    ports = sorted({int(port) for text in addresses for port in _PORT.findall(text)} - {0})[:MOST_PORTS]
    if not ports:
        return Diagnosis("ports", WARN, "the node listens on any free port: others cannot remember it", "set --listen")
    hello = wire.Hello(
        wire.VERSIONS,
        wire.FEATURES,
        domain.chain_id,
        account_bytes(domain.ledger),
        run,
        version(),
        secrets.token_bytes(8),
    )
    host = Host(secrets.token_bytes(32), listen or ["/ip4/127.0.0.1/tcp/0"], [], hello, bootstrap)
    dial_back = DialBack(host, serves=False)
    others = {peer_id_to_base58(node.peer_id): node.multiaddrs for node in nodes.values()}
    others |= {str(named): () for text in bootstrap if (named := parse_address(text)[1]) is not None}
    others.pop(own_peer, None)
    why = "no other node is registered"
    async with host.run():
        for peer, multiaddrs in list(others.items())[:ASKED]:
            host.known(peer, multiaddrs)
            try:
                told = families(parse_address(text)[0] for text in addresses)
                return _judged(*await dial_back.ask(peer, ports), told)
            except StreamBroken as error:
                why = str(error)
    return Diagnosis("ports", WARN, f"not asked, because no peer answers: {why}", "try again once others are there")


def _judged(address: str, reached: Mapping[int, bool], told: Collection[str]) -> Diagnosis:
    """`told`: the families of the addresses that others are told."""
    closed = ", ".join(str(port) for port, open in reached.items() if not open)
    if closed:
        text = f"a peer that sees this node at {address} cannot connect to port {closed}"
        mend = "forward the port to this machine; where another leads to it, say --announce"
        return Diagnosis("ports", WARN, text, mend)
    text = f"a peer connected to {address}, port {', '.join(map(str, reached))}"
    for family, other in (("ip4", "IPv6"), ("ip6", "IPv4")):
        if {*told} == {family}:
            text += f"; others are told no address of {other}"
    return Diagnosis("ports", PASS, text)
