"""Whether others can connect to this node, and which addresses they are told."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dlx.node.daemon.chain.clock import ChainClock
from dlx.node.daemon.chain.follower import Follower
from dlx.node.daemon.membership.reachability import (
    GATHERING,
    HOUR,
    LOCAL,
    PATIENCE,
    PAUSE,
    Answer,
    Reachability,
    Verdict,
    advertised,
    any_public,
    in_words,
    judge,
    needs_relays,
)
from dlx.p2p.streams import StreamBroken

PUBLIC, OTHER = "52.20.0.21", "9.9.9.9"
HOME, VPN, WORLD, SIX, SIX_TOO = (
    f"/{family}/{ip}/tcp/4650"
    for family, ip in (
        ("ip4", "192.168.1.2"),
        ("ip4", "10.8.0.2"),
        ("ip4", PUBLIC),
        ("ip6", "2a01::7"),
        ("ip6", "2a01::8"),
    )
)
PEER = "16Uiu2HAkvsLtjxCcafH3iWGXufqopwGZdCjcAFUmxzFHQocwYapn"
YES, NO = {4650: True}, {4650: False}


def test_an_address_is_believed_when_two_reached_it_or_it_is_our_own() -> None:
    assert judge([Answer(PUBLIC, YES), Answer(PUBLIC, YES)], ()) == Verdict(True, (WORLD,))
    assert judge([Answer(PUBLIC, YES), Answer(OTHER, YES)], [PUBLIC]) == Verdict(True, (WORLD,), (f"{OTHER}:4650",))
    assert judge([Answer(PUBLIC, YES)], ()).at == (WORLD,), "nobody else was there to be asked"
    assert judge([Answer(PUBLIC, NO), Answer(PUBLIC, NO)], [PUBLIC]) == Verdict(False, (), (f"{PUBLIC}:4650",))
    assert judge([Answer("2a01::7", NO)], ()).closed == ("[2a01::7]:4650",)


def test_one_liar_among_those_asked_changes_nothing() -> None:
    """Neither has it us announce somebody else's address, nor call ourselves unreachable."""
    honest = [Answer(PUBLIC, YES), Answer(PUBLIC, YES)]
    assert judge([*honest, Answer(OTHER, YES)], ()).at == (WORLD,)
    assert judge([*honest, Answer(PUBLIC, NO)], ()) == Verdict(True, (WORLD,))
    closed = [Answer(PUBLIC, NO), Answer(PUBLIC, NO)]
    assert not judge([*closed, Answer(PUBLIC, YES)], ()).reachable
    assert not judge([*closed, Answer(OTHER, YES)], ()).reachable


def test_a_neighbour_at_home_who_reaches_us_does_not_speak_for_the_world() -> None:
    verdict = judge([Answer("192.168.1.2", YES), Answer(PUBLIC, NO)], ["192.168.1.2"])
    assert not verdict.reachable and verdict.at == (HOME,)
    assert judge([Answer("192.168.1.2", YES)], ["192.168.1.2"]).reachable, "where all are at home, it does"


@pytest.mark.parametrize(
    ("announced", "own", "verdict", "others_public", "told"),
    [
        ((), (HOME, VPN), None, False, (HOME, VPN)),  # alone, or a devnet: whatever there is
        ((), (HOME, VPN), LOCAL, False, (HOME, VPN)),
        ((), (HOME, VPN), Verdict(True, (HOME,)), False, (HOME,)),  # all in one network
        ((), (HOME, VPN), None, True, ()),
        ((), (HOME, VPN), Verdict(True, (WORLD,)), True, (WORLD,)),  # a forwarded port
        ((), (HOME, VPN), Verdict(True, (WORLD, HOME)), False, (WORLD,)),
        ((), (HOME, VPN), Verdict(False, (HOME,), (f"{PUBLIC}:4650",)), True, ()),
        ((), (WORLD, HOME), None, True, (WORLD,)),
        ((), (WORLD, HOME), Verdict(False, (), (f"{PUBLIC}:4650",)), True, ()),  # a firewall
        ((), (WORLD, SIX), Verdict(True, (WORLD,)), True, (WORLD, SIX)),  # nobody saw us by IPv6
        ((), (SIX, SIX_TOO, HOME), Verdict(False, (), (f"{PUBLIC}:4650",)), True, (SIX,)),
        # in one network, of which some machines have IPv6 too, or a liar a public address
        ((), (SIX, HOME), Verdict(True, (HOME,)), False, (HOME,)),
        ((), (SIX, HOME), Verdict(True, (HOME,)), True, (HOME,)),
        ((), (WORLD, SIX), Verdict(False, (), ("[2a01::7]:4650",)), True, (WORLD,)),
        (("/dns4/a.example/tcp/1",), (HOME,), Verdict(False, (), (f"{PUBLIC}:1",)), True, ("/dns4/a.example/tcp/1",)),
    ],
)
def test_only_what_others_can_use_is_announced(
    announced: tuple[str, ...],
    own: tuple[str, ...],
    verdict: Verdict | None,
    others_public: bool,
    told: tuple[str, ...],
) -> None:
    assert advertised(announced, own, verdict, (), others_public) == told


def test_a_person_reads_what_mends_it() -> None:
    closed = Verdict(False, (), (f"{PUBLIC}:4650",))
    mend = "forward port 4650 to this machine"
    assert in_words(closed, [HOME]) == f"no: no connection to {PUBLIC}:4650, and no member relays; {mend}"
    assert "listen to others too (the default of --listen)" in in_words(closed, ["/ip4/127.0.0.1/tcp/4650"])
    assert in_words(Verdict(True, (WORLD,)), [HOME]) == f"yes, at {WORLD}"
    assert in_words(LOCAL, [HOME]).startswith("yes, for peers on this machine")
    assert in_words(None, [HOME]).startswith("not known")


def test_names_are_public_and_nonsense_is_not() -> None:
    assert any_public([[HOME], ["/dns4/node.example.org/tcp/1"]])
    assert not any_public([[HOME, "rubbish", "/ip4/127.0.0.1/tcp/1"], []])


def test_who_has_no_ip4_is_carried_where_others_have_nothing_else() -> None:
    reached, four, both = Verdict(True, (SIX,)), (WORLD,), (WORLD, SIX)
    assert needs_relays(reached, [both, four], has_ip4=False)
    assert not needs_relays(reached, [both, (SIX,), (HOME,), ()], has_ip4=False)
    assert not needs_relays(Verdict(True, (WORLD,)), [(SIX,)], has_ip4=True), "else one has everybody take places"
    assert needs_relays(Verdict(False), [], has_ip4=True) and not needs_relays(None, [four], has_ip4=False)


class _Router:
    """That answers nothing."""

    wanted: Any = None
    external: int | None = None
    is_awaited = False
    said = ""

    def __init__(self) -> None:
        self.opens: dict[int, bool] = {}

    def __str__(self) -> str:
        return self.said


class World:
    """Peers that dial back, or not; the node is behind a router that forwards nothing until `forwards`."""

    def __init__(self) -> None:
        self.forwards = False
        self.connections = {"9.1.1.1": 1.0, "9.2.1.1": 2.0, "9.2.1.9": 3.0, "9.3.1.1": 4.0}  # since when
        self.busy = set[str]()
        self.met_half_way = set[str]()
        self.asked = list[str]()
        self.told = list[tuple[str, ...]]()
        self.addresses: tuple[str, ...] = ()
        self.announced: tuple[str, ...] = ()
        self.peer_id = "us"
        self.members = {"us"}
        self.seen_as = PUBLIC
        self.carrier: Any = SimpleNamespace(is_open=False)
        self.relays: Any = SimpleNamespace(is_wanted=False, addresses=())
        self.router: Any = _Router()

    def peers(self) -> list[Any]:
        return [
            SimpleNamespace(
                peer_id=ip,
                addresses=(f"/ip4/{ip}/tcp/1",),
                agreed=True,
                connected_since=since,
                relay=None,
                is_met_half_way=ip in self.met_half_way,
            )
            for ip, since in self.connections.items()
        ]

    def is_registered(self, peer: str) -> bool:
        return True

    def listening(self) -> tuple[str, ...]:
        return (HOME,)

    def announce(self, addresses: tuple[str, ...]) -> None:
        self.addresses = addresses

    async def ask(self, peer: str, ports: list[int]) -> tuple[str, dict[int, bool]]:
        self.asked.append(peer)
        assert ports[-1] == 4650
        if peer in self.busy:
            raise StreamBroken("busy")
        return self.seen_as, dict.fromkeys(ports, False) | {4650: self.forwards} | self.router.opens


def watch(program: Any) -> World:
    """With members that have public addresses."""
    world: Any = World()

    async def main() -> None:
        follower = Follower(world, bytes(32), ChainClock())
        others: Any = SimpleNamespace(peers=lambda: {"us": (), "them": (WORLD,)})
        assert not world.carrier.is_open, "nobody is told to come before it is known that they can"
        follower.seen.set(others)
        reachability = Reachability(world, world, follower, world.carrier, world.relays, world.router)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reachability.run, lambda: None)
            await program(world, reachability)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    return world  # type: ignore[no-any-return]


def test_two_of_different_networks_are_asked_at_once_and_every_hour_and_when_their_connections_end() -> None:
    async def program(world: World, reachability: Reachability) -> None:
        world.busy = {"9.1.1.1"}
        assert await reachability.settled() == ()
        assert world.asked == ["9.1.1.1", "9.2.1.1", "9.3.1.1"], "another for who is busy; of one network one"
        assert str(reachability).startswith(f"no: no connection to {PUBLIC}:4650")
        await trio.sleep(HOUR / 2)
        assert len(world.asked) == 3
        world.forwards, world.seen_as, world.connections["9.2.1.1"] = True, "52.20.0.99", 99.0
        await trio.sleep(10)
        assert reachability.addresses.value == ("/ip4/52.20.0.99/tcp/4650",)
        asked = len(world.asked)
        world.forwards = False
        await trio.sleep(HOUR + 10)
        assert len(world.asked) > asked and reachability.addresses.value == ()

    watch(program)


def test_who_cannot_be_reached_has_relays_tell_where_it_is_and_relays_itself_once_it_can() -> None:
    relay = f"/ip4/9.1.1.1/tcp/1/p2p/{PEER}/p2p-circuit"

    async def program(world: World, reachability: Reachability) -> None:
        await trio.sleep(GATHERING + 1)
        assert world.relays.is_wanted and not world.carrier.is_open
        assert reachability.addresses.value is None, "a relay may come, and each change costs gas"
        world.relays.addresses = (relay,)
        assert await reachability.settled() == (relay,) and reachability.share == 0.5
        assert str(reachability).startswith(f"by relay at {relay}; to do without, forward port 4650")
        world.forwards, world.relays.addresses = True, ()
        world.connections["9.1.1.1"] = 99.0
        await trio.sleep(2 * PAUSE)
        assert world.carrier.is_open and not world.relays.is_wanted and reachability.share == 1
        assert reachability.addresses.value == (WORLD,)

    watch(program)


def test_whom_the_router_lets_in_because_they_met_half_way_are_not_asked() -> None:
    async def program(world: World, reachability: Reachability) -> None:
        world.forwards, world.met_half_way = True, {*world.connections} - {"9.3.1.1"}
        await trio.sleep(GATHERING + 1)
        assert world.asked == ["9.3.1.1"]

    watch(program)


def test_who_flaps_does_not_have_us_ask_all_the_time() -> None:
    async def program(world: World, reachability: Reachability) -> None:
        for number in range(600):
            world.connections["9.1.1.1"] = 100.0 + number
            await trio.sleep(1)
        assert len(world.asked) <= 2 * 11

    watch(program)


def test_where_nobody_answers_the_node_begins_all_the_same() -> None:
    async def program(world: World, reachability: Reachability) -> None:
        world.busy = set(world.connections)
        began = trio.current_time()
        assert await reachability.settled() == ()
        assert PATIENCE <= trio.current_time() - began < PATIENCE + 5
        assert not world.relays.is_wanted and not world.carrier.is_open
        assert str(reachability).startswith("not known")

    watch(program)


@pytest.mark.parametrize("external", [4650, 31_000])
def test_what_a_router_forwards_is_registered_at_once_once_peers_reached_it(external: int) -> None:
    """And nothing else before: each change costs gas."""
    mapped = f"/ip4/{PUBLIC}/tcp/{external}"

    async def program(world: World, reachability: Reachability) -> None:
        router = world.router
        router.is_awaited = True
        while router.wanted is None:
            await trio.sleep(0.1)
        assert router.wanted == ("192.168.1.2", 4650)
        world.relays.addresses = (f"/ip4/9.1.1.1/tcp/1/p2p/{PEER}/p2p-circuit",)
        await trio.sleep(10)
        assert reachability.addresses.value is None
        router.is_awaited, router.external, router.said = False, external, "the router forwards"
        world.forwards, router.opens = external == 4650, {external: True}
        began = trio.current_time()
        assert await reachability.settled() == (mapped,) and trio.current_time() < began + 10
        assert str(reachability).startswith(f"yes, at {mapped}") and str(reachability).endswith("the router forwards")

    watch(program)


def test_a_router_that_says_it_forwards_and_does_not_is_not_believed() -> None:
    async def program(world: World, reachability: Reachability) -> None:
        world.router.external, world.router.said = 4650, "the router forwards port 4650"
        world.busy = {"9.1.1.1", "9.2.1.1"}
        assert await reachability.settled() == ()
        assert str(reachability).endswith("forward port 4650 to this machine (the router forwards port 4650)")
        world.router.external, world.busy = 5000, {*world.connections}
        await trio.sleep(2 * HOUR)
        assert len(world.asked) <= 4 * (2 * HOUR / PAUSE + 2), "where nobody answers it is not asked all the time"

    watch(program)
