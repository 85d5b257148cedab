"""A watch against a chain that is made up: what is drawn has a line, and the sum leaves nothing out."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dlx.ledger.errors import Contradiction
from dlx.node.audit import watch as watches
from dlx.node.audit.inner import Replayed
from dlx.node.audit.replay_choice import ReplayChoice
from dlx.node.audit.sources.blobs import Blobs, Folder
from dlx.node.audit.watch import Tally, Watch, WatchLine, WatchSum
from dlx.node.audit.watched import Seen
from dlx.node.cli.auditing.endings import ends_as_interrupted
from dlx.node.round.challenges.verdicts import Finding
from dlx.training.recipe.recipe import Audit
from tests.history_builder import History, Network

pytest_plugins = ["tests.history_builder"]

HASH = b"\x07" * 32


class MadeChain:
    """The whole run, up to its end; block hashes are made up."""

    def __init__(self, history: History, hash_: bytes | None = HASH, final: bool = False) -> None:
        self._seen, self._hash, self.looks = Seen(history.view(), 10**6, final), hash_, 0

    def look(self) -> Seen | None:
        self.looks += 1
        return self._seen if self.looks > 1 else None  # silent at first

    def block_hash(self, number: int) -> bytes | None:
        if self._hash is None:
            raise Contradiction("they disagree")
        return self._hash


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, int, int], list[Replayed]]:
    """What replays come to, in turn, by round, replica and stage; all else is honest."""
    told: dict[tuple[int, int, int], list[Replayed]] = {}

    class Replayer:
        def __init__(self, *_: Any) -> None:
            pass

        def check(self, view: Any, drawn: Any) -> Replayed:
            left = told.get((drawn.round, drawn.replica, drawn.stage))
            return left.pop(0) if left else Replayed(Finding.HONEST)

    monkeypatch.setattr(watches, "Replayer", Replayer)
    monkeypatch.setattr(watches, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(watches, "RETRY_SECONDS", 0.0)
    return told


@pytest.fixture(scope="session")
def drawn_history(history_network: Network) -> History:
    """Of whose 3 rounds all is drawn: 12 contributions."""
    return history_network.run("watched", audit=Audit(share=1.0))


def _watch(history: History, folder: Path, chain: Any, steps: list[str]) -> Watch:
    return Watch(chain, ReplayChoice(), Blobs([Folder(history.blobs, own=False)], folder), steps.append, steps.append)


def test_every_drawn_contribution_has_a_line_and_is_announced(
    drawn_history: History, tmp_path: Path, replays: dict[tuple[int, int, int], list[Replayed]]
) -> None:
    late = Replayed(Finding.WITHHELD, ("nobody gives it",))
    replays[1, 0, 0] = [late, late, Replayed(Finding.HONEST)]
    replays[2, 1, 1] = [Replayed(Finding.FALSE, ("it is none",))]
    replays[0, 1, 0] = [Replayed(None, ("a shard is gone",))]
    steps: list[str] = []
    watch, tally = _watch(drawn_history, tmp_path, MadeChain(drawn_history), steps), Tally()
    lines = list(watch.lines())
    for line in lines:
        tally.add(line)
    assert len({(line.round, line.replica, line.stage, line.segment) for line in lines}) == len(lines) == 12
    found = tally.sum(watch.waiting)
    assert found == WatchSum(drawn=12, honest=10, false=1, withheld=0, unknown=1, not_looked_at=0, exit_code=1)
    assert str(found) == ("12 drawn segments: 10 honest, 1 false, 0 withheld, 1 unknown, 0 not looked at")
    assert steps[0] == "12 more segments are drawn, 12 to be looked at"
    assert len([step for step in steps if "looking at" in step]) == 12 + 2, "each replay is announced as it begins"
    assert "100%" not in steps[-1] and "11 of 12 drawn segments are done" in steps[-1]


def test_a_pinned_watch_ends_with_what_was_drawn(
    drawn_history: History, tmp_path: Path, replays: dict[tuple[int, int, int], list[Replayed]]
) -> None:
    chain = MadeChain(drawn_history, final=True)
    assert len(list(_watch(drawn_history, tmp_path, chain, []).lines())) == 12


def test_nothing_is_believed_where_chain_nodes_disagree(
    drawn_history: History, tmp_path: Path, replays: dict[tuple[int, int, int], list[Replayed]]
) -> None:
    with pytest.raises(Contradiction):
        next(_watch(drawn_history, tmp_path, MadeChain(drawn_history, hash_=None), []).lines())


def test_what_was_not_looked_at_is_in_the_sum() -> None:
    line = WatchLine(
        round=0, replica=0, stage=0, segment=0, account="", statement="", finding="honest", verdict="PASS",
        reasons=(), distances=None,
    )  # fmt: skip
    tally = Tally()
    assert tally.sum(0).exit_code == 4, "nothing was drawn"
    tally.add(line)
    assert tally.sum(0).exit_code == 0
    assert (tally.sum(3).drawn, tally.sum(3).not_looked_at, tally.sum(3).exit_code) == (4, 3, 4)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_is_told_to_end_ends_as_interrupted(number: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), ends_as_interrupted():
        os.kill(os.getpid(), number)
        signal.pause()  # should it arrive late
    assert signal.getsignal(number) == before
