"""Strangers who take what they can get: they keep out nobody whom the ledger names, and no other stranger for long."""

import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import psutil
import pytest
import trio
from libp2p import new_host
from libp2p.crypto.secp256k1 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_ID
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.utils.varint import encode_uvarint
from multiaddr import Multiaddr

from dlx.ground.blobs import CHUNK
from dlx.ground.merkle import leaf_hashes, root_of
from dlx.p2p import admission, guarded_host, handshakes, hello, serving, wire
from dlx.p2p.addresses import AddressError
from dlx.p2p.host import Host
from dlx.p2p.negotiation import NAME_LIMIT
from dlx.p2p.streams import StreamBroken, read_exact, read_short, write_short
from dlx.p2p.transport import TOKEN_HEAD, MeteredTCP
from tests.p2p.network import HELLO, Node, network, running, until
from tests.patience import PATIENCE

MIB = 1 << 20
AGREEMENT = b"\x13/multistream/1.0.0\n"  # what both sides say first


async def test_idle_sockets_keep_nobody_out(tmp_path):
    node, newcomer, member = Node(1, tmp_path), Node(2, tmp_path), Node(3, tmp_path)
    node.host._network.connection_config.inbound_upgrade_timeout = 1000.0  # they could hold on for as long
    node.host.meet({member.id: []})
    async with node.host.run(), AsyncExitStack() as stack:
        port = int(node.host.addresses[0].split("/")[4])
        for _ in range(200):
            await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
        await until(lambda: len(node.host._network._handshakes) == handshakes.PENDING_LIMIT)
        async with running(newcomer, member):
            for other in (newcomer, member):
                other.host.known(node.id, node.host.addresses)
            await until(lambda: set(node.host.agreed()) == {newcomer.id, member.id})
        assert node.rejected["handshakes"]


async def test_a_protocols_name_that_is_too_long_ends_the_connection_before_it_is_read(tmp_path):
    """GHSA-hmjq-g7pp-rw3x: whoever reads it answers that it does not know it."""
    node = Node(1, tmp_path)
    async with node.host.run():
        port = int(node.host.addresses[0].split("/")[4])
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            name = b"/" + bytes(NAME_LIMIT) + b"\n"
            await stream.send_all(AGREEMENT + encode_uvarint(len(name)) + name)
            with trio.fail_after(60 * PATIENCE):
                answer = b"".join([part async for part in stream])
        assert answer == AGREEMENT


def test_a_host_listens_and_dials_by_tcp_alone():
    """GHSA-hrfr-7729-443m is about QUIC."""
    with pytest.raises(AddressError, match="not a plain TCP address"):
        Host(b"k" * 32, ["/ip4/127.0.0.1/udp/0/quic-v1"], [], HELLO)
    host = Host(b"k" * 32, [], [], HELLO)
    assert [type(transport) for transport in host._network.transport_manager._transports] == [MeteredTCP]


async def test_handshakes_from_one_network_have_a_budget_and_members_need_none(tmp_path, monkeypatch):
    found = (entry for entries in psutil.net_if_addrs().values() for entry in entries)
    address = next((e.address for e in found if e.family == socket.AF_INET and not e.address.startswith("127.")), None)
    if address is None:
        pytest.skip("loopback has no budget, and this machine has no other address")
    monkeypatch.setattr(handshakes, "NETWORK_BURST", 3.0)
    monkeypatch.setattr(handshakes, "NETWORK_RATE", 1e-6)
    rejected: list[tuple[str, str]] = []
    node = Host(b"k" * 32, [f"/ip4/{address}/tcp/0"], [], HELLO, on_reject=lambda *what: rejected.append(what))
    member = Host(b"m" * 32, [], [], HELLO)
    async with node.run(), member.run(), AsyncExitStack() as stack:
        port = int(node.addresses[0].split("/")[4])
        for _ in range(3):
            await stack.enter_async_context(await trio.open_tcp_stream(address, port))
        async with await trio.open_tcp_stream(address, port) as fourth:
            with suppress(trio.BrokenResourceError):
                assert await fourth.receive_some() == b""
        assert rejected == [("handshakes", address)]
        node.meet({member.peer_id: [f"/ip4/{address}/tcp/4650"]})
        member.known(node.peer_id, node.addresses)
        await until(lambda: node.agreed() == (member.peer_id,))


async def test_handshakes_of_many_networks_have_a_budget_together_and_members_come_first(tmp_path, monkeypatch):
    monkeypatch.setattr(handshakes, "is_loopback", lambda address: False)
    monkeypatch.setattr(handshakes, "RATE", 4.0)
    monkeypatch.setattr(handshakes, "BURST", 4.0)
    begun, upgrade = [], guarded_host.GuardedSwarm.upgrade_inbound_raw_conn

    async def counted(swarm, raw, *rest):
        begun.append(raw)
        return await upgrade(swarm, raw, *rest)

    monkeypatch.setattr(guarded_host.GuardedSwarm, "upgrade_inbound_raw_conn", counted)
    node, newcomer, member = Node(1, tmp_path), Node(2, tmp_path), Node(3, tmp_path)
    async with running(node, newcomer, member), trio.open_nursery() as nursery:
        port, started = int(node.host.addresses[0].split("/")[4]), trio.current_time()

        async def flood(network: int) -> None:
            while True:
                with suppress(OSError, trio.BrokenResourceError):
                    source = f"127.1.{network}.1"
                    async with await trio.open_tcp_stream("127.0.0.1", port, local_address=source) as stream:
                        await stream.send_all(AGREEMENT + b"\x07/noise\n" + os.urandom(200))
                        await trio.sleep(0.2)
                        await stream.receive_some()

        for network in range(24):
            nursery.start_soon(flood, network)
        await until(lambda: len(node.host._network._handshakes._waiting) > 12)
        newcomer.host.known(node.id, node.host.addresses)  # no network waits longer than its own
        await until(lambda: newcomer.host.agreed())
        node.host.meet({member.id: ["/ip4/127.0.0.1/tcp/1"]})
        member.host.known(node.id, node.host.addresses)
        await until(lambda: member.host.agreed())
        assert len(begun) <= 6 + 4 * (trio.current_time() - started)
        nursery.cancel_scope.cancel()


async def test_who_says_nothing_goes_or_is_carried_takes_nobodys_turn(tmp_path, monkeypatch):
    monkeypatch.setattr(handshakes, "is_loopback", lambda address: False)
    monkeypatch.setattr(handshakes, "RATE", 1e-3)
    monkeypatch.setattr(handshakes, "BURST", 1.0)
    monkeypatch.setattr(guarded_host, "TOKEN_DEADLINE", 1000.0)  # they could hold on for as long
    node, newcomer, carried = Node(1, tmp_path), Node(2, tmp_path), list[bytes]()

    async def carry(stream, token):
        carried.append(token)

    node.host.carry_with(carry)
    async with running(node, newcomer), AsyncExitStack() as stack:
        port = int(node.host.addresses[0].split("/")[4])
        for _ in range(3):
            await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
        await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
        for number in range(3):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(TOKEN_HEAD + bytes([number] * 16))
                await until(lambda wanted=number + 1: len(carried) == wanted)
        newcomer.host.known(node.id, node.host.addresses)  # the one handshake that there may be
        await until(lambda: newcomer.host.agreed())
        assert len(node.host._network._handshakes) == 3, "those that are over have no place"


async def test_who_agreed_as_a_member_comes_first_when_it_is_back(tmp_path):
    node, member, other = Node(1, tmp_path), Node(2, tmp_path), Node(3, tmp_path)
    async with running(node, member, other):
        node.host.meet({member.id: []})
        other.host.known(node.id, node.host.addresses)
        await until(lambda: node.host.agreed())
        assert not node.host.is_registered("127.0.0.1")
        member.host.known(node.id, node.host.addresses)
        await until(lambda: node.host.is_registered("127.0.0.1"))
        node.host.meet({})
        assert not node.host.is_registered("127.0.0.1")
        node.host.meet({other.id: []})  # it joined while it was connected
        assert node.host.is_registered("127.0.0.1")


@asynccontextmanager
async def invented(node: Node, peers: int, connections: int) -> AsyncIterator[None]:
    """So many peers with so many connections each to a node, all from another network than everybody else's."""
    info = info_from_p2p_addr(Multiaddr(node.host.addresses[0]))
    async with AsyncExitStack() as stack:
        for index in range(peers):
            keys = create_new_key_pair()
            options = {NOISE_ID: NoiseTransport(keys, create_noise_key_pair().private_key)}
            peer = new_host(key_pair=keys, sec_opt=options)
            await stack.enter_async_context(peer.run([]))
            for _ in range(connections):
                with suppress(Exception):  # refused, by whatever name
                    await peer.get_network().dial_addr(info.addrs[0], info.peer_id, (f"127.66.0.{index + 1}", 0))
        yield


async def test_invented_peers_fill_no_place_that_a_member_or_a_newcomer_needs(tmp_path, monkeypatch):
    monkeypatch.setattr(guarded_host, "MAX_CONNECTIONS", 16)
    monkeypatch.setattr(hello, "HELLO_DEADLINE", 1000.0)  # those that say nothing could stay for as long
    node, dialled = Node(1, tmp_path), Node(2, tmp_path)
    async with running(node, dialled), invented(node, peers=6, connections=8):
        live = node.host._network.get_connections
        await until(lambda: len(live()) == 16)
        member, newcomer = Node(3, tmp_path, node.host.addresses), Node(4, tmp_path, node.host.addresses)
        node.host.meet({member.id: [], dialled.id: dialled.host.addresses})
        async with running(member, newcomer):
            await until(lambda: set(node.host.agreed()) == {dialled.id, member.id, newcomer.id})
            await until(lambda: len(live()) <= 16)
        assert node.rejected["connections"]


async def test_a_peer_has_a_few_connections(tmp_path, monkeypatch):
    monkeypatch.setattr(hello, "HELLO_DEADLINE", 1000.0)
    node = Node(1, tmp_path)
    async with node.host.run(), invented(node, peers=1, connections=8):
        await until(lambda: node.rejected["duplicate"] == 8 - guarded_host.CONNECTIONS_PER_PEER)
        await until(lambda: len(node.host._network.get_connections()) == guarded_host.CONNECTIONS_PER_PEER)


async def test_a_peer_in_use_is_kept_where_an_idle_one_has_to_go(tmp_path, monkeypatch):
    monkeypatch.setattr(guarded_host, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(hello, "HELLO_DEADLINE", 1000.0)
    node, used = Node(1, tmp_path), Node(2, tmp_path)
    async with running(node, used), invented(node, peers=1, connections=1):
        await until(lambda: len(node.host.peers()) == 1)
        node.host.known(used.id, used.host.addresses)  # the youngest
        await until(lambda: node.host.agreed() == (used.id,))
        await node.host.open_stream(used.id, serving.BLOB, PATIENCE)
        late = Node(3, tmp_path, node.host.addresses)
        node.host.meet({late.id: []})
        async with late.host.run():
            await until(lambda: late.id in node.host.agreed())
            await until(lambda: {peer.peer_id for peer in node.host.peers()} == {used.id, late.id})
            assert used.id in node.host.agreed() and node.rejected["connections"] == 1


async def test_four_strangers_do_not_hold_all_streams_that_blobs_are_served_on(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "STREAMS", 4 * serving.STREAMS_PER_PEER)
    async with network(tmp_path, 7) as (server, member, stranger, *busy):
        server.host.meet({member.id: []})
        async with trio.open_nursery() as nursery:

            async def hold(node: Node) -> None:
                """A stream on which a word is said now and then."""
                while True:
                    with suppress(StreamBroken):
                        stream = await node.host.open_stream(server.id, serving.BLOB, PATIENCE)
                        while True:
                            await write_short(stream, wire.encode(wire.BlobRequest(bytes(32), None, False, 0, 0)))
                            await read_short(stream, 256)
                            await trio.sleep(1)
                    await trio.sleep(0.5)

            for node in busy * serving.STREAMS_PER_PEER:
                nursery.start_soon(hold, node)
            await until(lambda: len(server.blobs._server._streams) == serving.STREAMS)
            for node in (member, stranger):
                name = server.store.put(os.urandom(3 * CHUNK))
                await node.blobs.fetch(name, 4 * MIB, [server.id], 30)
            assert server.rejected["blob_busy"]
            nursery.cancel_scope.cancel()


async def test_strangers_do_not_hold_all_streams_of_the_dht(tmp_path):
    async with network(tmp_path, 4) as (server, *busy):
        for node in busy * (guarded_host.DHT_STREAMS_PER_PEER + 2):
            with suppress(Exception):  # refused, by whatever name
                await node.host.libp2p.new_stream(
                    server.host.libp2p.get_id(), [guarded_host.KAD_ID]
                )  # and says nothing
        await until(lambda: len(server.host.libp2p._dht) == guarded_host.DHT_STREAMS)
        seeker = Node(9, tmp_path, server.host.addresses)
        async with seeker.host.run():
            await until(lambda: len(seeker.host.agreed()) == 4)  # the others are known from the DHT alone
        assert server.rejected["dht_busy"]


async def test_a_stranger_that_downloads_for_ever_has_a_budget_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "STRANGER_BYTES", 6 * MIB)
    monkeypatch.setattr(serving, "LONGEST_WAIT", 0.5)
    async with network(tmp_path, 4) as (server, member, stranger, greedy):
        server.host.meet({member.id: []})
        name, got = server.store.put(os.urandom(8 * CHUNK)), 0
        started = trio.current_time()
        with pytest.raises(StreamBroken):
            stream = await greedy.host.open_stream(server.id, serving.BLOB, PATIENCE)
            for index in range(100):
                await write_short(stream, wire.encode(wire.BlobRequest(name, None, False, index % 8 * CHUNK, CHUNK)))
                reply = wire.decode_as(wire.BlobReply, await read_short(stream, 256))
                got += len(await read_exact(stream, reply.length))
        assert 5 * MIB <= got <= 6 * MIB + (trio.current_time() - started) * 6 * MIB / 60
        await until(lambda: server.rejected["blob_wait"] == 1)
        await member.blobs.fetch(name, 8 * MIB, [server.id], 30)
        await stranger.blobs.fetch(server.store.put(os.urandom(3 * CHUNK)), 8 * MIB, [server.id], 30)


async def test_hashes_of_leaves_are_made_once_and_for_members(tmp_path, monkeypatch):
    """They take the whole file, however few of them are asked for."""
    made, file_leaves = [], serving.file_leaves
    monkeypatch.setattr(serving, "file_leaves", lambda path: made.append(path) or time.sleep(0.2) or file_leaves(path))
    async with network(tmp_path, 3) as (server, member, stranger):
        server.host.meet({member.id: []})
        data = os.urandom(CHUNK)
        name, root = server.store.put(data), root_of(leaf_hashes(data))
        sizes: dict[str, list[int | None]] = {member.id: [], stranger.id: []}

        async def ask(node: Node) -> None:
            stream = await node.host.open_stream(server.id, serving.BLOB, PATIENCE)
            await write_short(stream, wire.encode(wire.BlobRequest(name, root, True, 0, 32)))
            sizes[node.id].append(wire.decode_as(wire.BlobReply, await read_short(stream, 256)).size)

        async with trio.open_nursery() as nursery:
            for node in [member, stranger] * 3:
                nursery.start_soon(ask, node)
        assert sizes == {member.id: [CHUNK] * 3, stranger.id: [None] * 3}
        assert len(made) == 1


async def test_nothing_is_kept_of_strangers_that_are_gone(tmp_path):
    async with network(tmp_path, 3) as (one, two, stranger):
        await one.blobs.fetch(stranger.store.put(b"theirs"), MIB, [stranger.id], 20)
        assert stranger.id in one.blobs._peers.idle
        one.host.ban(stranger.id, "it is gone")
        await until(lambda: stranger.id not in one.host.agreed())
        await one.blobs.fetch(two.store.put(b"others"), MIB, [two.id], 20)
        await until(lambda: not one.blobs._downloads)
        peers = one.blobs._peers
        assert not any(stranger.id in known for known in (peers.idle, peers.rates, peers.places))


async def test_members_are_served_before_strangers(tmp_path):
    async with network(tmp_path, 4) as (server, member, *strangers):
        server.host.meet({member.id: []})
        names = [server.store.put(os.urandom(48 * CHUNK)) for _ in range(3)]
        async with trio.open_nursery() as nursery:
            for node, name in zip(strangers, names, strict=False):
                nursery.start_soon(node.blobs.fetch, name, 64 * MIB, [server.id], 120)
            await until(lambda: all(node.blobs._downloads for node in strangers))
            started, before = trio.current_time(), _received(strangers)
            await member.blobs.fetch(names[2], 64 * MIB, [server.id], 120)
            seconds, taken = trio.current_time() - started, _received(strangers) - before
        under_way = serving.STRANGERS_AT_ONCE * CHUNK + MIB  # and what is no blob
        assert taken < 48 * MIB / admission.SHARE + seconds * admission.TRICKLE + admission.SAVED + under_way
        assert all(node.store.has(name) for node, name in zip(strangers, names, strict=False))  # and they are served


def _received(nodes: list[Node]) -> int:
    return sum(node.host.bytes_received for node in nodes)


async def test_whom_the_ledger_names_no_more_is_a_stranger_again(tmp_path):
    node, member, friend = Node(1, tmp_path), Node(2, tmp_path), Node(3, tmp_path)
    where = "/ip4/203.0.113.7/tcp/1"
    node.host.known(friend.id, [where])
    node.host.meet({member.id: [where], friend.id: [where], node.id: []})
    assert all(map(node.host.is_registered, (member.id, friend.id, node.id, "203.0.113.7")))
    node.host.meet({node.id: []})
    assert not any(map(node.host.is_registered, (member.id, friend.id, "203.0.113.7")))
    for peer, named in ((member, False), (friend, True)):
        assert node.host._dialer.entry(peer.host.libp2p.get_id())[1] is named


async def test_whom_the_ledger_named_comes_first_until_the_chain_is_read(tmp_path):
    known, member = tmp_path / "peers.json", Node(2, tmp_path)
    async with member.host.run():
        node = Node(1, tmp_path, known=known)
        node.host.meet({member.id: member.host.addresses})
        async with node.host.run():
            await until(lambda: node.host.agreed())
    again = Node(1, tmp_path, known=known)
    assert again.host.is_registered(member.id) and not again.host.members
    again.host.meet({})
    assert not again.host.is_registered(member.id)
