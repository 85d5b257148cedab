import hashlib
import os
import signal
import threading
import time
from typing import Any

import pytest
import trio

from dlx.ground.blobs import CHUNK, BlobStore, Kind, NoRoom
from dlx.p2p import exchange, serving, sharing, transfer, wire
from dlx.p2p.exchange import BlobError, BlobNotFound, BlobTimeout, BlobTooLarge
from dlx.p2p.streams import StreamBroken, read_exact, read_short, write_short
from tests.p2p.network import PIPE, Node, network, other_process, until
from tests.patience import PATIENCE

GIB = 1 << 30
SLOW_DISK = 5.0  # seconds, longer than whoever waits would wait for a peer


async def test_a_blob_comes_from_whoever_has_it(tmp_path):
    async with network(tmp_path, 3) as (one, two, three):
        for data in (b"", b"x", os.urandom(CHUNK), os.urandom(5 * CHUNK + 1)):
            name = two.store.put(data)
            path = await one.blobs.fetch(name, GIB, None, 20)
            assert path == one.store.path(name) and path.read_bytes() == data
            assert await one.blobs.fetch(name, GIB, None, 0.5) == path  # here already
        assert await three.blobs.fetch(name, GIB, [one.id], 20)
        assert not (one.rejected or two.rejected or three.rejected)


async def test_a_small_blob_crosses_the_network_once(tmp_path):
    async with network(tmp_path, 3) as (one, two, three):
        name = two.store.put(data := os.urandom(CHUNK))
        three.store.put(data)
        before = one.host.bytes_received
        await one.blobs.fetch(name, GIB, None, 20)
        assert one.host.bytes_received - before < 1.2 * CHUNK


async def test_calls_for_the_same_blob_share_one_download(tmp_path):
    async with network(tmp_path, 2) as (one, two):
        name = two.store.put(os.urandom(4 * CHUNK))
        before = one.host.bytes_received
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(one.blobs.fetch, name, GIB, None, 20)
        assert one.host.bytes_received - before < 5 * CHUNK


async def test_what_nobody_has_is_not_found(tmp_path):
    async with network(tmp_path, 3) as (one, two, _):
        with pytest.raises(BlobNotFound, match="nobody has it"):
            await one.blobs.fetch(bytes(32), GIB, None, 20)
        with pytest.raises(BlobNotFound):
            await one.blobs.fetch(bytes(32), GIB, [two.id], 20)
    lonely = Node(9, tmp_path)
    async with lonely.host.run():
        with pytest.raises(BlobNotFound):
            await lonely.blobs.fetch(bytes(32), GIB, None, 20)
        # but somebody who cannot be asked might have it
        with pytest.raises(BlobTimeout, match="only 0 bytes came within 1 s"):
            await lonely.blobs.fetch(bytes(32), GIB, [one.id], 1)


async def test_a_blob_larger_than_allowed_is_refused_by_its_size(tmp_path):
    async with network(tmp_path, 2) as (one, two):
        name = two.store.put(os.urandom(CHUNK))
        before = one.host.bytes_received
        with pytest.raises(BlobNotFound):
            await one.blobs.fetch(name, CHUNK - 1, None, 20)
        assert one.rejected["blob_size"] == 1
        assert one.host.bytes_received - before < 100_000
        await one.blobs.fetch(name, CHUNK, None, 20)


async def test_callers_that_share_a_download_each_have_their_own_limit(tmp_path, monkeypatch):
    both_wait, read = threading.Event(), serving._read_range
    monkeypatch.setattr(serving, "_read_range", lambda *asked: both_wait.wait(PATIENCE) and read(*asked))
    async with network(tmp_path, 2) as (one, two):
        name = two.store.put(data := os.urandom(CHUNK))
        strict: list[BlobError] = []
        generous: list[bytes] = []

        async def small() -> None:
            with pytest.raises(BlobError) as caught:
                await one.blobs.fetch(name, CHUNK - 1, None, 20)
            strict.append(caught.value)

        async def large() -> None:
            generous.append((await one.blobs.fetch(name, CHUNK, None, 20)).read_bytes())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(small)
            await until(lambda: (name, None) in one.blobs._downloads)
            nursery.start_soon(large)
            await until(lambda: one.blobs._downloads[name, None].waiting == 2)
            both_wait.set()
        await small()
        assert generous == [data] and [type(error) for error in strict] == [BlobTooLarge] * 2


@pytest.mark.parametrize("work", ["write", "finish"])
async def test_a_download_that_everybody_left_is_waited_for_and_not_joined(tmp_path, monkeypatch, work):
    begun, goes_on, done = threading.Event(), threading.Event(), getattr(exchange.Partial, work)

    def waits(*args: Any) -> object:
        begun.set()
        goes_on.wait(PATIENCE)
        return done(*args)

    monkeypatch.setattr(exchange.Partial, work, waits)
    async with network(tmp_path, 2) as (one, two):
        name = two.store.put(data := os.urandom(CHUNK))
        leaver = trio.CancelScope()
        fetched: list[bytes] = []

        async def leaves() -> None:
            with leaver:
                await one.blobs.fetch(name, GIB, None, 2 * PATIENCE)

        async def comes() -> None:
            with trio.fail_after(PATIENCE):
                fetched.append((await one.blobs.fetch(name, GIB, None, 2 * PATIENCE)).read_bytes())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(leaves)
            await until(begun.is_set)
            leaver.cancel()
            await until(lambda: one.blobs._downloads[name, None].scope.cancel_called)
            nursery.start_soon(comes)
            await trio.sleep(0.1)
            goes_on.set()
        assert fetched == [data]


async def test_a_slow_disk_is_waited_for(tmp_path, monkeypatch):
    finish = exchange.Partial.finish

    def slowly(partial: exchange.Partial) -> bool:
        time.sleep(SLOW_DISK)
        return finish(partial)

    monkeypatch.setattr(exchange.Partial, "finish", slowly)
    async with network(tmp_path, 2) as (one, two):
        name = two.store.put(data := os.urandom(CHUNK))
        before = one.host.bytes_received
        assert (await one.blobs.fetch(name, GIB, None, SLOW_DISK - 1)).read_bytes() == data
        assert one.host.bytes_received - before < 1.5 * CHUNK, "it came once"


async def test_a_slow_disk_is_waited_for_where_all_came_before(tmp_path, monkeypatch):
    """As after a crash before the last step: not a byte comes any more, and the disk is all that it waits for."""
    finish, slow = exchange.Partial.finish, False

    def crashing_then_slow(partial: exchange.Partial) -> bool:
        if not slow:
            raise OSError("the power is gone")
        time.sleep(SLOW_DISK)
        return finish(partial)

    monkeypatch.setattr(exchange.Partial, "finish", crashing_then_slow)
    async with network(tmp_path, 2) as (one, two):
        name = two.store.put(data := os.urandom(CHUNK))
        with pytest.raises(OSError, match="the power is gone"):
            await one.blobs.fetch(name, GIB, None, 10)
        slow, before = True, one.host.bytes_received
        assert (await one.blobs.fetch(name, GIB, None, SLOW_DISK - 1)).read_bytes() == data
        assert one.host.bytes_received - before < CHUNK / 2, "it came before"


async def ask(node: Node, peer: Node, hash_: bytes, offset: int, length: int) -> tuple[wire.BlobReply, bytes]:
    stream = await node.host.open_stream(peer.id, transfer.BLOB, PATIENCE)
    try:
        await write_short(stream, wire.encode(wire.BlobRequest(hash_, None, False, offset, length)))
        reply = wire.decode_as(wire.BlobReply, await read_short(stream, 256))
        return reply, await read_exact(stream, reply.length)
    finally:
        await stream.reset()


async def test_traffic_is_counted_by_what_it_carries(tmp_path):
    async with network(tmp_path, 2) as (one, two):
        payload, weights = two.store.put(os.urandom(3 * CHUNK), Kind.PAYLOAD), two.store.put(os.urandom(2 * CHUNK))
        await one.blobs.fetch(payload, GIB, None, 20, Kind.PAYLOAD)
        await one.blobs.fetch(weights, GIB, None, 20)
        pipe = await one.pipes.open(two.id, PIPE)
        other = await two.pipes.incoming.receive()
        await pipe.send(bytes(CHUNK // 2))
        await other.receive(PATIENCE)
        for node, carried in ((one, 1), (two, 0)):  # received, sent
            traffic = node.host.traffic()
            assert set(traffic) == {"payload", "pipe", "blobs", "relayed", "gossip", "signalling"}
            assert 3 * CHUNK <= traffic["payload"][carried] < 3.1 * CHUNK
            assert 2 * CHUNK <= traffic["blobs"][carried] < 2.1 * CHUNK
            assert CHUNK // 2 <= traffic["pipe"][1 - carried] < 0.6 * CHUNK
            assert 0 < traffic["signalling"][carried] < CHUNK // 4
            assert sum(sent for sent, _ in traffic.values()) == node.host.bytes_sent
            assert sum(received for _, received in traffic.values()) == node.host.bytes_received
        assert one.store.kind(payload) is Kind.PAYLOAD and one.store.kind(weights) is Kind.PUBLIC


async def test_ranges_end_where_the_blob_ends(tmp_path):
    async with network(tmp_path, 2) as (one, two):
        name = two.store.put(data := os.urandom(1000))
        assert await ask(one, two, name, 0, 0) == (wire.BlobReply(1000, None, 0), b"")
        assert await ask(one, two, name, 990, 100) == (wire.BlobReply(1000, None, 10), data[990:])
        assert await ask(one, two, name, 1000, 1) == (wire.BlobReply(1000, None, 0), b"")
        assert await ask(one, two, name, 1 << 62, CHUNK) == (wire.BlobReply(1000, None, 0), b"")
        assert await ask(one, two, bytes(32), 0, 10) == (wire.BlobReply(None, None, 0), b"")
        with pytest.raises(StreamBroken):
            await ask(one, two, name, 0, CHUNK + 1)
        assert two.rejected["blob_request"] == 1


class Liar(Node):
    """Serves what it holds, with one byte of one chunk changed; or claims another size."""

    def __init__(self, *args, chunk: int | None = None, size: int | None = None, **options) -> None:
        super().__init__(*args, **options)

        async def serve(stream, peer: str) -> None:
            try:
                while True:
                    request = wire.decode_as(wire.BlobRequest, await read_short(stream, 256))
                    blob = self.store.path(request.hash).read_bytes()
                    true_size, data = len(blob), blob[request.offset : request.offset + request.length]
                    at = -1 if chunk is None else chunk * CHUNK - request.offset
                    if 0 <= at < len(data):
                        data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
                    await write_short(stream, wire.encode(wire.BlobReply(size or true_size, None, len(data))), data)
            except StreamBroken:
                pass

        self.host.serve(transfer.BLOB, serve)


async def test_one_of_two_providers_lies_and_is_found_out(tmp_path):
    node, data = Node(1, tmp_path), os.urandom(4 * CHUNK)
    async with node.host.run():
        honest = Node(2, tmp_path, node.host.addresses)
        # whichever chunk it is asked for at first, it will be asked for this one too
        liar = Liar(3, tmp_path, node.host.addresses, chunk=2)
        async with honest.host.run(), liar.host.run():
            await until(lambda: len(node.host.agreed()) == 2)
            name = honest.store.put(data)
            liar.store.put(data)
            for _ in range(20):  # the lie shows only when that chunk comes from the liar
                path = await node.blobs.fetch(name, GIB, None, 30)
                assert path.read_bytes() == data
                if node.bad:
                    break
                path.unlink()
            assert node.bad == [liar.id] and node.rejected["bad_blob"] == 1
            await until(lambda: node.host.agreed() == (honest.id,))


async def test_a_single_liar_leaves_nothing_behind(tmp_path):
    node = Node(1, tmp_path)
    async with node.host.run():
        liar = Liar(3, tmp_path, node.host.addresses, chunk=0)
        async with liar.host.run():
            await until(lambda: node.host.agreed())
            name = liar.store.put(os.urandom(1000))
            with pytest.raises(BlobNotFound):
                await node.blobs.fetch(name, GIB, None, 20)
            assert node.bad == [liar.id] and not node.store.hashes()
            await until(lambda: not node.host.agreed())


@pytest.mark.parametrize("size", [1, 3 * CHUNK, 1 << 40])
async def test_a_wrong_size_does_not_stop_the_right_one(tmp_path, size):
    node, data = Node(1, tmp_path), os.urandom(2 * CHUNK + 7)
    async with node.host.run():
        honest = Node(2, tmp_path, node.host.addresses)
        liars = [Liar(3 + index, tmp_path, node.host.addresses, size=size) for index in range(2)]
        async with honest.host.run(), liars[0].host.run(), liars[1].host.run():
            await until(lambda: len(node.host.agreed()) == 3)
            name = honest.store.put(data)
            for liar in liars:
                liar.store.put(data)
            assert (await node.blobs.fetch(name, GIB, None, 30)).read_bytes() == data
            assert honest.id not in node.bad


async def test_a_provider_that_hangs_does_not_hold_up_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "SILENCE", 2.0)
    node, data = Node(1, tmp_path), os.urandom(8 * CHUNK)
    async with node.host.run():
        honest = Node(2, tmp_path, node.host.addresses)
        hanging = Node(3, tmp_path, node.host.addresses)

        async def answers_only_sizes(stream, peer: str) -> None:
            request = wire.decode_as(wire.BlobRequest, await read_short(stream, 256))
            if request.length:
                await trio.sleep_forever()
            await write_short(stream, wire.encode(wire.BlobReply(len(data), None, 0)))

        hanging.host.serve(transfer.BLOB, answers_only_sizes)
        async with honest.host.run(), hanging.host.run():
            await until(lambda: len(node.host.agreed()) == 2)
            name = honest.store.put(data)
            started = trio.current_time()
            assert await node.blobs.fetch(name, GIB, None, PATIENCE)
            assert trio.current_time() - started < PATIENCE / 2, "the others are not asked while it says nothing"


async def test_a_download_survives_the_death_of_its_provider(tmp_path):
    size = 24 << 20
    node = Node(1, tmp_path)
    with other_process(tmp_path / "a", size) as peer:
        async with node.host.run():
            node.host.known(peer.id, [peer.address])
            await until(lambda: node.host.agreed())
            async with trio.open_nursery() as nursery:

                async def fetch() -> None:
                    with pytest.raises(BlobTimeout):
                        await node.blobs.fetch(peer.blob, GIB, [peer.id], 6)

                nursery.start_soon(fetch)
                await until(lambda: node.host.bytes_received > 4 << 20)
                peer.process.send_signal(signal.SIGKILL)
            assert not node.store.has(peer.blob)
            # another node has the same file
            other = Node(5, tmp_path / "b", node.host.addresses)
            other.store.put(BlobStore(tmp_path / "a" / "blobs99").path(peer.blob).read_bytes())
            async with other.host.run():
                await until(lambda: other.id in node.host.agreed())
                before = node.host.bytes_received
                path = await node.blobs.fetch(peer.blob, GIB, None, 30)
                assert hashlib.sha256(path.read_bytes()).digest() == peer.blob
                assert node.host.bytes_received - before < size - (2 << 20)  # only what was missing


async def test_a_full_disk_is_an_error_of_the_disk(tmp_path, monkeypatch):
    async with network(tmp_path, 2) as (one, two):
        name = two.store.put(os.urandom(CHUNK))

        def full(*args) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(exchange.Partial, "write", full)
        with pytest.raises(OSError, match="No space left"):
            await one.blobs.fetch(name, GIB, None, 20)
        assert one.host.agreed() == (two.id,) and not one.bad and not one.rejected


@pytest.mark.parametrize("fault", ["lost", "finish"])
async def test_a_disk_that_fails_here_is_nobody_elses_fault(tmp_path, monkeypatch, fault):
    """It loses what it took, or cannot put the finished file into its place."""
    async with network(tmp_path, 2) as (one, two):
        name = two.store.put(os.urandom(2 * CHUNK))
        write = exchange.Partial.write

        def loses(partial: exchange.Partial, index: int, data: bytes) -> None:
            write(partial, index, data)
            os.pwrite(partial._file, b"\0" * 100, partial.range(index)[0])

        def fails(*args) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as broken:
            if fault == "lost":
                broken.setattr(exchange.Partial, "write", loses)
            else:
                broken.setattr("dlx.ground.durable.os.replace", fails)
            with pytest.raises(OSError, match=r"Input/output error|gives back other bytes"):
                await one.blobs.fetch(name, GIB, None, 20)
        assert one.host.agreed() == (two.id,) and not one.bad and not one.rejected
        assert await one.blobs.fetch(name, GIB, None, 20)  # the disk is well again


async def test_a_blob_for_which_there_is_no_room_is_nobodys_fault(tmp_path):
    async with network(tmp_path, 2) as (one, two):
        name = two.store.put(os.urandom(2 * CHUNK))
        one.store._room.quota = CHUNK
        with pytest.raises(NoRoom):
            await one.blobs.fetch(name, GIB, None, 20)
        assert one.host.agreed() == (two.id,) and not one.bad and not one.rejected
        one.store._room.quota = None
        assert await one.blobs.fetch(name, GIB, None, 20)


async def test_a_size_that_is_a_lie_and_does_not_fit_does_not_stop_the_right_one(tmp_path):
    node, data = Node(1, tmp_path), os.urandom(CHUNK)
    node.store._room.quota = 2 * CHUNK
    async with node.host.run():
        honest = Node(2, tmp_path, node.host.addresses)
        liars = [Liar(3 + index, tmp_path, node.host.addresses, size=4 * CHUNK) for index in range(2)]
        async with honest.host.run(), liars[0].host.run(), liars[1].host.run():
            await until(lambda: len(node.host.agreed()) == 3)
            name = honest.store.put(data)
            for liar in liars:
                liar.store.put(data)
            assert (await node.blobs.fetch(name, GIB, None, 30)).read_bytes() == data


async def test_a_blob_that_our_disk_damaged_is_removed_instead_of_served(tmp_path):
    async with network(tmp_path, 3) as (one, two, three):
        name = two.store.put(data := os.urandom(2 * CHUNK))
        three.store.put(data)
        two.store.path(name).write_bytes(bytes(2 * CHUNK))
        assert await ask(one, two, name, 0, CHUNK) == (wire.BlobReply(None, None, 0), b"")
        assert not two.store.has(name)
        assert (await one.blobs.fetch(name, GIB, None, 20)).read_bytes() == data
        assert not one.bad and set(one.host.agreed()) == {two.id, three.id}


async def test_a_blob_that_is_served_is_looked_at_again_after_a_while(tmp_path, monkeypatch):
    async with network(tmp_path, 2) as (one, two):
        looked, sound = [], two.store.sound
        monkeypatch.setattr(two.store, "sound", lambda name: looked.append(name) or sound(name))
        name = two.store.put(os.urandom(100))
        looked.clear()
        for _ in range(3):
            await ask(one, two, name, 0, 100)
        assert looked == [name]
        monkeypatch.setattr(serving, "RECHECK", -1.0)
        two.blobs._server._looks.clear()
        two.store.path(name).write_bytes(b"damaged")
        assert await ask(one, two, name, 0, 100) == (wire.BlobReply(None, None, 0), b"")


async def test_streams_that_one_peer_may_hold_are_bounded(tmp_path):
    async with network(tmp_path, 2) as (one, two):
        streams = [await one.host.open_stream(two.id, transfer.BLOB, PATIENCE) for _ in range(serving.STREAMS_PER_PEER)]
        await until(lambda: len(two.blobs._server._streams) == serving.STREAMS_PER_PEER)
        with pytest.raises(StreamBroken):
            await ask(one, two, bytes(32), 0, 0)
        assert two.rejected["blob_busy"] == 1
        for stream in streams:
            await stream.reset()
        await until(lambda: not two.blobs._server._streams)
        assert await ask(one, two, bytes(32), 0, 0)
