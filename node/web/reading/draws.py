"""Which work was drawn for a replay: asked of the chain node block by block, for the rounds that somebody looks at."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerError
from dlx.ledger.index.event_index import Head
from dlx.ledger.view.run_view import RunView
from dlx.node.round.challenges.draw import draw_block, drawn_of, seals_of
from dlx.training.recipe.manifest import Manifest
from dlx.training.slot.segments import segment_steps

Drawn = Mapping[int, frozenset[int]]  # round -> its drawn replicas; a round that is missing is not known (yet)
_SETTLED = 64  # blocks above it, after which the hash of a block is not asked for again
_KEPT = 50_000  # rounds of all runs


class Draws:
    """For one thread at a time."""

    def __init__(self, client: LedgerClient) -> None:
        self._client = client
        self._settled: dict[tuple[bytes, int], frozenset[int]] = {}

    def of(self, view: RunView, manifest: Manifest, rounds: Iterable[int], head: Head, seconds: float) -> Drawn:
        """What was drawn of these rounds, as far as it can be asked in so many seconds."""
        until, found = time.monotonic() + seconds, dict[int, frozenset[int]]()
        for round in rounds:
            known = self._settled.get((view.run, round))
            if known is None and time.monotonic() < until:
                known = self._ask(view, manifest, round, head)
            if known is not None:
                found[round] = known
        return found

    def _ask(self, view: RunView, manifest: Manifest, round: int, head: Head) -> frozenset[int] | None:
        seals = seals_of(view, round)
        if seals is None:
            return None
        block = draw_block(seals, manifest.audit.draw_after)
        if head.block < block + manifest.confirmations:
            return None
        try:
            hash = self._client.block_hash(block)
        except LedgerError:
            return None
        if hash is None:
            return None
        drawn = drawn_of(seals, hash, manifest.audit.share, segment_steps(manifest))
        found = frozenset(one.replica for one in drawn)
        if head.block >= block + max(_SETTLED, manifest.confirmations):
            if len(self._settled) >= _KEPT:
                self._settled.clear()
            self._settled[view.run, round] = found
        return found
