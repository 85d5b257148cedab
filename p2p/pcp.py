"""A home's router is asked for a port by PCP (RFC 6887), or by NAT-PMP (RFC 6886) where it speaks only that.

What it answers is a stranger's word: of the exact length, to the question that was asked, from the gateway alone. Its
epoch is not used: a router that forgot what it forwards is asked again soon enough.
"""

import ipaddress
import secrets
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import trio
from msgspec import Struct

from dlx.p2p.addresses import interfaces
from dlx.p2p.admission import is_ip, is_private
from dlx.p2p.upnp import RouterError

PORT = 5351  # of UDP
DEADLINE = 4.0  # s for an answer
FIRST_WAIT = 0.25  # s until a question is repeated, and twice as long each time: RFC 6886, 3.1
LARGEST = 1100  # bytes of an answer: RFC 6887, 7
TCP = 6
NONCE = 12  # bytes
REFUSALS = {
    1: "version not supported", 2: "not authorized", 3: "network failure, or a malformed request",
    4: "out of resources, or not supported", 5: "not supported", 8: "out of resources", 9: "no TCP",
    10: "too many ports of this machine", 11: "no such address outside", 12: "another router is between",
}  # fmt: skip
_OLD, _NEW = 0, 2  # versions: NAT-PMP, PCP
_ANSWER = 0x80  # in an opcode
_MAP = 1  # opcode of PCP
_ADDRESS, _MAP_TCP = 0, 2  # opcodes of NAT-PMP
_NO_SUCH_VERSION = bytes([0, 1])  # result of NAT-PMP
_PCP_QUESTION = struct.Struct("!BBxxI16s12sB3xHH16s")
_PCP_ANSWER = struct.Struct("!BBxBI16x12sB3xHH16s")
_PCP_LEAST, _PMP_LEAST = 24, 8  # bytes of an answer
_PMP_QUESTION = struct.Struct("!BBxxHHI")
_PMP_ANSWER = struct.Struct("!BBH4xHHI")
_PMP_ADDRESS = struct.Struct("!BBH4x4s")
_ROUTES = Path("/proc/net/route")
_UP_BY_GATEWAY = 0x3  # flags of a route
_Answer = TypeVar("_Answer")


class Gateway(Struct, frozen=True, tag="pcp"):
    """One that may forward ports. `own`: the IP address of this machine in its network. `nonce`: in hex, by which it
    knows again who asked; whoever asks it to forward no longer needs the same."""

    ip: str
    own: str
    nonce: str


@dataclass(frozen=True)
class Lease:
    """`by`: which protocol it speaks. `outside`: its own IP address there, and `external` its port. `seconds`: for
    which it forwards."""

    by: str
    outside: str
    external: int
    seconds: int


class _SpeaksOnlyNatPmp(RouterError):
    pass


def gateway(own: str) -> Gateway | None:
    """The default gateway of the network in which this machine has the IPv4 address `own`, with a new nonce. None
    where none is known: only Linux tells."""
    try:
        table = _ROUTES.read_text()
    except OSError:
        return None
    ip = default_gateway(table, {name for name, address in interfaces("ip4") if address == own})
    return Gateway(ip, own, secrets.token_hex(NONCE)) if is_private(ip) else None


def default_gateway(table: str, names: set[str]) -> str:
    """The IPv4 address of the nearest one through these interfaces, in a table of routes as Linux writes it; empty:
    none."""
    found = list[tuple[int, str]]()
    for line in table.splitlines()[1:]:
        name, target, ip, flags, _, _, metric, mask, *_ = line.split()
        is_default = int(target, 16) == int(mask, 16) == 0 and int(flags, 16) & _UP_BY_GATEWAY == _UP_BY_GATEWAY
        if name in names and is_default:
            found.append((int(metric), socket.inet_ntoa(struct.pack("=I", int(ip, 16)))))
    return min(found)[1] if found else ""


def check(asked: Gateway) -> None:
    """Of one that was kept on disk. Raises RouterError where it could be none."""
    try:
        is_nonce = len(bytes.fromhex(asked.nonce)) == NONCE
    except ValueError:
        is_nonce = False
    if not is_private(asked.ip) or not is_ip(asked.own) or ":" in asked.ip + asked.own or not is_nonce:
        raise RouterError("no router of this network")


async def external_address(asked: Gateway) -> str:
    """What it says its own IP address outside is; empty where it speaks PCP alone, which has no such question. Raises
    RouterError."""

    def read(data: bytes) -> str | None:
        if len(data) >= _PCP_LEAST and data[:2] == bytes([_NEW, _ANSWER | _ADDRESS]):
            return ""
        return read_address(data)

    return await _ask(asked, bytes([_OLD, _ADDRESS]), read)


async def forward(asked: Gateway, port: int, external: int, seconds: int) -> Lease:
    """Have it forward a TCP port to `port` of this machine, for `seconds`: its own port `external`, if it can. Raises
    RouterError; without a code where it may forward it nevertheless."""
    lease = await _map(asked, port, external, seconds)
    if not lease.seconds or not lease.external:
        raise RouterError("an answer that is none")
    return lease


async def stop_forwarding(asked: Gateway, port: int) -> None:
    """Who refuses forwards nothing of ours, or to the end of the lease. Raises RouterError where none answers."""
    try:
        await _map(asked, port, 0, 0)
    except RouterError as error:
        if not error.code:
            raise


async def _map(asked: Gateway, port: int, external: int, seconds: int) -> Lease:
    """Raises RouterError."""
    try:
        return await _ask(asked, pcp_question(asked, port, external, seconds), lambda data: read_pcp(data, asked, port))
    except _SpeaksOnlyNatPmp:
        pass
    outside = await external_address(asked) if seconds else ""
    question = _PMP_QUESTION.pack(_OLD, _MAP_TCP, port, external, seconds)
    return await _ask(asked, question, lambda data: read_pmp(data, port, outside))


def pcp_question(asked: Gateway, port: int, external: int, seconds: int) -> bytes:
    """MAP, of any address outside."""
    own, nonce = _as_six(asked.own), bytes.fromhex(asked.nonce)
    return _PCP_QUESTION.pack(_NEW, _MAP, seconds, own, nonce, TCP, port, external, _as_six("0.0.0.0"))


def read_pcp(data: bytes, asked: Gateway, port: int) -> Lease | None:
    """None where this is no answer to that question. Raises RouterError where it is refused."""
    if len(data) == _PMP_LEAST and data[0] == _OLD and data[2:4] == _NO_SUCH_VERSION:  # whatever its opcode
        raise _SpeaksOnlyNatPmp("only NAT-PMP")
    if len(data) != _PCP_ANSWER.size:
        return None
    version, opcode, result, seconds, nonce, protocol, internal, external, outside = _PCP_ANSWER.unpack(data)
    to = (version, opcode, nonce, protocol, internal)
    if to != (_NEW, _ANSWER | _MAP, bytes.fromhex(asked.nonce), TCP, port):
        return None
    _check_result(result)
    six = ipaddress.IPv6Address(outside)
    return Lease("PCP", str(six.ipv4_mapped or six), external, seconds)


def read_address(data: bytes) -> str | None:
    """The address outside that NAT-PMP tells. None where this is no such answer. Raises RouterError where it is
    refused."""
    if not _is_pmp(data, _ADDRESS, _PMP_ADDRESS.size):
        return None
    return socket.inet_ntoa(_PMP_ADDRESS.unpack(data)[3])


def read_pmp(data: bytes, port: int, outside: str) -> Lease | None:
    """None where this is no answer to that question. Raises RouterError where it is refused."""
    if not _is_pmp(data, _MAP_TCP, _PMP_ANSWER.size):
        return None
    *_, internal, external, seconds = _PMP_ANSWER.unpack(data)
    return Lease("NAT-PMP", outside, external, seconds) if internal == port else None


def _is_pmp(data: bytes, opcode: int, size: int) -> bool:
    """Whether it is an answer of NAT-PMP of this size. Raises RouterError where that is a refusal."""
    if len(data) not in (_PMP_LEAST, size) or data[:2] != bytes([_OLD, _ANSWER | opcode]):
        return False
    _check_result(int.from_bytes(data[2:4], "big"))
    return len(data) == size


def _check_result(result: int) -> None:
    """Raises RouterError where it is a refusal."""
    if result:
        raise RouterError(f"{result} {REFUSALS.get(result, '')}".strip(), result)


def _as_six(ip: str) -> bytes:
    """An IPv4 address as PCP has it."""
    return bytes(10) + b"\xff\xff" + socket.inet_aton(ip)


async def _ask(asked: Gateway, question: bytes, read: Callable[[bytes], _Answer | None]) -> _Answer:
    """What `read` makes of the first answer that it does not call none. Raises RouterError."""
    wait = FIRST_WAIT
    with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, trio.move_on_after(DEADLINE):
        try:
            await asking.bind((asked.own, 0))
            await asking.connect((asked.ip, PORT))  # nobody else is heard
            while True:
                await asking.send(question)
                with trio.move_on_after(wait):
                    while True:
                        found = read(await asking.recv(LARGEST + 1))
                        if found is not None:
                            return found
                wait *= 2
        except OSError:  # it says that nobody listens there, or this machine has another address by now
            pass
    raise RouterError("no answer")
