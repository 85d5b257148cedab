"""From a relayed connection to a direct one (`/dlx/punch/1`): both ends open it to each other at the same moment.

A router that keeps the port of what leaves, and lets in whoever was spoken to, takes both for answers. Others do not:
then the relay goes on. Two behind one router, which seldom connects a home with itself, try their private addresses
first: one after the other dials what it is told.
"""

import logging
import time
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

import trio
from libp2p.abc import INetStream

from dlx.p2p.admission import prefix
from dlx.p2p.dialback import DialBack
from dlx.p2p.host import Host
from dlx.p2p.relay.direct import meet_at_home, meet_half_way, private_ips, source_for, told_address
from dlx.p2p.streams import StreamBroken, let_go, read_short, write_short
from dlx.p2p.token_buckets import TokenBuckets

PUNCH = "/dlx/punch/1"
TRIES = 3
TRY = 3.0  # s for a connection
DEADLINE = 10.0  # s for a message
PATIENCE = 15.0  # s for which a node that has just started waits to learn how others see it
EVERY = 600.0  # s for one more time with a peer, beyond three
LOOK = 1.0  # s
MOST_PRIVATE = 4  # addresses of one end
FIRST_PORT = 1024  # of those dialled at home: below are a machine's own services

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Where an end listens. `port` 0: nowhere that others could come to. `private`: IPv4 addresses, told only to who
    seems to be at home with it."""

    port: int
    private: tuple[str, ...] = ()

    def encode(self) -> bytes:
        return self.port.to_bytes(2, "big") + b"".join(IPv4Address(ip).packed for ip in self.private)

    @staticmethod
    def decode(data: bytes) -> "Place":
        """Raises StreamBroken."""
        if len(data) not in range(2, 2 + 4 * MOST_PRIVATE + 1, 4):
            raise StreamBroken(f"{len(data)} bytes are no place")
        private = tuple(str(IPv4Address(data[at : at + 4])) for at in range(2, len(data), 4))
        return Place(int.from_bytes(data[:2], "big"), private)


def dialled_at_home(own: Place, other: Place) -> list[str]:
    """Of the private addresses that the other end tells: those in a network (/24) of our own, but our own."""
    networks = {prefix(ip) for ip in own.private}
    fine = other.port >= FIRST_PORT
    return [ip for ip in other.private if fine and prefix(ip) in networks and ip not in own.private]


class Punch:
    """Make it before the host runs. Of two ends the one with the lower peer id begins. `dial_back` knows how others
    see this node: who is seen at the same address is at home with it."""

    def __init__(self, host: Host, dial_back: DialBack) -> None:
        self._host, self._dial_back = host, dial_back
        self._tries = TokenBuckets(1 / EVERY, burst=3)  # of a peer that begins, or has us begin by coming anew
        host.serve(PUNCH, self._serve)
        host.add_service(self._run)

    async def _run(self, task_status: Any) -> None:
        """Once for each relayed connection, as often as may be: when it is known how others see this node, or after
        PATIENCE seconds without that, and then once more when it is known."""
        tried = set[tuple[str, float, bool]]()
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                is_seen, late = self._dial_back.answered.is_set(), time.time() - PATIENCE
                there = {
                    (one.peer_id, one.connected_since, is_seen)
                    for one in self._host.peers()
                    if one.agreed and one.relay and (is_seen or one.connected_since < late)
                }
                for peer, since, _ in there - tried:
                    if self._host.peer_id < peer and source_for(self._host, peer) and self._tries.take(peer):
                        log.debug("punching to %s, relayed since %s", peer, since)
                        nursery.start_soon(self._begin, peer)
                tried = there
                await trio.sleep(LOOK)

    async def _begin(self, peer: str) -> None:
        try:
            stream = await self._host.open_stream(peer, PUNCH, DEADLINE)
            try:
                for number in range(TRIES):
                    own, began = self._place(peer), trio.current_time()
                    with trio.fail_after(PATIENCE + DEADLINE):
                        await write_short(stream, own.encode())
                        other = await _read(stream)
                        await write_short(stream, b"")  # now: the other end has it in half a round trip
                    if not other.port:
                        return
                    await trio.sleep(min(TRY, trio.current_time() - began) / 2)  # the other end may have had to wait
                    if await self._meet(peer, own, other, number, begins=True):
                        return
            finally:
                await let_go(stream)
        except (StreamBroken, trio.TooSlowError) as error:
            log.debug("punching to %s: %r", peer, error)

    async def _serve(self, stream: INetStream, peer: str) -> None:
        if peer > self._host.peer_id or peer not in self._host.members or not self._tries.take(peer):
            self._host.reject("punch_refused", peer)
            return
        with trio.move_on_after(PATIENCE):
            await self._dial_back.answered.wait()
        try:
            for number in range(TRIES):
                with trio.fail_after(TRY + DEADLINE):
                    other, own = await _read(stream), self._place(peer)
                    await write_short(stream, own.encode())
                    await read_short(stream, 0)
                if not other.port or await self._meet(peer, own, other, number, begins=False):
                    return
        except (StreamBroken, trio.TooSlowError) as error:
            log.debug("punching from %s: %r", peer, error)

    async def _meet(self, peer: str, own: Place, other: Place, number: int, begins: bool) -> bool:
        """One try; the first two are at home, where both ends have told private addresses: each end dials in one."""
        if not (own.private and other.private and number < 2):
            return await meet_half_way(self._host, peer, other.port, TRY, begins)
        if begins == (number == 0):
            return await meet_at_home(self._host, peer, dialled_at_home(own, other), other.port, TRY)
        await trio.sleep(TRY)
        return False

    def _place(self, peer: str) -> Place:
        """On which port this node listens, for the family by which the peer is seen; and where at home."""
        source = source_for(self._host, peer)
        if source is None:
            return Place(0)
        is_home = self._dial_back.is_seen_at(told_address(self._host, peer))
        return Place(source[1], tuple(private_ips(self._host, source[1])[:MOST_PRIVATE]) if is_home else ())


async def _read(stream: INetStream) -> Place:
    """Raises StreamBroken."""
    return Place.decode(await read_short(stream, 2 + 4 * MOST_PRIVATE))
