import os
import signal

import msgspec
import pytest
import trio

from dlx.p2p import wire
from dlx.p2p.pipe import Pipe, PipeClosed, PipeRefused
from dlx.p2p.streams import PIECE, write_all, write_short
from tests.p2p.network import PIPE, Node, network, other_process, until
from tests.patience import PATIENCE


async def pair(one: Node, two: Node) -> tuple[Pipe, Pipe]:
    here = await one.pipes.open(two.id, PIPE)
    with trio.fail_after(PATIENCE):
        return here, await two.pipes.incoming.receive()


async def test_frames_arrive_whole_and_in_order_both_ways(tmp_path):
    async with network(tmp_path, 2) as (one, two):
        here, there = await pair(one, two)
        assert (here.peer_id, there.peer_id) == (two.id, one.id)
        assert here.hello == there.hello == PIPE
        sizes = [0, 1, PIECE - 4, PIECE - 3, PIECE, 2 * PIECE, 1 << 17, 1 << 20, 3]
        frames = [os.urandom(size) for size in sizes]

        async def send(pipe: Pipe) -> None:
            for frame in frames:
                await pipe.send(memoryview(frame))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, here)
            nursery.start_soon(send, there)
            for frame in frames:
                assert await here.receive(PATIENCE) == frame
                assert await there.receive(PATIENCE) == frame


async def test_several_senders_do_not_mix_their_frames(tmp_path):
    async with network(tmp_path, 2) as (one, two):
        here, there = await pair(one, two)
        async with trio.open_nursery() as nursery:
            for letter in b"abcdef":
                nursery.start_soon(here.send, bytes([letter]) * 300_000)
            for _ in range(6):
                assert len(set(await there.receive(PATIENCE))) == 1


async def test_a_frame_in_two_parts_comes_as_one(tmp_path):
    async with network(tmp_path, 2) as (one, two):
        here, there = await pair(one, two)
        for head, rest in ((0, 0), (1, 0), (0, 1), (3, PIECE), (PIECE - 4, 5), (PIECE, 2 * PIECE), (50, PIECE - 54)):
            frame = os.urandom(head + rest)
            await here.send(frame[:head], memoryview(frame)[head:])
            assert await there.receive(PATIENCE) == frame


async def test_what_was_sent_arrives_although_nobody_read_and_the_sender_closed(tmp_path):
    async with network(tmp_path, 2, frame_limit=8 << 20) as (one, two):
        here, there = await pair(one, two)
        for index in range(10):
            await here.send(bytes([index]) * (1 << 20), deadline_s=PATIENCE)
        await here.aclose()
        for index in range(10):
            assert await there.receive(PATIENCE) == bytes([index]) * (1 << 20)
        with pytest.raises(PipeClosed):
            await there.receive(PATIENCE)
        with pytest.raises(PipeClosed, match="closed here"):
            await here.send(b"")


async def test_a_refusal_gives_the_reason(tmp_path):
    async with network(tmp_path, 2) as (one, two):
        with pytest.raises(PipeRefused, match="no such stage"):
            await one.pipes.open(two.id, msgspec.structs.replace(PIPE, stage=10))
        assert two.rejected["pipe_refused"] == 1


async def test_a_frame_over_the_limit_ends_the_pipe_and_nothing_else(tmp_path):
    async with network(tmp_path, 2, frame_limit=1000) as (one, two):
        here, there = await pair(one, two)
        with pytest.raises(ValueError, match="frame of 1001 bytes, at most 1000"):
            await here.send(bytes(1001))
        await write_all(here._stream, (1 << 31).to_bytes(4, "big"))
        with pytest.raises(PipeClosed, match="frame of 2147483648 bytes, at most 1000"):
            await there.receive(PATIENCE)
        with pytest.raises(PipeClosed):
            await here.receive(PATIENCE)
        await pair(one, two)


async def test_a_neighbour_that_sends_more_than_anybody_reads_is_cut_off(tmp_path):
    async with network(tmp_path, 2, frame_limit=1 << 20) as (one, two):
        here, there = await pair(one, two)
        with pytest.raises(PipeClosed):
            for _ in range(50):
                await here.send(bytes(1 << 20), deadline_s=10)
        for _ in range(2):
            assert len(await there.receive(PATIENCE)) == 1 << 20  # what came before is not lost


async def test_a_deadline_ends_the_wait_for_a_frame(tmp_path):
    async with network(tmp_path, 2) as (one, two):
        here, there = await pair(one, two)
        with pytest.raises(PipeClosed, match="no frame within"):
            await here.receive(0.05)
        with pytest.raises(PipeClosed):
            await there.receive(PATIENCE)


async def test_a_cancelled_send_spoils_the_pipe_but_not_the_connection(tmp_path):
    async with network(tmp_path, 2, frame_limit=64 << 20) as (one, two):
        here, _ = await pair(one, two)
        with trio.move_on_after(0.02) as scope:
            await here.send(bytes(64 << 20))
        assert scope.cancelled_caught
        with pytest.raises(PipeClosed):
            await here.send(b"more")
        again, there = await pair(one, two)
        await again.send(b"fine")
        assert await there.receive(PATIENCE) == b"fine"
        assert one.host.agreed() and two.host.agreed()


async def test_nonsense_instead_of_a_hello_is_counted(tmp_path):
    async with network(tmp_path, 2) as (one, two):
        stream = await one.host.open_stream(two.id, "/dlx/pipe/2", PATIENCE)
        await write_short(stream, wire.encode(wire.BlobReply(1, None, 1)))
        await until(lambda: two.rejected["pipe_schema"])


async def test_nobody_there_is_an_error_in_time(tmp_path):
    node = Node(1, tmp_path)
    async with node.host.run():
        with pytest.raises(PipeClosed, match="cannot be reached"):
            await node.pipes.open(Node(2, tmp_path).id, PIPE, 1)


async def test_a_dead_neighbour_ends_the_pipe(tmp_path):
    node = Node(1, tmp_path)
    with other_process(tmp_path) as peer:
        async with node.host.run():
            node.host.known(peer.id, [peer.address])
            await until(lambda: node.host.agreed())
            pipe = await node.pipes.open(peer.id, PIPE)
            for _ in range(20):
                await pipe.send(frame := os.urandom(1 << 17))
                assert await pipe.receive(PATIENCE) == frame
            peer.process.send_signal(signal.SIGKILL)
            with pytest.raises(PipeClosed):
                await pipe.receive(PATIENCE)


async def test_a_neighbour_that_sends_empty_frames_without_end_is_cut_off(tmp_path):
    """They hold no bytes, and take memory all the same."""
    async with network(tmp_path, 2, frame_limit=4096) as (one, two):
        here, there = await pair(one, two)
        with pytest.raises(PipeClosed):
            for _ in range(100_000):
                await here.send(b"", deadline_s=10)
        came = 0
        with pytest.raises(PipeClosed, match="frames came that nobody read"):
            while True:
                came += len(await there.receive(PATIENCE)) == 0
        assert came < 100
