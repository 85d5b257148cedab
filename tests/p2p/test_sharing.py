"""A blob with a known Merkle root among several members: how often its bytes travel, and what hostile members gain."""

import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio

from dlx.ground.blobs import CHUNK, Kind
from dlx.ground.merkle import leaf_hashes, root_of
from dlx.p2p import discovery, exchange, hello, sharing, transfer, transport, wire
from dlx.p2p.exchange import BlobContradiction, BlobNotFound, BlobTimeout, Tree
from dlx.p2p.sharing import Sharing, Source, bitmap, pieces_of, shares_of
from dlx.p2p.streams import StreamBroken, read_short, write_all, write_short
from tests.p2p.network import Node, meet, network, until
from tests.patience import PATIENCE, patient

GIB = 1 << 30


def tree_of(data: bytes) -> Tree:
    return Tree(len(data), root_of(leaf_hashes(data)))


# ---- decisions ----


def sharing_of(pieces: int, *sources: Source, own: range = range(0)) -> Sharing:
    return Sharing(pieces * 4096, 4096, (), own, list(sources))


def test_no_piece_is_asked_for_twice_as_long_as_something_comes():
    one, two = Source("one", rate=1024.0), Source("two", rate=1024.0)
    plan, asked, now = sharing_of(40, one, two), [], 0.0
    while (first := plan.take(one, now)) and (second := plan.take(two, now)):
        for each in (first, second):
            asked += range(each.first, each.end)
            for _ in range(each.end - each.first):
                now += 4.0  # slowly
                assert plan.replaceable(two if each is first else one, now) is None
                plan.received(first, 0 if each is second else 4096, now)
                plan.received(second, 4096 if each is second else 0, now)
        plan.over(first, first.end - first.first, now)
        plan.over(second, second.end - second.first, now)
    assert sorted(asked) == list(range(40)) and not plan.wants(range(40))


def test_who_is_silent_or_far_slower_than_another_is_replaced():
    good, silent, dripper = Source("good", rate=1e6), Source("silent"), Source("dripper")
    plan = sharing_of(64, good, silent, dripper)
    quiet, drips = plan.take(silent, 0.0), plan.take(dripper, 0.0)
    assert quiet is not None and drips is not None
    for second in range(1, 6):
        plan.received(drips, 1, second)
        assert plan.replaceable(good, second) is None
    plan.received(drips, 1, 6.0)
    assert plan.replaceable(good, 6.0) is quiet
    plan.over(quiet, 0, 6.0)
    assert plan.replaceable(good, 6.0) is drips, "a byte a second is no progress beside a peer that delivers"
    new = Source("new")
    plan.sources.append(new)
    assert plan.replaceable(new, 6.0) is drips, "who was never asked cannot be worse"
    plan.received(drips, 6 * 1024, 6.0)
    assert plan.replaceable(new, 6.0) is None


def test_a_peer_is_not_replaced_by_itself_and_a_lone_slow_one_by_nobody():
    one = Source("one")
    plan = sharing_of(8, one)
    assert plan.take(one, 0.0) and plan.replaceable(one, 1000.0) is None


def test_what_was_kept_is_not_asked_for_again():
    one, two = Source("one"), Source("two", rate=1e6)
    plan = sharing_of(16, one, two)
    first = plan.take(one, 0.0)
    assert first is not None and (first.first, first.end) == (0, 16)
    plan.over(first, 5, 9.0)
    again = plan.take(two, 9.0)
    assert again is not None and (again.first, again.end) == (5, 16)


def test_shares_are_the_same_for_everybody_and_cover_the_blob():
    peers = [f"peer {index}" for index in range(30)]
    found = shares_of(b"h" * 32, peers, 1000)
    assert found == shares_of(b"h" * 32, peers[::-1], 1000) and len(found) == sharing.SHARERS
    assert sorted(piece for share in found.values() for piece in share) == list(range(1000))
    assert found.keys() != shares_of(b"i" * 32, peers, 1000).keys(), "not always the same ones"
    assert shares_of(b"h" * 32, [], 10) == {} and len(shares_of(b"h" * 32, peers, 3)) == 3


def test_the_share_of_a_slow_member_is_had_of_the_maker_in_part():
    maker, slow = Source("maker", rate=100_000.0), Source("slow", 1000.0, frozenset(), range(0, 32))
    plan = sharing_of(64, maker, slow, own=range(32, 64))
    assert (mine := plan.take(maker, 0.0)) and (mine.first, mine.end) == (32, 64)
    assert (theirs := plan.take(slow, 0.0)) and (theirs.first, theirs.end) == (0, 1)
    assert (more := plan.take(maker, 1.0)) and (more.first, more.end) == (16, 32)


def test_a_bitmap_says_which_pieces_are_there():
    assert bitmap([]) == b"" and bitmap([0, 9]) == b"\x01\x02"
    assert pieces_of(bitmap({1, 7, 8, 30})) == {1, 7, 8, 30}


# ---- real hosts ----


@pytest.fixture
def limit(monkeypatch):
    """`limit(node, rate)`: so many bytes a second leave the node, on all its connections together."""
    rates, turns, write = {}, defaultdict(trio.Lock), transport.MeteredStream.write_parts

    async def slowly(stream: transport.MeteredStream, parts: Sequence[bytes]) -> None:
        rate = rates.get(id(stream._total))
        if rate is not None:
            async with turns[id(stream._total)]:
                await trio.sleep(sum(map(len, parts)) / rate)
        await write(stream, parts)

    monkeypatch.setattr(transport.MeteredStream, "write_parts", slowly)
    return lambda node, rate: rates.update({id(node.host._meter): rate})


@pytest.fixture
def waiting_long(monkeypatch):
    """Waiting for who says nothing would take longer than any machine needs for the rest."""
    waits = {
        "ASK_DEADLINE": (exchange, transfer), "SILENCE": (sharing, transfer), "DIAL_DEADLINE": (discovery,),
        "HELLO_DEADLINE": (hello,),
    }  # fmt: skip
    for name, modules in waits.items():
        for module in modules:
            monkeypatch.setattr(module, name, 2 * PATIENCE)


async def test_a_blob_leaves_its_maker_about_once_however_many_fetch_it(tmp_path, limit):
    data = os.urandom(600_000)
    tree = tree_of(data)
    async with network(tmp_path, 5) as nodes:
        maker, *others = nodes
        name = maker.store.put(data, Kind.PAYLOAD)
        for node in nodes:
            limit(node, 400_000)
        sharers = [node.id for node in others]

        async def fetch(node: Node) -> None:
            await node.blobs.fetch(name, GIB, [maker.id], 60, Kind.PAYLOAD, tree, sharers)

        async with trio.open_nursery() as nursery:
            for node in others:
                nursery.start_soon(fetch, node)
        sent = [node.host.traffic()["payload"][0] / len(data) for node in nodes]
        came = [node.host.traffic()["payload"][1] / len(data) for node in others]
        assert all(node.store.sound(name) for node in others)
        assert sent[0] < 2, sent
        assert sum(sent) > 3.9, "what is passed on is counted as what it is"
        assert max(came) < 1.15, "no byte came twice"
        assert not any(node.rejected for node in nodes)


async def test_what_anybody_may_have_is_passed_on_by_the_members_who_fetch_it(tmp_path, limit):
    """The creator is a member like them: its share of the pieces is all that it sends to each."""
    data = os.urandom(400_000)
    async with network(tmp_path, 5) as nodes:
        creator, *others = nodes
        name = creator.store.put(data)
        for node in nodes:
            limit(node, 400_000)
        async with trio.open_nursery() as nursery:
            for node in others:
                nursery.start_soon(node.blobs.fetch, name, GIB, None, 60, Kind.SHARD, tree_of(data))
        sent = [node.host.traffic()["blobs"][0] / len(data) for node in nodes]
        assert all(node.store.sound(name) for node in others)
        assert sent[0] < 3 and sum(sent) > 3.9, sent


async def test_one_copy_crosses_a_slow_link_however_slow(tmp_path, limit, monkeypatch):
    monkeypatch.setattr(sharing, "SILENCE", 1.0)
    async with network(tmp_path, 2) as (one, two):
        name = two.store.put(data := os.urandom(120_000), Kind.PAYLOAD)
        limit(two, 15_000)
        before = one.host.bytes_received
        await one.blobs.fetch(name, GIB, None, 4, Kind.PAYLOAD)  # progress, not time, counts
        assert one.host.bytes_received - before < 1.15 * len(data)


async def test_a_reconnection_costs_no_byte_that_was_here(tmp_path, limit):
    async with network(tmp_path, 2) as (one, two):
        name = two.store.put(data := os.urandom(200_000), Kind.PAYLOAD)
        limit(two, 100_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.blobs.fetch, name, GIB, [two.id], 30, Kind.PAYLOAD, tree_of(data))
            await until(lambda: one.host.traffic()["payload"][1] > 100_000)
            await one.host.disconnect(two.id)
        assert one.host.traffic()["payload"][1] < 1.4 * len(data)


async def test_a_download_goes_on_after_a_restart_where_it_stopped(tmp_path, limit):
    async with network(tmp_path, 2) as (one, two):
        name = two.store.put(data := os.urandom(200_000), Kind.PAYLOAD)
        limit(two, 100_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.blobs.fetch, name, GIB, [two.id], 30, Kind.PAYLOAD, tree_of(data))
            await until(lambda: one.host.traffic()["payload"][1] > 120_000)
            nursery.cancel_scope.cancel()
        await until(lambda: not one.blobs._downloads)
        came = one.host.traffic()["payload"][1]
        assert not one.store.has(name)
        await one.blobs.fetch(name, GIB, [two.id], 30, Kind.PAYLOAD, tree_of(data))
        assert one.host.traffic()["payload"][1] - came < len(data) - came + 70_000


@pytest.mark.parametrize("known", [True, False], ids=["with its root", "by name"])
@pytest.mark.usefixtures("waiting_long")
async def test_a_blob_of_a_maker_that_cannot_be_reached_comes_at_once_of_who_has_it(tmp_path, known):
    """As behind a home router: a member that was connected to it has the blob."""
    maker = Node(9, tmp_path)  # takes connections, and says nothing
    (silent,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = silent.socket.getsockname()[1]
    async with silent, network(tmp_path, 3) as (one, two, three):
        one.host.meet({maker.id: [f"/ip4/127.0.0.1/tcp/{port}"], two.id: [], three.id: []})
        data = os.urandom(10_000)
        name, tree = two.store.put(data, Kind.PAYLOAD), tree_of(data) if known else None
        with trio.fail_after(PATIENCE):  # and not after its patience with the maker
            await one.blobs.fetch(name, GIB, [maker.id], 2 * PATIENCE, Kind.PAYLOAD, tree, [one.id, two.id, three.id])
        assert one.store.sound(name)


@pytest.mark.parametrize("known", [True, False], ids=["with its root", "by name"])
@pytest.mark.parametrize("reachable", [True, False])
@pytest.mark.usefixtures("waiting_long")
async def test_who_is_named_and_who_has_it_are_asked_among_many_that_have_nothing(
    tmp_path, monkeypatch, known, reachable
):
    """More are connected than are asked at a time; the maker is not, and alone has it, or takes connections and says
    nothing while one of them has it."""
    for module in "exchange", "sharing", "transfer":
        monkeypatch.setattr(f"dlx.p2p.{module}.SHARERS", 3)  # fewer connections to make: each node to each
    maker, data = Node(99, tmp_path), os.urandom(10_000)
    (silent,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with silent, AsyncExitStack() as stack:
        one, *others = await stack.enter_async_context(network(tmp_path, 7))
        address = f"/ip4/127.0.0.1/tcp/{silent.socket.getsockname()[1]}"
        member = others[-1]
        if reachable:
            await stack.enter_async_context(maker.host.run())
            (address, *_), member = maker.host.addresses, maker
            maker.host.members = one.host.members
        one.host.meet({maker.id: [address], **{node.id: [] for node in others}})
        assert maker.id not in one.host.agreed()
        name = member.store.put(data, Kind.PAYLOAD)
        with trio.fail_after(PATIENCE):
            await one.blobs.fetch(name, GIB, [maker.id], 2 * PATIENCE, Kind.PAYLOAD, tree_of(data) if known else None)
        assert one.store.sound(name)


async def test_a_small_payload_takes_two_exchanges(tmp_path, monkeypatch):
    """On a slow link each is a way there and back, behind other payloads."""
    async with network(tmp_path, 2) as (one, two):
        asked, begin = [], transfer.Line.begin
        monkeypatch.setattr(transfer.Line, "begin", lambda line, asks: asked.append(asks) or begin(line, asks))
        data = os.urandom(50_000)
        await one.blobs.fetch(two.store.put(data, Kind.PAYLOAD), GIB, [two.id], 20, Kind.PAYLOAD, tree_of(data))
        assert [(request.leaves, request.length) for request in asked] == [(True, 13 * 32), (False, len(data))]


async def test_a_stream_is_opened_once_for_many_blobs(tmp_path, monkeypatch):
    """Opening one costs more bytes than asking on it."""
    async with network(tmp_path, 2) as (one, two):
        opened, open_stream = [], one.host.open_stream
        monkeypatch.setattr(one.host, "open_stream", lambda *args: opened.append(args) or open_stream(*args))
        for _ in range(5):
            data = os.urandom(30_000)
            await one.blobs.fetch(two.store.put(data), GIB, [two.id], 20, Kind.PAYLOAD, tree_of(data))
            await one.blobs.fetch(two.store.put(os.urandom(1000)), GIB, [two.id], 20)
        assert len(opened) == 1
        await one.host.disconnect(two.id)
        await one.blobs.fetch(two.store.put(os.urandom(1000)), GIB, [two.id], 20)
        assert len(opened) >= 2


class Hostile(Node):
    """A member that answers as `answer(request)` says: a reply, its bytes, and the seconds between two of them."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.data = b""
        self.host.serve(transfer.BLOB, self._serve)

    async def _serve(self, stream, peer: str) -> None:
        try:
            while True:
                request = wire.decode_as(wire.BlobRequest, await read_short(stream, 256))
                await self.answer(stream, request)
        except StreamBroken:
            pass

    async def give(self, stream, request: wire.BlobRequest, data: bytes, have: bytes | None = None) -> None:
        part = data[request.offset : request.offset + request.length]
        await write_short(stream, wire.encode(wire.BlobReply(len(self.data), have, len(part))), part)

    async def answer(self, stream, request: wire.BlobRequest) -> None:
        await self.give(stream, request, leaf_hashes(self.data) if request.leaves else self.data)


class Dripper(Hostile):
    """Has all, and sends a byte a second."""

    async def answer(self, stream, request: wire.BlobRequest) -> None:
        if request.leaves or not request.length:
            return await super().answer(stream, request)
        await write_short(stream, wire.encode(wire.BlobReply(len(self.data), None, request.length)))
        for at in range(request.length):
            await write_all(stream, self.data[request.offset + at : request.offset + at + 1])
            await trio.sleep(1)


class Boaster(Hostile):
    """Claims that it comes to it too, and that it passes it on; nothing follows."""

    async def answer(self, stream, request: wire.BlobRequest) -> None:
        if request.leaves or not request.length:
            return await self.give(stream, request, b"" if not request.leaves else leaf_hashes(self.data), b"")
        await trio.sleep_forever()


class Forger(Hostile):
    """Passes on other bytes."""

    async def answer(self, stream, request: wire.BlobRequest) -> None:
        await self.give(stream, request, leaf_hashes(self.data) if request.leaves else bytes(len(self.data)))


class Lister(Hostile):
    """Names other leaves."""

    async def answer(self, stream, request: wire.BlobRequest) -> None:
        await self.give(stream, request, leaf_hashes(bytes(len(self.data))) if request.leaves else self.data)


class Mute(Hostile):
    """Names the size, and no leaf."""

    async def answer(self, stream, request: wire.BlobRequest) -> None:
        if request.length:
            await trio.sleep_forever()
        await self.give(stream, request, self.data)


@asynccontextmanager
async def with_hostile(tmp_path, kind: type[Hostile], data: bytes):
    """(who fetches, the maker, another member, the hostile one)"""
    nodes = [Node(1, tmp_path)]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(nodes[0].host.run())
        for index in (2, 3):
            nodes.append(Node(index, tmp_path, nodes[0].host.addresses))
        hostile = kind(4, tmp_path, nodes[0].host.addresses)
        hostile.data = data
        nodes.append(hostile)
        meet(*nodes)
        for node in nodes[1:]:
            await stack.enter_async_context(node.host.run())
        await until(lambda: all(len(node.host.agreed()) == 3 for node in nodes))
        yield nodes


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Dripper, Boaster, Forger, Lister, Mute])
async def test_a_hostile_member_holds_up_nobody_for_long_and_wastes_little(tmp_path, monkeypatch, limit, kind):
    """It is one of those that pass the blob on, and one of those that have it."""
    monkeypatch.setattr(sharing, "SILENCE", 2.0)
    monkeypatch.setattr("dlx.p2p.transfer.SILENCE", 2.0)
    data = os.urandom(300_000)
    tree = tree_of(data)
    async with with_hostile(tmp_path, kind, data) as (one, maker, other, hostile):
        name = maker.store.put(data, Kind.PAYLOAD)
        limit(maker, 100_000)  # else it has given all of it before anybody asks the others
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for node in (one, other):
                    sharers = [one.id, other.id, hostile.id]
                    nursery.start_soon(node.blobs.fetch, name, GIB, [maker.id], 60, Kind.PAYLOAD, tree, sharers)
        for node in (one, other):
            assert node.store.sound(name)
            assert node.host.traffic()["payload"][1] < 3 * len(data)
            assert set(node.bad) <= {hostile.id}
        if kind is Forger:
            assert one.bad or other.bad


class HalfDead(Hostile):
    """Connected, and says nothing."""

    async def answer(self, stream, request: wire.BlobRequest) -> None:
        await trio.sleep_forever()


@pytest.mark.parametrize("known", [True, False], ids=["with its root", "by name"])
@pytest.mark.usefixtures("waiting_long")
async def test_a_connected_maker_that_says_nothing_costs_a_second_or_two(tmp_path, known):
    """Else it takes its patience of each round from everybody, for a payload too small to be shared."""
    data = os.urandom(10_000)
    async with with_hostile(tmp_path, HalfDead, data) as (one, member, _, maker):
        name = member.store.put(data, Kind.PAYLOAD)
        with trio.fail_after(PATIENCE):
            await one.blobs.fetch(name, GIB, [maker.id], 2 * PATIENCE, Kind.PAYLOAD, tree_of(data) if known else None)
        assert one.store.sound(name)


async def test_members_that_are_all_slow_are_asked_fewer_and_fewer(tmp_path, monkeypatch):
    """On a busy machine nobody answers in time: were all asked by all, nothing would come any more."""
    monkeypatch.setattr(transfer, "HESITATION", 1.0)
    for module in (exchange, transfer):
        monkeypatch.setattr(module, "SHARERS", 2)
    asked = set()

    class Busy(HalfDead):
        async def answer(self, stream, request: wire.BlobRequest) -> None:
            asked.add(self.id)
            await super().answer(stream, request)

    data = os.urandom(10_000)
    async with asking(tmp_path, data, *[Busy] * 8) as (one, members):
        with pytest.raises(BlobTimeout):  # after 1 and 3 s others are asked, not again after 2
            await one.blobs.fetch(hashlib.sha256(data).digest(), GIB, [members[0].id], 5.0, Kind.PAYLOAD, tree_of(data))
    assert members[0].id in asked and 1 < len(asked) <= 1 + 2 * 2


class SizeLiar(Hostile):
    """Claims a byte more than there is, as the first to say anything, and gives just enough not to be given up."""

    async def answer(self, stream, request: wire.BlobRequest) -> None:
        size = len(self.data) + 1
        await write_short(stream, wire.encode(wire.BlobReply(size, None, request.length)))
        for _ in range(request.length // 1024):
            await write_all(stream, bytes(1024))
            await trio.sleep(0.5)


class Late(Hostile):
    """Honest, and says what it has only after a while."""

    async def answer(self, stream, request: wire.BlobRequest) -> None:
        if not request.length:
            await trio.sleep(2.0)
        await super().answer(stream, request)


class FirstDripper(Hostile):
    """Says the right size, and gives just enough not to be given up."""

    async def answer(self, stream, request: wire.BlobRequest) -> None:
        await write_short(stream, wire.encode(wire.BlobReply(len(self.data), None, request.length)))
        for at in range(request.offset, request.offset + request.length, 1024):
            await write_all(stream, self.data[at : min(at + 1024, request.offset + request.length)])
            await trio.sleep(0.5)


@asynccontextmanager
async def asking(tmp_path, data: bytes, *kinds: type[Hostile], strangers: int = 0):
    """(who fetches, the others, of which the last few are no members)"""
    first = Node(1, tmp_path)
    others = []
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(first.host.run())
        for index, kind in enumerate(kinds):
            others.append(kind(index + 2, tmp_path, first.host.addresses))
            others[-1].data = data
        meet(first, *others[: len(others) - strangers])
        for node in others:
            await stack.enter_async_context(node.host.run())
        await until(lambda: len(first.host.agreed()) == len(others))
        yield first, others


@pytest.mark.parametrize("kind", [SizeLiar, FirstDripper])
async def test_who_answers_first_and_drips_does_not_hold_up_a_fetch_by_name(tmp_path, kind):
    """Anybody may be asked for data: a stranger could hold up every round of a run whose members read a new shard."""
    data = os.urandom(600_000)
    async with asking(tmp_path, data, kind, Late) as (one, _):
        with trio.fail_after(PATIENCE):  # at their rate it would take 300
            await one.blobs.fetch(hashlib.sha256(data).digest(), GIB, None, 2 * PATIENCE)


@pytest.mark.slow
async def test_members_are_asked_before_any_number_of_strangers(tmp_path):
    data = os.urandom(300_000)
    kinds = [Hostile, *[FirstDripper] * 5, *[SizeLiar] * 5]
    async with asking(tmp_path, data, *kinds, strangers=10) as (one, _):
        with trio.fail_after(patient(75)):  # who drips is left after 5 s; all of it at their rate would take 150
            await one.blobs.fetch(hashlib.sha256(data).digest(), GIB, None, 60)
        assert one.host.traffic()["blobs"][1] < 1.5 * len(data)


async def test_a_newcomer_gets_a_version_from_all_who_have_it_in_parts(tmp_path, limit):
    """Each of them is on a slow link; who sends another piece is found out at once, and alone."""
    data = os.urandom(400_000)
    async with with_hostile(tmp_path, Forger, data) as (one, *members):
        for node in members:
            limit(node, 100_000)
            if not isinstance(node, Hostile):
                node.store.put(data, Kind.VERSION)
        name = hashlib.sha256(data).digest()
        providers = [node.id for node in members]
        await one.blobs.fetch(name, GIB, providers, 60, Kind.VERSION, tree_of(data))
        assert one.store.sound(name) and set(one.bad) <= {members[-1].id}
        sent = [node.host.traffic()["blobs"][0] for node in members[:2]]
        assert min(sent) > 0.2 * len(data) and sum(sent) < 1.3 * len(data), "both links carry it"


async def test_a_lone_dripper_is_waited_for_as_long_as_patience_says(tmp_path):
    data = os.urandom(100_000)
    async with with_hostile(tmp_path, Dripper, data) as (one, _, _, dripper):
        with trio.fail_after(PATIENCE), pytest.raises(BlobTimeout):
            await one.blobs.fetch(hashlib.sha256(data).digest(), GIB, [dripper.id], 2, Kind.PAYLOAD, tree_of(data))


async def test_a_root_of_another_file_blames_nobody_who_serves(tmp_path):
    """The statement lies: whoever has the blob does not offer it under that root."""
    async with network(tmp_path, 2) as (one, two):
        name = two.store.put(data := os.urandom(50_000), Kind.PAYLOAD)
        other = tree_of(os.urandom(50_000))
        with pytest.raises((BlobNotFound, BlobTimeout)):
            await one.blobs.fetch(name, GIB, [two.id], 1, Kind.PAYLOAD, other)
        with pytest.raises(BlobNotFound):
            await one.blobs.fetch(name, GIB, [two.id], 20, Kind.PAYLOAD, Tree(len(data) - 1, other.root))
        assert not one.bad and await one.blobs.fetch(name, GIB, [two.id], 20, Kind.PAYLOAD)


async def test_a_name_and_a_root_of_two_files_speak_against_who_stated_them(tmp_path):
    """Its maker serves the file of the root under the name of another one; who passes it on is not to blame."""
    data = os.urandom(50_000)
    async with with_hostile(tmp_path, Hostile, data) as (one, _, _, maker):
        with pytest.raises(BlobContradiction):
            await one.blobs.fetch(b"n" * 32, GIB, [maker.id], 20, Kind.PAYLOAD, tree_of(data))
        assert not one.bad and not one.store.has(b"n" * 32)


async def test_who_has_the_file_of_the_name_is_not_to_blame_for_a_root_of_another(tmp_path):
    """One member states another's file with a root of its own, and serves that: it may not have the others ban whoever
    has the file. Nor may a creator, of a small file whose root nobody has to be asked for."""
    data, forged, small = os.urandom(50_000), os.urandom(50_000), os.urandom(1000)
    async with with_hostile(tmp_path, Hostile, forged) as (one, maker, _, hostile):
        name, tiny = maker.store.put(data, Kind.PAYLOAD), maker.store.put(small, Kind.PAYLOAD)
        with pytest.raises((BlobContradiction, BlobNotFound, BlobTimeout)):
            await one.blobs.fetch(name, GIB, [hostile.id, maker.id], 5, Kind.PAYLOAD, tree_of(forged))
        with pytest.raises((BlobNotFound, BlobTimeout)):
            await one.blobs.fetch(tiny, GIB, [maker.id], 1, Kind.PAYLOAD, tree_of(os.urandom(1000)))
        assert maker.id not in one.bad
        assert await one.blobs.fetch(tiny, GIB, [maker.id], PATIENCE, Kind.PAYLOAD, tree_of(small))
        maker.host.members = frozenset()  # it has not seen yet that we are a member
        with pytest.raises((BlobContradiction, BlobNotFound, BlobTimeout)):
            await one.blobs.fetch(name, GIB, [hostile.id, maker.id], 5, Kind.PAYLOAD, tree_of(forged))
        assert maker.id not in one.bad


async def test_strangers_get_nothing_of_what_is_still_coming(tmp_path, limit):
    data = os.urandom(4 * CHUNK)
    async with network(tmp_path, 3) as (one, two, stranger):
        name = two.store.put(data, Kind.PAYLOAD)
        limit(two, CHUNK)
        one.host.members, stranger.host.members = frozenset({two.id}), frozenset({one.id})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.blobs.fetch, name, GIB, [two.id], 60, Kind.PAYLOAD, tree_of(data))
            await until(lambda: one.host.traffic()["payload"][1] > CHUNK)
            with pytest.raises(BlobNotFound):
                await stranger.blobs.fetch(name, GIB, [one.id], 20, Kind.PAYLOAD, tree_of(data))
            nursery.cancel_scope.cancel()


async def test_who_states_another_root_for_others_bytes_keeps_nobody_from_them(tmp_path):
    """It names a payload that another member made, and serves a file of its own under that name and its own root."""
    data, forged = os.urandom(50_000), os.urandom(50_000)
    async with with_hostile(tmp_path, Hostile, forged) as (one, maker, _, hostile):
        name = maker.store.put(data, Kind.PAYLOAD)
        outcomes = {}

        async def fetch(peer: str, tree: Tree) -> None:
            try:
                outcomes[peer] = await one.blobs.fetch(name, GIB, [peer], 20, Kind.PAYLOAD, tree)
            except BlobContradiction as error:
                outcomes[peer] = error

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch, hostile.id, tree_of(forged))
            await until(lambda: one.blobs._downloads or outcomes)  # or it is over already
            nursery.start_soon(fetch, maker.id, tree_of(data))
        assert isinstance(outcomes[hostile.id], BlobContradiction)
        assert outcomes[maker.id] == one.store.path(name) and one.store.sound(name)


async def test_a_small_blob_is_had_though_who_is_asked_first_drips(tmp_path, monkeypatch):
    """Nothing is known of anybody's rate yet, and all of the blob is asked of one."""
    monkeypatch.setattr(sharing, "SILENCE", 2.0)
    data = os.urandom(20_000)
    async with with_hostile(tmp_path, Dripper, data) as (one, maker, other, _):
        name = maker.store.put(data)
        other.store.put(data)
        for _ in range(4):  # whoever comes first is asked
            with trio.fail_after(PATIENCE):
                await one.blobs.fetch(name, GIB, None, 2 * PATIENCE)
            one.store.path(name).unlink()
            one.blobs._peers.rates.clear()


async def test_what_lay_here_unchecked_is_checked_before_anybody_goes_on_with_it(tmp_path, monkeypatch):
    """Bytes that came by the name alone may be wrong; meanwhile others have brought the hashes, and could begin."""
    check, data = transfer.Transfer._matches, b"\1" + os.urandom(299_999)

    def slowly(self, *args) -> bool:
        if not any(args[-1]):  # a second for what lies here
            time.sleep(0.25)
        return check(self, *args)

    monkeypatch.setattr(transfer.Transfer, "_matches", slowly)
    async with network(tmp_path, 4) as (one, *others):
        for node in others:
            name = node.store.put(data, Kind.PAYLOAD)
        partial = one.store.partial(name, len(data), Kind.PAYLOAD)
        partial.write(0, bytes(4 * 4096))
        partial.close()
        passed_on = []

        async def look() -> None:
            while True:
                if one.blobs._coming(name, tree_of(data).root) is not None:
                    download = next(iter(one.blobs._downloads.values()))
                    passed_on.append(download.transfer.partial.done >= {0} and download.transfer.partial.read(0, 1))
                    return
                await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await one.blobs.fetch(name, GIB, [node.id for node in others], 20, Kind.PAYLOAD, tree_of(data))
            nursery.cancel_scope.cancel()
        assert one.store.sound(name) and b"\0" not in passed_on, "else who passes it on is blamed"
