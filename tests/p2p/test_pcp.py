"""Asking a router for a port by PCP and NAT-PMP. A real one is in `tests/node/daemon/membership/test_homes.py`; these
lie."""

import itertools
import random
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from dlx.p2p import pcp
from dlx.p2p.pcp import Gateway, Lease
from dlx.p2p.upnp import RouterError
from tests.patience import PATIENCE

HERE = Gateway("127.0.0.1", "127.0.0.1", "0a" * 12)
NONCE = bytes.fromhex(HERE.nonce)
OUTSIDE = socket.inet_aton("52.20.3.1")
EPOCH = bytes([0, 0, 1, 9])
PORT = (4650).to_bytes(2, "big")
ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
wlan0\t00000000\t{wifi}\t0003\t0\t0\t600\t00000000\t0\t0\t0
eth0\t00000000\t{cable}\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth0\t{net}\t00000000\t0001\t0\t0\t100\t{mask}\t0\t0\t0
vpn0\t00000000\t00000000\t0001\t0\t0\t50\t00000000\t0\t0\t0
"""


def mapped(
    seconds: int = 3600, external: int = 4650, result: int = 0, nonce: bytes = NONCE, ip: bytes = OUTSIDE
) -> bytes:
    """What PCP answers to MAP."""
    head = bytes([2, 0x81, 0, result]) + seconds.to_bytes(4, "big") + EPOCH + bytes(12)
    return head + nonce + bytes([6, 0, 0, 0]) + PORT + external.to_bytes(2, "big") + bytes(10) + b"\xff\xff" + ip


def old(opcode: int, rest: bytes = b"", result: int = 0) -> bytes:
    """What NAT-PMP answers."""
    return bytes([0, 0x80 | opcode, 0, result]) + EPOCH + rest


ONLY_OLD, ONLY_NEW = bytes([0, 0, 0, 1]) + EPOCH, bytes([2, 0x80, 0, 1]) + bytes(20)
LEASED = PORT + (31_000).to_bytes(2, "big") + (900).to_bytes(4, "big")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine repeats no question, and hears every answer."""
    monkeypatch.setattr(pcp, "FIRST_WAIT", 2 * PATIENCE)
    monkeypatch.setattr(pcp, "DEADLINE", 2 * PATIENCE)


class Device:
    """What answers at a port of this machine: to the first bytes of a question, version and opcode."""

    def __init__(self, answers: dict[bytes, list[bytes]]) -> None:
        self.answers, self.asked, self.deaf_to = answers, list[bytes](), 0

    async def serve(self, here: trio.socket.SocketType) -> None:
        while True:
            question, who = await here.recvfrom(2000)
            self.asked.append(question)
            if len(self.asked) > self.deaf_to:
                for answer in self.answers.get(question[:2], []):
                    await here.sendto(answer, who)


@asynccontextmanager
async def there(device: Device, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        await here.bind((HERE.ip, 0))
        monkeypatch.setattr(pcp, "PORT", here.getsockname()[1])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(device.serve, here)
            yield
            nursery.cancel_scope.cancel()


async def test_a_port_is_forwarded_and_given_back_by_pcp(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device({b"\2\1": [mapped(external=31_000)], b"\0\0": [ONLY_NEW]})
    async with there(device, monkeypatch):
        assert await pcp.forward(HERE, 4650, 4650, 3600) == Lease("PCP", "52.20.3.1", 31_000, 3600)
        device.answers[b"\2\1"] = [mapped(seconds=0, external=0)]
        await pcp.stop_forwarding(HERE, 4650)
        assert await pcp.external_address(HERE) == "", "it has no such question"
        with pytest.raises(RouterError):
            await pcp.forward(HERE, 4650, 31_000, 3600)
    first, last, _, renewal = device.asked
    assert first == (
        bytes([2, 1, 0, 0]) + (3600).to_bytes(4, "big") + bytes(10) + b"\xff\xff\x7f\0\0\1"
        + NONCE + bytes([6, 0, 0, 0]) + PORT + PORT + bytes(10) + b"\xff\xff\0\0\0\0"
    )  # fmt: skip
    assert len(last) == 60 and last[4:8] == bytes(4) and last[24:36] == NONCE
    assert renewal == first[:42] + (31_000).to_bytes(2, "big") + first[44:]


@pytest.mark.parametrize("said", [ONLY_OLD, old(1, result=1)], ids=["as the RFC has it", "with its opcode"])
async def test_one_that_speaks_only_nat_pmp_is_asked_by_that(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    device = Device({b"\2\1": [said], b"\0\0": [old(0, OUTSIDE)], b"\0\2": [old(2, LEASED)]})
    async with there(device, monkeypatch):
        assert await pcp.external_address(HERE) == "52.20.3.1"
        assert await pcp.forward(HERE, 4650, 4650, 3600) == Lease("NAT-PMP", "52.20.3.1", 31_000, 900)
        device.answers[b"\0\2"] = [old(2, PORT + bytes(6))]
        await pcp.stop_forwarding(HERE, 4650)
    assert device.asked[3] == bytes([0, 2, 0, 0]) + PORT + PORT + (3600).to_bytes(4, "big")
    assert device.asked[-1] == bytes([0, 2, 0, 0]) + PORT + bytes(6), "as the RFC has it deleted"


async def test_what_is_lost_is_asked_again_and_again_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device({b"\2\1": [mapped()]})
    monkeypatch.setattr(pcp, "FIRST_WAIT", 0.05)
    async with there(device, monkeypatch):
        device.deaf_to = 2
        assert (await pcp.forward(HERE, 4650, 4650, 3600)).external == 4650 and len(device.asked) > 2
        monkeypatch.setattr(pcp, "FIRST_WAIT", 0.2)
        monkeypatch.setattr(pcp, "DEADLINE", 4.0)
        device.answers, device.asked = {}, []
        with trio.fail_after(PATIENCE), pytest.raises(RouterError, match="no answer") as raised:
            await pcp.forward(HERE, 4650, 4650, 3600)
        assert 1 < len(device.asked) <= 5 and not raised.value.code, "twice as long each time"


WRONG = [
    b"", b"\2", bytes(60), bytes(2000), mapped()[:-1], mapped() + bytes(4), mapped(nonce=bytes(12)),
    mapped(result=2, nonce=bytes(12)), b"\1" + mapped()[1:], b"\3" + mapped()[1:], b"\2\1" + mapped()[2:],
    b"\2\x82" + mapped()[2:], mapped()[:36] + b"\x11" + mapped()[37:], mapped()[:40] + b"\0\1" + mapped()[42:],
    old(1), old(1, result=2), ONLY_OLD[:-1], ONLY_OLD + b"\0", b"\1" + ONLY_OLD[1:],
]  # fmt: skip
OLD_WRONG = [
    b"", old(2, LEASED)[:-1], old(2, LEASED) + b"\0", old(2), old(1, LEASED), old(2, b"\0\1" + LEASED[2:]),
    b"\1" + old(2, LEASED)[1:], b"\0\2" + old(2, LEASED)[2:],
]  # fmt: skip


async def test_what_is_no_answer_to_the_question_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device({b"\2\1": [*WRONG, mapped()]})
    async with there(device, monkeypatch):
        assert (await pcp.forward(HERE, 4650, 4650, 3600)).external == 4650
        no_address = [old(0), old(0, OUTSIDE + b"\0"), old(2, OUTSIDE)]
        device.answers = {
            b"\2\1": [ONLY_OLD], b"\0\0": [*no_address, old(0, OUTSIDE)], b"\0\2": [*OLD_WRONG, old(2, LEASED)],
        }  # fmt: skip
        assert (await pcp.forward(HERE, 4650, 4650, 3600)).outside == "52.20.3.1"
        assert len(device.asked) == 4, "nothing had to be asked twice"


async def test_what_another_machine_answers_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device({})
    async with there(device, monkeypatch):
        with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            await other.bind(("127.0.0.2", 0))

            async def serve(here: trio.socket.SocketType) -> None:
                _, who = await here.recvfrom(2000)
                await other.sendto(mapped(external=1), who)
                await here.sendto(mapped(external=2), who)

            monkeypatch.setattr(device, "serve", serve)
            async with there(device, monkeypatch):
                assert (await pcp.forward(HERE, 4650, 4650, 3600)).external == 2


@pytest.mark.parametrize(
    ("answers", "said", "code"),
    [
        ({b"\2\1": [mapped(result=8)]}, "8 out of resources", 8),
        ({b"\2\1": [mapped(result=200)]}, "200", 200),
        ({b"\2\1": [ONLY_OLD], b"\0\0": [old(0, result=3)]}, "3 network failure", 3),
        ({b"\2\1": [ONLY_OLD], b"\0\0": [old(0, OUTSIDE)], b"\0\2": [old(2, bytes(8), 2)]}, "2 not authorized", 2),
        ({b"\2\1": [mapped(external=0)]}, "an answer that is none", 0),
        ({b"\2\1": [mapped(seconds=0)]}, "an answer that is none", 0),
    ],
)
async def test_a_refusal_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, answers: dict[bytes, list[bytes]], said: str, code: int
) -> None:
    async with there(Device(answers), monkeypatch):
        with trio.fail_after(PATIENCE), pytest.raises(RouterError, match=said) as raised:
            await pcp.forward(HERE, 4650, 4650, 3600)
        assert raised.value.code == code


async def test_a_port_that_another_has_by_now_or_nobody_has_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """miniupnpd says 8 where nobody has it."""
    device = Device({})
    async with there(device, monkeypatch):
        for result in (2, 8):
            device.answers[b"\2\1"] = [mapped(result=result)]
            await pcp.stop_forwarding(HERE, 4650)
    with pytest.raises(RouterError, match="no answer"):
        await pcp.stop_forwarding(HERE, 4650)


def test_random_bytes_are_an_answer_or_a_refusal_or_nothing() -> None:
    """Also those that begin as an answer does."""
    chance, reads = random.Random(5), list[Callable[[bytes], object]]()
    reads += [lambda data: pcp.read_pcp(data, HERE, 4650), pcp.read_address, lambda data: pcp.read_pmp(data, 4650, "")]
    begins = [b"", b"\2\x81\0", b"\0\0\0\1", b"\0\x80\0", b"\0\x81\0", b"\0\x82\0\0", mapped()[:42]]
    for begin, size in itertools.product(begins, [*range(70), 1101]):
        data = (begin + chance.randbytes(size))[: max(size, len(begin))]
        for read in reads:
            try:
                read(data)
            except RouterError as error:
                assert str(error).isprintable() and len(str(error)) < 60


async def test_where_nobody_listens_or_no_such_address_is_the_answer_comes_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with there(Device({}), monkeypatch):
        pass
    for gateway in (HERE, msgspec.structs.replace(HERE, own="192.0.2.55")):
        with trio.fail_after(PATIENCE), pytest.raises(RouterError, match="no answer"):
            await pcp.forward(gateway, 4650, 4650, 3600)


def test_the_default_gateway_is_that_of_the_network_in_which_this_machine_listens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def as_linux_writes(ip: str) -> str:
        return f"{int.from_bytes(socket.inet_aton(ip), sys.byteorder):08X}"

    named = {"wifi": "192.168.7.1", "cable": "192.168.1.1", "net": "192.168.1.0", "mask": "255.255.255.0"}
    table = ROUTES.format(**{name: as_linux_writes(ip) for name, ip in named.items()})
    assert pcp.default_gateway(table, {"eth0"}) == pcp.default_gateway(table, {"eth0", "wlan0"}) == "192.168.1.1"
    assert pcp.default_gateway(table, {"wlan0"}) == "192.168.7.1"
    assert pcp.default_gateway(table, {"vpn0"}) == pcp.default_gateway(table, set()) == ""
    monkeypatch.setattr(pcp, "interfaces", lambda family: [("eth0", "192.168.1.2"), ("wlan0", "192.168.7.2")])
    monkeypatch.setattr(pcp, "_ROUTES", tmp_path / "route")
    assert pcp.gateway("192.168.1.2") is None, "not Linux"
    (tmp_path / "route").write_text(table)
    found = pcp.gateway("192.168.1.2")
    assert found and (found.ip, found.own) == ("192.168.1.1", "192.168.1.2")
    pcp.check(found)
    again = pcp.gateway("192.168.1.2")
    assert again and again.nonce != found.nonce
    assert pcp.gateway("192.168.9.2") is None
