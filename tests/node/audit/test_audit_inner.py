"""What level 3 makes of what it replayed, or could not: nothing that is open reads as success."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dlx.node.audit.inner import Replayed, _count
from dlx.node.audit.report import Report, Training
from dlx.node.audit.request import AuditRequest, ReplayChoice
from dlx.node.audit.run import audit_from
from dlx.node.audit.sources.blobs import Folder
from dlx.node.audit.watch import _line
from dlx.node.round.challenges.draw import Drawn
from dlx.node.round.challenges.verdicts import Finding
from dlx.training.recipe.recipe import Audit
from tests.history_builder import History, Network

pytest_plugins = ["tests.history_builder"]

HONEST, DISPUTED = Replayed(Finding.HONEST), Replayed(Finding.HONEST, disputed=True)
FALSE, WITHHELD, UNKNOWN = Replayed(Finding.FALSE), Replayed(Finding.WITHHELD), Replayed(None)


@pytest.mark.parametrize(
    ("found", "convicted", "verdict"),
    [
        (HONEST, False, "PASS"),
        (HONEST, True, "PASS"),  # whatever the members say
        (DISPUTED, False, "WARN"),
        (WITHHELD, False, "WARN"),
        (WITHHELD, True, "FAIL"),
        (FALSE, False, "FAIL"),
        (UNKNOWN, False, "SKIP"),
    ],
)
def test_each_finding_has_its_verdict(found: Replayed, convicted: bool, verdict: str) -> None:
    assert found.verdict(convicted) == verdict


@pytest.mark.parametrize(
    ("stages", "word", "segments"),
    [
        ([HONEST, HONEST], "honest", 1),
        ([HONEST, DISPUTED], "disputed", 1),
        ([DISPUTED, UNKNOWN], "unknown", 0),
        ([UNKNOWN, WITHHELD], "withheld", 0),
        ([WITHHELD, FALSE], "false", 1),
    ],
)
def test_a_replica_round_is_what_the_worst_of_its_stages_is(stages: list[Replayed], word: str, segments: int) -> None:
    training = Training(total=4, segments=32, drawn=1, chosen=1)
    _count(training, [(_drawn(stage), found) for stage, found in enumerate(stages)])
    assert (getattr(training, word), training.replayed, training.replayed_segments) == (1, segments, segments)
    assert str(training).endswith("replayed, all honest" if word == "honest" else f"replayed, 1 {word}")


def test_what_is_not_drawn_or_not_served_is_not_established(history_network: Network, tmp_path: Path) -> None:
    history = history_network.run("drawn", audit=Audit(share=1.0))
    withheld = _audit(history, tmp_path / "withheld", rounds=range(1))
    assert withheld.training == Training(total=6, segments=6, drawn=2, chosen=2, withheld=2), withheld.text()
    assert (withheld.exit_code, withheld.verdict.outer_steps) == (4, "PASS")
    nothing = _audit(history, tmp_path / "nothing", rounds=range(90, 92))
    assert nothing.verdict.training == "0 of 6 replica-rounds, 0 of 6 segments replayed, none drawn"
    assert nothing.exit_code == 4
    assert "anything about the training: nothing was drawn of rounds 90 to 91" in nothing.not_established
    partly = _audit(history, tmp_path / "partly", rounds=range(10**9))
    seen = partly.training.drawn // 2  # as many rounds as the chain has had blocks for
    assert 1 <= seen <= 3 and partly.exit_code == 4
    assert f"SKIP training: not sealed, or not drawn yet: rounds {seen} to 999999999" in partly.text().splitlines()
    other = _audit(history, tmp_path / "other", rounds=range(1), replica=7)
    assert other.verdict.training == "0 of 6 replica-rounds, 0 of 6 segments replayed, none chosen"
    assert other.exit_code == 4 and other.training.drawn == 2
    assert "SKIP training: nothing was chosen of what was drawn" in other.text()


def test_what_can_replay_nothing_says_so(history_network: Network, tmp_path: Path) -> None:
    history = history_network.run("drawn", audit=Audit(share=1.0))
    report = audit_from([], tmp_path, history.client(), AuditRequest(history.run, replay=ReplayChoice()))
    assert report.verdict.training == "nothing replayed" and report.exit_code == 4


@pytest.mark.parametrize(("convicted", "verdict"), [(False, "WARN"), (True, "FAIL")])
def test_who_watches_has_the_verdict_of_the_audit(convicted: bool, verdict: str) -> None:
    assert _line(_drawn(0), WITHHELD, convicted).verdict == verdict


def _audit(history: History, work: Path, **choice: Any) -> Report:
    work.mkdir()
    sources = [Folder(history.blobs, own=False)]
    return audit_from(sources, work, history.client(), AuditRequest(history.run, replay=ReplayChoice(**choice)))


def _drawn(stage: int) -> Drawn:
    return Drawn(2, 0, stage, 5, "0x" + "11" * 20, bytes(32), bytes(32), frozenset())
