"""What comes in from peers goes to whom it is for.

Gossip, and questions about messages, go to the sessions of the moment: of our slot and of stages that we vouch for.
Pipes go to our slot's session, verdicts to the verifier, evaluations to whoever goes on with them."""

from collections.abc import Callable, Collection, Iterable

import trio

from dlx.node.daemon.challenges.verifier import Verifier
from dlx.node.daemon.evaluation.evaluating import Evaluating
from dlx.node.daemon.messages import Heard
from dlx.node.daemon.slot.session import Session
from dlx.node.daemon.supervisor import ReportHealthy
from dlx.node.daemon.vouching.vouching_session import VouchingSession
from dlx.p2p import wire
from dlx.p2p.gossip import Gossip
from dlx.p2p.host import Host
from dlx.p2p.message_sync import MessageSync
from dlx.p2p.pipe import PipeService


class Inbound:
    """Made before the host runs. `session()` is the one that holds our slot now, or None; likewise `verifier()` and
    `evaluating()`. `vouching()`: the sessions of the stages that we vouch for."""

    def __init__(
        self,
        host: Host,
        gossip: Gossip,
        session: Callable[[], Session | None],
        vouching: Callable[[], Collection[VouchingSession]],
        verifier: Callable[[], Verifier | None],
        evaluating: Callable[[], Evaluating | None],
    ) -> None:
        self._gossip, self._session, self._vouching, self._verifier = gossip, session, vouching, verifier
        self._evaluating = evaluating
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
            sessions, verifier = self._sessions(), self._verifier()
            if isinstance(item.message, wire.VerdictMessage):
                if verifier is not None:
                    verifier.take(item.message, item.origin)
                continue
            if isinstance(item.message, wire.EvaluationMessage):
                if (evaluating := self._evaluating()) is not None:
                    evaluating.take(item.message, item.origin)
                continue
            for session in sessions:
                session.on_gossip(item)
                report_healthy()

    def hear(self, data: bytes, source: str) -> Heard | None:
        """A message that came otherwise than by gossip; None where nobody listens yet."""
        sessions = [session for session in self._sessions() if session.machine is not None]
        verifier, evaluating = self._verifier(), self._evaluating()
        if not sessions:
            return None
        try:
            message = wire.decode(data)
        except wire.WireError:
            return Heard.JUNK
        match message:
            case wire.VerdictMessage():
                return Heard.NO_NEWS if verifier is None else verifier.take(message, source)
            case wire.EvaluationMessage():
                return Heard.NO_NEWS if evaluating is None else evaluating.take(message, source)
        if not isinstance(message, wire.GossipMessage):
            return Heard.JUNK
        about = None if isinstance(message, wire.ContributionMessage) else message.stage
        whose = [session for session in sessions if about in (None, session.stage)] or sessions[:1]
        return max(session.hear(data, source) for session in whose)

    def said(self, account: str | None) -> list[bytes]:
        """The messages that others may want now, or those of one account: of open rounds first."""
        found = dict.fromkeys(message for session in self._sessions() for message in session.pool.said(account))
        verifier, evaluating = self._verifier(), self._evaluating()
        found |= dict.fromkeys(map(wire.encode, verifier.said(account) if verifier else ()))
        found |= dict.fromkeys(map(wire.encode, evaluating.said(account) if evaluating else ()))
        return list(found)

    def _sessions(self) -> list[Session | VouchingSession]:
        session = self._session()
        return [*([] if session is None else [session]), *self._vouching()]

    def _beyond(self, request: wire.RecordsRequest) -> Iterable[bytes]:
        """What the session of that stage has, else what another has of its contributions."""
        sessions = sorted(self._sessions(), key=lambda session: session.stage != request.stage)
        return sessions[0].pool.beyond(request) if sessions else ()

    def _refusal(self, peer_id: str, hello: wire.PipeHello) -> str | None:
        session = self._session()
        return "no slot yet" if session is None else session.pipes.refusal(peer_id, hello)
