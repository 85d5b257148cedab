"""What was drawn of the newest rounds, as the chain's blocks say; drawn anew where these change."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import trio

from dlx.ledger.errors import LedgerError
from dlx.node.daemon.chain.follower import ChainSeen, Follower
from dlx.node.daemon.observable import Observable
from dlx.node.daemon.supervisor import ReportHealthy
from dlx.node.home import logs
from dlx.node.round.challenges.draw import Drawing, Drawn, Known, drawable
from dlx.training.recipe.manifest import Manifest

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
            drawing = Drawing.of(seen.view, self._manifest, round)
            found = None if drawing is None else await self._draw(seen, drawing, before.get(round))
            if found is not None:
                known[round] = found
        if known != before:
            self.rounds.set(known)

    async def _draw(self, seen: ChainSeen, drawing: Drawing, before: RoundDraw | None) -> RoundDraw | None:
        block, named = drawing.block, tuple((seal.digest, seal.at.block_hash) for seal in drawing.seals)
        known = drawing.known(seen.head.block)
        same = before is not None and (before.block, before.seals) == (block, named)
        if before is not None and same and (before.settled or known is not Known.SETTLED):
            return before
        if known is Known.TO_COME:
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
            log.warning("the chain took back the block that drew a round: drawn anew", round=drawing.seals[0].round)
        drawn = drawing.drawn(found)
        redrawn = before is not None and (before.redrawn or before.drawn != drawn)
        return RoundDraw(since, drawn, block, found, named, known is Known.SETTLED, redrawn)
