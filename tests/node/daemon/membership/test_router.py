"""The port that a router forwards: asked for, renewed, given back; and what is said of it."""

import dataclasses
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from dlx.node.daemon.membership import forwardings
from dlx.node.daemon.membership import router as module
from dlx.node.daemon.membership.forwardings import Forwarding
from dlx.node.daemon.membership.router import AGAIN, LEASE, RENEW, SOONEST, RouterPort
from dlx.p2p import pcp, upnp
from dlx.p2p.addresses import private_listener
from dlx.p2p.pcp import Gateway, Lease
from dlx.p2p.upnp import Router, RouterError

HOME = "192.168.1.2", 4650
THERE = Router("192.168.1.1", 80, "/", upnp.SERVICES[1], HOME[0])
NEAR = Gateway("192.168.1.1", HOME[0], "0a" * 12)


class Routers:
    """In place of `upnp` and `pcp`: one that does as it is told, and by UPnP forwards for ever. It speaks PCP once it
    has a `lease` to give."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, record: Path) -> None:
        self.record = record
        self.stopped: list[int] = []
        self.there, self.outside, self.refuses, self.forever = [THERE], "52.20.3.1", False, False
        self.taken: dict[int, tuple[str, str]] = {}
        self.forwards: list[int] = []
        for name in ("find", "external_address", "forwarded_to", "forward", "stop_forwarding"):
            monkeypatch.setattr(upnp, name, getattr(self, name))
        self.lease: Lease | None = None
        self.asked_at: list[float] = []  # by PCP
        self.suggested: list[int] = []
        self.leased: list[Gateway] = []
        monkeypatch.setattr(pcp, "gateway", lambda own: replace(NEAR, own=own, nonce=secrets.token_hex(12)))
        monkeypatch.setattr(pcp, "forward", self.lend)
        monkeypatch.setattr(pcp, "stop_forwarding", self.end)

    async def lend(self, gateway: Gateway, port: int, external: int, seconds: int) -> Lease:
        assert seconds == LEASE
        self.asked_at.append(trio.current_time())
        self.suggested.append(external)
        if self.lease is None:
            raise RouterError("no answer")
        assert not self.taken, "UPnP's is ended before"
        assert Forwarding(gateway, port, port) in forwardings.read(self.record), "before it is made"
        self.leased = [one for one in self.leased if one != gateway] + [gateway]
        return self.lease

    async def end(self, gateway: Gateway, port: int) -> None:
        if self.lease is None:
            raise RouterError("no answer")
        self.leased.remove(gateway)

    async def find(self, own: str) -> list[Router]:
        await trio.sleep(1e9 if self.forever else 3)
        return [replace(one, own=own) for one in self.there]

    def check_there(self, router: Router) -> None:
        if router.ip not in [one.ip for one in self.there]:
            raise RouterError("no answer")

    async def external_address(self, router: Router) -> str:
        return self.outside

    async def forwarded_to(self, router: Router, external: int) -> tuple[str, str] | None:
        self.check_there(router)
        return self.taken.get(external)

    async def forward(self, router: Router, external: int, port: int, lease: int) -> None:
        assert lease == LEASE
        if self.refuses:
            raise RouterError("606 Action not authorized", 606)
        assert Forwarding(router, external, port) in forwardings.read(self.record), "before it is made"
        self.forwards.append(external)
        self.taken[external] = router.own, str(port)

    async def stop_forwarding(self, router: Router, external: int) -> None:
        self.check_there(router)
        del self.taken[external]
        self.stopped.append(external)


@pytest.fixture
def routers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Routers:
    return Routers(monkeypatch, tmp_path / "forwardings.json")


def keep(routers: Routers, program: Callable[[RouterPort], Awaitable[None]], asks: bool = True) -> None:
    async def main() -> None:
        port = RouterPort("16U", asks, routers.record)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(port.run, lambda: None)
            await program(port)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_port_is_renewed_and_given_back_at_the_end(routers: Routers) -> None:
    async def program(port: RouterPort) -> None:
        await trio.sleep(100)
        assert not routers.forwards and not port.is_awaited, "nobody needs it"
        port.wanted = HOME
        assert port.is_awaited
        await trio.sleep(10)
        assert not port.is_awaited and port.external == 4650
        assert str(port) == "the router at 192.168.1.1 forwards port 4650 by UPnP"
        await trio.sleep(3 * RENEW + 60)
        assert routers.forwards == [4650] * 4 and RENEW < LEASE / 2

    keep(routers, program)
    assert not routers.taken


def test_a_port_of_another_machine_is_left_to_it(routers: Routers) -> None:
    chosen = set[int | None]()
    routers.taken[4650] = "192.168.1.9", "4650"

    async def program(port: RouterPort) -> None:
        port.wanted = HOME
        await trio.sleep(10)
        chosen.add(port.external)

    keep(routers, program)
    keep(routers, program)
    assert len(chosen) == 1 and chosen != {4650}, "the same after a restart, as others remember it"
    assert routers.taken == {4650: ("192.168.1.9", "4650")}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"there": []}, "no router answers to UPnP"),
        ({"refuses": True}, "the router at 192.168.1.1 forwards no port by UPnP: 606 Action not authorized"),
        (
            {"outside": "100.64.1.2"},
            "the router's own address 100.64.1.2 is private: its provider, or a second router, has another",
        ),
        ({"forever": True}, "the router does not answer to the end"),
    ],
)
def test_what_a_router_answers_is_said_and_it_is_asked_again_later(
    routers: Routers, change: dict[str, object], said: str
) -> None:
    vars(routers).update(change)

    async def program(port: RouterPort) -> None:
        port.wanted = HOME
        await trio.sleep(module.PATIENCE + 10)
        silent = "the router at 192.168.1.1 forwards no port by PCP: no answer; "
        assert port.external is None and str(port).removeprefix(silent) == said
        vars(routers).update({"there": [THERE], "outside": "52.20.3.1", "refuses": False, "forever": False})
        await trio.sleep(AGAIN + 10)
        assert port.external == 4650

    keep(routers, program)


def test_an_address_that_changes_takes_its_port_along(routers: Routers) -> None:
    async def program(port: RouterPort) -> None:
        for ip in ("192.168.1.5", "192.168.1.6", "192.168.1.7"):
            port.wanted = ip, 4650
            await trio.sleep(10)
            assert port.external == 4650 and routers.taken == {4650: (ip, "4650")}
        port.wanted = None
        await trio.sleep(10)
        assert port.external is None and not routers.taken, "it has a public address now"

    keep(routers, program)
    assert not routers.record.exists()


def test_what_could_not_be_renewed_is_given_back_before_another_way_is_tried(routers: Routers) -> None:
    async def program(port: RouterPort) -> None:
        port.wanted = HOME
        await trio.sleep(10)
        routers.refuses = True
        await trio.sleep(RENEW)
        assert port.external is None and not routers.taken and not routers.record.exists()

    keep(routers, program)


async def wants(port: RouterPort) -> None:
    port.wanted = HOME
    await trio.sleep(10)


@pytest.mark.parametrize("asks", [True, False])
def test_what_a_node_left_that_was_killed_the_next_one_has_ended(routers: Routers, asks: bool) -> None:
    async def killed(port: RouterPort) -> None:
        await wants(port)
        routers.there = []

    async def starts(port: RouterPort) -> None:
        await trio.sleep(10)
        assert not routers.taken and not routers.record.exists(), "whether or not it needs a port, or may ask for one"

    keep(routers, killed)
    assert routers.taken and routers.record.exists()
    keep(routers, lambda port: trio.sleep(10), asks)
    assert routers.taken and routers.record.exists(), "it is tried again"
    routers.there = [THERE]
    keep(routers, starts, asks)
    assert routers.stopped == [4650]


def test_a_port_that_is_another_machines_by_now_is_left_to_it(routers: Routers) -> None:
    async def killed(port: RouterPort) -> None:
        await wants(port)
        routers.there = []

    keep(routers, killed)
    routers.there, routers.taken[4650] = [THERE], ("192.168.1.9", "4650")
    keep(routers, lambda port: trio.sleep(10))
    assert not routers.stopped and not routers.record.exists()


def test_what_a_router_refuses_is_not_kept(routers: Routers) -> None:
    routers.refuses = True

    async def program(port: RouterPort) -> None:
        await wants(port)
        assert not routers.record.exists()

    keep(routers, program)


def test_routers_that_were_left_for_good_are_forgotten_at_last(routers: Routers) -> None:
    async def program(port: RouterPort) -> None:
        for number in range(20):
            routers.there = [replace(THERE, ip=f"192.168.{number}.1")]
            routers.taken.clear()
            port.wanted = f"192.168.{number}.2", 4650
            await trio.sleep(5)
        assert [one.router.ip for one in forwardings.read(routers.record)] == [
            f"192.168.{number}.1" for number in range(20 - forwardings.MOST, 20)
        ]

    keep(routers, program)


def test_what_ends_by_itself_is_forgotten_before_what_may_stay_for_ever() -> None:
    made = list[Forwarding]()
    leases = [Forwarding(replace(NEAR, ip=f"192.168.{number}.1"), 4650, 4650) for number in range(20)]
    for_ever = Forwarding(THERE, 4650, 4650)
    for one in [leases[0], for_ever, *leases[1:]]:
        made = forwardings.with_newest(made, one)
        assert made[-1] == one
    assert len(made) == forwardings.MOST and for_ever in made and {*made} - {for_ever} == {*leases[-7:]}


LEASED = Lease("PCP", "52.20.3.1", 31_000, LEASE)


@pytest.mark.parametrize(("seconds", "again"), [(LEASE, RENEW), (10 * LEASE, RENEW), (300, 150), (1, SOONEST)])
def test_a_port_by_pcp_is_renewed_in_time_by_the_same_nonce_and_given_back(
    routers: Routers, seconds: int, again: float
) -> None:
    routers.lease = dataclasses.replace(LEASED, seconds=seconds)

    async def program(port: RouterPort) -> None:
        port.wanted = HOME
        await trio.sleep(10)
        assert port.external == 31_000, "it chose another"
        assert str(port) == "the router at 192.168.1.1 forwards port 31000 by PCP"
        await trio.sleep(3 * again)
        assert len(routers.leased) == 1 and not routers.forwards, "and UPnP is not asked"
        gaps = [after - before for before, after in zip(routers.asked_at, routers.asked_at[1:], strict=False)]
        assert len(gaps) == 3 and all(again <= gap < again + 3 for gap in gaps)
        assert routers.suggested == [4650] + [31_000] * 3, "which it gave"

    keep(routers, program)
    assert not routers.leased and not routers.record.exists()


def test_who_forwarded_before_is_asked_again_soon_and_for_the_same_port(routers: Routers) -> None:
    routers.lease, routers.there = LEASED, []

    async def program(port: RouterPort) -> None:
        port.wanted = HOME
        await trio.sleep(10)
        routers.lease = None
        await trio.sleep(RENEW)
        assert port.external is None
        routers.lease = LEASED
        await trio.sleep(SOONEST + 10)
        assert port.external == 31_000, "a router that starts anew costs no hour"
        routers.lease = None
        routers.asked_at.clear()
        await trio.sleep(RENEW + 5 * AGAIN)
        gaps = [after - before for before, after in zip(routers.asked_at, routers.asked_at[1:], strict=False)]
        wanted = [SOONEST * 2**number for number in range(6)] + [AGAIN] * 3
        assert all(want <= gap < want + 20 for want, gap in zip(wanted, gaps, strict=True))
        assert set(routers.suggested[1:]) == {31_000}
        port.wanted = "192.168.1.3", 4650
        await trio.sleep(20)
        assert routers.suggested[-1] == 4650, "of another network none was given"

    keep(routers, program)


def test_where_pcp_fails_upnp_is_asked_and_one_alone_forwards(routers: Routers) -> None:
    async def program(port: RouterPort) -> None:
        port.wanted = HOME
        await trio.sleep(10)
        assert str(port).endswith("forwards port 4650 by UPnP")
        assert [one.router for one in forwardings.read(routers.record)] == [THERE], "silence by PCP leaves nothing"
        routers.lease = LEASED
        await trio.sleep(RENEW)
        assert str(port).endswith("by UPnP"), "what works stays"
        routers.there = []
        routers.taken.clear()
        await trio.sleep(RENEW)
        assert str(port).endswith("by PCP")
        routers.lease, routers.there = None, [THERE]
        await trio.sleep(RENEW + 10)
        assert str(port).endswith("by UPnP")
        routers.lease = LEASED

    keep(routers, program)
    assert not routers.taken and not routers.leased and not routers.record.exists()


def test_an_own_address_that_is_private_has_the_lease_by_pcp_ended(routers: Routers) -> None:
    routers.lease, routers.there = dataclasses.replace(LEASED, outside="100.64.1.2"), []

    async def program(port: RouterPort) -> None:
        port.wanted = HOME
        await trio.sleep(10)
        assert port.external is None and "the router's own address 100.64.1.2 is private" in str(port)
        assert routers.asked_at and not routers.leased and not routers.record.exists()

    keep(routers, program)


def test_a_lease_by_pcp_that_a_killed_node_left_the_next_one_has_ended(routers: Routers) -> None:
    routers.lease, routers.there = LEASED, []

    async def killed(port: RouterPort) -> None:
        await wants(port)
        routers.lease = None

    keep(routers, killed)
    assert routers.leased and routers.record.exists()
    routers.lease = LEASED
    keep(routers, lambda port: trio.sleep(10), asks=False)
    assert not routers.leased and not routers.record.exists()


SOUND = Forwarding(THERE, 4650, 4650)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\0" * 99, b"\xff\xfe", b"{}", b"[1]", b"[" * 100_000, msgspec.json.encode([SOUND])[:-9],
        *(
            msgspec.json.encode([SOUND, wrong])
            for wrong in (
                Forwarding(THERE, 0, 4650), Forwarding(THERE, 4650, 70_000),
                *(
                    Forwarding(replace(NEAR, **change), 4650, 4650)
                    for change in (
                        {"ip": "52.20.3.1"}, {"ip": "127.0.0.1"}, {"own": "fd00::2"}, {"nonce": "0a"},
                        {"nonce": "x" * 24},
                    )
                ),
                *(
                    Forwarding(replace(THERE, **change), 4650, 4650)
                    for change in (
                        {"ip": "52.20.3.1"}, {"ip": "127.0.0.1"}, {"ip": "1.1"}, {"ip": "999.1.1.1"}, {"ip": "host"},
                        {"port": 0}, {"path": "/ HTTP/1.0\r\nHost: x"}, {"service": "x"}, {"own": "x"},
                    )
                ),
            )
        ),
    ],
)  # fmt: skip
def test_a_damaged_record_asks_nobody_for_anything(routers: Routers, data: bytes) -> None:
    routers.record.write_bytes(data)
    routers.taken[4650] = HOME[0], "4650"
    keep(routers, lambda port: trio.sleep(10))
    assert not routers.stopped
    keep(routers, wants)
    assert routers.stopped == [4650] and not routers.record.exists()


def test_where_the_operator_wants_none_no_router_is_asked(routers: Routers) -> None:
    async def program(port: RouterPort) -> None:
        port.wanted = HOME
        assert not port.is_awaited
        await trio.sleep(10 * AGAIN)

    keep(routers, program, asks=False)
    assert not routers.forwards


def test_a_router_is_of_use_to_a_private_address_that_the_node_listens_at() -> None:
    home, six = "/ip4/192.168.1.2/tcp/4650", "/ip6/fd00::2/tcp/4650"
    assert private_listener([home]) == private_listener([six, home, "/ip4/10.8.0.2/tcp/4650"]) == HOME
    assert private_listener(["/ip4/127.0.0.1/tcp/4650"]) is private_listener([six]) is private_listener([]) is None
    assert private_listener([home, "/ip4/9.9.9.9/tcp/4650"]) is None
