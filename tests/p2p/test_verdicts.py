"""Asking a peer for the verdicts that it keeps."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from dlx.p2p import verdicts as module
from dlx.p2p import wire
from dlx.p2p.streams import StreamBroken
from dlx.p2p.verdicts import VERDICTS, VerdictExchange
from tests.p2p.network import Node, running, until
from tests.patience import PATIENCE

KEPT = [(0, b"an early one"), (3, b"report"), (3, b"x" * 4096), (4, b"")]


def listed(first: int, most: int) -> Sequence[tuple[bytes, bytes]]:
    return [(report, bytes(65)) for round, report in KEPT if round >= first]


async def test_a_peer_gives_its_verdicts_of_a_round_and_later_ones(tmp_path: Path) -> None:
    serves, asks = Node(1, tmp_path), Node(2, tmp_path)
    VerdictExchange(serves.host, listed)
    exchange = VerdictExchange(asks.host)
    async with running(serves, asks):
        asks.host.known(serves.id, serves.host.addresses)
        found = await exchange.ask(serves.id, 3)
        assert [one.report for one in found] == [b"report", b"x" * 4096, b""]
        assert await exchange.ask(serves.id, 9) == []
        with pytest.raises(StreamBroken):
            await VerdictExchange(serves.host).ask(asks.id, 0, 5)  # who only asks serves none


async def test_who_answers_something_else_is_counted_and_ends_the_question(tmp_path: Path) -> None:
    serves, asks = Node(1, tmp_path), Node(2, tmp_path)

    async def rubbish(stream, peer):  # type: ignore[no-untyped-def]
        await module.read_short(stream, 256)
        await module.write_short(stream, wire.encode(wire.BlobReply(None, None, 0)))
        await trio.sleep_forever()

    serves.host.serve(VERDICTS, rubbish)
    exchange = VerdictExchange(asks.host)
    async with running(serves, asks):
        asks.host.known(serves.id, serves.host.addresses)
        with pytest.raises(StreamBroken):
            await exchange.ask(serves.id, 0)
        assert asks.rejected["verdict_schema"] == 1


async def test_a_peer_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    serves, asks = Node(1, tmp_path), Node(2, tmp_path)

    async def silent(stream, peer):  # type: ignore[no-untyped-def]
        await trio.sleep_forever()

    serves.host.serve(VERDICTS, silent)
    exchange = VerdictExchange(asks.host)
    async with running(serves, asks):
        asks.host.known(serves.id, serves.host.addresses)
        with pytest.raises(StreamBroken, match="no whole answer"):
            await exchange.ask(serves.id, 0, 1)


async def test_who_opens_streams_and_asks_nothing_keeps_nobody_from_verdicts(tmp_path: Path) -> None:
    serves, asks, idles = (Node(number, tmp_path) for number in (1, 2, 3))
    VerdictExchange(serves.host, listed)
    exchange = VerdictExchange(asks.host)
    async with running(serves, asks, idles):
        for node in (asks, idles):
            node.host.known(serves.id, serves.host.addresses)
        for _ in range(module.SERVED):
            with suppress(StreamBroken):  # those beyond its share
                await idles.host.open_stream(serves.id, VERDICTS, PATIENCE)
        await until(lambda: serves.rejected["verdicts_busy"] == module.SERVED - module.SERVED_PER_PEER)
        assert len(await exchange.ask(serves.id, 4)) == 1
