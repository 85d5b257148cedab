"""What comes in from peers goes to the session of the moment, if there is one: gossip, questions about messages, and
pipes from a neighbour; verdicts go to the verifier."""

from collections.abc import Callable, Iterable

import trio

from dlx.node.daemon.challenges.verifier import Verifier
from dlx.node.daemon.slot.session import Session
from dlx.node.daemon.supervisor import ReportHealthy
from dlx.p2p import wire
from dlx.p2p.gossip import Gossip
from dlx.p2p.host import Host
from dlx.p2p.message_sync import MessageSync
from dlx.p2p.pipe import PipeService


class Inbound:
    """Made before the host runs. `session()` is the one that holds our slot now, or None; likewise `verifier()`."""

    def __init__(
        self, host: Host, gossip: Gossip, session: Callable[[], Session | None], verifier: Callable[[], Verifier | None]
    ) -> None:
        self._gossip, self._session, self._verifier = gossip, session, verifier
        self.pipes = PipeService(host, self._refusal)
        self.messages = MessageSync(host, self._beyond)

    async def run(self, report_healthy: ReportHealthy) -> None:
        """Raises what the session does with something; that is gone then, and run again it goes on with the next."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_gossip, report_healthy)
            async for pipe in self.pipes.incoming:
                session = self._session()
                if session is None or not session.take_pipe(pipe):
                    nursery.start_soon(pipe.aclose)

    async def _read_gossip(self, report_healthy: ReportHealthy) -> None:
        async for item in self._gossip.messages:
            session, verifier = self._session(), self._verifier()
            if isinstance(item.message, wire.VerdictMessage):
                if verifier is not None:
                    verifier.take(item.message, item.origin)
            elif session is not None:
                session.on_gossip(item)
                report_healthy()

    def _beyond(self, request: wire.RecordsRequest) -> Iterable[bytes]:
        session = self._session()
        return () if session is None else session.pool.beyond(request)

    def _refusal(self, peer_id: str, hello: wire.PipeHello) -> str | None:
        session = self._session()
        return "no slot yet" if session is None else session.pipes.refusal(peer_id, hello)
