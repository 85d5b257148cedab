"""Can others reach me? A peer is asked to open a TCP connection back to whoever asks, and says what came of it.

It dials the address that the question came from and no other: nobody has a member knock at somebody else's door. Nor at
those of its own network, from behind a proxy: whoever announces a public address dials only such ones back.
"""

import logging
from collections import deque
from collections.abc import Iterable, Sequence

import trio
from libp2p.abc import INetStream

from dlx.p2p.addresses import family_of, is_public, parse_address
from dlx.p2p.admission import is_global, is_ip
from dlx.p2p.host import Host
from dlx.p2p.muxer import address_of, networks_of, tcp_of
from dlx.p2p.stream_admission import ServedStreams
from dlx.p2p.streams import StreamBroken, let_go, read_short, write_short
from dlx.p2p.token_buckets import TokenBuckets

DIALBACK = "/dlx/dialback/1"
MOST_PORTS = 4  # in a question
SECONDS = 5.0  # for one connection
EVERY = 10.0  # s between two questions of one address that are answered
SERVED, SERVED_PER_PEER = 8, 1  # questions at once
DEADLINE = 2 * SECONDS + 2  # s for an answer
REMEMBERED = 4  # answers

log = logging.getLogger(__name__)


class DialBack:
    """Make it before the host runs. Without `serves` this peer only asks."""

    def __init__(self, host: Host, serves: bool = True) -> None:
        self._host = host
        self._seen_at = {family: deque[str](maxlen=REMEMBERED) for family in ("ip4", "ip6")}
        self.answered = trio.Event()  # somebody, ever
        self._asked = TokenBuckets(1 / EVERY, burst=2)
        self._streams = ServedStreams(
            SERVED, SERVED_PER_PEER, host.is_registered, lambda peer: host.reject("dialback_busy", peer)
        )
        if serves:
            host.serve(DIALBACK, self._serve)

    def saw(self, ip: str) -> None:
        """A peer saw this host at an IP address. One of its own network does not know where others see it."""
        if is_global(ip):
            self._seen_at[family_of(ip)].append(ip)
        self.answered.set()

    def is_seen_at(self, ip: str) -> bool:
        """Whether two of the last that answered by this family saw this host there, or the only one: so no single peer
        has it believe in another address."""
        seen = self._seen_at[family_of(ip)]
        return seen.count(ip) >= min(2, max(1, len(seen)))

    async def ask(self, peer: str, ports: Sequence[int]) -> tuple[str, dict[int, bool]]:
        """Our IP address as the peer sees it, and which of at most MOST_PORTS ports it could connect to there. Raises
        StreamBroken."""
        with trio.move_on_after(DEADLINE):
            stream = await self._host.open_stream(peer, DIALBACK, DEADLINE)
            try:
                await write_short(stream, b"".join(port.to_bytes(2, "big") for port in ports))
                reached, address = await read_short(stream, MOST_PORTS), await read_short(stream, 64)
                at = address.decode("ascii", "replace")
                if len(reached) != len(ports) or not is_ip(at):
                    raise StreamBroken("an answer that fits no question")
                self.saw(at)
                return at, {port: bool(one) for port, one in zip(ports, reached, strict=True)}
            finally:
                await let_go(stream)
        raise StreamBroken(f"no whole answer within {DEADLINE:.0f} s")

    async def _serve(self, stream: INetStream, peer: str) -> None:
        try:
            address = address_of(stream)
            with self._streams.admit(peer, networks_of(stream)) as served, trio.move_on_after(DEADLINE):
                if served is None:
                    return
                if tcp_of(stream.muxed_conn).relay is not None or not may_dial(address, self._host.addresses):
                    self._host.reject("dialback_private", peer)  # what a relay tells is no address to knock at
                    return
                if not self._asked.take(address):
                    self._host.reject("dialback_busy", peer)
                    return
                asked = await read_short(stream, 2 * MOST_PORTS)
                ports = [int.from_bytes(asked[at : at + 2], "big") for at in range(0, len(asked), 2)]
                reached = dict[int, bool]()
                async with trio.open_nursery() as nursery:
                    for port in set(ports):
                        nursery.start_soon(_knock, address, port, reached)
                await write_short(stream, bytes(reached[port] for port in ports))
                await write_short(stream, address.encode())
                await read_short(stream, 0)  # until it lets go: what we leave is reset, with all that it has not read
        except (StreamBroken, OSError) as error:
            log.debug("dialling %s back: %r", peer, error)


def may_dial(address: str, announced: Iterable[str]) -> bool:
    """Whether the asker's IP address is dialled by a node that announces these multiaddrs; a name counts as public."""
    return is_global(address) or not any(is_public(parse_address(one)[0]) for one in announced)


async def _knock(address: str, port: int, reached: dict[int, bool]) -> None:
    reached[port] = False
    with trio.move_on_after(SECONDS):
        try:
            stream = await trio.open_tcp_stream(address, port)
        except (OSError, ValueError):
            return
        reached[port] = True
        await stream.aclose()
