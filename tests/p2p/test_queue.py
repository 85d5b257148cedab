"""What waits on a slow uplink: a payload, and not what is small."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from dlx.ground.blobs import Kind
from tests.p2p.network import TOPIC, Node, contribution, meet, running, until
from tests.p2p.uplink import Uplink, uplink
from tests.patience import PATIENCE

GIB = 1 << 30
RATE = 235_000 / 8  # bytes a second


@asynccontextmanager
async def behind_an_uplink(directory: Path, others: int, rate: float) -> AsyncIterator[tuple[Node, list[Node], Uplink]]:
    """A node whose uplink is slow once all are connected, and others that know it by that alone."""
    first = Node(1, directory)
    async with uplink(1e9) as link, first.host.run():
        address = await link.through(first.host.addresses[0])
        nodes = [Node(index + 2, directory, [address]) for index in range(others)]
        meet(first, *nodes)
        async with running(*nodes):
            await until(lambda: len(first.host.agreed()) == others == len(first.gossip.neighbours(TOPIC)))
            link.rate = rate
            yield first, nodes, link


async def test_gossip_passes_by_a_payload_on_a_slow_uplink(tmp_path):
    async with behind_an_uplink(tmp_path, 3, RATE) as (maker, others, link), trio.open_nursery() as nursery:
        name = maker.store.put(os.urandom(600_000), Kind.PAYLOAD)
        for node in others:
            nursery.start_soon(node.blobs.fetch, name, GIB, [maker.id], 60, Kind.PAYLOAD)
        for _ in range(3):
            sent = maker.host.bytes_sent
            await until(lambda sent=sent: maker.host.bytes_sent > sent + 80_000)
            message, passed = contribution(), link.passed
            await maker.gossip.publish(TOPIC, message)
            for node in others:
                with trio.fail_after(PATIENCE):
                    while (await node.gossip.messages.receive()).data != message:
                        pass
            assert link.passed - passed < 4 * RATE, "7.5 s of it went before, behind what waited"
        nursery.cancel_scope.cancel()


async def test_states_wait_for_a_payload_but_not_for_ever(tmp_path):
    async with behind_an_uplink(tmp_path, 2, 4 * RATE) as (maker, (checker, member), _), trio.open_nursery() as nursery:
        states = maker.store.put(os.urandom(1_000_000), Kind.VERSION)
        payload = maker.store.put(os.urandom(600_000), Kind.PAYLOAD)
        nursery.start_soon(checker.blobs.fetch, states, GIB, [maker.id], 60, Kind.VERSION)
        sent = maker.host.bytes_sent
        await until(lambda: maker.host.bytes_sent > sent + 50_000)
        before, began = maker.host.traffic()["blobs"][0], trio.current_time()
        await member.blobs.fetch(payload, GIB, [maker.id], 60, Kind.PAYLOAD)
        lasted, beside = trio.current_time() - began, maker.host.traffic()["blobs"][0] - before
        assert 0 < beside < 600_000 / 3, f"half of the uplink was theirs: {beside} bytes in {lasted:.1f} s"
        nursery.cancel_scope.cancel()
