"""Connections that a member carries, between real hosts; where the others listen, nobody knows."""

import math
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from dlx.ground.backoff import Backoff
from dlx.p2p import host, wire
from dlx.p2p.addresses import AddressError, parse_address, relay_of
from dlx.p2p.dialback import DialBack
from dlx.p2p.host import Host
from dlx.p2p.muxer import stream_of
from dlx.p2p.relay import carrier, direct, punch, reservations, turns
from dlx.p2p.relay import splice as splicing
from dlx.p2p.relay.carrier import CALLS_OF_CALLER, RELAY, Carrier
from dlx.p2p.relay.direct import meet_at_home, meet_half_way, source_for
from dlx.p2p.relay.punch import PUNCH, Place, Punch, dialled_at_home
from dlx.p2p.relay.reservations import Reservations, best
from dlx.p2p.relay.turns import Turns
from dlx.p2p.streams import StreamBroken, let_go, read_short, write_short
from dlx.p2p.transfer import BLOB
from dlx.p2p.transport import TOKEN_HEAD
from tests.p2p.network import PIPE, Node, meet, running, until
from tests.patience import PATIENCE
from tests.ports import lasting_port

NEEDS_SPLICE = pytest.mark.skipif(not hasattr(os, "splice"), reason="needs Linux's splice")

RATE = 100e6


class Member(Node):
    """That can relay, and be relayed."""

    def __init__(self, index: int, directory: Path, rate: float = RATE, **options: Any) -> None:
        super().__init__(index, directory, **options)
        self.carrier, self.reservations = Carrier(self.host, rate), Reservations(self.host)
        self.dial_back = DialBack(self.host)

    def carried_by(self, other: "Member") -> str | None:
        """Who carries the connection to another member."""
        return next(status.relay for status in self.host.peers() if status.peer_id == other.id)


@asynccontextmanager
async def relayed(directory: Path, relays: int = 1, callers: int = 1, **options: Any) -> AsyncIterator[list[Member]]:
    """A member that cannot be reached, its relays, and others who know of it what the ledger has."""
    hidden, *others = [Member(index, directory, **options) for index in range(1, 2 + relays + callers)]
    carriers = others[:relays]
    meet(hidden, *others)
    async with running(hidden, *others):
        hide(hidden, *others[relays:])
        for one in carriers:
            one.carrier.is_open = True
            for other in [hidden, *others]:
                if other is not one:
                    other.host.known(one.id, one.host.addresses)
        hidden.reservations.is_wanted = True
        await until(lambda: len(hidden.reservations.addresses) == min(relays, reservations.RELAYS))
        await until(lambda: all(one.id in other.host.agreed() for one in carriers for other in others[relays:]))
        yield [hidden, *others]


def hide(*members: Node) -> None:
    for member in members:
        member.host.announce(())


async def call(caller: Member, hidden: Member, *addresses: str) -> None:
    caller.host.known(hidden.id, addresses or hidden.reservations.addresses)
    await until(lambda: hidden.id in caller.host.agreed() and caller.id in hidden.host.agreed())


async def test_who_was_only_dialled_by_others_reaches_its_relays_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "is_public", lambda address: True)
    monkeypatch.setattr(host, "source", lambda family: "127.0.0.1")
    asks, relay = Member(1, tmp_path), Member(2, tmp_path)
    meet(asks, relay)
    async with running(asks, relay):
        relay.host.known(asks.id, asks.host.addresses)
        await until(lambda: asks.host.agreed() and relay.host.agreed())
        asks.host.meet({asks.id: (), relay.id: relay.host.addresses})
        assert not asks.host.dialled()
        relay.carrier.is_open = asks.reservations.is_wanted = True
        await until(lambda: asks.reservations.addresses)


@pytest.mark.parametrize("way", [pytest.param("_through_kernel", marks=NEEDS_SPLICE), "_through_buffer"])
async def test_who_cannot_be_reached_is_called_through_a_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Blobs and pipes go over it, and the relay sees neither: the two ends are who they are at any other connection."""
    monkeypatch.setattr(splicing, "_through_kernel", getattr(splicing, way))
    async with relayed(tmp_path) as (hidden, relay, caller):
        await call(caller, hidden)
        assert caller.carried_by(hidden) == hidden.carried_by(caller) == relay.id
        assert caller.carried_by(relay) is None
        name = hidden.store.put(os.urandom(3_000_000))
        await caller.blobs.fetch(name, 1 << 22, [hidden.id])
        pipe = await hidden.pipes.open(caller.id, PIPE)
        other = await caller.pipes.incoming.receive()
        await pipe.send(b"there"), await other.send(b"back")
        assert (await other.receive(), await pipe.receive()) == (b"there", b"back")
        assert 3_000_000 < relay.host.traffic()["relayed"][0] < 3_400_000
        assert relay.carrier.members == 1 and relay.carrier.connections == 1
        assert sum(map(sum, relay.host.traffic().values())) == relay.host.bytes_sent + relay.host.bytes_received
        assert not (hidden.rejected + relay.rejected + caller.rejected)


async def test_each_end_knows_the_others_true_address(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (hidden, relay, caller):
        await call(caller, hidden)
        for one, other in ((hidden, caller), (caller, hidden)):
            (conn,) = one.host._network.get_connections(ID.from_base58(other.id))
            assert (
                stream_of(conn).address == "127.0.0.1" and stream_of(conn).networks[-1] == f"127.0.0.0/24 by {relay.id}"
            )
            # Nobody's streams have to go for its lies.
            stream = await one.host.open_stream(other.id, BLOB, PATIENCE)
            await until(lambda other=other: other.blobs._server._streams._streams)
            assert {there.networks for there in other.blobs._server._streams._streams} == {stream_of(conn).networks}
            await let_go(stream)
        with pytest.raises(StreamBroken):  # what a relay tells is no address to knock at
            await caller.dial_back.ask(hidden.id, [1])


async def test_when_a_relay_ends_the_other_one_carries(tmp_path: Path) -> None:
    async with relayed(tmp_path, relays=2) as (hidden, one, two, caller):
        await call(caller, hidden)
        gone, stays = (one, two) if caller.carried_by(hidden) == one.id else (two, one)
        gone.carrier.is_open = False
        for member in (hidden, caller):
            member.host.ban(gone.id, "test")
        for carried in list(gone.carrier._calls):
            carried.scope.cancel()
        await until(lambda: len(hidden.reservations.addresses) == 1)
        await until(lambda: hidden.id in caller.host.agreed() and caller.carried_by(hidden) == stays.id)


async def test_who_can_be_reached_again_gives_its_places_back(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (hidden, relay, _):
        hidden.reservations.is_wanted = False
        await until(lambda: not hidden.reservations.addresses and not relay.carrier.members)


async def test_what_is_carried_keeps_to_its_rate(tmp_path: Path) -> None:
    async with relayed(tmp_path, rate=500_000) as (hidden, _, caller):
        await call(caller, hidden)
        name, began = hidden.store.put(os.urandom(1_500_000)), trio.current_time()
        await caller.blobs.fetch(name, 1 << 22, [hidden.id])
        assert trio.current_time() - began > 2


async def test_places_end_with_a_relay_that_cannot_be_reached_any_more(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (hidden, relay, _):
        relay.carrier.is_open = False
        await until(lambda: not hidden.reservations.addresses and not relay.carrier.members)


async def test_a_relay_that_gives_and_takes_is_asked_ever_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our addresses change with each place, and whoever follows them pays gas, or waits for them to last."""
    monkeypatch.setattr(reservations, "REFUSED", Backoff(0.01, 300.0))
    async with relayed(tmp_path) as (hidden, relay, _):
        for times in (2, 3):
            relay.carrier._places[hidden.id].gone.cancel()
            await until(lambda: not hidden.reservations.addresses)
            await until(lambda: hidden.reservations.addresses)
            assert hidden.reservations._refusals[relay.id] == times


# ---- who gets nothing -----------------------------------------------------------------------------------------------


async def refusal(asks: Member, relay: Member, peer: str) -> str:
    stream = await asks.host.open_stream(relay.id, RELAY, PATIENCE)
    try:
        await write_short(stream, wire.encode(wire.RelayRequest(peer)))
        return wire.decode_as(wire.RelayAnswer, await read_short(stream, 256)).refusal
    finally:
        await let_go(stream)


async def test_only_members_have_places_or_call_and_only_who_is_reachable_and_willing_relays(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (hidden, relay, caller):
        stranger, idle = Member(50, tmp_path), Member(51, tmp_path, rate=0)
        async with running(stranger, idle):
            stranger.host.known(relay.id, relay.host.addresses)
            caller.host.known(idle.id, idle.host.addresses)
            await until(lambda: stranger.id in relay.host.agreed() and caller.id in idle.host.agreed())
            assert await refusal(stranger, relay, stranger.id) == await refusal(stranger, relay, hidden.id)
            assert await refusal(stranger, relay, hidden.id) == "members only"
            assert await refusal(caller, relay, stranger.id) == "it has no place here"
            assert await refusal(caller, idle, caller.id) == "this node carries nothing"
            relay.carrier.is_open = False
            assert await refusal(caller, relay, caller.id) == "this node cannot be reached itself"
        assert relay.rejected["relay_refused"] == 5


async def test_places_and_calls_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PLACES", 1)
    async with relayed(tmp_path, callers=2) as (hidden, relay, caller, other):
        assert await refusal(caller, relay, caller.id) == "all places are taken"
        opened = []
        for _ in range(CALLS_OF_CALLER):  # a member that asks, and asks, and never comes
            opened.append(await caller.host.open_stream(relay.id, RELAY, PATIENCE))
            await write_short(opened[-1], wire.encode(wire.RelayRequest(hidden.id)))
            assert wire.decode_as(wire.RelayAnswer, await read_short(opened[-1], 256)).token
        assert await refusal(caller, relay, hidden.id) == "too many calls of yours"
        await call(other, hidden)
        assert relay.carrier.connections == 1


async def test_a_place_ends_with_its_turn_where_another_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PLACES", 1)
    async with relayed(tmp_path) as (hidden, relay, other):
        await trio.sleep(1.5)
        other.reservations.is_wanted = True
        await until(lambda: relay.rejected["relay_refused"])
        assert hidden.reservations.addresses and not other.reservations.addresses
        monkeypatch.setattr(turns, "TERM", 1.0)
        await until(lambda: other.reservations.addresses and not hidden.reservations.addresses)


async def test_where_all_is_taken_who_has_most_has_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier, "CALLS", 3)
    async with relayed(tmp_path, callers=2) as (hidden, relay, greedy, other):
        for _ in range(3):
            stream = await greedy.host.open_stream(relay.id, RELAY, PATIENCE)
            await write_short(stream, wire.encode(wire.RelayRequest(hidden.id)))
            await read_short(stream, 256)
        await call(other, hidden)
        assert await refusal(greedy, relay, hidden.id) == "too many calls"


async def test_members_that_call_again_and_again_cannot_have_a_relay_announce_more_than_is_borne(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the one that is called leaves it, as if the relay had lied."""
    monkeypatch.setattr(carrier, "CALLED_BURST", 3.0)
    monkeypatch.setattr(carrier, "CALLED_RATE", 1e-3)
    async with relayed(tmp_path, callers=2) as (hidden, relay, *callers):
        told = [await refusal(one, relay, hidden.id) for one in (*callers, *callers)]
        assert told == ["", "", "", "too many calls"]


async def knock(relay: Member, said: bytes) -> trio.SocketStream:
    _, _, ip, _, port, *_ = relay.host.addresses[0].split("/")
    stream = await trio.open_tcp_stream(ip, int(port))
    await stream.send_all(said)
    return stream


@pytest.mark.parametrize("said", [TOKEN_HEAD + bytes(16), b"\x00\xff" + bytes(200), b"\x00" + bytes(17)])
async def test_a_token_that_nobody_gave_leads_nowhere(tmp_path: Path, said: bytes) -> None:
    async with relayed(tmp_path) as (hidden, relay, caller):
        async with await knock(relay, said) as stream:
            with trio.fail_after(PATIENCE):
                try:
                    assert await stream.receive_some(1) == b""
                except trio.BrokenResourceError:
                    pass
        await call(caller, hidden)


async def test_a_token_works_once_and_from_its_network(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (hidden, relay, caller):
        token, _ = await caller.reservations.call(relay.id, hidden.id)
        (expected,) = (one for key, one in relay.carrier._expected.items() if key == token)
        assert expected.address == "127.0.0.1"
        first, second = await knock(relay, TOKEN_HEAD + token), await knock(relay, TOKEN_HEAD + token)
        await until(lambda: relay.rejected["relay_token"] == 1)
        await second.aclose(), await first.aclose()
        token, _ = await caller.reservations.call(relay.id, hidden.id)
        relay.carrier._expected[token] = carrier._Expected(relay.carrier._expected[token].call, "9.9.9.9")
        async with await knock(relay, TOKEN_HEAD + token):  # a stranger has stolen it
            await until(lambda: relay.rejected["relay_token"] == 2)
        token, _ = await caller.reservations.call(relay.id, hidden.id)
        relay.carrier._expected[token] = carrier._Expected(relay.carrier._expected[token].call, "2001:db8::1")
        async with await knock(relay, TOKEN_HEAD + token):  # who is connected by IPv6, and calls where IPv4 leads
            await until(lambda: relay.carrier.connections == 1)
        assert relay.rejected["relay_token"] == 2


async def test_a_stranger_with_a_token_is_no_peer_of_who_was_called(tmp_path: Path) -> None:
    """Even where a relay lets anybody in."""
    async with relayed(tmp_path) as (hidden, relay, caller):
        hidden.host.members = hidden.host.members - {caller.id}
        caller.host.known(hidden.id, hidden.reservations.addresses)
        await until(lambda: relay.host.traffic()["relayed"][0] > 1000)
        await trio.sleep(1)
        assert caller.id not in hidden.host.agreed()


# ---- relays that lie ------------------------------------------------------------------------------------------------


class Liar(Node):
    """A member that gives everybody a place, and then says what it likes."""

    def __init__(self, index: int, directory: Path) -> None:
        super().__init__(index, directory)
        self.says: list[wire.RelayComing] = []
        self.tokens: list[bytes] = []
        self.host.serve(RELAY, self._serve)
        self.host.carry_with(self._carry)

    async def _serve(self, stream: Any, peer: str) -> None:
        asked = wire.decode_as(wire.RelayRequest, await read_short(stream, 256)).peer
        await write_short(stream, wire.encode(wire.RelayAnswer("", b"" if asked == peer else bytes(16), "9.9.9.9")))
        while True:
            while self.says:
                await write_short(stream, wire.encode(self.says.pop()))
            await trio.sleep(0.02)

    async def _carry(self, stream: Any, token: bytes) -> None:
        self.tokens.append(token)
        await trio.sleep_forever()  # it drops all that it should carry


@asynccontextmanager
async def lied_to(directory: Path) -> AsyncIterator[tuple[Member, Liar, Member]]:
    hidden, liar, caller = Member(1, directory), Liar(2, directory), Member(3, directory)
    meet(hidden, liar, caller)
    async with running(hidden, liar, caller):
        hide(hidden, caller)
        for one in (hidden, caller):
            one.host.known(liar.id, liar.host.addresses)
        hidden.reservations.is_wanted = True
        await until(lambda: hidden.reservations.addresses and liar.id in caller.host.agreed())
        yield hidden, liar, caller


async def test_a_relay_cannot_have_us_knock_elsewhere_or_pass_for_a_neighbour(tmp_path: Path) -> None:
    """Whoever it says is calling, we connect to the relay; and what it says gives nobody a privilege."""
    async with lied_to(tmp_path) as (hidden, liar, _):
        hidden.host._member_hosts = frozenset({"8.8.8.8"})
        for address in ("127.0.0.1", "8.8.8.8"):
            liar.says = [wire.RelayComing(bytes(16), address) for _ in range(30)]
            await until(lambda: not liar.says)
        await until(lambda: liar.tokens)
        await trio.sleep(0.3)
        places = hidden.host._network._handshakes._places.values()
        assert places and not any(place.registered for place in places)
        assert {place.networks[-1] for place in places} <= {f"127.0.0.0/24 by {liar.id}", f"8.8.8.0/24 by {liar.id}"}
        assert {place.networks[0] for place in places} == {f"by {liar.id}"}, "however many it invents"


@pytest.mark.parametrize("address", ["", "not an address", "\x1b[2J"])
async def test_a_relay_that_talks_nonsense_is_left(tmp_path: Path, address: str) -> None:
    async with lied_to(tmp_path) as (hidden, liar, _):
        liar.says = [wire.RelayComing(bytes(16), address)]
        await until(lambda: hidden.rejected["relay_schema"] == 1 and not hidden.reservations.addresses)


async def test_a_relay_that_floods_is_left(tmp_path: Path) -> None:
    async with lied_to(tmp_path) as (hidden, liar, _):
        liar.says = [wire.RelayComing(bytes(16), "9.9.9.9") for _ in range(300)]
        await until(lambda: hidden.rejected["relay_flood"] == 1 and not hidden.reservations.addresses)
        assert len(liar.tokens) <= reservations.MOST_BURST + 10


async def test_a_relay_that_drops_all_is_passed_over_for_another(tmp_path: Path) -> None:
    hidden, liar, honest, caller = (
        Member(1, tmp_path), Liar(2, tmp_path), Member(3, tmp_path), Member(4, tmp_path),
    )  # fmt: skip
    meet(hidden, liar, honest, caller)
    honest.carrier.is_open = True
    async with running(hidden, liar, honest, caller):
        hide(hidden, caller)
        for one in (hidden, caller):
            for other in (liar, honest):
                one.host.known(other.id, other.host.addresses)
        hidden.reservations.is_wanted = True
        await until(lambda: len(hidden.reservations.addresses) == 2 and len(caller.host.agreed()) == 2)
        addresses = sorted(hidden.reservations.addresses, key=lambda text: liar.id not in text)
        began = trio.current_time()
        await call(caller, hidden, *addresses)
        assert caller.carried_by(hidden) == honest.id and trio.current_time() - began < PATIENCE / 2


async def test_a_relay_through_which_several_peers_fell_silent_is_left_and_not_for_one(tmp_path: Path) -> None:
    async with relayed(tmp_path, relays=3, callers=2) as (hidden, *_, one, another):
        before = [*hidden.reservations._held]
        for caller in (one, another):
            await call(caller, hidden, *(text for text in hidden.reservations.addresses if before[0] in text))
        for _ in range(5):
            hidden.reservations.silent(one.id)
        await trio.sleep(0.2)
        assert [*hidden.reservations._held] == before, "a peer alone may want us to leave it"
        hidden.reservations.silent(another.id)
        await until(lambda: before[0] not in hidden.reservations._held)
        await until(lambda: len(hidden.reservations._held) == reservations.RELAYS)
        assert before[0] not in hidden.reservations._held and hidden.rejected["relay_left"] == 1


async def test_two_who_fall_silent_do_not_leave_a_member_without_relays(tmp_path: Path) -> None:
    """They may be in league: where nobody else relays, one that was left is asked again."""
    async with relayed(tmp_path, callers=2) as (hidden, relay, *callers):
        for caller in callers:
            await call(caller, hidden)
        for caller in callers:
            hidden.reservations.silent(caller.id)
        await until(lambda: not hidden.reservations.addresses)
        await until(lambda: relay.id in hidden.reservations._held)


class Breaker(Carrier):
    """A relay that carries, for a moment; or nothing at all."""

    async def _call(self, stream: Any, caller: str, called: str) -> None:
        if not self.carries:
            return await self._say(stream, wire.RelayAnswer("it has no place here", b"", ""))
        await super()._call(stream, caller, called)

    carries = True

    async def break_all(self) -> None:
        while True:
            await trio.sleep(1)
            for one in self._calls:
                one.scope.cancel()


@pytest.mark.parametrize("carries", [True, False])
async def test_a_relay_that_breaks_or_refuses_what_it_should_carry_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carries: bool
) -> None:
    """Each of two peers is back at once, or says that it came otherwise: so it was the relay. One alone is not enough,
    since it may want us to leave it."""
    monkeypatch.setattr(reservations, "AT_ONCE", PATIENCE)  # the machine may be busy
    hidden, bad, *others = [Member(index, tmp_path) for index in range(1, 7)]
    (one, two), callers = others[:2], others[2:]
    relays = [bad, one, two]
    bad.carrier.__class__ = Breaker
    bad.carrier.carries = carries
    meet(hidden, *relays, *callers)
    async with running(hidden, *relays, *callers), trio.open_nursery() as nursery:
        nursery.start_soon(bad.carrier.break_all)
        hide(hidden, *callers)
        for relay in relays:
            relay.carrier.is_open = True
            for member in (hidden, *callers):
                member.host.known(relay.id, relay.host.addresses)
        first = {bad.id, one.id}
        hidden.host.dialled = lambda: {id_: at for id_, at in Host.dialled(hidden.host).items() if id_ in first}
        hidden.reservations.is_wanted = True
        await until(lambda: {*hidden.reservations._held} == first)
        await until(lambda: all(len(caller.host.agreed()) == len(relays) for caller in callers))
        first |= {two.id}
        hidden.reservations._since = dict.fromkeys(hidden.reservations._since, -math.inf)
        addresses = sorted(hidden.reservations.addresses, key=lambda text: bad.id not in text)
        callers[0].host.known(hidden.id, addresses)
        await until(lambda: hidden.reservations._failures[bad.id])
        assert bad.id in hidden.reservations._held
        callers[1].host.known(hidden.id, addresses)
        await until(lambda: {*hidden.reservations._held} == {one.id, two.id})
        assert hidden.rejected["relay_left"] == 1
        nursery.cancel_scope.cancel()


async def test_who_restarts_is_no_witness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a place blamed for a call that was before it."""
    monkeypatch.setattr(reservations, "AT_ONCE", 0.5)
    async with relayed(tmp_path, callers=2) as (hidden, relay, *callers):
        for caller in callers:
            hidden.reservations.broken(relay.id, caller.id)
            await trio.sleep(1)
            hidden.reservations.agreed(caller.id)
        monkeypatch.setattr(reservations, "AT_ONCE", 60.0)
        for caller in callers:
            await call(caller, hidden)
            await caller.reservations._tell(hidden.id, relay.id)
        assert relay.id in hidden.reservations._held and not hidden.rejected["relay_left"]


# ---- from relayed to direct (`tests/node/daemon/membership/test_homes.py` does it through routers) ----


LISTENS = (Multiaddr("/ip4/0.0.0.0/tcp/4650"),)


def seen_at(ip: str) -> Any:
    """The connections to any peer: one, by a relay that sees it at an address."""
    return lambda *_: [SimpleNamespace(relay="r", address=ip)]


async def test_nobody_punches_to_private_addresses_or_when_asked_too_often(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (hidden, relay, caller):
        await call(caller, hidden)
        asks, asked = sorted((hidden, caller), key=lambda member: member.id)
        assert source_for(hidden.host, caller.id) is source_for(caller.host, relay.id) is None
        assert not await meet_half_way(asks.host, asked.id, 1, 1.0, begins=True)

        async def ask(one: Member, other: Member) -> bytes:
            stream = await one.host.open_stream(other.id, PUNCH, PATIENCE)
            try:
                await write_short(stream, (4650).to_bytes(2, "big"))
                return await read_short(stream, 2)
            finally:
                await let_go(stream)

        for one in (asks, asked):
            dial_back = DialBack(one.host)
            dial_back.saw("52.20.3.1")
            Punch(one.host, dial_back)
        for _ in range(3):
            assert await ask(asks, asked) == bytes(2), "it listens where nobody could come to"
        for one, other in ((asks, asked), (asked, asks)):
            with pytest.raises(StreamBroken):
                await ask(one, other)
            assert other.rejected["punch_refused"] == 1


async def test_who_comes_anew_and_anew_through_a_relay_does_not_have_us_knock_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At an address that the relay tells, which may be anybody's."""
    since, begun = [0.0], list[str]()
    fake: Any = SimpleNamespace(
        peer_id="a", serve=lambda *_: None, add_service=lambda _: None, bound=LISTENS, connections=seen_at("52.20.3.1"),
        answered=trio.Event(),
        peers=lambda: [SimpleNamespace(peer_id="b", connected_since=since[0], agreed=True, relay="r")],
    )  # fmt: skip

    async def begin(_: Punch, peer: str) -> None:
        begun.append(peer)

    monkeypatch.setattr(Punch, "_begin", begin)
    monkeypatch.setattr(punch, "LOOK", 0.01)
    async with trio.open_nursery() as nursery:
        await nursery.start(Punch(fake, fake)._run)
        for _ in range(10):
            since[0] += 1
            await trio.sleep(0.05)
        nursery.cancel_scope.cancel()
    assert begun == ["b"] * 3


async def test_a_connection_is_tried_when_it_is_known_where_we_are_or_late_and_then_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, answered = list[str](), trio.Event()
    ages = {"young": 0.0, "old": 2 * punch.PATIENCE}
    there = [
        SimpleNamespace(peer_id=name, connected_since=time.time() - age, agreed=True, relay="r")
        for name, age in ages.items()
    ]
    fake: Any = SimpleNamespace(
        peer_id="a", serve=lambda *_: None, add_service=lambda _: None, bound=LISTENS, connections=seen_at("52.20.3.1"),
        answered=answered, peers=lambda: there,
    )  # fmt: skip

    async def begin(_: Punch, peer: str) -> None:
        begun.append(peer)

    monkeypatch.setattr(Punch, "_begin", begin)
    monkeypatch.setattr(punch, "LOOK", 0.01)
    async with trio.open_nursery() as nursery:
        await nursery.start(Punch(fake, fake)._run)
        await until(lambda: begun == ["old"])
        answered.set()
        await until(lambda: sorted(begun) == ["old", "old", "young"])
        nursery.cancel_scope.cancel()


async def test_a_direct_connection_that_came_late_stays_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not beside the relayed one, for which the relay would go on paying."""
    monkeypatch.setattr(direct, "SETTLED", 5.5)
    async with relayed(tmp_path) as (hidden, relay, caller):
        port = int(hidden.host.listening()[0].split("/")[4])
        await call(caller, hidden)
        monkeypatch.setattr(direct, "source_for", lambda host, peer: ("127.0.0.1", 0))
        assert await meet_half_way(caller.host, hidden.id, port, PATIENCE, begins=True)
        await until(lambda: caller.carried_by(hidden) is None and not relay.carrier.connections)
        assert hidden.id in caller.host.agreed() and caller.id in hidden.host.agreed()
        monkeypatch.setattr(host, "is_public", lambda address: True)
        monkeypatch.setattr(host, "source", lambda family: "127.0.0.1")
        caller.host.known(hidden.id, hidden.host.listening())
        assert not await caller.host.reach(hidden.id, 3.0)
        assert {*caller.host.dialled()} == {relay.id}, "who was met half way may be behind a router itself"


async def test_two_at_home_connect_and_a_liar_learns_nothing_of_what_answers_there(tmp_path: Path) -> None:
    """Whether somebody else listens at what it tells, nobody does, or it is not to be dialled at all."""
    async with relayed(tmp_path) as (hidden, relay, caller):
        await call(caller, hidden)
        port = int(hidden.host.listening()[0].split("/")[4])
        other = int(relay.host.listening()[0].split("/")[4])
        for ips, at in ((["127.0.0.1"], other), (["127.0.0.1"], lasting_port()), ([], port)):
            began = trio.current_time()
            assert not await meet_at_home(caller.host, hidden.id, ips, at, 2.0)
            assert trio.current_time() - began >= 2 and caller.carried_by(hidden) == relay.id
        assert await meet_at_home(caller.host, hidden.id, ["127.0.0.2", "127.0.0.1"], port, PATIENCE)
        await until(lambda: caller.carried_by(hidden) is None and not relay.carrier.connections)
        assert hidden.id in caller.host.agreed() and caller.id in hidden.host.agreed()


async def test_private_addresses_are_told_to_who_is_seen_where_we_are() -> None:
    fake: Any = SimpleNamespace(
        serve=lambda *_: None, add_service=lambda _: None, is_registered=None, bound=LISTENS,
        connections={"housemate": seen_at("52.20.3.1")(), "other": seen_at("52.20.4.1")()}.get,
        listening=lambda: ["/ip4/52.20.3.1/tcp/4650", "/ip4/192.168.1.9/tcp/1", *["/ip4/192.168.1.2/tcp/4650"] * 9],
    )  # fmt: skip
    dial_back = DialBack(fake)
    at, home = Punch(fake, dial_back)._place, Place(4650, ("192.168.1.2",) * punch.MOST_PRIVATE)
    assert at("housemate") == Place(4650), "nobody has said yet where we are"
    dial_back.saw("52.20.3.1")
    for _ in range(9):
        dial_back.saw("2a0f::1"), dial_back.saw("192.168.1.3")
    assert at("housemate") == home and at("other") == Place(4650)
    dial_back.saw("52.20.4.1")
    assert at("housemate") == at("other") == Place(4650), "which of two is right?"
    dial_back.saw("52.20.3.1")
    assert at("housemate") == home and at("other") == Place(4650), "no single peer has us believe in another's"


def test_what_a_peer_tells_of_its_home_is_dialled_in_our_own_network_alone() -> None:
    own = Place(4650, ("192.168.1.2", "10.8.0.2"))
    told = ("192.168.1.3", "192.168.1.2", "192.168.2.3", "10.8.0.9", "127.0.0.1", "9.9.9.9")
    assert dialled_at_home(own, Place(4651, told[:4])) == ["192.168.1.3", "10.8.0.9"]
    assert dialled_at_home(own, Place(4651, told[4:])) == [] == dialled_at_home(own, Place(22, told[:4]))
    assert Place.decode(own.encode()) == own and Place.decode(Place(0).encode()) == Place(0)
    for bad in (b"", b"\0", bytes(3), bytes(5), bytes(2 + 4 * 5), bytes(2 + 4 * 4 + 1)):
        with pytest.raises(StreamBroken):
            Place.decode(bad)


# ---- decisions ------------------------------------------------------------------------------------------------------


def test_the_best_relays_are_public_near_and_in_different_networks() -> None:
    at = {"home": ("192.168.1.3", 1), "far": ("9.1.1.1", 1), "near": ("9.2.1.1", 1), "same": ("9.2.1.2", 1)}
    trips = {"home": 0.001, "far": 0.3, "near": 0.02, "same": 0.021}
    order = best(at, trips, ["9.2.1.0/24"], (), at, Random(1))
    assert order[0] == "far" and {*order} == {"far", "near", "same"}
    assert best(at, trips, ["9.2.1.0/24"], {"far"}, at, Random(1))[-1] == "far"
    assert best(at, {}, [], (), at, Random(1))[-1] != "home"
    assert best({"home": at["home"]}, trips, [], (), (), Random(1)) == ["home"], "where nobody is public"
    six = {"six": ("2a0f::1", 1), "both": ("2a0f:0:1::1", 1)}
    assert best(six, {"six": 0.001}, [], (), {"both"}, Random(1)) == ["both", "six"], "most have IPv4"


@pytest.mark.parametrize("comes_back", [True, False])
def test_members_that_take_all_places_and_need_none_leave_others_their_turns(comes_back: bool) -> None:
    """Three times as many as there are places, that ask every 5 s and give no place back, or do so to begin anew."""
    line, held, last, now = Turns(), dict[str, float](), dict[str, float](), 0.0
    greedy = [f"greedy{number}" for number in range(3 * turns.PLACES)]
    honest = [f"honest{number}" for number in range(4)]
    members, had = {*greedy, *honest}, dict.fromkeys(honest, 0.0)
    while now < 86_400:
        for peer in members:
            if peer in greedy and not comes_back and held.get(peer, now) < now - 0.9 * turns.TERM:
                del held[peer]
            every, starts = (5.0, 0.0) if peer in greedy else (300.0, 7200.0)
            if peer not in held and now >= max(starts, last.get(peer, 0.0) + every):
                last[peer] = now
                if (gone := line.ask(peer, held, members, now)) != peer:
                    held.pop(gone or "", None)
                    held[peer] = now
                assert len(held) <= turns.PLACES
        for peer in honest:
            had[peer] += 5.0 if peer in held else 0.0
        now += 5.0
    fair = (86_400 - 7200) * turns.PLACES / len(members)
    assert min(had.values()) > 0.8 * fair, {peer: seconds / fair for peer, seconds in had.items()}


def test_where_places_are_free_nobody_has_to_go() -> None:
    line = Turns()
    held = {str(number): 0.0 for number in range(turns.PLACES - 1)}
    assert line.ask("new", held, {*held, "new"}, 10 * turns.TERM) is None
    assert line.ask("0", held | {"new": 1.0}, {*held, "new"}, 1.0) is None, "a newer stream of who has one"
    assert line.ask("late", held | {"new": 1.0}, {*held, "new", "late"}, 1.0) == "late"


PEER = "16Uiu2HAkvsLtjxCcafH3iWGXufqopwGZdCjcAFUmxzFHQocwYapn"


def test_an_address_behind_a_relay_is_parsed_and_no_other_form() -> None:
    text = f"/ip4/9.1.1.1/tcp/4650/p2p/{PEER}/p2p-circuit"
    for whole in (text, f"{text}/p2p/{PEER}"):
        address, owner = parse_address(whole)
        assert str(address) == text and str(relay_of(address)) == PEER
    assert str(owner) == PEER
    assert relay_of(Multiaddr("/ip4/9.1.1.1/tcp/4650")) is None
    for bad in ("/ip4/9.1.1.1/tcp/1/p2p-circuit", f"/p2p/{PEER}/p2p-circuit", f"{text}/p2p/{PEER}/p2p-circuit"):
        with pytest.raises(AddressError):
            parse_address(bad)
