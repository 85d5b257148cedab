"""Asking a peer to dial back."""

from pathlib import Path

import pytest
import trio

from dlx.p2p import dialback
from dlx.p2p.dialback import DIALBACK, DialBack, may_dial
from dlx.p2p.streams import StreamBroken, read_short, write_short
from tests.p2p.network import Node, running


async def test_a_peer_says_which_ports_it_can_connect_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialback, "EVERY", 1000.0)  # longer than the first two take on a busy machine
    serves, asks = Node(1, tmp_path), Node(2, tmp_path)
    DialBack(serves.host)
    dial_back = DialBack(asks.host, serves=False)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    (closed,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    ports = [one.socket.getsockname()[1] for one in (listener, closed)]
    await closed.aclose()
    async with listener, running(serves, asks):
        asks.host.known(serves.id, serves.host.addresses)
        assert await dial_back.ask(serves.id, ports) == ("127.0.0.1", {ports[0]: True, ports[1]: False})
        assert await dial_back.ask(serves.id, []) == ("127.0.0.1", {})
        with pytest.raises(StreamBroken):  # the third too soon: nobody has a member knock all day
            await dial_back.ask(serves.id, ports)
        assert serves.rejected["dialback_busy"] == 1


@pytest.mark.parametrize(
    ("answer", "address"),
    [(b"", b"10.0.0.1"), (b"\1\1\1", b"10.0.0.1"), (b"\1" * 5, b"10.0.0.1")]
    + [(b"\1\1", address) for address in (b"", b"\x1b[2J", b"10.0.0.1/tcp/1", b"fe80::1%\x1b[2J", b"\xff")],
)
async def test_an_answer_that_fits_no_question_is_none(tmp_path: Path, answer: bytes, address: bytes) -> None:
    """An address that is none would be announced, shown to the operator, and end who announces it."""
    serves, asks = Node(1, tmp_path), Node(2, tmp_path)

    async def rubbish(stream, peer):  # type: ignore[no-untyped-def]
        await read_short(stream, 256)
        await write_short(stream, answer)
        await write_short(stream, address)
        await trio.sleep_forever()

    serves.host.serve(DIALBACK, rubbish)
    dial_back = DialBack(asks.host, serves=False)
    async with running(serves, asks):
        asks.host.known(serves.id, serves.host.addresses)
        with pytest.raises(StreamBroken):
            await dial_back.ask(serves.id, [4650, 4651])


@pytest.mark.parametrize(
    ("address", "announced", "may"),
    [
        ("8.8.8.8", "/ip4/10.0.0.2/tcp/1", True),
        ("8.8.8.8", "/ip4/9.9.9.9/tcp/1", True),
        ("172.17.0.1", "/ip4/9.9.9.9/tcp/1", False),
        ("127.0.0.1", "/dns4/node.example.org/tcp/1", False),
        ("::1", "/ip6/2620:fe::fe/tcp/1", False),
        ("10.0.0.3", "/ip4/10.0.0.2/tcp/1", True),
        ("127.0.0.1", "/ip4/127.0.0.1/tcp/1", True),
    ],
)
def test_a_public_node_knocks_at_no_door_of_its_own_network(address: str, announced: str, may: bool) -> None:
    """Behind a proxy everybody seems to come from a private address: who asks would have it look around inside."""
    assert may_dial(address, [announced]) == may
