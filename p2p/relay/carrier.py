"""A member that can be reached carries connections of members that cannot (`/dlx/relay/1`).

A member keeps a stream open as its place here. Who calls it gets a token, and it another one; each connects to this
node's port with its token, and the two connections become one. Noise is between the two ends: what is carried is
neither read nor changed. Only members have places or may call, so what this costs has a bound that the ledger sets.
"""

import logging
import secrets
from collections import Counter
from dataclasses import dataclass, field

import trio
from libp2p.abc import INetStream

from dlx.p2p import wire
from dlx.p2p.addresses import AddressError, parse_peer_id
from dlx.p2p.admission import Place, prefix, worst
from dlx.p2p.bandwidth import Limit
from dlx.p2p.host import Host
from dlx.p2p.muxer import address_of, tcp_of
from dlx.p2p.relay.splice import splice
from dlx.p2p.relay.turns import Turns
from dlx.p2p.streams import StreamBroken, read_short, write_short
from dlx.p2p.token_buckets import TokenBuckets
from dlx.p2p.transport import TOKEN, MeteredStream

RELAY = "/dlx/relay/1"
CALLS = 64  # carried at once, those included that are about to be
CALLS_OF_CALLER = 8
CALL_RATE, CALL_BURST = 0.5, 16.0  # calls a second of one caller
CALLED_RATE, CALLED_BURST = 8.0, 64.0  # of one that is called: it leaves a relay that announces far more
ANSWER = 5.0  # s for a message on a stream
JOIN = 10.0  # s for both ends to connect
REQUEST_LIMIT = 256  # bytes

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Place:
    """Of a member that others may call here."""

    stream: INetStream
    since: float
    sending: trio.Lock = field(default_factory=trio.Lock)
    gone: trio.CancelScope = field(default_factory=trio.CancelScope)


@dataclass(eq=False)
class _Call:
    caller: str
    called: str
    since: float = field(default_factory=trio.current_time)
    ends: list[MeteredStream] = field(default_factory=list)
    joined: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


@dataclass(frozen=True)
class _Expected:
    """Who shows a token: it works once, from the network of who got it, or by the other version of IP."""

    call: _Call
    address: str


class Carrier:
    """Make it before the host runs. `rate`: bytes a second for all that is carried, both ways together; 0: nothing is.

    `is_open` is set from outside: whether this node can be reached itself."""

    def __init__(self, host: Host, rate: float) -> None:
        self._is_open = False
        self._host, self._rate, self._limit = host, rate, Limit(rate)
        self._places: dict[str, _Place] = {}
        self._turns = Turns()
        self._calls: list[_Call] = []
        self._expected: dict[bytes, _Expected] = {}
        self._calling = TokenBuckets(CALL_RATE, CALL_BURST)
        self._called = TokenBuckets(CALLED_RATE, CALLED_BURST)
        host.serve(RELAY, self._serve)
        host.carry_with(self._carry)

    @property
    def is_open(self) -> bool:
        """Places end with it: nobody could be called there."""
        return self._is_open

    @is_open.setter
    def is_open(self, is_open: bool) -> None:
        self._is_open = is_open
        for place in () if is_open else self._places.values():
            place.gone.cancel()

    @property
    def members(self) -> int:
        """That have a place."""
        return len(self._places)

    @property
    def connections(self) -> int:
        """Carried now."""
        return sum(len(call.ends) == 2 for call in self._calls)

    async def _serve(self, stream: INetStream, peer: str) -> None:
        try:
            with trio.fail_after(ANSWER):
                asked = wire.decode_as(wire.RelayRequest, await read_short(stream, REQUEST_LIMIT)).peer
            why = self._refusal(stream, peer, asked)
            if why is not None:
                self._host.reject("relay_refused", peer)
                await self._say(stream, wire.RelayAnswer(why, b"", ""))
                with trio.fail_after(ANSWER):  # what we leave is reset, with all that it has not read
                    await read_short(stream, 0)
            elif asked == peer:
                await self._keep_place(stream, peer)
            else:
                await self._call(stream, peer, asked)
        except wire.WireError as error:
            self._host.reject(f"relay_{error.reason}", peer)
        except (StreamBroken, trio.TooSlowError) as error:
            log.debug("relaying for %s: %r", peer, error)

    def _refusal(self, stream: INetStream, peer: str, asked: str) -> str | None:
        """Why a peer gets no place, or no call."""
        try:
            parse_peer_id(asked)
        except AddressError as error:
            raise wire.WireError("schema", str(error)) from None
        if not self._rate:
            return "this node carries nothing"
        if not self.is_open:
            return "this node cannot be reached itself"
        if peer not in self._host.members:
            return "members only"
        if tcp_of(stream.muxed_conn).relay is not None:
            return "not through a relay"
        if asked == peer:
            for gone in self._places.keys() - self._host.members:
                self._places[gone].gone.cancel()
            held = {member: place.since for member, place in self._places.items()}
            out = self._turns.ask(peer, held, self._host.members, trio.current_time())
            if out == peer:
                return "all places are taken"
            if out is not None:
                self._places.pop(out).gone.cancel()
            return None
        if asked not in self._places or asked not in self._host.members:
            return "it has no place here"
        own = Counter(call.caller for call in self._calls)
        if own[peer] >= CALLS_OF_CALLER or not self._calling.take(peer):
            return "too many calls of yours"
        return None if self._called.take(asked) and self._make_room(peer) else "too many calls"

    def _make_room(self, caller: str) -> bool:
        """Whether there is a place for one more call: the youngest of who has most has to go."""
        if len(self._calls) < CALLS:
            return True
        new = _Call(caller, "")
        there = [*self._calls, new]
        gone = there[worst([Place(call.caller, (call.caller,), True, False, -call.since) for call in there])]
        gone.scope.cancel()
        if gone is not new:
            self._calls.remove(gone)
        return gone is not new

    async def _keep_place(self, stream: INetStream, peer: str) -> None:
        """As long as its stream is open, and its turn lasts. A newer one takes its place."""
        since = trio.current_time()
        if (before := self._places.get(peer)) is not None:
            before.gone.cancel()
            since = before.since
        place = self._places[peer] = _Place(stream, since)
        try:
            with place.gone:
                await self._say(stream, wire.RelayAnswer("", b"", ""))
                await read_short(stream, 0)
        finally:
            if self._places.get(peer) is place:
                del self._places[peer]

    async def _call(self, stream: INetStream, caller: str, called: str) -> None:
        """Both ends are told at once, so that they connect at the same time."""
        call, place, address = _Call(caller, called), self._places[called], address_of(stream)
        theirs = address_of(place.stream)
        tokens = secrets.token_bytes(TOKEN), secrets.token_bytes(TOKEN)
        self._calls.append(call)
        self._expected[tokens[0]] = _Expected(call, address)
        self._expected[tokens[1]] = _Expected(call, theirs)
        try:
            try:
                async with place.sending:
                    await self._say(place.stream, wire.RelayComing(tokens[1], address))
            except (StreamBroken, trio.TooSlowError):
                place.gone.cancel()  # it does not listen
                await self._say(stream, wire.RelayAnswer("it does not answer", b"", ""))
                return
            await self._say(stream, wire.RelayAnswer("", tokens[0], theirs))
            with trio.move_on_after(JOIN):
                await call.joined.wait()
        finally:
            for token in tokens:
                self._expected.pop(token, None)
            if not call.joined.is_set():
                call.scope.cancel()
                if call in self._calls:
                    self._calls.remove(call)

    async def _carry(self, stream: MeteredStream, token: bytes) -> None:
        """An accepted connection that began with a token."""
        expected = self._expected.pop(token, None)
        if expected is None or not _may_be_one(expected.address, stream.address):
            self._host.reject("relay_token", stream.address)
            return
        call = expected.call
        call.ends.append(stream)
        if len(call.ends) == 1:
            with call.scope:
                await trio.sleep_forever()  # the other end's task does the work
            return
        call.joined.set()
        try:
            if not call.scope.cancel_called:
                with trio.CancelScope() as scope:
                    call.scope, first = scope, call.scope
                    await splice(call.ends[0], call.ends[1], self._limit, self._host.relayed)
                first.cancel()
        finally:
            if call in self._calls:
                self._calls.remove(call)

    @staticmethod
    async def _say(stream: INetStream, message: wire.RelayAnswer | wire.RelayComing) -> None:
        with trio.fail_after(ANSWER):
            await write_short(stream, wire.encode(message))


def _may_be_one(address: str, other: str) -> bool:
    """Whether two IP addresses may be of one machine: one that has both versions may come by either."""
    return (":" in address) != (":" in other) or prefix(address) == prefix(other)
