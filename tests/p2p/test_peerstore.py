import json

import pytest
from libp2p.crypto.secp256k1 import create_new_key_pair
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from dlx.p2p.peerstore import PEERS, PeerStore
from tests.p2p.network import Node, until

ADDRESS = "/ip4/192.0.2.1/tcp/4646"


def identity(number: int) -> ID:
    return ID.from_pubkey(create_new_key_pair(number.to_bytes(32, "big")).public_key)


async def test_a_restarted_node_finds_its_peers_by_its_own_file(tmp_path):
    there = Node(1, tmp_path)
    file = tmp_path / "state" / "peers.json"
    async with there.host.run():
        here = Node(2, tmp_path, there.host.addresses, known=file)
        async with here.host.run():
            await until(lambda: here.host.agreed() == (there.id,) and file.is_file())
            file.unlink()  # it is also written at the end
        again = Node(2, tmp_path, known=file)  # neither ledger nor bootstrap
        async with again.host.run():
            await until(lambda: again.host.agreed() == (there.id,) and there.host.agreed() == (again.id,))
            blob = there.store.put(b"served without a ledger")
            assert (await again.blobs.fetch(blob, 100, None, 20)).read_bytes() == b"served without a ledger"


async def test_a_peer_that_dialled_us_is_remembered_by_what_it_announced(tmp_path):
    file, here, there = tmp_path / "peers.json", Node(1, tmp_path, known=tmp_path / "peers.json"), Node(2, tmp_path)
    async with there.host.run():
        async with here.host.run():
            there.host.known(here.id, here.host.addresses)
            await until(lambda: here.host.agreed() and here.host._announced_by(identity(2)))
        assert PeerStore(file).peers() == [(identity(2), [Multiaddr(there.host.addresses[0].split("/p2p/")[0])])]


def test_the_file_is_bounded_and_forgets_strangers_and_the_oldest_first(tmp_path):
    store = PeerStore(tmp_path / "peers.json")
    peers = [identity(number) for number in range(1, PEERS + 4)]
    for index, peer in enumerate(peers):
        store.agreed(peer, [Multiaddr(ADDRESS)] * 40, named=index == 0, when=float(index))
    store.save()
    found = PeerStore(tmp_path / "peers.json").peers()
    assert {peer for peer, _ in found} == {peers[0], *peers[4:]} and found[0][0] == peers[0]
    assert found[1][0] == peers[-1]
    assert len(json.loads((tmp_path / "peers.json").read_text())["peers"][0]["addresses"]) == 16
    store.agreed(peers[0], [Multiaddr("/ip4/192.0.2.2/tcp/1")], named=True, when=1e9)
    store.save()
    assert PeerStore(tmp_path / "peers.json").peers()[0] == (peers[0], [Multiaddr("/ip4/192.0.2.2/tcp/1")])


def test_an_endless_address_does_not_cost_the_file(tmp_path):
    """A relay's id makes one longer still; the file would be refused at the next start, whole."""
    store, name = PeerStore(tmp_path / "peers.json"), ".".join(["a" * 60] * 4)
    endless = Multiaddr(f"/dns4/{name}/tcp/4650/p2p/{identity(9)}/p2p-circuit")
    store.agreed(identity(1), [endless, Multiaddr(ADDRESS)], named=True, when=1.0)
    store.save()
    assert PeerStore(tmp_path / "peers.json").peers() == [(identity(1), [Multiaddr(ADDRESS)])]


def entry(**changed) -> dict:
    return {"peer_id": str(identity(1)), "addresses": [ADDRESS], "agreed": 1.0, "named": True, **changed}


@pytest.mark.parametrize(
    "peers",
    [
        [entry(peer_id="0OIl")],
        [entry(peer_id=7)],
        [entry(addresses=["/unix/etc", "nonsense", "/ip4/1.2.3.4/udp/1/quic-v1"])],
        [entry(addresses=[f"{ADDRESS}/p2p/{identity(2)}"])],
        [entry(addresses=[ADDRESS] * 17)],
        [entry(addresses=["/dns4/" + "x" * 300 + "/tcp/1"])],
        [entry(agreed=-1.0)],
        [entry(agreed="yesterday")],
        [entry()] * (PEERS + 1),
        [{}],
        "none",
    ],
)
def test_what_is_wrong_in_the_file_is_not_dialled(tmp_path, peers):
    (tmp_path / "peers.json").write_text(json.dumps({"version": 1, "peers": peers}))
    assert PeerStore(tmp_path / "peers.json").peers() == []


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[" * 100_000, b"{}", b" " * (3 << 20)])
def test_a_file_that_is_none_is_replaced(tmp_path, data):
    (tmp_path / "peers.json").write_bytes(data)
    store = PeerStore(tmp_path / "peers.json")
    assert store.peers() == []
    store.agreed(identity(1), [Multiaddr(ADDRESS)], named=True, when=1.0)
    store.save()
    assert len(PeerStore(tmp_path / "peers.json").peers()) == 1


def test_a_file_of_a_newer_version_is_said_and_left_alone(tmp_path, caplog):
    text = json.dumps({"version": 2, "peers": {"of": "another shape"}})
    (tmp_path / "peers.json").write_text(text)
    store = PeerStore(tmp_path / "peers.json")
    store.agreed(identity(1), [Multiaddr(ADDRESS)], named=True, when=1.0)
    store.save()
    assert "its version is 2, not 1" in caplog.text and (tmp_path / "peers.json").read_text() == text


async def test_addresses_that_strangers_name_push_out_none_of_the_ledgers(tmp_path):
    node, peer = Node(1, tmp_path), identity(2)
    node.host.known(str(peer), [ADDRESS])
    node.host._dialer.found(peer, [Multiaddr(f"/ip4/198.51.100.{number}/tcp/1") for number in range(40)])
    addresses, named = node.host._dialer.entry(peer)
    assert addresses[0] == Multiaddr(ADDRESS) and len(addresses) == 16 and named
    node.host.known(str(peer), ["/ip4/192.0.2.9/tcp/1"])  # it moved
    assert node.host._dialer.entry(peer)[0][:2] == [Multiaddr("/ip4/192.0.2.9/tcp/1"), Multiaddr(ADDRESS)]
