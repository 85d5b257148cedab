"""What was drawn of the newest rounds, as the chain's blocks say; drawn anew where these change."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import trio

from dlx.ledger.errors import LedgerError
from dlx.ledger.events import Sealed
from dlx.node.daemon.chain.follower import ChainSeen, Follower
from dlx.node.daemon.observable import Observable
from dlx.node.daemon.supervisor import ReportHealthy
from dlx.node.home import logs
from dlx.node.round.challenges.draw import Drawn, draw_block, drawable, drawn_of, seals_of
from dlx.training.recipe.manifest import Manifest
from dlx.training.slot.segments import segment_steps

SETTLED = 24  # blocks above the draw's: the hash is asked for once more then, and stays
log = logs.get(__name__)


@dataclass(frozen=True)
class RoundDraw:
    """One round's; nothing may have been drawn of it."""

    since: float  # the chain's time when it became known here
    drawn: tuple[Drawn, ...]
    block: int  # whose hash drew
    block_hash: bytes
    seals: tuple[tuple[bytes, bytes], ...]  # digest and block hash of each
    settled: bool = False
    redrawn: bool = False  # makers may have removed what is drawn now


class Draws:
    """`rounds` has the rounds of the manifest's window whose draw is known; each value is a new mapping.

    `block_hash(number)` asks the chain, and blocks; None where there is no such block. `now`: the chain's time.
    """

    def __init__(
        self,
        follower: Follower,
        manifest: Manifest,
        block_hash: Callable[[int], bytes | None],
        now: Callable[[], float],
    ) -> None:
        self.rounds: Observable[Mapping[int, RoundDraw]] = Observable({})
        self._follower, self._manifest, self._block_hash, self._now = follower, manifest, block_hash, now

    def __iter__(self) -> Iterator[Drawn]:
        """Everything drawn, oldest first."""
        known = self.rounds.value
        return (one for round in sorted(known) for one in known[round].drawn)

    async def run(self, report_healthy: ReportHealthy) -> None:
        """Raises LedgerError where the chain does not answer."""
        async for seen in self._follower.seen.values():
            if seen is not None and seen.view.created:
                await self._look(seen)
                report_healthy()

    async def _look(self, seen: ChainSeen) -> None:
        before, known = self.rounds.value, dict[int, RoundDraw]()
        for round in drawable(seen.view, self._manifest.audit.window):
            seals = seals_of(seen.view, round)
            found = None if seals is None else await self._draw(seen, seals, before.get(round))
            if found is not None:
                known[round] = found
        if known != before:
            self.rounds.set(known)

    async def _draw(self, seen: ChainSeen, seals: tuple[Sealed, ...], before: RoundDraw | None) -> RoundDraw | None:
        head = seen.head.block
        audit, named = self._manifest.audit, tuple((seal.digest, seal.at.block_hash) for seal in seals)
        block = draw_block(seals, audit.draw_after)
        same = before is not None and (before.block, before.seals) == (block, named)
        settles = head >= block + max(SETTLED, self._manifest.confirmations)
        if before is not None and same and (before.settled or not settles):
            return before
        if head < block + self._manifest.confirmations:
            return None
        try:
            found = seen.recent.get(block) or await trio.to_thread.run_sync(
                self._block_hash, block, abandon_on_cancel=True
            )
        except LedgerError as error:
            log.debug("no block hash", block=block, error=str(error))
            return before if same else None
        if found is None:
            return before if same else None
        since = before.since if before is not None and same and before.block_hash == found else self._now()
        if same and before is not None and before.block_hash != found:
            log.warning("the chain took back the block that drew a round: drawn anew", round=seals[0].round)
        drawn = drawn_of(seals, found, audit.share, segment_steps(self._manifest))
        redrawn = before is not None and (before.redrawn or before.drawn != drawn)
        return RoundDraw(since, drawn, block, found, named, settles, redrawn)
