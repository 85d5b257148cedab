"""What comes in from peers goes to the session of the moment, if there is one: gossip, questions about records, and
pipes from a neighbour; verdicts go to the judge."""

from collections.abc import Callable, Iterable

import trio

from dlx.node.daemon.challenges.verifier import Judge
from dlx.node.daemon.slot.session import Session
from dlx.node.daemon.supervisor import Well
from dlx.p2p import wire
from dlx.p2p.gossip import Gossip
from dlx.p2p.host import Host
from dlx.p2p.message_sync import MessageSync
from dlx.p2p.pipe import PipeService


class Door:
    """Made before the host runs. `session()` is the one that holds our slot now, or None; likewise `judge()`."""

    def __init__(
        self, host: Host, gossip: Gossip, session: Callable[[], Session | None], judge: Callable[[], Judge | None]
    ) -> None:
        self._gossip, self._session, self._judge = gossip, session, judge
        self.pipes = PipeService(host, self._refusal)
        self.records = MessageSync(host, self._beyond)

    async def run(self, well: Well) -> None:
        """Raises what the session does with something; that is gone then, and run again it goes on with the next."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_gossip, well)
            async for pipe in self.pipes.incoming:
                session = self._session()
                if session is None or not session.take_pipe(pipe):
                    nursery.start_soon(pipe.aclose)

    async def _read_gossip(self, well: Well) -> None:
        async for item in self._gossip.messages:
            session, judge = self._session(), self._judge()
            if isinstance(item.message, wire.VerdictMessage):
                if judge is not None:
                    judge.take(item.message, item.origin)
            elif session is not None:
                session.on_gossip(item)
                well()

    def _beyond(self, request: wire.RecordsRequest) -> Iterable[bytes]:
        session = self._session()
        return () if session is None else session.shelf.beyond(request)

    def _refusal(self, peer_id: str, hello: wire.PipeHello) -> str | None:
        session = self._session()
        return "no slot yet" if session is None else session.pipes.refusal(peer_id, hello)
