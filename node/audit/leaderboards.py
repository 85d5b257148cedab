"""Leaderboards, read: of the index, of the blocks that drew, and of the verdicts that nodes of some folders have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from dlx.ledger.client import LedgerClient
from dlx.ledger.index import seal_rows
from dlx.ledger.index.event_index import EventIndex
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.drawn_work import Draws, Verdicts
from dlx.node.round.challenges.draw import MOST_WINDOW, drawable
from dlx.node.runs import find
from dlx.node.runs.held_out import losses_of, read_held_out
from dlx.node.runs.leaderboard import Leaderboard, Work, improvement, leaderboard
from dlx.training.recipe.manifest import Manifest

_SECONDS = 20.0  # to ask for the blocks that draw, of one run


def read_leaderboard(
    index: EventIndex,
    view: RunView,
    manifest: Manifest | None,
    draws: Draws,
    verdicts: Verdicts,
    work: Work,
    improved: Mapping[str, float] | None,
    seconds: float,
) -> Leaderboard:
    """`work`: see `work_of`; `improved`: see `improvement_of`.

    Drawn work is that of the newest rounds, from the first on of which a verdict was heard: as many of them as the
    chain node says the draw of in so many seconds.
    """
    rounds, head = drawable(view, MOST_WINDOW), index.tip
    heard = verdicts.about(view.run, rounds, whole=True) if verdicts.heard(view.run) else None
    if heard:
        rounds = range(heard[0].report.round, rounds.stop)
    drawn = None
    if manifest is not None and head is not None:
        drawn = draws.of(view, manifest, reversed(rounds), head, seconds)
    return leaderboard(view, work.by_account(), drawn, heard, improved)


def work_of(index: EventIndex, view: RunView) -> Work:
    """What the seals of all rounds count that every stage has sealed."""
    found, rounds = Work(), min(view.next_round(stage) for stage in range(view.config.stages))
    for row in takewhile(lambda row: row.round < rounds, seal_rows.read(index, view.run)):
        found.add(row)
    return found


def improvement_of(index: EventIndex, view: RunView, losses: Mapping[int, float]) -> dict[str, float] | None:
    """`improvement` by the held-out losses that the ledger has, nats by version; None where there are not two."""
    if len(losses) < 2:
        return None
    last = max(losses)
    rows = takewhile(lambda row: row.round < last, seal_rows.read(index, view.run, min(losses)))
    return improvement(rows, losses)


class LeaderboardReader:
    """Of runs of one ledger, for who looks once. `folders`: where blobs of nodes lie, and beside them their verdicts.

    For one thread.
    """

    def __init__(self, client: LedgerClient, index: EventIndex, folders: Sequence[Path]) -> None:
        self._client, self._index, self._folders = client, index, folders
        self._draws, self._verdicts = Draws(client), Verdicts(folders, client.domain)

    def read(self, view: RunView) -> Leaderboard:
        """Raises LedgerError."""
        manifest = find.read_manifest(view, self._folders)
        record = {} if manifest is None else read_held_out(self._client, view, manifest)
        improved, work = improvement_of(self._index, view, losses_of(record)), work_of(self._index, view)
        return read_leaderboard(self._index, view, manifest, self._draws, self._verdicts, work, improved, _SECONDS)
