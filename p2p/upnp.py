"""A home's router is asked for a port (UPnP). What it answers is a stranger's word: bounded, and followed nowhere else.

miniupnpc, which libp2p brings, reads answers of any size in C, and asks whatever URL a machine of the home names.
"""

import html
import re
import socket
from urllib.parse import urljoin

import trio
from msgspec import Struct

from dlx.ground.errors import DlxError
from dlx.ground.untrusted import printable_ascii
from dlx.p2p.admission import is_ip, is_private

GROUP = "239.255.255.250", 1900
DEVICES = ("urn:schemas-upnp-org:device:InternetGatewayDevice:1", "urn:schemas-upnp-org:device:InternetGatewayDevice:2")
SERVICES = (
    "urn:schemas-upnp-org:service:WANIPConnection:2",
    "urn:schemas-upnp-org:service:WANIPConnection:1",
    "urn:schemas-upnp-org:service:WANPPPConnection:1",
)
MOST_ROUTERS = 4
LISTEN = 3.0  # s for routers to answer
DEADLINE = 5.0  # s for an answer of one
LARGEST = 64 * 1024  # bytes of an answer
NO_SUCH_ENTRY, TAKEN, ONLY_FOR_EVER = 714, 718, 725  # codes of UPnP
_URL = re.compile(r"http://([0-9.]{7,15})(?::([0-9]{1,5}))?(/[!-~]{0,1000})")
_LOCATION = re.compile(r"^location:[ \t]*(\S{1,1100})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_STATUS = re.compile(r"HTTP/1\.[01] ([0-9]{3})[ \r\n]")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,6})[ \t]*\r\n", re.IGNORECASE)


class RouterError(DlxError):
    """The router refuses, or talks nonsense. `code`: as its protocol numbers it; 0: none."""

    def __init__(self, said: str, code: int = 0) -> None:
        super().__init__(said)
        self.code = code


class Router(Struct, frozen=True, tag="upnp"):
    """One that forwards ports. `own`: the IP address of this machine in its network."""

    ip: str
    port: int
    path: str  # where it is asked
    service: str
    own: str


async def find(own: str) -> list[Router]:
    """Routers in the network in which this machine has the IPv4 address `own`, MOST_ROUTERS at most."""
    found = dict[str, Router]()
    for ip, url in (await _answering(own)).items():
        try:
            found[ip] = await _described(own, ip, url)
        except RouterError:
            continue
    return list(found.values())


def check(router: Router) -> None:
    """Of one that was kept on disk. Raises RouterError where `find` could not have found it."""
    _parts(f"http://{router.ip}:{router.port}{router.path}", router.ip)
    if not is_private(router.ip) or router.service not in SERVICES or not is_ip(router.own):
        raise RouterError("no router of this network")


async def external_address(router: Router) -> str:
    """What it says its own IP address outside is. Raises RouterError."""
    said = _value(await _ask(router, "GetExternalIPAddress", {}), "NewExternalIPAddress")
    if not is_ip(said):
        raise RouterError("no IP address outside")
    return said


async def forwarded_to(router: Router, external: int) -> tuple[str, str] | None:
    """IP address and port, as it says them, to which it forwards a port already; None: it does not. Raises
    RouterError."""
    names = {"NewRemoteHost": "", "NewExternalPort": str(external), "NewProtocol": "TCP"}
    try:
        said = await _ask(router, "GetSpecificPortMappingEntry", names)
    except RouterError as error:
        if error.code == NO_SUCH_ENTRY:
            return None
        raise
    return _value(said, "NewInternalClient"), _value(said, "NewInternalPort")


async def forward(router: Router, external: int, port: int, lease: int) -> None:
    """Have it forward a TCP port to one of this machine, for `lease` seconds. Raises RouterError; of TAKEN where
    another machine has it."""
    asked = {
        "NewRemoteHost": "",
        "NewExternalPort": str(external),
        "NewProtocol": "TCP",
        "NewInternalPort": str(port),
        "NewInternalClient": router.own,
        "NewEnabled": "1",
        "NewPortMappingDescription": "dlx-node",
    }
    try:
        await _ask(router, "AddPortMapping", asked | {"NewLeaseDuration": str(lease)})
    except RouterError as error:
        if error.code != ONLY_FOR_EVER:
            raise
        await _ask(router, "AddPortMapping", asked | {"NewLeaseDuration": "0"})


async def stop_forwarding(router: Router, external: int) -> None:
    """Raises RouterError."""
    names = {"NewRemoteHost": "", "NewExternalPort": str(external), "NewProtocol": "TCP"}
    await _ask(router, "DeletePortMapping", names)


async def _answering(own: str) -> dict[str, str]:
    """IP address -> where it describes itself, of what answers in LISTEN seconds. None is this machine, or public."""
    found = dict[str, str]()
    with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, trio.move_on_after(LISTEN):
        try:
            asking.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 2)
            asking.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own))
            await asking.bind((own, 0))
            for device in (*DEVICES, *DEVICES):  # again, as one may be lost
                question = f'M-SEARCH * HTTP/1.1\r\nHOST: {GROUP[0]}:{GROUP[1]}\r\nMAN: "ssdp:discover"\r\nMX: 1\r\n'
                await asking.sendto(f"{question}ST: {device}\r\n\r\n".encode(), GROUP)
            while len(found) < MOST_ROUTERS:
                data, (ip, _) = await asking.recvfrom(2048)
                at = _LOCATION.search(data.decode("latin-1"))
                if at and ip != own and is_private(ip):
                    found.setdefault(ip, at[1])
        except OSError:  # no such network any more
            pass
    return found


async def _described(own: str, ip: str, url: str) -> Router:
    """Raises RouterError."""
    port, path = _parts(url, ip)
    status, text = await _exchange(ip, port, f"GET {path} HTTP/1.0\r\nHost: {ip}:{port}\r\n\r\n")
    if status != 200:
        raise RouterError("no description")
    services = [(_value(one, "serviceType"), _value(one, "controlURL")) for one in text.split("<service>")[1:]]
    for wanted in SERVICES:
        for kind, control in services:
            if kind == wanted:
                return Router(ip, *_parts(urljoin(url, control), ip), kind, own)
    raise RouterError("it forwards no ports")


def _parts(url: str, ip: str) -> tuple[int, str]:
    """The port and path of a URL at an IP address. Raises RouterError where it leads anywhere else."""
    parts = _URL.fullmatch(url)
    if parts is None or parts[1] != ip or not 0 < (port := int(parts[2] or 80)) < 1 << 16:
        raise RouterError("it names another machine")
    return port, parts[3]


async def _ask(router: Router, action: str, names: dict[str, str]) -> str:
    """The answer to an action. Raises RouterError."""
    body = (
        '<?xml version="1.0"?><s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" '
        's:encodingStyle="http://schemas.xmlsoap.org/soap/encoding/"><s:Body>'
        f'<u:{action} xmlns:u="{router.service}">'
        + "".join(f"<{name}>{value}</{name}>" for name, value in names.items())
        + f"</u:{action}></s:Body></s:Envelope>"
    )
    head = (
        f"POST {router.path} HTTP/1.0\r\nHost: {router.ip}:{router.port}\r\n"
        f'Content-Type: text/xml; charset="utf-8"\r\nSOAPAction: "{router.service}#{action}"\r\n'
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    status, text = await _exchange(router.ip, router.port, head + body)
    if status == 200:
        return text
    code = _value(text, "errorCode")
    number = int(code) if re.fullmatch("[0-9]{3}", code) else 0
    raise RouterError(f"{number or status} {printable_ascii(_value(text, 'errorDescription'), 60)}".strip(), number)


async def _exchange(ip: str, port: int, said: str) -> tuple[int, str]:
    """The status and text of an answer by HTTP. Raises RouterError."""
    data = bytearray()
    with trio.move_on_after(DEADLINE) as scope:
        try:
            async with await trio.open_tcp_stream(ip, port) as stream:
                await stream.send_all(said.encode())
                async for part in stream:
                    data += part
                    if len(data) > LARGEST or _is_whole(data):
                        break
        except (OSError, trio.BrokenResourceError):
            pass  # what came before may be all
    text = data.decode("utf-8", "replace")
    status = _STATUS.match(text)
    if len(data) > LARGEST or scope.cancelled_caught or status is None:
        raise RouterError("no answer" if not data or scope.cancelled_caught else "an answer that is none")
    return int(status[1]), text.partition("\r\n\r\n")[2]


def _is_whole(data: bytearray) -> bool:
    """Of what says how long it is; else it ends with the connection."""
    head, end, body = bytes(data).partition(b"\r\n\r\n")
    length = _LENGTH.search(head + b"\r\n") if end else None
    return length is not None and len(body) >= int(length[1])


def _value(text: str, name: str) -> str:
    """What the first element of a name holds, if that is text; else nothing."""
    found = re.search(rf"<{name}(?:\s[^<>]{{0,200}})?>([^<]{{0,1100}})</{name}>", text)
    return html.unescape(found[1].strip()) if found else ""
