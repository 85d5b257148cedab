"""Streams of the muxer, without a network."""

from collections.abc import Sequence

import pytest
import trio
from libp2p.stream_muxer.exceptions import MuxedStreamError
from libp2p.stream_muxer.yamux.yamux import HEADER_SIZE, YamuxStream
from trio.testing import wait_all_tasks_blocked

from dlx.p2p import muxer
from tests.patience import PATIENCE


class Connection:
    """Takes frames, and keeps their bodies."""

    frame = room = 1000

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def write_frames(self, frames: Sequence[bytes]) -> None:
        await trio.lowlevel.checkpoint()
        self.bodies += [frame[HEADER_SIZE:] for frame in frames]


def stream_on(connection: Connection, window: int) -> muxer.LeanStream:
    stream = muxer.lean(YamuxStream(1, connection, is_initiator=True))  # type: ignore[arg-type]
    stream.send_window = window
    return stream


async def test_a_writer_sleeps_until_its_window_grows():
    connection = Connection()
    stream = stream_on(connection, 4)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.write, b"0123456789")
            await wait_all_tasks_blocked(cushion=0.05)  # never, while it looks every few milliseconds
            assert connection.bodies == [b"0123"]
            stream.send_window += 3
            await wait_all_tasks_blocked(cushion=0.05)
            assert connection.bodies == [b"0123", b"456"]
            stream.send_window += 3
        assert b"".join(connection.bodies) == b"0123456789"


async def test_a_writer_wakes_where_its_stream_ends():
    stream = stream_on(Connection(), 0)

    async def write() -> None:
        with pytest.raises(MuxedStreamError, match="closed"):
            await stream.write(b"more")

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await wait_all_tasks_blocked()
            stream.closed = True


async def test_a_writer_does_not_wait_for_ever_for_a_peer_that_reads_nothing(monkeypatch):
    monkeypatch.setattr(muxer, "WINDOW_DEADLINE", 0.1)
    with pytest.raises(MuxedStreamError, match="the peer read nothing for 0 s"):
        await stream_on(Connection(), 0).write(b"more")
