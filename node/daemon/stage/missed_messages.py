"""Messages that gossip did not bring are asked for: those of a stage of one who holds it, again and again, but the more
seldom the longer nothing changes."""

from collections.abc import Callable
from random import Random

import trio

from dlx.ground.backoff import Backoff
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.messages import Heard, contributions_topic, seals_topic
from dlx.node.daemon.stage.message_pool import MessagePool
from dlx.node.home import logs
from dlx.p2p import wire
from dlx.p2p.gossip import Gossip
from dlx.p2p.message_sync import MessageSync
from dlx.p2p.streams import StreamBroken

ASK_SECONDS = 2.0  # between two questions while messages come
log = logs.get(__name__)


class MissedMessages:
    """`hear(data, peer)` takes what comes, and says what it was. `view` is the newest. `longest`:
    seconds between two questions where nothing changes."""

    def __init__(
        self,
        gossip: Gossip,
        messages: MessageSync,
        pool: MessagePool,
        view: Callable[[], RunView],
        hear: Callable[[bytes, str], Heard],
        longest: float,
    ) -> None:
        self._gossip, self._messages, self._pool, self._view, self._hear = gossip, messages, pool, view, hear
        self._random, self._waits = Random(), Backoff(ASK_SECONDS, max(ASK_SECONDS, longest))

    async def run(self) -> None:
        """Until it is cancelled; never raises."""
        before, quiet, due = None, 0, 0.0
        while True:
            wanted = self._pool.wanted(self._view())
            held = [(place, frozenset(self._pool.ids(*place))) for place in wanted]
            if held != before:
                before, quiet, due = held, 0, 0.0
            if trio.current_time() >= due:
                for place in wanted:
                    await self._ask(*place)
                quiet += 1
                due = trio.current_time() + self._waits.delay(quiet, self._random)
            await trio.sleep(ASK_SECONDS * (0.75 + 0.5 * self._random.random()))

    def _choose(self, stage: int) -> str | None:
        """One of the stage, as they all know its makers; any member where there is none."""
        run = self._view().run
        peers = self._gossip.neighbours(seals_topic(run, stage)) or self._gossip.neighbours(contributions_topic(run))
        return self._random.choice(peers) if peers else None

    async def _ask(self, stage: int, round: int, seals: bool) -> None:
        peer = self._choose(stage)
        if peer is None:
            return
        try:
            found = await self._messages.ask(peer, stage, round, seals, self._pool.ids(stage, round, seals))
        except (StreamBroken, trio.TooSlowError, wire.WireError) as error:
            log.debug("no messages", peer=peer, error=repr(error))
            return
        for data in found:
            if self._hear(data, peer) is Heard.JUNK:
                return  # who has it in its pool has checked it
            await trio.sleep(0)
