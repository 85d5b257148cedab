import errno
import signal
import socket
from types import SimpleNamespace

import pytest
import trio
from libp2p import new_host
from libp2p.abc import INetStream
from libp2p.crypto.secp256k1 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_ID
from libp2p.security.noise.transport import Transport as NoiseTransport
from multiaddr import Multiaddr

from dlx import p2p
from dlx.p2p.addresses import AddressError, expand, families, is_own, useful
from dlx.p2p.dialback import DialBack
from dlx.p2p.host import Host
from dlx.p2p.layout import GuardError, check_layout
from dlx.p2p.muxer import stream_of
from dlx.p2p.pipe import PipeClosed
from dlx.p2p.streams import StreamBroken, read_exact, write_all
from tests.p2p.network import HELLO, PIPE, Node, network, other_process, running, until
from tests.patience import PATIENCE


async def test_three_nodes_find_each_other_from_one_address(tmp_path):
    async with network(tmp_path, 3) as nodes:
        for node in nodes:
            assert set(node.host.agreed()) == {other.id for other in nodes} - {node.id}
            for peer in node.host.peers():
                assert peer.agreed and peer.version == "0.1.0" and peer.bytes_sent > 0 and peer.bytes_received > 0
            assert not node.rejected


async def test_a_peer_from_the_ledger_is_connected_and_again_after_a_restart(tmp_path):
    here = Node(1, tmp_path)
    there = Node(2, tmp_path)
    async with here.host.run():
        async with there.host.run():
            address = there.host.addresses[0]
            here.host.known(there.id, ["nonsense", "/ip4/127.0.0.1/udp/1/quic-v1", address])
            await until(lambda: here.host.agreed() == (there.id,) and there.host.agreed() == (here.id,))
        await until(lambda: not here.host.agreed())
        again = Host(b"\0" * 31 + b"\x02", [address.split("/p2p/")[0]], [], HELLO)
        async with again.run():
            assert again.addresses == (address,)
            await until(lambda: here.host.agreed() == (there.id,))


@pytest.mark.parametrize("field, value", [("chain_id", 1), ("ledger", b"M" * 20), ("run", b"S" * 32)])
async def test_peers_of_another_network_are_refused(tmp_path, field, value):
    one = Node(1, tmp_path)
    async with one.host.run():
        other = Node(2, tmp_path, one.host.addresses, **{field: value})
        async with other.host.run():
            await until(lambda: one.rejected[f"hello_{field}"] and other.rejected[f"hello_{field}"])
            await until(lambda: not one.host.peers() and not other.host.peers())
            assert not one.host.agreed() and not other.host.agreed()
            with pytest.raises(StreamBroken):
                await other.host.open_stream(one.id, "/dlx/blob/2", 1)


@pytest.mark.parametrize(
    "theirs, common", [((2, 2), 2), ((1, 2), 2), ((2, 9), 3), ((3, 2**32 - 1), 3), ((0, 1), None), ((4, 9), None)]
)
async def test_an_older_or_newer_node_joins_where_the_versions_overlap(tmp_path, caplog, theirs, common):
    one = Node(1, tmp_path, versions=(2, 3), features=("one", "both"))
    async with one.host.run():
        other = Node(2, tmp_path, one.host.addresses, versions=theirs, features=("both", "never-heard-of"))
        async with other.host.run():
            if common is None:
                await until(lambda: one.rejected["hello_versions"] and other.rejected["hello_versions"])
                assert f"speaks protocol versions {theirs[0]} to {theirs[1]}, this node 2 to 3" in caplog.text
                assert not one.host.agreed() and not other.host.agreed()
            else:
                await until(lambda: one.host.agreed() and other.host.agreed())
                for node in (one, other):
                    assert [(peer.protocol, peer.features) for peer in node.host.peers()] == [(common, ("both",))]


async def test_a_plaintext_peer_is_refused(tmp_path):
    victim, node = Node(3, tmp_path), Node(1, tmp_path)
    keys = create_new_key_pair(b"\0" * 31 + b"\x03")
    # knows the victim's public key, and speaks the protocol that needs no proof of the private one
    impostor = new_host(key_pair=keys, sec_opt={PLAINTEXT_PROTOCOL_ID: InsecureTransport(keys)})
    assert str(impostor.get_id()) == victim.id
    async with node.host.run(), impostor.run([Multiaddr("/ip4/127.0.0.1/tcp/0")]):
        with pytest.raises(SwarmException):
            await impostor.connect(info_from_p2p_addr(Multiaddr(node.host.addresses[0])))
        assert not node.host.peers()


def stranger():
    """A libp2p host that speaks Noise, but no word of ours."""
    keys = create_new_key_pair()
    return new_host(key_pair=keys, sec_opt={NOISE_ID: NoiseTransport(keys, create_noise_key_pair().private_key)})


async def test_a_stranger_without_a_hello_reaches_nothing_and_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(p2p.hello, "HELLO_DEADLINE", 1.0)
    node = Node(1, tmp_path)
    host = stranger()
    async with node.host.run(), host.run([Multiaddr("/ip4/127.0.0.1/tcp/0")]):
        info = info_from_p2p_addr(Multiaddr(node.host.addresses[0]))
        await host.connect(info)
        stream = await host.new_stream(info.peer_id, ["/dlx/blob/2"])
        with pytest.raises(Exception):  # noqa: B017 - reset, by whatever name
            await stream.read(1)
        await until(lambda: node.rejected["no_hello"] and not node.host.peers())


async def test_a_stranger_cannot_push_memory(tmp_path):
    node = Node(1, tmp_path)
    host = stranger()
    async with node.host.run(), host.run([Multiaddr("/ip4/127.0.0.1/tcp/0")]):
        info = info_from_p2p_addr(Multiaddr(node.host.addresses[0]))
        await host.connect(info)
        stream = await host.new_stream(info.peer_id, ["/dlx/blob/2"])
        stream.muxed_stream.send_window = 1 << 30
        with pytest.raises(Exception):  # noqa: B017
            for _ in range(100):
                await stream.write(bytes(1 << 20))
        assert node.host.bytes_received < 8 << 20


async def test_a_peer_that_ignores_flow_control_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(p2p.muxer, "BUFFER_LIMIT", 12 << 20)
    monkeypatch.setattr(p2p.muxer, "STRANGER_BUFFER", 4 << 20)
    async with network(tmp_path, 3) as (node, stranger, member):
        node.host.meet({member.id: []})

        async def never_reads(stream: INetStream, peer: str) -> None:
            await trio.sleep_forever()

        node.host.serve("/test/stuck", never_reads)
        for hostile, least, most in ((stranger, 4 << 20, 10 << 20), (member, 12 << 20, 24 << 20)):
            before, node.rejected["buffer"] = node.host.bytes_received, 0
            stream = await hostile.host.open_stream(node.id, "/test/stuck", PATIENCE)
            stream.muxed_stream.send_window = 1 << 30
            with pytest.raises(StreamBroken):
                await write_all(stream, bytes(64 << 20))
            assert node.rejected["buffer"] == 1
            assert least < node.host.bytes_received - before < most


async def test_a_protocol_name_has_a_length(tmp_path):
    node = Node(1, tmp_path)
    async with node.host.run():
        port = int(node.host.addresses[0].split("/")[4])
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(b"\xff\xff\xff\xff\x0f" + bytes(1 << 16))
        with trio.fail_after(PATIENCE):
            try:
                while await stream.receive_some():
                    pass
            except trio.BrokenResourceError:
                pass
        assert node.host.bytes_received < 1 << 20


async def test_an_exception_in_a_handler_costs_one_stream(tmp_path):
    async with network(tmp_path, 2) as (node, other):

        async def fails(stream: INetStream, peer: str) -> None:
            raise ZeroDivisionError

        node.host.serve("/test/fails", fails)
        for count in range(1, 4):
            with pytest.raises(StreamBroken):  # the failure may be faster than the opening
                await read_exact(await other.host.open_stream(node.id, "/test/fails", PATIENCE), 1)
            assert node.rejected["handler"] == count
        assert node.host.agreed() == (other.id,)


async def test_streams_per_connection_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(p2p.guarded_host, "STREAM_LIMIT", 10)
    monkeypatch.setattr(p2p.guarded_host, "STRANGER_STREAMS", 6)
    async with network(tmp_path, 3) as (node, other, member):
        node.host.meet({member.id: []})

        async def waits(stream: INetStream, peer: str) -> None:
            await trio.sleep_forever()

        node.host.serve("/test/waits", waits)
        for peer, limit in ((other, 6), (member, 10)):
            opened, refused = 0, node.rejected["streams"]
            with pytest.raises(StreamBroken):
                for _ in range(20):
                    await peer.host.open_stream(node.id, "/test/waits", PATIENCE)
                    opened += 1
            assert limit - 6 < opened <= limit and node.rejected["streams"] > refused


async def test_accepting_goes_on_however_many_came_before(tmp_path):
    node = Node(1, tmp_path)
    # the library holds one of these per accepted connection for as long as the process lives
    node.host._network._inbound_limiter = trio.CapacityLimiter(2)
    async with node.host.run():
        for index in range(5):
            other = Node(10 + index, tmp_path, node.host.addresses)
            async with other.host.run():
                await until(lambda: len(node.host.agreed()) == 1)
            await until(lambda: not node.host.agreed())
        assert not node.rejected


async def test_bytes_are_counted_below_the_encryption(tmp_path):
    async with network(tmp_path, 2, frame_limit=4 << 20) as (one, two):
        sent, received = one.host.bytes_sent, two.host.bytes_received
        pipe = await one.pipes.open(two.id, PIPE)
        await pipe.send(bytes(2 << 20))
        await (await two.pipes.incoming.receive()).receive(PATIENCE)
        assert 2 << 20 < one.host.bytes_sent - sent < 2.2 * (1 << 20)
        assert 2 << 20 < two.host.bytes_received - received < 2.2 * (1 << 20)


async def test_a_banned_peer_stays_out(tmp_path):
    async with network(tmp_path, 2) as (node, other):
        node.host.ban(other.id, "abuse")
        await until(lambda: not node.host.agreed() and not other.host.agreed())
        await until(lambda: node.rejected["banned"])  # it came back
        await until(lambda: not node.host.agreed())


async def test_a_disconnected_peer_comes_back(tmp_path):
    async with network(tmp_path, 2) as (node, other):
        pipe = await node.pipes.open(other.id, PIPE)
        await node.host.disconnect(other.id)
        with pytest.raises(PipeClosed):
            await pipe.receive(PATIENCE)
        await until(lambda: node.host.agreed() == (other.id,))
        await node.pipes.open(other.id, PIPE)


async def test_a_peer_that_falls_silent_is_noticed_and_may_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(p2p.ping, "PING_INTERVAL", 0.6)
    monkeypatch.setattr(p2p.ping, "PING_DEADLINE", 0.3)
    node = Node(1, tmp_path)
    with other_process(tmp_path) as peer:
        async with node.host.run():
            node.host.known(peer.id, [peer.address])
            await until(lambda: node.host.peers() and node.host.peers()[0].rtt_ms)
            peer.process.send_signal(signal.SIGSTOP)
            await until(lambda: not node.host.agreed())
            assert node.rejected["silent"]
            peer.process.send_signal(signal.SIGCONT)
            await until(lambda: node.host.agreed())


async def test_stopping_does_not_wait_for_a_peer_that_no_longer_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(p2p.muxer, "WINDOW_DEADLINE", 10 * PATIENCE)  # how long a writer would wait for it
    node = Node(1, tmp_path, frame_limit=64 << 20)
    with other_process(tmp_path) as peer:
        async with node.host.run(), trio.open_nursery() as nursery:
            node.host.known(peer.id, [peer.address])
            await until(lambda: node.host.agreed())
            pipe, other = await node.pipes.open(peer.id, PIPE), await node.pipes.open(peer.id, PIPE)
            peer.process.send_signal(signal.SIGSTOP)
            with pytest.raises(PipeClosed):
                await other.send(bytes(32 << 20), deadline_s=0.5)

            async def send() -> None:
                with pytest.raises(Exception):  # noqa: B017
                    await pipe.send(bytes(32 << 20))

            nursery.start_soon(send)
            sent = -1
            while sent != node.host.bytes_sent:  # until the socket takes no more
                sent = node.host.bytes_sent
                await trio.sleep(0.3)
            started = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - started < PATIENCE, "it does not wait for the peer, which never reads again"


async def test_a_port_in_use_is_an_error_and_not_shared():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        host = Host(b"k" * 32, [f"/ip4/127.0.0.1/tcp/{port}"], [], HELLO)
        with pytest.raises(AddressError, match=rf"port {port} .* in use; choose another with --listen"):
            async with host.run():
                pass


async def test_a_machine_without_ipv6_listens_by_ipv4_alone(monkeypatch, caplog):
    """A process that may open no socket of a family has none, as where the kernel has no IPv6."""
    caplog.set_level("INFO", logger="dlx.p2p")
    with monkeypatch.context() as patch:
        patch.setattr(p2p.addresses, "socket", SimpleNamespace(**vars(socket) | {"socket": Socket4}))
        host = Host(b"k" * 32, ["/ip4/127.0.0.1/tcp/0", "/ip6/::/tcp/0"], [], HELLO)
        async with host.run():
            (address,) = host.listening()
            assert address.startswith("/ip4/127.0.0.1/tcp/")
        assert [one.message for one in caplog.records if "listening on" in one.message] == [
            "not listening on /ip6/::/tcp/0: Address family not supported by protocol"
        ]
        with pytest.raises(AddressError, match=r"cannot listen on port 0 .*: Address family not supported"):
            async with Host(b"k" * 32, ["/ip6/::/tcp/0"], [], HELLO).run():
                pass
    with pytest.raises(AddressError, match=r"cannot listen on port 0 .*: Cannot assign requested address"):
        async with Host(b"k" * 32, ["/ip4/127.0.0.1/tcp/0", "/ip4/192.0.2.1/tcp/0"], [], HELLO).run():
            pass


class Socket4(socket.socket):
    def __init__(self, family=-1, *rest, **more):
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        super().__init__(family, *rest, **more)


async def test_a_wildcard_is_announced_as_real_addresses():
    host = Host(b"k" * 32, ["/ip4/0.0.0.0/tcp/0"], [], HELLO)
    async with host.run():
        assert host.addresses
        for address in host.addresses:
            ip, port, peer = address.split("/")[2], address.split("/")[4], address.split("/")[6]
            assert ip != "0.0.0.0" and int(port) > 0 and peer == host.peer_id
            with socket.create_connection((ip, int(port)), timeout=PATIENCE):
                pass


async def test_who_listens_at_the_wildcard_of_ipv6_alone_is_announced_by_ipv4_too():
    """Connections by IPv4 come to that one, as the library makes it."""
    host = Host(b"k" * 32, ["/ip6/::/tcp/0"], [], HELLO)
    async with host.run():
        by_ipv4 = [one.split("/") for one in host.addresses if one.startswith("/ip4/")]
        assert by_ipv4 and families(host.bound) == {"ip4", "ip6"}
        for _, _, ip, _, port, *_ in by_ipv4:
            with socket.create_connection((ip, int(port)), timeout=PATIENCE):
                pass
        assert is_own(Multiaddr(f"/ip4/127.0.0.1/tcp/{port}"), host.bound)
    both = [Multiaddr("/ip6/::/tcp/5"), Multiaddr("/ip4/127.0.0.1/tcp/5")]
    assert [str(one) for one in expand(both) if "/ip4/" in str(one)] == ["/ip4/127.0.0.1/tcp/5"], (
        "another listens there"
    )


async def test_a_port_that_another_has_by_ipv4_is_not_listened_on_by_the_wildcard_of_ipv6():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressError, match=rf"cannot listen on port {port} "):
            async with Host(b"k" * 32, [f"/ip6/::/tcp/{port}"], [], HELLO).run():
                pass


async def test_where_a_peer_is_is_known_by_ipv6_too():
    """The library says nothing of it: then all its networks were one, no member had a privilege, and none relayed."""
    node, other = (Host(key * 32, ["/ip6/::1/tcp/0"], [], HELLO) for key in (b"k", b"m"))
    DialBack(node)
    asks = DialBack(other)
    async with node.run(), other.run():
        other.known(node.peer_id, node.addresses)
        await until(lambda: node.agreed() and other.agreed())
        for one in (node, other):
            (status,), (conn,) = one.peers(), one._network.get_connections()
            assert status.addresses[0].startswith("/ip6/::1/tcp/")
            assert (stream_of(conn).address, stream_of(conn).networks) == ("::1", ("::/32", "::/48"))
        port = int(other.addresses[0].split("/")[4])
        assert await asks.ask(node.peer_id, [port]) == ("::1", {port: True})


async def test_announced_addresses_replace_the_real_ones():
    host = Host(b"k" * 32, ["/ip4/127.0.0.1/tcp/0"], ["/dns4/node.example.org/tcp/4001"], HELLO)
    async with host.run():
        assert host.addresses == (f"/dns4/node.example.org/tcp/4001/p2p/{host.peer_id}",)


@pytest.mark.parametrize(
    "text", ["", "nonsense", "/ip4/1.2.3.4", "/ip4/1.2.3.4/udp/1", "/ip4/1.2.3.4/tcp/1", "/ip4/1.2.3.4/tcp/1/p2p/xyz"]
)
def test_an_unusable_bootstrap_address_is_named(text):
    with pytest.raises(AddressError, match=r"addr|peer id"):
        Host(b"k" * 32, [], [], HELLO, [text])


def test_the_guards_know_the_library_they_cover(monkeypatch):
    check_layout()
    with monkeypatch.context() as patch:
        patch.setattr(p2p.layout.Yamux, "_read_data_body", lambda self: None)
        with pytest.raises(GuardError, match=r"Yamux\._read_data_body\(self, length\) has changed"):
            check_layout()
    monkeypatch.setattr(p2p.layout.importlib.metadata, "version", lambda name: "0.9.0")
    with pytest.raises(GuardError, match=r"libp2p 0\.9\.0 is installed, this node needs exactly 0\.8\.1"):
        check_layout()


def test_peer_ids_are_those_of_secp256k1_keys():
    host = Host(b"\0" * 31 + b"\x01", [], [], HELLO)
    # generator point of the curve, as the contract derives it
    assert ID.from_base58(host.peer_id).to_bytes().hex() == (
        "00250802122102" + "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"
    )


def test_of_many_interfaces_the_useful_addresses_come_first_and_bridges_not_at_all():
    there = [
        ("lo", "127.0.0.1"), ("docker0", "172.17.0.1"), ("tun0", "10.8.0.2"), ("eth0", "192.168.1.5"),
        ("eth1", "52.20.0.1"), ("eth0", "169.254.0.3"),
    ]  # fmt: skip
    bridges = {"docker0", "br0"}.__contains__
    assert useful(there, ["192.168.1.5"], bridges) == ["52.20.0.1", "192.168.1.5", "10.8.0.2"]
    assert useful([*there[:2], ("br0", "192.168.1.5")], ["192.168.1.5"], bridges) == ["192.168.1.5"], "a bridge to eth0"
    assert useful([*there, ("lo", "::1"), ("eth0", "fe80::5")], ["192.168.1.5", ""], bridges)[-1] == "10.8.0.2"
    assert useful(there[:2], [], bridges) == ["172.17.0.1"], "there is nothing else"
    assert useful([*there[:1], ("lo", "::1")], [], bridges) == ["127.0.0.1", "::1"]


async def test_nobody_dials_itself_because_others_have_the_same_private_address(tmp_path):
    """Two homes both register 192.168.1.2:4650."""
    node, other = Node(1, tmp_path), Node(2, tmp_path)
    async with running(node):
        own = node.host.addresses[0].split("/p2p/")[0]
        node.host.known(other.id, [own])
        await trio.sleep(1.5)
        assert not node.rejected and "no address" in node.host.unreached(other.id)
        async with running(other):
            node.host.known(other.id, [*other.host.addresses, own])
            await until(lambda: node.host.agreed() == (other.id,))
            assert node.host.unreached(other.id) is None
        await until(lambda: (node.host.unreached(other.id) or "").startswith("no answer at /ip4/127.0.0.1/tcp/"))


async def test_a_wildcards_port_on_any_of_this_machines_addresses_is_ones_own():
    host = Host(b"k" * 32, ["/ip4/0.0.0.0/tcp/0"], [], HELLO)
    async with host.run():
        port = host.addresses[0].split("/")[4]
        assert is_own(Multiaddr(f"/ip4/127.0.0.1/tcp/{port}"), host.bound)
        assert not is_own(Multiaddr("/ip4/127.0.0.1/tcp/1"), host.bound)
        assert not is_own(Multiaddr(f"/ip4/192.0.2.1/tcp/{port}"), host.bound)
        assert not is_own(Multiaddr(f"/dns4/localhost/tcp/{port}"), host.bound)


async def test_a_copy_of_a_node_at_work_is_let_in_nowhere_and_knows_why(tmp_path):
    member, original, copy = Node(1, tmp_path), Node(2, tmp_path), Node(2, tmp_path, instance=b"another.")
    async with member.host.run(), original.host.run(), copy.host.run():
        original.host.known(member.id, member.host.addresses)
        await until(lambda: member.host.agreed() == (original.id,) and original.host.agreed() == (member.id,))
        copy.host.known(member.id, member.host.addresses)
        await until(lambda: copy.rejected["hello_taken"] and member.rejected["hello_taken"])
        assert not copy.host.agreed()
        await until(lambda: len(member.host.libp2p.get_network().get_connections(ID.from_base58(copy.id))) == 1)
        assert member.host.agreed() == (original.id,) and original.host.agreed() == (member.id,)
        assert not original.rejected["hello_taken"]


async def test_who_takes_the_place_of_a_node_that_has_ended_or_is_silent_is_let_in(tmp_path, monkeypatch):
    monkeypatch.setattr("dlx.p2p.hello.TAKEN", 0.2)
    member, next_one = Node(1, tmp_path), Node(2, tmp_path, instance=b"another.")
    async with member.host.run(), next_one.host.run():
        async with Node(2, tmp_path, member.host.addresses).host.run():
            await until(lambda: member.host.agreed() == (next_one.id,))
            next_one.host.known(member.id, member.host.addresses)
            await until(lambda: next_one.rejected["hello_taken"])
        await until(lambda: next_one.host.agreed() == (member.id,))
        monkeypatch.setattr("dlx.p2p.hello.HEARD", 0.0)  # nothing of it has come lately
        third = Node(2, tmp_path, member.host.addresses, instance=b"the-3rd.")
        async with third.host.run():
            await until(lambda: third.host.agreed() == (member.id,) and member.host.agreed() == (third.id,))
            assert not third.rejected["hello_taken"]
