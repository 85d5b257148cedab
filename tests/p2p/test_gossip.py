import random
from contextlib import suppress

import pytest
import trio
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.validators import signature_validator

from dlx.p2p import gossip, mesh, wire
from dlx.p2p.streams import StreamBroken, write_all
from tests.p2p.network import HELLO, TOPIC, Node, contribution, meet, network, until
from tests.patience import PATIENCE


async def next_of(node: Node) -> gossip.Gossiped:
    with trio.fail_after(PATIENCE):
        return await node.gossip.messages.receive()


async def raw_gossip(sender: Node, receiver: Node):
    """A stream on which the sender may say what it likes to the receiver's gossip."""
    return await sender.host.open_stream(receiver.id, PROTOCOL_ID_V11, PATIENCE)


def message(sender: Node, data: bytes, topic: str = TOPIC) -> rpc_pb2.Message:
    """A correctly signed message, whatever is in it."""
    message = rpc_pb2.Message(data=data, topicIDs=[topic], from_id=sender.host.libp2p.get_id().to_bytes(), seqno=b"1")
    message.signature = sender.host.libp2p.get_private_key().sign(b"libp2p-pubsub:" + message.SerializeToString())
    message.key = sender.host.libp2p.get_public_key().serialize()
    return message


def frame(*messages: rpc_pb2.Message, topics: tuple[str, ...] = ()) -> bytes:
    taken = [rpc_pb2.RPC.SubOpts(subscribe=True, topicid=topic) for topic in topics]
    return framed(rpc_pb2.RPC(publish=messages, subscriptions=taken))


def framed(rpc: rpc_pb2.RPC) -> bytes:
    data = rpc.SerializeToString()
    length, prefix = len(data), bytearray()
    while length >= 0x80:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*prefix, length]) + data


async def test_a_message_reaches_all_others_once(tmp_path):
    async with network(tmp_path, 4) as nodes:
        sent = [contribution() for _ in range(5)]
        for data in sent:
            await nodes[0].gossip.publish(TOPIC, data)
        for node in nodes[1:]:
            got = [await next_of(node) for _ in sent]
            assert sorted(item.data for item in got) == sorted(sent)
            for item in got:
                assert (item.topic, item.origin) == (TOPIC, nodes[0].id)
                assert item.message == wire.decode(item.data)
        await nodes[1].gossip.publish(TOPIC, contribution())
        assert (await next_of(nodes[0])).origin == nodes[1].id  # its own did not come back, nor any twice
        assert not any(node.rejected for node in nodes)


async def test_who_also_takes_topics_that_we_lack_is_a_neighbour_in_ours(tmp_path):
    async with network(tmp_path, 2) as nodes:
        newer, node = nodes
        await until(lambda: newer.id in node.gossip.neighbours(TOPIC))
        stream = await raw_gossip(newer, node)
        leaving = rpc_pb2.RPC(subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=False, topicid=TOPIC)])
        data = leaving.SerializeToString()
        await write_all(stream, bytes([len(data)]) + data)
        await until(lambda: newer.id not in node.gossip.neighbours(TOPIC))
        await write_all(stream, frame(topics=(*(f"/dlx/new/{n}" for n in range(9)), TOPIC)))
        await until(lambda: newer.id in node.gossip.neighbours(TOPIC))


async def test_what_was_published_before_goes_out_no_more(tmp_path):
    async with network(tmp_path, 3) as nodes:
        for _ in range(5):
            await nodes[0].gossip.publish(TOPIC, data := wire.encode(wire.ContributionMessage(bytes(961))))
        await nodes[0].gossip.publish(TOPIC, last := contribution())
        for node in nodes[1:]:
            assert [(await next_of(node)).data for _ in range(2)] == [data, last]
            assert node.gossip.traffic()["new"][0] == 2


async def test_eight_nodes_need_few_copies_and_check_a_message_once(tmp_path, monkeypatch):
    """Of a message a node gets the origin's copy and what a few pass on; the others are known by name alone."""
    checked: list[bytes] = []
    monkeypatch.setattr(
        gossip, "signature_validator", lambda message: checked.append(message.data) or signature_validator(message)
    )
    async with network(tmp_path, 8) as nodes:
        sent = [contribution() for node in nodes for _ in range(3)]
        for turn, data in enumerate(sent):
            await nodes[turn % 8].gossip.publish(TOPIC, data)
        for index, node in enumerate(nodes):
            others = [data for turn, data in enumerate(sent) if turn % 8 != index]
            assert sorted([(await next_of(node)).data for _ in others]) == sorted(others)
        for node in nodes:
            for _ in range(3):  # all repetitions are here once each neighbour's last word is
                await node.gossip.publish(TOPIC, contribution())
        needed = 7 * 6
        await until(lambda: all(node.gossip.traffic()["new"][0] == needed for node in nodes))
        arrived = [sum(messages for messages, _ in node.gossip.traffic().values()) for node in nodes]
        assert sum(arrived) <= 3 * needed * len(nodes)
        assert len(checked) == needed * len(nodes)
        assert not any(node.rejected for node in nodes)


async def test_who_is_not_the_origins_neighbour_gets_it_by_its_name(tmp_path):
    async with network(tmp_path, 3) as nodes:
        first, middle, last = nodes
        for node, other in ((first, last), (last, first)):
            node.host.ban(other.id, "abuse")
        await until(lambda: not first.host.is_agreed(last.id) and not last.host.is_agreed(first.id))
        await first.gossip.publish(TOPIC, data := contribution())
        item = await next_of(last)
        assert (item.data, item.origin, item.forwarder) == (data, first.id, middle.id)


async def test_a_message_comes_once_and_with_little_around_it(tmp_path):
    """The origin sends it to each; the others only name it, and nobody's addresses are told again."""
    async with network(tmp_path, 4) as nodes:
        for node in nodes:
            await node.gossip.publish(TOPIC, contribution())
        await until(lambda: all(node.gossip.traffic()["new"][0] == 3 for node in nodes))
        before = [node.host.traffic()["gossip"][1] for node in nodes]
        for done in range(10):
            for node in nodes:
                await node.gossip.publish(TOPIC, contribution())
            await until(lambda done=done: all(node.gossip.traffic()["new"][0] == 3 * (done + 2) for node in nodes))
        came = [node.host.traffic()["gossip"][1] - old for node, old in zip(nodes, before, strict=True)]
        size = len(contribution()) + 300
        assert sum(node.gossip.traffic()["repeated"][0] for node in nodes) <= 12  # of 120: who is slow is sent it twice
        assert max(came) < 45 * size


async def test_only_those_who_follow_a_topic_get_it(tmp_path):
    async with network(tmp_path, 4) as nodes:
        for node, topic in zip(nodes, ("first", "first", "second", "second"), strict=True):
            await node.gossip.follow("slot", {topic})
        await until(
            lambda: all(len(node.gossip.neighbours(topic)) >= 1 for node in nodes for topic in ("first", "second"))
        )
        await nodes[0].gossip.publish("first", data := contribution())
        assert (await next_of(nodes[1])).data == data
        await nodes[3].gossip.follow("slot", {"first"})
        await until(lambda: nodes[3].id in nodes[0].gossip.neighbours("first"))
        await until(lambda: nodes[3].id not in nodes[2].gossip.neighbours("second"))
        await nodes[0].gossip.publish("first", data := contribution())
        assert (await next_of(nodes[1])).data == data
        while (await next_of(nodes[3])).data != data:
            pass  # gossip repeats its last seconds for a newcomer
        await nodes[0].gossip.publish(TOPIC, data := contribution())
        assert (await next_of(nodes[2])).data == data, "and nothing before it"
        assert not any(node.rejected for node in nodes)


async def test_whom_the_ledger_does_not_name_is_heard_by_nobody(tmp_path):
    """Nor does its flood cost members their limits: what they say, or pass on, comes through."""
    async with network(tmp_path, 4) as (stranger, node, other, third):
        members = frozenset((node.id, other.id, third.id))
        node.host.members = other.host.members = third.host.members = members
        stream = await raw_gossip(stranger, node)
        await write_all(stream, frame(message(stranger, contribution())))
        await until(lambda: node.rejected["unregistered"] == 1)
        with pytest.raises(StreamBroken):
            for _ in range(2000):
                await write_all(stream, frame(message(stranger, contribution())))
        await until(lambda: node.rejected["abuse"])
        assert not node.rejected["rate"], "its own budget is a small one"
        for sender in (other, third):
            await sender.gossip.publish(TOPIC, data := contribution())
            assert (await next_of(node)).data == data
        assert [(await next_of(receiver)).origin for receiver in (other, third)] == [third.id, other.id]
        assert {other.id, third.id} <= set(node.host.agreed())
        assert not other.rejected and not third.rejected, "nobody passed it on"


async def test_invented_keys_are_dropped_before_their_signatures_are_looked_at(tmp_path, monkeypatch):
    """Many keys, one neighbour, which is a member: what it passes on for them takes nothing from the others."""
    checked: list[bytes] = []
    monkeypatch.setattr(
        gossip, "signature_validator", lambda message: checked.append(message.data) or signature_validator(message)
    )
    async with network(tmp_path, 3) as (hostile, node, other):
        stream = await raw_gossip(hostile, node)
        invented = [Node(100 + index, tmp_path) for index in range(10)]
        flood = [message(key, contribution()) for key in invented for _ in range(30)]
        await other.gossip.publish(TOPIC, before := contribution())
        with suppress(StreamBroken):
            for one in flood:
                await write_all(stream, frame(one))
        await other.gossip.publish(TOPIC, after := contribution())
        assert [(await next_of(node)).data for _ in range(2)] == [before, after]
        await until(lambda: node.rejected["abuse"])
        assert {one.data for one in flood}.isdisjoint(checked)
        assert not other.rejected and other.id in node.host.agreed()


async def test_what_others_would_refuse_is_not_published(tmp_path):
    node = Node(1, tmp_path)
    async with node.host.run():
        with pytest.raises(wire.WireError, match="schema"):
            await node.gossip.publish(TOPIC, wire.encode(HELLO))
        with pytest.raises(wire.WireError, match="oversize"):
            await node.gossip.publish(TOPIC, bytes(20_000))
        with pytest.raises(ValueError, match="topic 'other' was not named"):
            await node.gossip.publish("other", contribution())


@pytest.mark.parametrize(
    "reason, data",
    [
        ("oversize", bytes(wire.GOSSIP_LIMIT + 1)),
        ("malformed", b"\xc1"),
        ("schema", wire.encode(HELLO)),
    ],
)
async def test_a_bad_message_is_counted_and_goes_no_further(tmp_path, reason, data):
    async with network(tmp_path, 3) as (hostile, node, third):
        stream = await raw_gossip(hostile, node)
        good = contribution()
        await write_all(stream, frame(message(hostile, data), message(hostile, good)))
        assert (await next_of(node)).data == good
        assert (await next_of(third)).data == good
        assert node.rejected[reason] == 1 and not third.rejected
        assert node.host.agreed()


async def test_forged_messages_are_refused(tmp_path):
    async with network(tmp_path, 3) as (hostile, node, other):
        forged = message(hostile, contribution())
        forged.from_id = other.host.libp2p.get_id().to_bytes()
        own = message(hostile, contribution())
        own.from_id = node.host.libp2p.get_id().to_bytes()
        unsigned = message(hostile, contribution())
        unsigned.ClearField("signature")
        elsewhere = message(hostile, contribution(), topic="elsewhere")
        good = contribution()
        stream = await raw_gossip(hostile, node)
        await write_all(stream, frame(forged, own, unsigned, elsewhere, message(hostile, good)))
        assert (await next_of(node)).data == good
        assert node.rejected["signature"] == 3 and node.rejected["topic"] == 1


async def test_a_flood_is_cut_to_the_rate_and_then_off(tmp_path):
    async with network(tmp_path, 3) as (hostile, node, other):
        stream = await raw_gossip(hostile, node)
        started = trio.current_time()
        with pytest.raises(StreamBroken):
            for _ in range(2000):
                await write_all(stream, frame(message(hostile, contribution())))
        await until(lambda: node.rejected["abuse"])
        assert node.rejected["rate"] >= gossip.STRIKES
        taken = node.gossip.messages.statistics().current_buffer_used
        assert 0 < taken <= gossip.ORIGIN_RATE * (2 + trio.current_time() - started)
        # the honest go on, and nobody was blamed for passing the flood's beginning on
        await other.gossip.publish(TOPIC, data := contribution())
        while (await next_of(node)).data != data:
            pass
        assert not other.rejected["abuse"] and other.id in node.host.agreed()


async def test_a_huge_rpc_is_refused_at_its_length(tmp_path):
    async with network(tmp_path, 2) as (node, hostile):
        received = node.host.bytes_received
        stream = await raw_gossip(hostile, node)
        with pytest.raises(StreamBroken):
            await write_all(stream, b"\x80\xc2\xd7\x2f" + bytes(100_000_000))
        await until(lambda: node.rejected["abuse"])
        assert node.rejected["oversize_rpc"] == 1
        assert node.host.bytes_received - received < 8_000_000


@pytest.mark.parametrize(
    "data",
    [b"\x05\xff\xff\xff\xff\xff", b"\xff" * 11, b"\x3f" + random.Random(0).randbytes(63)],
    ids=["cut short", "endless length", "random"],
)
async def test_noise_on_a_gossip_stream_harms_nobody(tmp_path, data):
    async with network(tmp_path, 2) as (node, hostile):
        stream = await raw_gossip(hostile, node)
        await write_all(stream, data)
        await stream.close()
        await hostile.gossip.publish(TOPIC, good := contribution())
        assert (await next_of(node)).data == good


async def test_control_messages_full_of_nonsense_harm_nobody(tmp_path):
    async with network(tmp_path, 2) as (node, hostile):
        rpc = rpc_pb2.RPC()
        rpc.control.ihave.add(topicID="elsewhere", messageIDs=[b"\xff" * 7, b"zz"])
        rpc.control.iwant.add(messageIDs=[b"", b"\x00" * 1000])
        rpc.control.graft.add(topicID="elsewhere")
        rpc.control.prune.add(topicID="elsewhere", backoff=2**60)
        rpc.subscriptions.add(subscribe=True, topicid="t" * 1000)
        data = rpc.SerializeToString()
        stream = await raw_gossip(hostile, node)
        await write_all(stream, bytes([len(data) & 0x7F | 0x80, len(data) >> 7]) + data)
        await hostile.gossip.publish(TOPIC, good := contribution())
        assert (await next_of(node)).data == good


@pytest.mark.parametrize("kind", ["ihave", "iwant", "many ihave", "prune"])
async def test_a_flood_of_control_messages_is_cut_to_the_rate_and_then_off(tmp_path, kind, monkeypatch):
    named: list[bytes] = []
    wanted = GossipSub.emit_iwant
    monkeypatch.setattr(GossipSub, "emit_iwant", lambda self, ids, peer: named.extend(ids) or wanted(self, ids, peer))
    async with network(tmp_path, 3) as (hostile, node, other):
        stream, started = await raw_gossip(hostile, node), trio.current_time()
        with pytest.raises(StreamBroken):
            for _ in range(2000):
                rpc = rpc_pb2.RPC()
                ids = [random.randbytes(32) for _ in range(500)]
                if kind == "ihave":
                    rpc.control.ihave.add(topicID=TOPIC, messageIDs=ids)
                elif kind == "iwant":
                    rpc.control.iwant.add(messageIDs=ids)
                for one in ids:
                    if kind == "many ihave":
                        rpc.control.ihave.add(topicID=str(one), messageIDs=[one])
                    if kind == "prune":
                        rpc.control.prune.add(topicID=str(one))
                await write_all(stream, framed(rpc))
        await until(lambda: node.rejected["abuse"])
        assert node.rejected["control"] >= gossip.STRIKES
        assert len(named) <= mesh.CONTROL_RATE * (2 + trio.current_time() - started)
        await other.gossip.publish(TOPIC, data := contribution())
        assert (await next_of(node)).data == data and other.id in node.host.agreed()


async def test_a_slow_reader_loses_the_oldest(tmp_path, monkeypatch):
    monkeypatch.setattr(gossip, "QUEUE", 3)
    async with network(tmp_path, 2) as (node, other):
        sent = [contribution() for _ in range(8)]
        for data in sent:
            await other.gossip.publish(TOPIC, data)
        await until(lambda: node.rejected["queue"] == 5)
        assert [(await next_of(node)).data for _ in range(3)] == sent[5:]


async def test_a_restarted_node_is_heard(tmp_path):
    node = Node(1, tmp_path)
    async with node.host.run():
        for other in (Node(2, tmp_path, node.host.addresses), Node(2, tmp_path, node.host.addresses)):
            meet(node, other)
            async with other.host.run():
                await until(lambda gossip=other.gossip: node.id in gossip.neighbours(TOPIC))
                for _ in range(3):
                    await other.gossip.publish(TOPIC, data := contribution())
                    assert (await next_of(node)).data == data
            await until(lambda: not node.host.agreed())
        assert not node.rejected


async def test_gossip_survives_the_loss_of_one_of_two_connections(tmp_path):
    async with network(tmp_path, 2) as (one, two):
        # as when both dial at once: the older connection carries the gossip streams
        address = one.host.libp2p.get_addrs()[0]
        older = one.host._network.get_connections()[0]
        await two.host._network.dial_addr(address, one.host.libp2p.get_id())
        await until(lambda: len(one.host._network.get_connections()) == 2)
        await older.close()
        await until(lambda: len(one.host._network.get_connections()) == 1)
        with trio.fail_after(PATIENCE):
            while True:
                await one.gossip.publish(TOPIC, contribution())
                await two.gossip.publish(TOPIC, contribution())
                await trio.sleep(0.2)
                if all(node.gossip.messages.statistics().current_buffer_used for node in (one, two)):
                    break
