"""Asking a router for a port. Real ones are in `tests/node/daemon/membership/test_homes.py`; these lie."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from dlx.p2p import upnp
from dlx.p2p.upnp import RouterError
from tests.patience import PATIENCE

HERE = "127.0.0.1"
SERVICE = (
    "<root><URLBase>http://10.0.0.9/</URLBase><service><serviceType>urn:other</serviceType><controlURL>/x</controlURL>"
    "</service><service>\n<serviceType>urn:schemas-upnp-org:service:WANIPConnection:1</serviceType>"
    "<controlURL>{control}</controlURL></service></root>"
)
OK = "HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\n\r\n"


def error(code: object, text: str = "") -> str:
    fault = f"<errorCode>{code}</errorCode><errorDescription>{text}</errorDescription>"
    return f"HTTP/1.1 500 Internal Server Error\r\nContent-Length: {len(fault)}\r\n\r\n{fault}"


class Device:
    """What answers at a port of this machine: to GET by `description`, to an action by what `answers` has."""

    def __init__(self, control: str = "/ctl") -> None:
        self.description = OK + SERVICE.format(control=control)
        self.answers: dict[str, str | Callable[[str], str]] = {}
        self.asked: list[tuple[str, str]] = []

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            data = b""
            while b"\r\n\r\n" not in data or (b"POST" in data and b"</s:Envelope>" not in data):
                data += await stream.receive_some(4096)
            text = data.decode()
            if text.startswith("GET"):
                said: str | Callable[[str], str] = self.description
            else:
                action = re.search("#([A-Za-z]+)", text)
                assert action
                self.asked.append((action[1], text))
                said = self.answers.get(action[1], OK)
            await stream.send_all((said(text) if callable(said) else said).encode("latin-1"))


@asynccontextmanager
async def there(device: Device, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Its URL; whoever looks for routers finds it."""
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, lambda stream: device.serve(stream), 0, host=HERE))
        url = f"http://{HERE}:{listener.socket.getsockname()[1]}/root.xml"

        async def answering(own: str) -> dict[str, str]:
            return {HERE: url}

        monkeypatch.setattr(upnp, "_answering", answering)
        yield url
        nursery.cancel_scope.cancel()


async def test_a_port_is_forwarded_looked_up_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    device.answers = {
        "GetExternalIPAddress": OK + '<NewExternalIPAddress xmlns:dt="x"> 52.20.3.1 </NewExternalIPAddress>',
        "GetSpecificPortMappingEntry": error(714, "NoSuchEntryInArray"),
    }
    async with there(device, monkeypatch):
        (router,) = await upnp.find("192.168.1.2")
        assert (router.path, router.own) == ("/ctl", "192.168.1.2")
        assert await upnp.external_address(router) == "52.20.3.1"
        assert await upnp.forwarded_to(router, 4650) is None
        await upnp.forward(router, 4650, 4651, 3600)
        await upnp.stop_forwarding(router, 4650)
        told = dict(device.asked)
        for part in ("NewLeaseDuration>3600", "NewInternalPort>4651", "NewInternalClient>192.168.1.2"):
            assert f"<{part}<" in told["AddPortMapping"]
        assert "<NewExternalPort>4650<" in told["DeletePortMapping"]
        device.answers["GetSpecificPortMappingEntry"] = (
            OK + "<NewInternalPort>4650</NewInternalPort><NewInternalClient>192.168.1.9</NewInternalClient>"
        )
        assert await upnp.forwarded_to(router, 4650) == ("192.168.1.9", "4650")


async def test_a_router_that_forwards_only_for_ever_does_that(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    device.answers["AddPortMapping"] = lambda text: OK if "<NewLeaseDuration>0<" in text else error(725)
    async with there(device, monkeypatch):
        (router,) = await upnp.find(HERE)
        await upnp.forward(router, 4650, 4650, 3600)
        device.answers["AddPortMapping"] = error(718, "Conflict")
        with pytest.raises(RouterError, match="718 Conflict") as raised:
            await upnp.forward(router, 4650, 4650, 3600)
        assert raised.value.code == upnp.TAKEN


@pytest.mark.parametrize(
    "control",
    [
        "http://10.0.0.9/ctl", "//10.0.0.9/ctl", "http://127.0.0.1.evil.example/", "http://user@127.0.0.1/", "ftp:/x",
        "http://127.0.0.1:99999/", "http://[::1]/", "/a b", "/a&#13;&#10;Host: x", "/" + "x" * 1050, "",
    ],
)  # fmt: skip
async def test_nobody_has_us_ask_another_machine_or_say_another_line(
    monkeypatch: pytest.MonkeyPatch, control: str
) -> None:
    device = Device(control)
    async with there(device, monkeypatch):
        assert all(router.ip == HERE and re.fullmatch("/[!-~]*", router.path) for router in await upnp.find(HERE))
    for url in ("http://10.0.0.9/root.xml", "https://127.0.0.1/", "http://127.0.0.1", "http://127.0.0.1:0/"):
        with pytest.raises(RouterError):
            await upnp._described(HERE, HERE, url)


async def test_a_description_at_another_address_than_its_sender_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    async with there(Device(), monkeypatch) as url:
        with pytest.raises(RouterError):
            await upnp._described(HERE, "192.168.1.1", url)


@pytest.mark.parametrize(
    "said",
    [
        "", "rubbish", "HTTP/1.1 200", "HTTP/1.1 abc \r\n\r\n", OK + "x" * upnp.LARGEST, OK, OK + "<service>" * 5000,
        OK + "<NewExternalIPAddress " * 2000, OK + "<NewExternalIPAddress>10.0.0.1%x</NewExternalIPAddress>",
        OK + "<NewExternalIPAddress>\x1b[2J</NewExternalIPAddress>", OK + "\xff\xfe\x00" * 99, error("7" * 5000),
        error(606, "\x1b[2J\r\nnot authorized"), "HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n<",
    ],
)  # fmt: skip
async def test_nonsense_is_an_error_of_one_line_and_soon(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setattr(upnp, "DEADLINE", 2 * PATIENCE)
    device = Device()
    async with there(device, monkeypatch):
        (router,) = await upnp.find(HERE)
        device.answers = dict.fromkeys(("GetExternalIPAddress", "AddPortMapping"), said)
        with trio.fail_after(PATIENCE), pytest.raises(RouterError) as raised:
            await upnp.external_address(router)
        assert str(raised.value).isprintable() and len(str(raised.value)) < 100
        device.description = said
        assert await upnp.find(HERE) == []


async def test_one_that_says_nothing_holds_up_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upnp, "DEADLINE", 0.3)

    async def drip(stream: trio.SocketStream) -> None:
        while True:
            await stream.send_all(b"H")
            await trio.sleep(0.1)

    for serve in (drip, lambda stream: trio.sleep_forever()):
        device = Device()
        async with there(device, monkeypatch):
            served: Callable[[trio.SocketStream], Awaitable[None]] = serve
            device.serve = served  # type: ignore[method-assign, assignment]
            with trio.fail_after(PATIENCE):
                assert await upnp.find(HERE) == []


async def test_where_no_network_is_nobody_answers() -> None:
    with trio.fail_after(PATIENCE):
        assert await upnp.find("192.0.2.55") == []
