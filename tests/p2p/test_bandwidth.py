"""The operator's limit on the node's traffic."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from dlx.ground.blobs import Kind
from dlx.p2p import transport
from dlx.p2p.bandwidth import BURST_SECONDS, Limit, is_near
from tests.p2p.network import Node, running


def test_what_several_ask_for_goes_out_at_the_rate_and_in_turn() -> None:
    done: list[int] = []

    async def main() -> None:
        limit, began = Limit(1000), trio.current_time()

        async def send(who: int) -> None:
            for _ in range(10):
                await limit.take(100)
                done.append(who)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, 0)
            nursery.start_soon(send, 1)
        assert trio.current_time() - began == pytest.approx(2.0 - BURST_SECONDS)
        assert limit.pause() == 0
        await trio.sleep(100)
        await limit.take(1000)  # what was not used is not saved up
        assert trio.current_time() - began == pytest.approx(2.0 - BURST_SECONDS + 100 + 1.0 - BURST_SECONDS)
        await Limit().take(10**12)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert {0, 1} == set(done[4:6]), "neither waits for all of the other"


@pytest.mark.parametrize("which", ["up_limit", "down_limit"])
async def test_a_node_that_is_limited_takes_as_long_as_its_limit_says_and_no_neighbour_of_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    size, rate = 400_000, 400_000
    for near in (False, True):
        monkeypatch.setattr(transport, "is_near", lambda address, near=near: near)
        limits = {which: rate}
        serves = Node(1, tmp_path / f"{near}", limits=limits if which == "up_limit" else {})
        asks = Node(2, tmp_path / f"{near}", limits=limits if which == "down_limit" else {})
        name = serves.store.put(bytes(size), Kind.PAYLOAD)
        async with running(serves, asks):
            asks.host.known(serves.id, serves.host.addresses)
            await asks.host.connect(serves.id)
            began = trio.current_time()
            await asks.blobs.fetch(name, size)
            seconds = trio.current_time() - began
        # A busy machine makes it longer, never shorter: the pipe's own buffers take some of it at once.
        assert near or seconds > 0.3 * size / rate, seconds


def test_this_machines_own_networks_are_near() -> None:
    assert is_near("127.0.0.1") and is_near("::1")
    assert not is_near("203.0.113.7") and not is_near("nonsense")
