"""Records of open rounds, asked of a peer: what gossip lost, and what was said before this node came."""

from collections.abc import Callable, Iterable
from hashlib import sha256

import trio
from libp2p.abc import INetStream

from dlx.p2p import wire
from dlx.p2p.buckets import Buckets
from dlx.p2p.host import RECORDS, Host
from dlx.p2p.streams import StreamBroken, let_go, read_short, write_short

RATE = 10.0  # requests/s of one peer, bursts of 100
TURNS = 8  # requests for one round, so replies of 16 KiB
DEADLINE = 10.0  # s, for one request and its reply
HAVE = 1400  # ids in a request
ROOM = wire.GOSSIP_LIMIT - 512  # bytes of records in a reply


def record_id(record: bytes) -> bytes:
    """What names it in a request."""
    return sha256(record).digest()[:8]


class Records:
    """Make it before the host runs. `beyond(request)` gives the records that this node holds and the asker does not."""

    def __init__(self, host: Host, beyond: Callable[[wire.RecordsRequest], Iterable[bytes]]) -> None:
        self._host, self._beyond = host, beyond
        self._asked = Buckets(RATE, burst=10 * RATE)
        host.serve(RECORDS, self._serve)

    async def ask(self, peer: str, stage: int, round: int, seals: bool, have: Iterable[bytes]) -> list[bytes]:
        """What the peer holds of a round of a stage beyond `have` (record ids); with `seals` more than contributions.

        Raises StreamBroken, trio.TooSlowError, wire.WireError.
        """
        known, found = dict.fromkeys(have), list[bytes]()
        with trio.fail_after(DEADLINE):
            stream = await self._host.open_stream(peer, RECORDS, DEADLINE)
        try:
            for _ in range(TURNS):
                with trio.fail_after(DEADLINE):
                    await write_short(
                        stream, wire.encode(wire.RecordsRequest(stage, round, seals, list(known)[-HAVE:]))
                    )
                    reply = wire.decode_as(wire.RecordsReply, await read_short(stream, wire.GOSSIP_LIMIT))
                new = [record for record in reply.records if record_id(record) not in known]
                if not new:
                    break
                found += new
                known |= dict.fromkeys(map(record_id, new))
        finally:
            await let_go(stream)
        return found

    async def _serve(self, stream: INetStream, peer: str) -> None:
        try:
            while peer in self._host.members and self._asked.take(peer):
                with trio.fail_after(DEADLINE):
                    request = wire.decode_as(wire.RecordsRequest, await read_short(stream, wire.GOSSIP_LIMIT))
                    await write_short(stream, wire.encode(wire.RecordsReply(_fitting(self._beyond(request)))))
            self._host.reject("records_busy" if peer in self._host.members else "unregistered", peer)
        except wire.WireError as error:
            self._host.reject(f"records_{error.reason}", peer)
        except (StreamBroken, trio.TooSlowError):
            pass  # the asker is done, or gone


def _fitting(records: Iterable[bytes]) -> list[bytes]:
    """As many as a reply has room for."""
    chosen, size = list[bytes](), 0
    for record in records:
        size += len(record) + 4
        if size > ROOM or len(chosen) == 128:
            break
        chosen.append(record)
    return chosen
