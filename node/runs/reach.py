"""Can others connect to this node? Asked of peers of the run, who dial back: see p2p.dialback."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence

import trio

from dlx.ground.errors import cause
from dlx.ledger.abi import account_bytes
from dlx.ledger.keys import peer_id_to_base58
from dlx.ledger.typed import Domain
from dlx.ledger.view.node_registry import RegisteredNode
from dlx.node import version
from dlx.node.home.diagnostics import FAIL, PASS, WARN, Diagnosis
from dlx.p2p import wire
from dlx.p2p.addresses import AddressError, parse_address
from dlx.p2p.dialback import MOST_PORTS, DialBack
from dlx.p2p.host import Host
from dlx.p2p.streams import StreamBroken

SECONDS = 30.0  # for all of it
ASKED = 4  # peers, one after the other, until one answers
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
    hello = wire.Hello(wire.VERSIONS, wire.FEATURES, domain.chain_id, account_bytes(domain.ledger), run, version())
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
                return _judged(*await dial_back.ask(peer, ports))
            except StreamBroken as error:
                why = str(error)
    return Diagnosis("ports", WARN, f"not asked, because no peer answers: {why}", "try again once others are there")


def _judged(address: str, reached: Mapping[int, bool]) -> Diagnosis:
    closed = ", ".join(str(port) for port, open in reached.items() if not open)
    if closed:
        text = f"a peer that sees this node at {address} cannot connect to port {closed}"
        return Diagnosis("ports", WARN, text, "forward the port to this machine, and say --listen and --announce")
    return Diagnosis("ports", PASS, f"a peer connected to {address}, port {', '.join(map(str, reached))}")
