"""Who may begin a handshake, and when: it costs milliseconds of CPU before the other side has proven anything."""

from collections import OrderedDict
from collections.abc import Callable

import trio

from dlx.p2p.admission import SHARE, Place, is_loopback, next_in_line, worst
from dlx.p2p.token_buckets import TokenBuckets
from dlx.p2p.transport import MeteredStream

PENDING_LIMIT = 64  # accepted connections in the handshake, or waiting for it
NETWORK_RATE, NETWORK_BURST = 8.0, 64.0  # accepted connections a second of one prefix
RATE, BURST = 20.0, 64.0  # handshakes a second of all together; of one core 6 ms each
PATIENCE = 3.0  # s for the turn; who dials gives up after 5
NETWORKS = 4096  # of which is known when they were served last


class Handshakes:
    """`registered(address)`: whether it is one of a peer that the ledger names. `dropped("handshakes", address)` is
    told of each that has to go."""

    def __init__(self, registered: Callable[[str], bool], dropped: Callable[[str, str], None]) -> None:
        self._registered, self._dropped = registered, dropped
        self._networks = TokenBuckets(NETWORK_RATE, NETWORK_BURST)
        self._all = TokenBuckets(RATE, BURST)
        self._places: dict[MeteredStream, Place] = {}
        self._waiting: dict[MeteredStream, trio.CancelScope] = {}  # cancelled when the turn comes
        self._first = trio.Lock()  # held by the one that gives out the next turn
        self._turns = 0
        self._served = OrderedDict[str, float]()  # network -> its last turn

    def __len__(self) -> int:
        return len(self._places)

    def admit(self, stream: MeteredStream) -> bool:
        """Whether there is a place for it; another may have to go. Afterwards `end` it."""
        address, told = stream.address, stream.relay is not None  # what a relay tells gives no privilege
        known = not told and self._registered(address)
        # of those that are alike the oldest goes: a handshake takes a second, unless nothing is said
        place = Place(address, stream.networks, known, False, trio.current_time())
        limited = not known and not self._is_free(stream)
        if limited and not self._networks.take(stream.networks[0 if told else -1]):
            self._dropped("handshakes", address)
            return False
        self._places[stream] = place
        if len(self._places) > PENDING_LIMIT:
            self._drop(list(self._places)[worst([*self._places.values()])])
        return not stream.killed

    async def turn(self, stream: MeteredStream) -> bool:
        """Wait for the turn of one that was admitted; whether it came."""
        if not self._is_free(stream) and not stream.killed:
            await self._await_turn(stream)
        return not stream.killed

    @staticmethod
    def _is_free(stream: MeteredStream) -> bool:
        return stream.relay is None and is_loopback(stream.address)

    def end(self, stream: MeteredStream) -> None:
        self._places.pop(stream, None)
        self._waiting.pop(stream, None)

    def _drop(self, stream: MeteredStream) -> None:
        self._dropped("handshakes", self._places.pop(stream).peer)
        stream.kill()
        if stream in self._waiting:
            self._waiting.pop(stream).cancel()

    async def _await_turn(self, stream: MeteredStream) -> None:
        """Whoever is first in the lock gives out turns, until its own comes."""
        with trio.move_on_after(PATIENCE) as scope:
            self._waiting[stream] = scope
            async with self._first:
                while stream in self._waiting:
                    await trio.sleep(self._all.owe("", 0))
                    if self._waiting:  # all may have had to go meanwhile
                        self._all.owe("", 1)
                        self._give_turn()
        if stream in self._waiting:  # it never came
            self._drop(stream)

    def _give_turn(self) -> None:
        self._turns += 1
        streams = list(self._waiting)
        places = [self._places[stream] for stream in streams]
        chosen = next_in_line(places, self._served, strangers=self._turns % SHARE == 0)
        for network in reversed(places[chosen].networks):  # of a wide one is known longer
            self._served[network] = trio.current_time()
            self._served.move_to_end(network)
            if len(self._served) > NETWORKS:
                self._served.popitem(last=False)
        self._waiting.pop(streams[chosen]).cancel()
