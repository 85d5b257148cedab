"""Follows the chain: the run and the registered nodes as its events say, rebuilt whenever they cannot be trusted."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from random import Random

import trio

from dlx.ground.backoff import Backoff
from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerUnavailable, WrongLedger
from dlx.ledger.index.event_index import Head
from dlx.ledger.index.log_reader import IndexLost
from dlx.ledger.keys import peer_id_to_base58
from dlx.ledger.view.node_registry import NodeTable
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.chain.clock import ChainClock
from dlx.node.daemon.observable import Observable
from dlx.node.daemon.supervisor import ReportHealthy
from dlx.node.home import logs
from dlx.node.home.errors import UsageFailure

TELLS_SECONDS = 10.0  # for which the chain node is asked to wait for a block
GAP = 0.1  # seconds between two looks, however fast blocks come
STEP = 0.5  # seconds after which it is reconsidered when to look again
_HEADS = 16  # from which the time between blocks is reckoned
SILENCE = Backoff(0.5, 5.0)  # while the chain does not answer
QUICK = 0.4  # seconds between two looks at least
RARE = 30.0  # and at most
NOTICE = 4  # looks in the time that the run gives to answer an accusation, or to a round
log = logs.get(__name__)


@dataclass(frozen=True)
class ChainSeen:
    """The chain at `head`: nobody changes what is in here any more."""

    view: RunView
    nodes: NodeTable
    head: Head
    recent: Mapping[int, bytes] = field(default_factory=dict)  # hashes of some of the newest blocks, by number

    def peer_of(self, account: str) -> str | None:
        """The libp2p peer id that the account registered."""
        node = self.nodes.nodes.get(account)
        return None if node is None else peer_id_to_base58(node.peer_id)

    def peers(self) -> dict[str, tuple[str, ...]]:
        """Peer id -> addresses, of the members of the run's slots, of its creator, who serves its public blobs, and of
        its founders, whose signatures its first seals need."""
        named = {*self.view.members(), self.view.creator, *self.view.founders} if self.view.created else ()
        nodes = [self.nodes.nodes[account] for account in named if account in self.nodes.nodes]
        return {peer_id_to_base58(node.peer_id): node.multiaddrs for node in nodes}


class Follower:
    """`seen` is None until the chain has answered for the first time.

    `run` raises LedgerError for answers that do not fit what came before: run it again, and it reads all events anew;
    what was seen last stays until then. It raises UsageFailure for another chain, or other contracts.
    """

    def __init__(
        self, client: LedgerClient, run: bytes, clock: ChainClock, is_awaited: Callable[[], bool] = lambda: True
    ) -> None:
        """`is_awaited`: whether anything of this node waits for the chain now."""
        self.seen: Observable[ChainSeen | None] = Observable(None)
        self.silence: str | None = None  # why the chain does not answer
        self._client, self._run, self._clock, self._is_awaited = client, run, clock, is_awaited
        self._heads, self._seen_at = deque[Head](maxlen=_HEADS), 0.0  # the newest, and when the last was seen
        self._confirmations, self._seals = 0, 1
        self._generation, self._random = trio.CancelScope(), Random()

    @property
    def late(self) -> float:
        """Seconds that the chain's answers take to come here."""
        return self._client.rpc.late

    def confirm(self, confirmations: int, seals: int) -> None:
        """From here on events count only below so many blocks, and the view has so many of a stage's newest seals; the
        events are read again from the start."""
        if (confirmations, seals) != (self._confirmations, self._seals):
            self._confirmations, self._seals = confirmations, seals
            self.seen.set(None)  # what was seen may yet be taken back
            self._generation.cancel()

    async def first(self) -> ChainSeen:
        """What is seen, as soon as there is anything."""
        async for seen in self.seen.values():
            if seen is not None:
                return seen
        raise AssertionError("values never end")

    async def run(self, report_healthy: ReportHealthy) -> None:
        while True:
            with trio.CancelScope() as self._generation:
                await self._follow(report_healthy)

    async def _follow(self, report_healthy: ReportHealthy) -> None:
        feed, head, failures = self._client.follow(self._run, self._confirmations, self._seals), None, 0
        whole, stale, lost = False, True, False  # lost: what was read, not by the chain
        while True:
            try:
                asked = trio.current_time()
                poll = partial(self._client.poll, feed, TELLS_SECONDS)
                update = await trio.to_thread.run_sync(poll, abandon_on_cancel=True)
            except WrongLedger as error:
                raise UsageFailure(f"{error}: check --rpc-url, --chain-id and --ledger") from error
            except IndexLost as error:
                log.warning(str(error))
                whole, lost = False, True
                continue
            except LedgerUnavailable as error:
                self._fall_silent(str(error))
                failures += 1
                await trio.sleep(SILENCE.delay(failures, self._random))
                continue
            failures = 0
            if self.silence is not None:
                self.silence = None
                log.info("the chain answers again")
            if update.reorg:
                whole = False
                if not lost:  # else it is another index that has not as much yet
                    log.warning("the chain was reorganised: what it took back is forgotten")
            lost = False
            is_news = not self._heads or update.head.hash != self._heads[-1].hash
            if is_news:
                self._heads.append(update.head)
                self._seen_at = trio.current_time()
                self._see_time(update.head)
            whole, stale = whole or update.complete, stale or update.changed or update.head != head
            if whole and stale:  # not half of a run
                head, stale = update.head, False
                self.seen.set(ChainSeen(update.view.copy(), update.nodes.copy(), head, update.recent))
            report_healthy()
            await self._pause(asked, is_news)

    async def _pause(self, asked: float, is_news: bool) -> None:
        """Until it is time to look again; `asked`: when the last look began."""
        if self._client.tells:
            await trio.sleep_until(max(trio.current_time(), asked + (GAP if is_news else QUICK)))
            return
        seen, looked = self._seen_at, trio.current_time()
        while True:
            now = trio.current_time()
            left = looked + next_look(self._spacing(), now - seen, self._is_awaited(), self._notice()) - now
            if left <= 0:
                return
            await trio.sleep(min(left, STEP))

    def _spacing(self) -> float | None:
        """The least time between blocks lately: some chains make them when there is something to put in."""
        pairs = [(one, two) for one, two in pairwise(self._heads) if two.block > one.block]
        return min(((two.time - one.time) / (two.block - one.block) for one, two in pairs), default=None)

    def _notice(self) -> float:
        """Seconds that the run gives to answer an accusation, or to a round."""
        seen = self.seen.value
        if seen is None or not seen.view.created:
            return 0.0
        return float(min(seen.view.config.eviction_time, seen.view.config.round_timeout))

    def _fall_silent(self, reason: str) -> None:
        if self.silence is None:
            log.warning("the chain does not answer; whatever needs no chain goes on", error=reason)
        self.silence = reason

    def _see_time(self, head: Head) -> None:
        was_skewed = self._clock.is_skewed
        self._clock.see(head.time)
        if self._clock.is_skewed and not was_skewed:
            log.warning(
                "this machine's clock and the chain's differ; the chain's counts", seconds=round(self._clock.skew)
            )


def next_look(spacing: float | None, since_block: float, is_awaited: bool, notice: float) -> float:
    """Seconds after the last look.

    `spacing`: seconds between the newest blocks, None where that is not known yet; `since_block`: since we saw the
    newest; `is_awaited`: whether anything here waits for the chain; `notice`: seconds that the run gives to answer.
    A block that is late is looked for eight times in the time of one.
    """
    if spacing is None:
        return QUICK
    due = max(QUICK, spacing / 8, spacing - since_block)
    return due if is_awaited else max(due, min(RARE, notice / NOTICE))
