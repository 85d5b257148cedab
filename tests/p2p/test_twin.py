"""Two processes with one key: a folder that was copied."""

from dlx.p2p.host import Host
from dlx.p2p.twin import is_elsewhere
from tests.p2p.network import HELLO

KEY = bytes(31) + b"\x05"


def host(key: bytes = KEY) -> Host:
    return Host(key, ["/ip4/127.0.0.1/tcp/0"], [], HELLO)


async def test_another_process_with_our_key_is_noticed_at_our_address() -> None:
    original, copy = host(), host()
    async with original.run(), copy.run():
        assert await is_elsewhere(copy, original.addresses)


async def test_who_meets_itself_is_alone() -> None:
    only = host()
    async with only.run():
        assert not await is_elsewhere(only, only.addresses)


async def test_neither_silence_nor_somebody_else_is_a_twin() -> None:
    only, other = host(), host(bytes(31) + b"\x06")
    async with other.run():
        address = other.addresses[0].split("/p2p/")[0]
        async with only.run():
            for addresses in ([f"{address}/p2p/{only.peer_id}"], ["/ip4/127.0.0.1/tcp/9"], ["nonsense"], []):
                assert not await is_elsewhere(only, addresses)
