"""What a buyer of a model asks of its training: silence is no success."""

from dataclasses import replace

import pytest

from dlx.node.audit.report import UNMET, Report, Training

HONEST = Training(replica_rounds=8, segments=40, drawn=12, chosen=12, honest=12, replayed=12, required=12)


@pytest.mark.parametrize(
    ("training", "met"),
    [
        (HONEST, True),
        (replace(HONEST, required=13), False),
        (replace(HONEST, honest=11, withheld=1, required=11), False),
        (replace(HONEST, honest=11, chosen=11, required=11), False),  # drawn, and not looked at
        (Training(chosen=0, required=1), False),  # nothing was drawn
        (replace(HONEST, honest=0, withheld=12, required=0), True),
    ],
)
def test_a_requirement_is_met_by_honest_segments_and_all_that_was_drawn(training: Training, met: bool) -> None:
    assert training.met == met
    assert ("honest segments required" in str(training)) != met


def test_what_is_required_and_not_there_has_an_exit_code_of_its_own() -> None:
    report = Report(bytes(32), training=replace(HONEST, required=13))
    report.add(3, "required segments", "WARN")
    assert report.exit_code == UNMET and not report.established and not report.failed
    report.add(2, "replay", "FAIL")
    assert report.exit_code == 1, "what is false is worse"
    report = Report(bytes(32), training=HONEST)
    report.add(3, "required segments", "PASS")
    assert report.established
