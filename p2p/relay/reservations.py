"""The relays of a member that cannot be reached: two at a time, and how others are called through theirs.

A relay can refuse, break, drop or delay; it cannot read, change or pretend, since Noise is between the ends. So there
are two, of different networks, and one through which connections of several peers came to nothing is left for another,
if any. Whoever calls says so (`/dlx/relay-failed/1`): who is called knows of no call that was refused.
"""

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from random import Random
from typing import Any

import trio
from libp2p.transport.exceptions import OpenConnectionError

from dlx.ground.backoff import Backoff
from dlx.p2p import wire
from dlx.p2p.addresses import CIRCUIT, tcp_at
from dlx.p2p.admission import is_global, is_ip, prefix
from dlx.p2p.calls import Calls
from dlx.p2p.host import Host
from dlx.p2p.relay.carrier import CALLED_BURST, CALLED_RATE, JOIN, RELAY, REQUEST_LIMIT
from dlx.p2p.streams import StreamBroken, let_go, read_short, write_short
from dlx.p2p.token_buckets import TokenBuckets
from dlx.p2p.transport import TOKEN

FAILED = "/dlx/relay-failed/1"
RELAYS = 2  # at a time
MOST_RATE, MOST_BURST = 2 * CALLED_RATE, 2 * CALLED_BURST  # calls a second that a relay may announce
PENDING = 16  # of these at once
REFUSED = Backoff(first=3.0, cap=300.0)  # until a relay that refused, or was lost, is asked again
LEFT = 3600.0  # s before one is asked again that talked nonsense; in which others come before one that was left
WITNESSES = 2  # peers of whom nothing came through a relay before it is left
MEMORY = 600.0  # s for which each counts
AT_ONCE = 15.0  # s within which who comes back had not gone; a node that starts takes longer
STEP = 0.05  # s of a round trip: relays that differ by less are as good as each other
LOOK = 1.0  # s

log = logging.getLogger(__name__)


def best(
    dialled: Mapping[str, tuple[str, int]],
    trips: Mapping[str, float],
    taken: Iterable[str],
    left: Collection[str],
    four: Collection[str],
    random: Random,
) -> list[str]:
    """Peer ids of who may be asked to relay, the best first. `dialled`: IP address and port of those whom this node
    itself reached; `trips`: seconds of a round trip; `taken`: networks that a relay is in already. `left`: relays
    through which nothing came; `four`: those that can be dialled by IPv4.

    Public ones, if there are any: others can reach only those. Those that were left come last, but they come: who fell
    silent may have done so to have us leave them all. By IPv4 most can dial. Of other networks first, then the nearest,
    then by chance."""
    public = {peer for peer, (ip, _) in dialled.items() if is_global(ip)}
    taken = set(taken)

    def rank(peer: str) -> tuple[bool, bool, bool, float, float]:
        trip = trips.get(peer, math.inf)
        steps = trip if trip == math.inf else trip // STEP
        return peer in left, peer not in four, prefix(dialled[peer][0]) in taken, steps, random.random()

    return sorted(public or dialled, key=rank)


class Reservations(Calls):
    """Make it before the host runs. `is_wanted` is set from outside: whether others should be carried to this node."""

    def __init__(self, host: Host) -> None:
        self.is_wanted = False
        self._host, self._random = host, Random()
        self._held: dict[str, tuple[str, int]] = {}  # relay -> IP address and port
        self._since: dict[str, float] = {}  # relay -> when that began
        self._scopes: dict[str, trio.CancelScope] = {}  # relays that are asked or held
        self._reaching = set[str]()  # who came by themselves, and are dialled now
        self._not_before: dict[str, float] = {}
        self._refusals = Counter[str]()  # in a row, with places that did not last
        self._left: dict[str, float] = {}  # relays through which nothing came, and until when they come last
        self._failures: defaultdict[str, dict[str, float]] = defaultdict(dict)  # relay -> peer -> when
        self._broken: dict[tuple[str, str], float] = {}  # relay and peer -> when their connection ended
        self._missed: dict[tuple[str, str], float] = {}  # the same, of who was called in vain
        self._announced = TokenBuckets(MOST_RATE, MOST_BURST)
        host.call_with(self)
        host.serve(FAILED, self._told)
        host.add_service(self._run)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Multiaddrs at which others can dial this node now, without its own peer id."""
        found = [(relay, tcp_at(ip, port)) for relay, (ip, port) in self._held.items()]
        found += [
            (relay, four)
            for relay, (ip, _) in self._held.items()
            if ":" in ip and (four := self._host.public_at(relay, "ip4"))
        ]
        return tuple(f"{at}/p2p/{relay}/{CIRCUIT}" for relay, at in found)

    async def _run(self, task_status: Any) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            while True:
                if self.is_wanted:
                    self._ask_more()
                else:
                    for scope in self._scopes.values():
                        scope.cancel()
                await trio.sleep(LOOK)

    def _ask_more(self) -> None:
        now, dialled = trio.current_time(), self._host.dialled()
        free = {
            peer: at
            for peer, at in dialled.items()
            if peer not in self._scopes and self._not_before.get(peer, -math.inf) <= now
        }
        self._reach_more(dialled, RELAYS - len(self._scopes) - len(free))
        trips = {peer: self._host.rtt(peer) for peer in free}
        networks = [prefix(dialled[peer][0]) for peer in self._scopes if peer in dialled]
        left = {peer for peer, until in self._left.items() if until > now}
        four = {peer for peer, (ip, _) in free.items() if ":" not in ip or self._host.public_at(peer, "ip4")}
        for peer in best(free, trips, networks, left, four, self._random)[: max(0, RELAYS - len(self._scopes))]:
            self._scopes[peer] = trio.CancelScope()
            self._nursery.start_soon(self._hold, peer, *free[peer])

    def _reach_more(self, dialled: Collection[str], count: int) -> None:
        """So many who came by themselves: only who was reached at an address can be called there by others."""
        now = trio.current_time()
        came = [
            peer
            for peer in self._host.members.intersection(self._host.agreed()).difference(dialled)
            if peer not in self._reaching and self._not_before.get(peer, -math.inf) <= now
        ]
        for peer in self._random.sample(sorted(came), max(0, min(count, len(came)))):
            self._reaching.add(peer)
            self._nursery.start_soon(self._reach, peer)

    async def _reach(self, peer: str) -> None:
        try:
            if not await self._host.reach(peer, JOIN):
                self._put_off(peer)
        finally:
            self._reaching.remove(peer)

    def _put_off(self, relay: str) -> None:
        """Longer each time in a row."""
        self._refusals[relay] += 1
        self._not_before[relay] = trio.current_time() + REFUSED.delay(self._refusals[relay], self._random)

    async def _hold(self, relay: str, ip: str, port: int) -> None:
        """A place at a relay, as long as it lasts."""
        self._put_off(relay)
        try:
            with self._scopes[relay]:
                stream = await self._host.open_stream(relay, RELAY, JOIN)
                try:
                    answer = await self._ask(stream, self._host.peer_id)
                    if answer.refusal:
                        log.debug("%s does not relay: %s", relay, answer.refusal)
                        return
                    self._held[relay] = ip, port
                    self._since[relay] = trio.current_time()
                    log.info("%s relays connections to this node", relay)
                    await self._hear(stream, relay, ip, port)
                finally:
                    await let_go(stream)
        except wire.WireError as error:
            self._host.reject(f"relay_{error.reason}", relay)
            self._not_before[relay] = trio.current_time() + LEFT
        except (StreamBroken, trio.TooSlowError) as error:
            log.debug("the place at %s: %r", relay, error)
        finally:
            del self._scopes[relay]
            if self._held.pop(relay, None):
                lasted = trio.current_time() - self._since.pop(relay)
                if lasted > REFUSED.cap:  # else it may give and take, and our addresses change
                    self._refusals[relay] = 0
                self._broken = {pair: when for pair, when in self._broken.items() if relay not in pair}  # it was away
                log.info("%s relays no longer", relay)

    async def _hear(self, stream: Any, relay: str, ip: str, port: int) -> None:
        """Who calls. Raises StreamBroken, WireError; WireError too for more calls than honest relays announce."""
        places = trio.CapacityLimiter(PENDING)
        while True:
            coming = wire.decode_as(wire.RelayComing, await read_short(stream, REQUEST_LIMIT))
            if not is_ip(coming.address):
                raise wire.WireError("schema", "a caller without an address")
            if not self._announced.take(relay):
                raise wire.WireError("flood", "more calls than there are members")
            if places.statistics().tasks_waiting == 0:
                self._nursery.start_soon(self._accept, relay, ip, port, coming, places)

    async def _accept(
        self, relay: str, ip: str, port: int, coming: wire.RelayComing, places: trio.CapacityLimiter
    ) -> None:
        """Connect to the relay, and to nowhere else, whatever it says."""
        try:
            async with places:
                with trio.fail_after(JOIN):
                    stream = await self._host.dial_relay(relay, ip, port, coming.token, coming.address)
        except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
            log.debug("a call through %s: %r", relay, error)
            return
        await self._host.accept(stream)

    async def call(self, relay: str, peer: str) -> tuple[bytes, str]:
        if relay not in self._host.agreed() or relay == peer:  # it is dialled by itself
            raise OpenConnectionError(f"{relay}, which relays {peer}, is not connected")
        try:
            stream = await self._host.open_stream(relay, RELAY, JOIN)
            try:
                answer = await self._ask(stream, peer)
            finally:
                await let_go(stream)
        except (StreamBroken, trio.TooSlowError, wire.WireError) as error:
            raise OpenConnectionError(f"{relay} relays no call to {peer}: {error!r}") from error
        if answer.refusal or len(answer.token) != TOKEN or not is_ip(answer.address):
            raise OpenConnectionError(f"{relay} relays no call to {peer}: {answer.refusal!r}")
        return answer.token, answer.address

    @staticmethod
    async def _ask(stream: Any, peer: str) -> wire.RelayAnswer:
        with trio.fail_after(JOIN):
            await write_short(stream, wire.encode(wire.RelayRequest(peer)))
            return wire.decode_as(wire.RelayAnswer, await read_short(stream, REQUEST_LIMIT))

    def silent(self, peer: str) -> None:
        """Whoever carries its connections may be why."""
        for tcp in self._host.connections(peer):
            if tcp.relay is not None:
                self._failed(tcp.relay, peer)

    def broken(self, relay: str, peer: str) -> None:
        if relay in self._held:
            self._broken = _lately(self._broken) | {(relay, peer): trio.current_time()}

    def missed(self, relay: str, peer: str) -> None:
        if relay in self._host.agreed():
            self._missed = _lately(self._missed) | {(relay, peer): trio.current_time()}

    def agreed(self, peer: str) -> None:
        """Who comes back at once had not gone: the relay ended its connection. Whom we could call only otherwise has
        to know."""
        for relay, other in _lately(self._broken):
            if other == peer:
                del self._broken[relay, peer]
                self._failed(relay, peer)
        relays = {tcp.relay for tcp in self._host.connections(peer)}
        for relay, other in _lately(self._missed):
            if other == peer:
                del self._missed[relay, peer]
                if relay not in relays and peer in self._host.members:
                    self._nursery.start_soon(self._tell, peer, relay)

    async def _tell(self, peer: str, relay: str) -> None:
        """That calls through a relay of its fail."""
        try:
            stream = await self._host.open_stream(peer, FAILED, JOIN)
            try:
                with trio.fail_after(JOIN):
                    await write_short(stream, relay.encode())
                    await read_short(stream, 0)  # what we leave is reset, with all that it has not read
            finally:
                await let_go(stream)
        except (StreamBroken, trio.TooSlowError) as error:
            log.debug("telling %s that %s fails: %r", peer, relay, error)

    async def _told(self, stream: Any, peer: str) -> None:
        """A place that has just begun is not blamed for a call that was before it."""
        try:
            with trio.fail_after(JOIN):
                relay = (await read_short(stream, REQUEST_LIMIT)).decode("ascii", "replace")
                if peer in self._host.members and trio.current_time() > self._since.get(relay, math.inf) + AT_ONCE:
                    self._failed(relay, peer)
                await write_short(stream, b"")
        except (StreamBroken, trio.TooSlowError) as error:
            log.debug("hearing %s of a relay: %r", peer, error)

    def _failed(self, relay: str, peer: str) -> None:
        """Nothing came of a peer through a relay. One alone may have fallen silent, or want us to leave it."""
        if relay not in self._held:
            return
        now, seen = trio.current_time(), self._failures[relay]
        seen[peer] = now
        if sum(when > now - MEMORY for when in seen.values()) >= WITNESSES:
            log.warning("%s is left: nothing came through it of %s", relay, ", ".join(seen))
            self._host.reject("relay_left", relay)
            seen.clear()
            self._left[relay] = now + LEFT
            self._scopes[relay].cancel()


def _lately(when: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """What happened so lately that it is of use."""
    return {pair: at for pair, at in when.items() if at > trio.current_time() - AT_ONCE}
