"""A direct connection to a peer in place of those that relays carry: from where, to where, and which of them stay."""

import logging
from collections.abc import Sequence

import trio

from dlx.p2p.addresses import family_of, parse_address, tcp_at
from dlx.p2p.admission import is_global, is_loopback, is_private
from dlx.p2p.host import Host
from dlx.p2p.streams import StreamBroken
from dlx.p2p.transport import MeteredStream

SETTLED = 1.0  # s for both ends to know of a direct connection, before the relayed one is cut

log = logging.getLogger(__name__)


def told_address(host: Host, peer: str) -> str:
    """A peer's IP address, as the relay tells that carries its connection; empty: none does."""
    return next((tcp.address for tcp in _relayed(host, peer)), "")


def private_ips(host: Host, port: int) -> list[str]:
    """The private IPv4 addresses of this machine at which the host listens on a port, the most useful first."""
    there = [parse_address(text)[0] for text in host.listening() if text.endswith(f"/tcp/{port}")]
    ips = [str(one.value_for_protocol("ip4")) for one in there if one.protocols()[0].name == "ip4"]
    return [ip for ip in ips if is_private(ip)]


def source_for(host: Host, peer: str) -> tuple[str, int] | None:
    """Where to open a direct connection from to a peer that a relay carries: an IP address and port on which the host
    listens. None where there is none, or no relay, or the peer is not at a public IP address."""
    if not is_global(told := told_address(host, peer)):
        return None
    family = family_of(told)
    for one in host.bound:
        ip = one.value_for_protocol(family) if one.protocols()[0].name == family else None
        if ip is not None and not is_loopback(ip):
            return str(ip), int(one.value_for_protocol("tcp") or 0)
    return None


async def meet_half_way(host: Host, peer: str, port: int, deadline_s: float, begins: bool) -> bool:
    """Open a direct connection to a peer that a relay carries, while it does the same; of the two one `begins`.
    True when it is there: then that one cuts the relayed ones."""
    source, relayed = source_for(host, peer), _relayed(host, peer)
    if source is None or not host.mark_half_way(peer):  # banned meanwhile
        return False
    try:
        direct = await host.dial(peer, tcp_at(relayed[0].address, port), deadline_s, source, begins)
    except StreamBroken as error:
        log.debug("no direct connection: %s", error)
        return False
    return not begins or await _keep_alone(host, peer, direct, relayed)


async def meet_at_home(host: Host, peer: str, ips: Sequence[str], port: int, seconds: float) -> bool:
    """Open a direct connection to a peer that a relay carries, at one of its private addresses. True when it is there:
    then the relayed ones are cut. Else it takes `seconds`, whatever happens, so that a peer that tells others'
    addresses learns nothing of what answers there."""
    came, relayed, began = list[MeteredStream](), _relayed(host, peer), trio.current_time()
    if not host.mark_half_way(peer):  # banned meanwhile
        return False

    async def dial(ip: str, scope: trio.CancelScope) -> None:
        try:
            came.append(await host.dial(peer, tcp_at(ip, port), seconds))
            scope.cancel()
        except StreamBroken as error:
            log.debug("not at home: %s", error)

    async with trio.open_nursery() as nursery:
        for ip in ips:
            nursery.start_soon(dial, ip, nursery.cancel_scope)
    if came:
        return await _keep_alone(host, peer, came[0], relayed)
    await trio.sleep_until(began + seconds)
    return False


async def _keep_alone(host: Host, peer: str, direct: MeteredStream, relayed: Sequence[MeteredStream]) -> bool:
    """Cut the relayed connections to a peer, if a direct one lasts: however late it came, else both would stay."""
    await trio.sleep(SETTLED)
    if direct not in host.connections(peer):
        return False
    for tcp in relayed:
        tcp.kill()
    return True


def _relayed(host: Host, peer: str) -> list[MeteredStream]:
    return [tcp for tcp in host.connections(peer) if tcp.relay is not None]
