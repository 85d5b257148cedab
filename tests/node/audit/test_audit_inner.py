"""What level 3 makes of what it replayed, or could not: nothing that is open reads as success."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dlx.ground.blobs import write_blob
from dlx.node.audit.inner import Replayed, Replayer, _count
from dlx.node.audit.replay_choice import ReplayChoice
from dlx.node.audit.report import Report, Training
from dlx.node.audit.request import AuditRequest
from dlx.node.audit.run import audit_from
from dlx.node.audit.sources.blobs import Attempt, BlobMissing, Blobs, Folder
from dlx.node.audit.watch import _line
from dlx.node.round.challenges.draw import Drawn, drawn_of, seals_of
from dlx.node.round.challenges.verdicts import Finding
from dlx.training.models.placement import ONE_THREAD
from dlx.training.recipe.recipe import Audit
from tests.history_builder import History, Network

pytest_plugins = ["tests.history_builder"]

HONEST, FALSE = Replayed(Finding.HONEST), Replayed(Finding.FALSE)
WITHHELD, UNKNOWN = Replayed(Finding.WITHHELD), Replayed(None)


@pytest.mark.parametrize(
    ("found", "convicted", "verdict"),
    [
        (HONEST, False, "PASS"),
        (HONEST, True, "PASS"),  # whatever the members say
        (WITHHELD, False, "WARN"),
        (WITHHELD, True, "FAIL"),
        (FALSE, False, "FAIL"),
        (UNKNOWN, False, "SKIP"),
    ],
)
def test_each_finding_has_its_verdict(found: Replayed, convicted: bool, verdict: str) -> None:
    assert found.verdict(convicted) == verdict


@pytest.mark.parametrize(
    ("stages", "word", "replayed"),
    [
        ([HONEST, HONEST], "honest", 1),
        ([HONEST, UNKNOWN], "unknown", 0),
        ([UNKNOWN, WITHHELD], "withheld", 0),
        ([WITHHELD, FALSE], "false", 1),
    ],
)
def test_a_segment_is_what_the_worst_of_its_stages_is(stages: list[Replayed], word: str, replayed: int) -> None:
    training = Training(replica_rounds=4, segments=32, drawn=1, chosen=1)
    _count(training, stages)
    assert (getattr(training, word), training.replayed) == (1, replayed)
    found = "all honest" if word == "honest" else f"1 {word}"
    assert f"replayed, {found}; {32 - replayed} segments not looked at" in str(training)


def test_what_is_not_drawn_or_not_served_is_not_established(history_network: Network, tmp_path: Path) -> None:
    history = history_network.run("drawn", audit=Audit(share=1.0), confirmations=0)
    withheld = _audit(history, tmp_path / "withheld", rounds=range(1))
    assert withheld.training == Training(replica_rounds=6, segments=6, drawn=2, chosen=2, withheld=2), withheld.text()
    assert (withheld.exit_code, withheld.verdict.outer_steps) == (4, "PASS")
    nothing = _audit(history, tmp_path / "nothing", rounds=range(90, 92))
    assert nothing.verdict.training == "0 of 6 segments replayed, none drawn"
    assert nothing.exit_code == 4
    assert "anything about the training: nothing was drawn of rounds 90 to 91" in nothing.not_established
    partly = _audit(history, tmp_path / "partly", rounds=range(10**9))
    seen = partly.training.drawn // 2  # as many rounds as the chain has had blocks for
    assert 1 <= seen <= 3 and partly.exit_code == 4
    assert (
        f"SKIP level 3 training: not sealed, or not drawn yet: rounds {seen} to 999999999" in partly.text().splitlines()
    )
    other = _audit(history, tmp_path / "other", rounds=range(1), replica=7)
    assert other.verdict.training == "0 of 6 segments replayed, none chosen"
    assert other.exit_code == 4 and other.training.drawn == 2
    assert "SKIP level 3 training: nothing was chosen of what was drawn" in other.text()


def test_what_can_replay_nothing_says_so(history_network: Network, tmp_path: Path) -> None:
    history = history_network.run("drawn", audit=Audit(share=1.0), confirmations=0)
    report = audit_from([], tmp_path, history.client(), AuditRequest(history.run, replay=ReplayChoice()))
    assert report.verdict.training == "nothing replayed" and report.exit_code == 4


class _Counted(Folder):
    """Counts what it gave, by name."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, own=False)
        self.given: Counter[str] = Counter()

    def fetch(self, digest: bytes, limit: int, into: Path) -> Attempt:
        found = super().fetch(digest, limit, into)
        self.given[digest.hex()] += found.path is not None
        return found


def test_what_a_rounds_drawn_segments_have_in_common_is_fetched_once_and_kept_until_the_next_round(
    history_network: Network, tmp_path: Path
) -> None:
    history = history_network.run("drawn", audit=Audit(share=1.0), confirmations=0)
    source, view = _Counted(history.blobs), history.view()
    replayer = Replayer(history.manifest, Blobs([source], tmp_path), ONE_THREAD)
    first, second = (drawn_of(seals_of(view, round) or (), bytes(32), 1.0, 20) for round in (0, 1))
    for drawn in (*first, *first):
        assert replayer.check(view, drawn).finding is Finding.WITHHELD  # none of them has states to show
    taken = {name for name, times in source.given.items() if times}
    assert {drawn.statement.hex() for drawn in first} <= taken <= {path.name for path in tmp_path.iterdir()}
    assert max(source.given.values()) == 1
    replayer.check(view, second[0])
    kept = {path.name for path in tmp_path.iterdir()}
    assert second[0].statement.hex() in kept and not {drawn.statement.hex() for drawn in first} & kept


def test_a_working_copy_that_is_too_long_for_what_it_is_asked_as_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "work").mkdir()
    name = write_blob(tmp_path / "from", [bytes(100)])
    blobs = Blobs([Folder(tmp_path / "from", own=False)], tmp_path / "work")
    assert blobs.get(name, 100).read_bytes() == bytes(100)
    with pytest.raises(BlobMissing, match="wrong bytes"):
        blobs.get(name, 99)


@pytest.mark.parametrize(("convicted", "verdict"), [(False, "WARN"), (True, "FAIL")])
def test_who_watches_has_the_verdict_of_the_audit(convicted: bool, verdict: str) -> None:
    assert _line(_drawn(0), WITHHELD, convicted).verdict == verdict


def _audit(history: History, work: Path, **choice: Any) -> Report:
    work.mkdir()
    sources = [Folder(history.blobs, own=False)]
    return audit_from(sources, work, history.client(), AuditRequest(history.run, replay=ReplayChoice(**choice)))


def _drawn(stage: int) -> Drawn:
    return Drawn(2, 0, stage, 5, "0x" + "11" * 20, bytes(32), bytes(32), frozenset())
