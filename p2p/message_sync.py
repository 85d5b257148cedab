"""Gossip messages of open rounds, asked of a peer: what gossip lost, and what was sent before this node came."""

from collections.abc import Callable, Iterable
from hashlib import sha256

import trio
from libp2p.abc import INetStream

from dlx.p2p import wire
from dlx.p2p.host import MESSAGES, Host
from dlx.p2p.streams import StreamBroken, let_go, read_short, write_short
from dlx.p2p.token_buckets import TokenBuckets

RATE = 10.0  # requests/s of one peer, bursts of 100
TURNS = 8  # requests for one round, so replies of 16 KiB
DEADLINE = 10.0  # s, for one request and its reply
HAVE = 1400  # ids in a request
ROOM = wire.GOSSIP_LIMIT - 512  # bytes of messages in a reply


def short_id(message: bytes) -> bytes:
    """What names it in a request."""
    return sha256(message).digest()[:8]


class MessageSync:
    """Make it before the host runs. `beyond(request)` gives the messages that this node has and the asker has not."""

    def __init__(self, host: Host, beyond: Callable[[wire.RecordsRequest], Iterable[bytes]]) -> None:
        self._host, self._beyond = host, beyond
        self._requests = TokenBuckets(RATE, burst=10 * RATE)
        host.serve(MESSAGES, self._serve)

    async def ask(self, peer: str, stage: int, round: int, seals: bool, have: Iterable[bytes]) -> list[bytes]:
        """What the peer has of a round of a stage beyond `have` (short ids); with `seals` more than contributions.

        Raises StreamBroken, trio.TooSlowError, wire.WireError.
        """
        ids, found = dict.fromkeys(have), list[bytes]()
        with trio.fail_after(DEADLINE):
            stream = await self._host.open_stream(peer, MESSAGES, DEADLINE)
        try:
            for _ in range(TURNS):
                with trio.fail_after(DEADLINE):
                    await write_short(stream, wire.encode(wire.RecordsRequest(stage, round, seals, list(ids)[-HAVE:])))
                    reply = wire.decode_as(wire.RecordsReply, await read_short(stream, wire.GOSSIP_LIMIT))
                new = [message for message in reply.records if short_id(message) not in ids]
                if not new:
                    break
                found += new
                ids |= dict.fromkeys(map(short_id, new))
        finally:
            await let_go(stream)
        return found

    async def _serve(self, stream: INetStream, peer: str) -> None:
        try:
            while peer in self._host.members and self._requests.take(peer):
                with trio.fail_after(DEADLINE):
                    request = wire.decode_as(wire.RecordsRequest, await read_short(stream, wire.GOSSIP_LIMIT))
                    await write_short(stream, wire.encode(wire.RecordsReply(_fitting(self._beyond(request)))))
            self._host.reject("records_busy" if peer in self._host.members else "unregistered", peer)
        except wire.WireError as error:
            self._host.reject(f"records_{error.reason}", peer)
        except (StreamBroken, trio.TooSlowError):
            pass  # the asker is done, or gone


def _fitting(messages: Iterable[bytes]) -> list[bytes]:
    """As many as a reply has room for."""
    chosen, size = list[bytes](), 0
    for message in messages:
        size += len(message) + 4
        if size > ROOM or len(chosen) == 128:
            break
        chosen.append(message)
    return chosen
