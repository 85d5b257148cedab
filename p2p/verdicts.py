"""Who has missed verdicts, or comes as a stranger, asks any member for those that it keeps."""

import logging
from collections.abc import Callable, Sequence

import trio
from libp2p.abc import INetStream

from dlx.p2p import wire
from dlx.p2p.host import VERDICTS, Host
from dlx.p2p.muxer import networks_of
from dlx.p2p.stream_admission import ServedStreams
from dlx.p2p.streams import StreamBroken, let_go, read_short, write_short

MOST = 10_000  # of one answer; who needs more asks from a later round on
SERVED, SERVED_PER_PEER = 8, 2  # answers at once
DEADLINE = 30.0  # s for an answer

# First round, at most so many -> (report, signature), oldest first; blocks.
Listed = Callable[[int, int], Sequence[tuple[bytes, bytes]]]

log = logging.getLogger(__name__)


class VerdictExchange:
    """Make it before the host runs. `listed` gives what is served; None: this peer only asks."""

    def __init__(self, host: Host, listed: Listed | None = None) -> None:
        self._host, self._listed = host, listed
        self._streams = ServedStreams(
            SERVED, SERVED_PER_PEER, host.is_registered, lambda peer: host.reject("verdicts_busy", peer)
        )
        if listed is not None:
            host.serve(VERDICTS, self._serve)

    async def ask(self, peer: str, first: int, deadline_s: float = DEADLINE) -> list[wire.VerdictMessage]:
        """What a peer keeps of round `first` and later ones: nothing of it is verified. Raises StreamBroken."""
        found: list[wire.VerdictMessage] = []
        with trio.move_on_after(deadline_s):
            stream = await self._host.open_stream(peer, VERDICTS, deadline_s)
            try:
                await write_short(stream, wire.encode(wire.VerdictsRequest(first)))
                while len(found) < MOST and (data := await read_short(stream, wire.GOSSIP_LIMIT)):
                    found.append(wire.decode_as(wire.VerdictMessage, data))
                return found
            except wire.WireError as error:
                self._host.reject(f"verdict_{error.reason}", peer)
                raise StreamBroken(str(error)) from None
            finally:
                await let_go(stream)
        raise StreamBroken(f"no whole answer within {deadline_s:.0f} s")

    async def _serve(self, stream: INetStream, peer: str) -> None:
        try:
            with self._streams.admit(peer, networks_of(stream)) as served, trio.move_on_after(DEADLINE):
                if served is None:
                    return
                served.busy = False
                request = wire.decode_as(wire.VerdictsRequest, await read_short(stream, 256))
                served.busy = True
                assert self._listed is not None
                for report, signature in await trio.to_thread.run_sync(self._listed, request.first, MOST):
                    await write_short(stream, wire.encode(wire.VerdictMessage(report, signature)))
                await write_short(stream, b"")
                await read_short(stream, 0)  # until it lets go: what we leave is reset, with all that it has not read
        except wire.WireError as error:
            self._host.reject(f"verdict_{error.reason}", peer)
        except (StreamBroken, OSError) as error:
            log.debug("verdicts for %s: %r", peer, error)
