"""What gossip lost, or said before somebody came, is asked for: the missing messages and no others."""

import pytest
import trio

from dlx.p2p import message_sync, wire
from dlx.p2p.message_sync import MESSAGES, short_id
from dlx.p2p.streams import StreamBroken, read_short, write_short
from tests.p2p.network import contribution, network, until
from tests.patience import PATIENCE


async def test_whoever_asks_gets_what_it_lacks_and_nothing_else(tmp_path):
    async with network(tmp_path, 2) as (member, asker):
        member.messages = [contribution() for _ in range(40)]  # of which no reply holds more than 16
        have = [short_id(message) for message in member.messages[:3]]
        assert await asker.sync.ask(member.id, 0, 7, True, have) == member.messages[3:]
        assert await asker.sync.ask(member.id, 0, 7, True, map(short_id, member.messages)) == []
        assert not member.rejected and not asker.rejected


async def test_all_get_everything_by_asking_at_random_when_nothing_is_gossiped(tmp_path):
    """One has all messages, a newcomer none: each asks one other at a time, as a node does."""
    async with network(tmp_path, 5) as nodes:
        nodes[0].messages = [contribution() for _ in range(10)]
        for turn in range(20):
            for index, node in enumerate(nodes):
                peer = nodes[(index + 1 + turn % 4) % 5]
                node.messages += await node.sync.ask(peer.id, 0, 7, True, map(short_id, node.messages))
            if all(len(node.messages) == 10 for node in nodes):
                break
        assert turn < 4 and all(sorted(node.messages) == sorted(nodes[0].messages) for node in nodes)


async def test_whom_the_ledger_does_not_name_gets_nothing(tmp_path):
    async with network(tmp_path, 2) as (member, stranger):
        member.messages = [contribution()]
        member.host.members = frozenset((member.id,))
        with pytest.raises(StreamBroken):
            await stranger.sync.ask(member.id, 0, 7, True, ())
        assert member.rejected["unregistered"] == 1


async def test_whoever_asks_without_end_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(message_sync, "RATE", 0.2)  # two, and then one in 5 s
    async with network(tmp_path, 2) as (member, asker):
        with pytest.raises(StreamBroken):
            for _ in range(10):
                await asker.sync.ask(member.id, 0, 7, True, ())
        assert member.rejected["records_busy"]


async def test_a_reply_that_is_none_is_an_error_of_the_peer(tmp_path):
    async with network(tmp_path, 2) as (hostile, asker):

        async def nonsense(stream, peer):
            await read_short(stream, wire.GOSSIP_LIMIT)
            await write_short(stream, b"\xc1")
            await trio.sleep_forever()

        hostile.host.serve(MESSAGES, nonsense)
        with pytest.raises(wire.WireError):
            await asker.sync.ask(hostile.id, 0, 7, True, ())


async def test_a_request_that_is_none_is_counted(tmp_path):
    async with network(tmp_path, 2) as (member, hostile):
        stream = await hostile.host.open_stream(member.id, MESSAGES, PATIENCE)
        await write_short(stream, b"\xc1")
        await until(lambda: member.rejected["records_malformed"])


async def test_a_peer_that_does_not_answer_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(message_sync, "DEADLINE", 0.3)
    async with network(tmp_path, 2) as (hostile, asker):

        async def silence(stream, peer):
            await trio.sleep_forever()

        hostile.host.serve(MESSAGES, silence)
        with pytest.raises(trio.TooSlowError):
            await asker.sync.ask(hostile.id, 0, 7, True, ())
