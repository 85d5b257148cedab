"""Who to be connected to, and how they are found: the ledger, bootstrap addresses, the peer store, the DHT."""

import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import trio
from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
from libp2p.peer.id import ID
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr

from dlx.ground.backoff import Backoff
from dlx.p2p.addresses import ADDRESSES_PER_PEER, relay_of, usable
from dlx.p2p.guarded_host import GuardedHost, GuardedSwarm

DIAL_DEADLINE = 5.0  # s per address
RETRY = Backoff(first=1.0, cap=60.0)
REFUSED = 300.0  # s before a peer of another run is tried again
PEERS = 128  # connections beyond which only those are dialled whom the ledger or the operator names
PARALLEL = 8
PATIENCE = 1.5  # s
REFRESH = 60.0  # s between two rounds of the DHT while it knows nobody, and the most that one takes
RARE = 600.0  # s between two while it knows somebody: who comes looks for us
FEW = 8  # peers in the DHT table

log = logging.getLogger(__name__)


@dataclass
class _Entry:
    addresses: list[Multiaddr]
    named: bool  # by the ledger or the operator, not only found in the DHT
    patient: bool  # it probably learns of us at the same time
    lasting: bool  # tried again however often it failed
    failures: int = 0
    next_try: float = 0.0
    dialling: trio.Lock = field(default_factory=trio.Lock)
    used: Multiaddr | None = None  # the address that was dialled last

    def put_last(self) -> None:
        """Nothing came of the last address, or no longer: where a relay is why, others go first."""
        if self.used in self.addresses and relay_of(self.used) is not None:
            self.addresses.remove(self.used)
            self.addresses.append(self.used)


class Dialer:
    """Keeps the known peers connected."""

    def __init__(
        self,
        network: GuardedSwarm,
        own: str,
        agreed: Callable[[ID], Awaitable[bool]],
        is_own: Callable[[Multiaddr], bool],
        missed: Callable[[ID, ID], None],
    ) -> None:
        """`own`: our peer id. `is_own(address)`: whether it is one of ours, so that nobody else is there.
        `missed(relay, peer)` hears of who was dialled through a relay in vain."""
        self._network = network
        self._own = own
        self._agreed = agreed
        self._is_own = is_own
        self._missed = missed
        self._entries: dict[ID, _Entry] = {}
        self._changed = trio.Event()
        self._random = Random()

    def known(self, peer: ID, addresses: list[Multiaddr], patient: bool = True) -> None:
        """Add a peer that the ledger or the operator names, or new addresses of it (first in line)."""
        entry = self._entries.setdefault(peer, _Entry([], True, patient, True))
        entry.named = entry.lasting = True
        self._add(entry, addresses, first=True)

    def unnamed(self, peer: ID) -> None:
        """The ledger names it no more: as if the DHT had."""
        entry = self._entries.get(peer)
        if entry is not None:
            entry.named = entry.lasting = False

    def met(self, peer: ID, addresses: list[Multiaddr]) -> None:
        """A peer that agreed with us before."""
        if str(peer) != self._own:
            self._add(self._entries.setdefault(peer, _Entry([], False, False, True)), addresses, first=False)

    def found(self, peer: ID, addresses: list[Multiaddr]) -> None:
        """A peer that the DHT named."""
        passing = sum(not entry.lasting for entry in self._entries.values())
        if str(peer) != self._own and (peer in self._entries or passing < PEERS):
            self._add(self._entries.setdefault(peer, _Entry([], False, True, False)), addresses, first=False)

    def entry(self, peer: ID) -> tuple[list[Multiaddr], bool]:
        """The addresses of a peer, and whether the ledger or the operator named it."""
        entry = self._entries.get(peer)
        return ([], False) if entry is None else (list(entry.addresses), entry.named)

    def unreached(self, peer: ID) -> str | None:
        """Why a peer cannot be dialled, in words; None where that is not known, or it can."""
        entry = self._entries.get(peer)
        if self._network.get_connections(peer):
            return None
        others = [address for address in entry.addresses if not self._is_own(address)] if entry else []
        if entry is None or not others:
            return "the ledger has no address of it that could be dialled"
        return f"no answer at {', '.join(map(str, others))}" if entry.failures else None

    def refused(self, peer: ID, pause: float = REFUSED) -> None:
        if peer in self._entries:
            self._entries[peer].next_try = trio.current_time() + pause

    def lost(self, peer: ID) -> None:
        """A connection ended; try again soon."""
        entry = self._entries.get(peer)
        if entry is not None:
            entry.put_last()
        if entry is not None and entry.next_try <= trio.current_time():
            entry.next_try = trio.current_time() + self._pause(entry)
        self._changed.set()

    async def run(self, task_status: Any) -> None:
        # those that the DHT names, perhaps falsely, never stand in the way of the ledger's
        limiters = {named: trio.CapacityLimiter(PARALLEL) for named in (True, False)}
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                self._changed = trio.Event()
                due = [peer for peer, entry in self._entries.items() if self._is_due(peer, entry)]
                named = [peer for peer in due if self._entries[peer].named]  # these have a place, whoever is here
                others = [peer for peer in due if not self._entries[peer].named]
                for peer in named + others[: max(0, PEERS - len(self._network.connections) - len(named))]:
                    # when two peers learn of each other at once, one connection is enough
                    patience = PATIENCE if self._entries[peer].patient and self._own > str(peer) else 0.0
                    self._entries[peer].next_try = trio.current_time() + patience + RETRY.cap
                    nursery.start_soon(self._attempt, peer, patience, limiters[self._entries[peer].named])
                with trio.move_on_after(1):
                    await self._changed.wait()

    async def dial(self, peer: ID) -> bool:
        """One attempt at every address of a peer; True when it is connected and agreed."""
        if await self._agreed(peer):
            return True
        entry = self._entries.get(peer)
        if entry is None:
            return False
        async with entry.dialling:
            for address in list(entry.addresses):
                if self._is_own(address):  # others have the same private one
                    continue
                if not self._network.get_connections(peer):
                    entry.used = address
                    await self._dial(peer, address)
                if await self._agreed(peer):
                    self._network.unblock_peer(peer)
                    return True
                if (relay := relay_of(address)) is not None:
                    self._missed(relay, peer)
                entry.put_last()
        return False

    def _add(self, entry: _Entry, addresses: list[Multiaddr], first: bool) -> None:
        """New addresses; those of strangers come last, so that they push out none that the ledger names."""
        fresh = [address for address in addresses if address not in entry.addresses]
        there = entry.addresses
        entry.addresses = (fresh + there if first else there + fresh)[:ADDRESSES_PER_PEER]
        if entry.addresses != there:
            entry.failures, entry.next_try = 0, 0.0
            self._changed.set()

    async def _attempt(self, peer: ID, patience: float, limiter: trio.CapacityLimiter) -> None:
        await trio.sleep(patience)
        entry = self._entries.get(peer)
        if entry is None:  # a slower attempt has just given it up
            return
        async with limiter:
            done = await self.dial(peer)
        if done:
            entry.failures, entry.next_try = 0, 0.0
            return
        entry.failures += 1
        if not entry.lasting and entry.failures > 5:
            self._entries.pop(peer, None)  # the DHT names it again if it comes back
        elif entry.next_try < trio.current_time() + 2 * RETRY.cap:  # not refused meanwhile
            entry.next_try = trio.current_time() + self._pause(entry)

    async def _dial(self, peer: ID, address: Multiaddr) -> None:
        try:
            with trio.move_on_after(DIAL_DEADLINE):
                await self._network.dial_addr(address.encapsulate(Multiaddr(f"/p2p/{peer}")), peer)
        except Exception as error:
            log.debug("dialling %s at %s failed: %r", peer, address, error)

    def _is_due(self, peer: ID, entry: _Entry) -> bool:
        return (
            bool(entry.addresses)
            and entry.next_try <= trio.current_time()
            and not self._network.get_connections(peer)
            and not entry.dialling.locked()
        )

    def _pause(self, entry: _Entry) -> float:
        return RETRY.delay(entry.failures + 1, self._random)


class Discovery:
    """The DHT: every peer provides the run's key and looks for its other providers."""

    def __init__(self, host: GuardedHost, run: bytes, found: Callable[[ID, list[Multiaddr]], None]) -> None:
        self._host = host
        self._found = found
        # a sha2-256 multihash
        self._key = b"\x12\x20" + hashlib.sha256(b"dlx run " + run).digest()
        self._dht = KadDHT(host, DHTMode.SERVER, strict_validation=True)
        self._nudged = trio.Event()

    def nudge(self) -> None:
        """Somebody new is connected: look now if nobody was known before."""
        if self._dht.get_routing_table_size() < FEW:
            self._nudged.set()

    async def run(self, task_status: Any) -> None:
        async with background_trio_service(self._dht):
            task_status.started()
            while True:
                try:
                    with trio.move_on_after(REFRESH):
                        await self._round()
                except Exception as error:
                    log.debug("DHT round failed: %r", error)
                with trio.move_on_after(RARE if self._dht.get_routing_table_size() else REFRESH):
                    await self._nudged.wait()
                    await trio.sleep(0.2)  # several may come at once
                self._nudged = trio.Event()

    async def _round(self) -> None:
        await self._dht.refresh_routing_table()
        store = self._dht.provider_store
        await store.provide(self._key)
        # `find_providers` stops at what is stored locally, and that holds at least ourselves
        for peer in await self._dht.peer_routing.find_closest_peers_network(self._key):
            if peer != self._host.get_id():
                with trio.move_on_after(10):
                    providers, _ = await store._get_providers_from_peer_with_closers(peer, self._key)
                    self._take((provider.peer_id, provider.addrs) for provider in providers)
        self._take((provider.peer_id, provider.addrs) for provider in store.get_providers(self._key))

    def _take(self, peers: Iterable[tuple[ID, list[Multiaddr]]]) -> None:
        for peer, addresses in peers:
            texts = [str(address) for address in addresses[:ADDRESSES_PER_PEER]]
            self._found(peer, usable(texts, peer))
