"""A slow uplink on loopback: a forwarder before a node, through which all that the node sends is let out at a rate."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

_PACKET = 1448  # bytes
_IN_FLIGHT = 2048  # bytes of one connection that the forwarder's kernel takes before it reads them; Linux doubles it


class Uplink:
    """`through(address)`: a multiaddr of the node as those behind the forwarder know it. Connections share the rate."""

    def __init__(self, rate: float, nursery: trio.Nursery) -> None:
        self.rate = rate  # bytes a second
        self.passed = 0  # bytes that were let out
        self._turn = trio.Lock()  # first come, first served: a packet of each connection in turn
        self._nursery = nursery

    async def through(self, address: str) -> str:
        _, _, host, _, port, *rest = address.split("/")
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")

        async def forward(outside: trio.SocketStream) -> None:
            inside = socket.socket()
            inside.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _IN_FLIGHT)  # before it connects: no large window
            node = trio.SocketStream(trio.socket.from_stdlib_socket(inside))
            await node.socket.connect((host, int(port)))
            async with node, outside, trio.open_nursery() as nursery:
                nursery.start_soon(self._pass, outside, node, False)
                await self._pass(node, outside, True)
                nursery.cancel_scope.cancel()

        self._nursery.start_soon(trio.serve_listeners, forward, listeners)
        return "/".join(["/ip4/127.0.0.1/tcp", str(listeners[0].socket.getsockname()[1]), *rest])

    async def _pass(self, one: trio.SocketStream, other: trio.SocketStream, slowly: bool) -> None:
        try:
            while data := await one.receive_some(_PACKET):
                if slowly:
                    async with self._turn:
                        await trio.sleep(len(data) / self.rate)
                        self.passed += len(data)
                await other.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


@asynccontextmanager
async def uplink(rate: float) -> AsyncIterator[Uplink]:
    async with trio.open_nursery() as nursery:
        yield Uplink(rate, nursery)
        nursery.cancel_scope.cancel()
