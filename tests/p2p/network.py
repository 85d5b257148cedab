"""Real nodes on loopback for the tests of this package."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio

from dlx.ground.blobs import BlobStore
from dlx.p2p import wire
from dlx.p2p.exchange import BlobExchange
from dlx.p2p.gossip import Gossip
from dlx.p2p.host import Host
from dlx.p2p.message_sync import MessageSync, short_id
from dlx.p2p.pipe import PipeService
from tests.patience import PATIENCE

HELLO = wire.Hello(wire.VERSIONS, wire.FEATURES, 31337, b"L" * 20, b"R" * 32, "0.1.0", b"instance")
TOPIC = "test"
CHOICE = "first", "second"
PIPE = wire.PipeHello(b"R" * 32, 0, 1, b"a" * 20)


class Node:
    """A host with all its services, and what it refused."""

    def __init__(
        self,
        index: int,
        directory: Path,
        bootstrap: Sequence[str] = (),
        frame_limit: int = 1 << 20,
        known: Path | None = None,
        limits: dict[str, float] | None = None,
        **hello: Any,
    ) -> None:
        self.rejected: Counter[str] = Counter()
        self.bad: list[str] = []
        self.host = Host(
            index.to_bytes(32, "big"),
            ["/ip4/127.0.0.1/tcp/0"],
            [],
            msgspec.structs.replace(HELLO, **hello),
            bootstrap,
            on_reject=self._rejects,
            peer_store=known,
            **(limits or {}),
        )
        self.id = self.host.peer_id
        self.gossip = Gossip(self.host, (TOPIC,), CHOICE)
        self.messages: list[bytes] = []
        self.sync = MessageSync(self.host, lambda request: self.beyond(request.have))
        self.store = BlobStore(directory / f"blobs{index}")
        self.blobs = BlobExchange(self.host, self.store)
        self.pipes = PipeService(
            self.host, lambda peer, hello: "no such stage" if hello.stage > 9 else None, frame_limit
        )

    def beyond(self, have: Sequence[bytes]) -> list[bytes]:
        return [message for message in self.messages if short_id(message) not in have]

    def _rejects(self, reason: str, peer: str) -> None:
        self.rejected[reason] += 1
        if reason == "bad_blob":
            self.bad.append(peer)


def meet(*nodes: Any) -> None:
    """The ledger names them all."""
    for node in nodes:
        node.host.members = frozenset(other.id for other in nodes)


@asynccontextmanager
async def running(*nodes: Any) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for node in nodes:
            await stack.enter_async_context(node.host.run())
        yield


@asynccontextmanager
async def network(directory: Path, count: int, **options: Any) -> AsyncIterator[list[Node]]:
    """`count` nodes, all connected to each other, all in the gossip mesh."""
    first = Node(1, directory, **options)
    async with first.host.run():
        others = [Node(i + 2, directory, first.host.addresses, **options) for i in range(count - 1)]
        nodes = [first, *others]
        meet(*nodes)
        async with running(*others):
            await until(lambda: all(len(node.host.agreed()) == count - 1 for node in nodes))
            await until(lambda: all(len(node.gossip.neighbours(TOPIC)) == count - 1 for node in nodes))
            yield nodes


async def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.01)


def contribution() -> bytes:
    return wire.encode(wire.ContributionMessage(os.urandom(961)))


class Peer:
    """A node in its own process; see tests/p2p/peer.py."""

    def __init__(self, process: subprocess.Popen, address: str, id_: str, blob: bytes) -> None:
        self.process, self.address, self.id, self.blob = process, address, id_, blob


@contextmanager
def other_process(directory: Path, blob_size: int = 0) -> Iterator[Peer]:
    command = [sys.executable, "-m", "tests.p2p.peer", str(directory), str(blob_size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as process:
        try:
            assert process.stdout is not None
            address, id_, blob = json.loads(process.stdout.readline())
            yield Peer(process, address, id_, bytes.fromhex(blob))
        finally:
            process.kill()
