"""What the attack suite's table says of those whom a rule of the statements or the policy stops, in real runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlx.node.round.rules.plans import RESETS
from tests.attacks.lies import LIES
from tests.attacks.runs import Arena

pytestmark = pytest.mark.slow


def test_who_resets_in_every_round_is_soon_counted_no_more(tmp_path: Path) -> None:
    """Its first contribution, four resets, and the one that follows the fourth at once."""
    with Arena(tmp_path / "run", share=0.25, honest=2) as arena:
        found = arena.play(LIES["resets"], rounds=RESETS + 10)
    assert 0 < 2 * found.liars_counted <= found.rounds
    assert found.refused["too_many_resets"]
    assert "attesters: too_many_resets" in found.row()["noticed_by"]
    assert (found.noticed, found.blamed, found.lost) == (None, 0, 0), "what it trained is honest work"


@pytest.fixture(scope="module")
def unwatched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """Where nothing is drawn, without a delay."""
    with Arena(tmp_path_factory.mktemp("attacks") / "run", share=1e-6, honest=2, delay=0) as arena:
        yield arena


def test_who_takes_all_steps_of_its_first_round_is_not_counted(unwatched: Arena) -> None:
    found = unwatched.play(LIES["all-steps"], rounds=4)
    assert found.rounds >= 4 and found.liars_counted == found.blamed == 0
    assert "attesters: wrong_steps" in found.row()["noticed_by"]


def test_a_payload_of_any_length_counts_for_nothing_whoever_proposes(unwatched: Arena) -> None:
    """Nor does a liar without a delay, who starts from the version as it lies there, do honest work only."""
    found = unwatched.play(LIES["own-multiplier"], rounds=12)
    assert found.rounds >= 12 and found.blamed == 0
    assert found.liars_counted and found.liars_multiplier == 0, "whoever proposed"
    assert found.refused["wrong_seal"], "it proposed, and was refused"
